"""The page of the model zoo: what is compared, the counts of each package, the reasons of refusals, every file."""

from __future__ import annotations

import collections
import re
from typing import TYPE_CHECKING

from experiments._main import version_of

if TYPE_CHECKING:
    from experiments.model_zoo import Config, Outcome

OTHER_CONTACTS = "other contacts"
"""The verdict on a scene that is equal if MuJoCo has the world's contacts of some pairs of geoms."""
NOT_REACHED = "not reached"
"""The verdict on a file that the run did not reach in its time."""
SHOWN = 3
"""The most reasons in a row of the page."""

PAGE = """# Model zoo

This page compares robot files of other projects with Pinocchio (URDF) and scenes with MuJoCo (MJCF), in double
precision.

For URDF files, mass matrix, bias (Coriolis, gravity, springs) and forward dynamics at {states} random states are
compared, without friction. A number is the largest of the three errors, each relative to the largest number of the
answer. Answers are equal if they differ by at most {tolerance:g}. Accelerations may differ by more if the mass matrix
is badly conditioned, up to the effect of rounding; the table then gives its condition number. {gradients}Joints that
mimic others follow their leader. Pinocchio's joints are independent, and are projected on their leaders for the
comparison, `G^T M G`.

MJCF files are compared as whole scenes (`jaxdyn check scene.xml --against mujoco`): accelerations, sensors and a time
step at the initial state, keyframes, {states} random states, {states} of a motion and {states} at limits (of joints,
controls and activations, with violated equalities), and a roll-out of {steps} steps. The number is the largest error of
accelerations, relative to the largest of a state and to at least 1. Answers are equal if they differ by at most
{scene_tolerance:g}, or by at most ten times as much as MuJoCo's change if the state changes by 1e-12. The roll-out must
stay within 1e-5 of MuJoCo's for as long as MuJoCo's own roll-outs from states that differ by 1e-12 stay within 1e-7 of
each other. Where bodies only just touch in most states, rounding says whether there is a contact; there the margins of
contacts and limits are made larger and smaller by 1e-6 for the comparison. Files that MuJoCo does not compile by
themselves, or in which nothing moves, are parts of scenes, or lack their meshes, and count as no scene. Where pairs of
geoms are the only reason to refuse a scene, it is compared once more without contacts.

    python -m experiments.model_zoo

`--folder PATH` compares another folder. A file that takes longer than `--seconds` is named as not in time; its row says
which limit ended it.
"""
CLOSE = 2.5e-10
"""The error of accelerations above which the page names equal scenes."""
GRADIENTS = """For each model that counts as equal, the
gradient of forward dynamics with respect to the state and every array of the model is finite. """
SAMPLE = """The time of the run was limited, and the last column counts the files that it did not reach. It goes through
all files in random order."""
RESUMED = """The run was resumed: outcomes of its earlier parts are kept, also where the library has changed since."""
LARGER = """Accelerations of {close} of the {all} scenes that count as equal differ by at most {limit:g}. Those of the
others differ by more, within the tolerance or ten times the change of MuJoCo's own: {names}."""
CONTACTS = """{number} scenes differ by the places or the number of contacts alone: MuJoCo has the same accelerations
and motion with the world's contacts of the pairs that the tables name, which are no worse by the vertices of the
shapes, for the reasons that stand there
([which there are](coming-from/mujoco.md#what-is-equal-and-to-how-many-digits)). Where the end of a cylinder lies on a
face, MuJoCo has a polygon instead of the circle and takes up to four of its corners. Worlds take up to four places of
the circle, and loading warns of such pairs ([why](coming-from/mujoco.md#contacts-of-cylinders))."""


def page(outcomes: list[Outcome], config: Config, missing: list[str]) -> list[str]:
    """Return the lines of the page."""
    versions = {name: version_of(name) for name in ("jax", "pin", "mujoco")}
    lines = [
        *PAGE.format(**vars(config) | {"gradients": GRADIENTS * config.gradients}).splitlines(),
        "",
        f"{', '.join(f'{name} {version}' for name, version in versions.items() if version)}; "
        f"{sum(o.seconds for o in outcomes) / 60:.1f} min of CPU time, most of it compilation."
        + (f" Not there, left out: {', '.join(missing)}." if missing else ""),
        *["", *counts(outcomes)],
        *[line for text in remarks(outcomes, config) for line in ("", *text.splitlines())],
        *["", "## Reasons of refusals", "", *reasons(outcomes)],
    ]
    for package in dict.fromkeys(o.case.package for o in outcomes):
        left_out = "no scene", NOT_REACHED
        of_package = [o for o in outcomes if o.case.package == package and o.verdict not in left_out]
        if of_package:
            lines += ["", f"## {package}", "", "| file | nv | outcome |", "|---|---|---|"]
            lines += [row(o, config.tolerance) for o in of_package]
    return lines


def counts(outcomes: list[Outcome]) -> list[str]:
    """Return a table of the numbers of verdicts of each package."""
    verdicts = [
        "equal",
        OTHER_CONTACTS,
        "refused",
        "DIFFERENT",
        "FAILED",
        "not in time",
        "not compared",
        "no scene",
        NOT_REACHED,
    ]
    lines = ["| package | cases | " + " | ".join(verdicts) + " |", "|---" * (len(verdicts) + 2) + "|"]
    packages = {name: [o for o in outcomes if o.case.package == name] for name in [o.case.package for o in outcomes]}
    for name, found in (packages | {"all": outcomes}).items():
        of_each = collections.Counter(o.verdict for o in found)
        lines.append(f"| {name} | {len(found)} | " + " | ".join(str(of_each[x]) for x in verdicts) + " |")
    apart = collections.Counter(o.apart_from_contacts for o in outcomes if o.apart_from_contacts)
    if apart:
        lines += ["", "Refused scenes without contacts: " + ", ".join(f"{n} {x}" for x, n in apart.items()) + "."]
    return lines


def remarks(outcomes: list[Outcome], config: Config) -> list[str]:
    """Return what is to be said about the numbers of this run."""
    texts = [SAMPLE] if any(o.verdict == NOT_REACHED for o in outcomes) else []
    texts += [RESUMED] * config.resume
    scenes = [o for o in outcomes if o.case.kind == "mjcf"]
    equal = [o for o in scenes if o.verdict == "equal"]
    others = [f"{o.case.package.split()[0]}'s `{o.case.name}`" for o in equal if o.errors["acceleration"] > CLOSE]
    if others:
        facts = {"close": len(equal) - len(others), "all": len(equal), "limit": CLOSE, "names": ", ".join(others)}
        texts.append(LARGER.format(**facts))
    others = sum(o.verdict == OTHER_CONTACTS for o in scenes)
    return texts + [CONTACTS.format(number=others)] * bool(others)


def reasons(outcomes: list[Outcome]) -> list[str]:
    """Return a table of the reasons of refusals by frequency, without names and numbers."""
    found = collections.Counter(
        reason
        for o in outcomes
        if o.verdict == "refused"
        for reason in {re.sub(r"^\d+ pairs? of", "pairs of", re.sub(r"'[^']*'", "...", x)) for x in o.reasons}
    )
    return ["| cases | reason |", "|---|---|", *(f"| {n} | {reason} |" for reason, n in found.most_common())]


def row(outcome: Outcome, tolerance: float) -> str:
    """Return the row of an outcome in the table of its package."""
    name = outcome.case.name + (", free base" if outcome.case.free_base else "")
    nv = f"{outcome.nv or ''}" + (f" ({outcome.followers} more follow)" if outcome.followers else "")
    if outcome.bad:
        return f"| {name} | {nv} | **{outcome.verdict}**: {outcome} |"
    if outcome.verdict not in ("equal", OTHER_CONTACTS):
        apart = f", {outcome.apart_from_contacts} without contacts" * bool(outcome.apart_from_contacts)
        more = f" and {len(outcome.reasons) - SHOWN} more" * (len(outcome.reasons) > SHOWN)
        return f"| {name} | {nv} | {outcome.verdict}{apart}: {'; '.join(outcome.reasons[:SHOWN])}{more} |"
    facts = [outcome.rollout] * bool(outcome.rollout) + outcome.reasons
    text = f"{outcome.errors['acceleration']:.0e}" + f" ({'; '.join(facts)})" * bool(facts)
    text = f"{OTHER_CONTACTS}: {text}" if outcome.verdict == OTHER_CONTACTS else text
    if outcome.case.kind == "urdf":
        conditioned = f" (condition {outcome.condition:.0e})" if outcome.worst > tolerance else ""
        text = f"{outcome.worst:.0e}{conditioned}"
    return f"| {name} | {nv} | {text} |"
