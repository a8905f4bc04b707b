"""Native programs of operations on arrays: loops in LLVM's language, compiled in this process.

An array is in memory, or it is an expression that the loops that need it evaluate. Other programs of this package are
straight lines of operations on numbers; these have loops, so that their length does not depend on the arrays' sizes.
"""

from jaxdyn.native.arrays._array_target import array_target
from jaxdyn.native.arrays._rules import CHEAP, FREE, has_rule
