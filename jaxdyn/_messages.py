"""The text of errors and warnings: numbers without the names of their types, and long names cut."""

import re

_WRAPPED = (
    (re.compile(r"\bnp\.(?:float|int|uint|complex|longdouble|str|datetime|timedelta)\w*\(([^()]*)\)"), r"\1"),
    (re.compile(r"\bnp\.(True|False)_\b"), r"\1"),
    (re.compile(r"\b[Aa]rray\(([^()]*?)(?:, (?:dtype=\w+|weak_type=\w+|shape=\w+))*\)"), r"\1"),
)
"""How NumPy and JAX show numbers, such as `np.float64(1.5)`, and what is left of it in messages."""


def plain_numbers(text: str) -> str:
    """Return a message with numbers as they are read, without the names of their types."""
    for pattern, number in _WRAPPED:
        text = pattern.sub(number, text)
    return text


_WORDS = re.compile(r"""(?<!\w)'(?:[^'\\\n]|\\.)*'(?!\w)|(?<!\w)"(?:[^"\\\n]|\\.)*"(?!\w)|[^\s'"]+""")
"""Texts in quotes, as `repr` writes them, and words."""
LONG, _SHORT, _LONG_PATH = 102, 60, 302
"""The most characters of a word or of a text in quotes that stands whole in messages, the number that is left of a
longer one, and the most of what has a slash and may be a path. A piece of a file that `quote` has cut stays whole."""


def short_names(text: str) -> str:
    """Return a message in which names, and other words and texts in quotes, are cut if they are long."""
    return text if len(text) <= LONG else _WORDS.sub(lambda found: _cut(found[0]), text)


def _cut(word: str) -> str:
    whole, short = (_LONG_PATH, _LONG_PATH) if "/" in word else (LONG, _SHORT)
    if len(word) <= whole:
        return word
    quote = word[-1] if word[0] in "'\"" else ""
    return f"{word[:short]}{quote}... ({len(word) - 2 * len(quote)} characters)"


def plain_message(text: str) -> str:
    """Return a message as people read it."""
    return short_names(plain_numbers(text))
