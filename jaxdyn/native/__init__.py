"""Native code for the functions of a robot: one straight-line program for each, compiled by LLVM in this process.

A function is traced for one state, its jaxpr becomes a graph of scalar operations, and the graph becomes machine code
that computes as many states at once as a vector register has lanes, or for NVIDIA GPUs a kernel with a thread for each
state. XLA calls it like one of its own operations. Where there is no such program, XLA compiles the function itself.
Operations on whole arrays become loops over their elements instead (`arrays`).
"""

from jaxdyn.native._collection import Collection, Searched
from jaxdyn.native._each_row import each_row
from jaxdyn.native._forms import add_gram
from jaxdyn.native._interpreter import expand, expansion, scan_counts
from jaxdyn.native._kernel import Kernel, kernel
from jaxdyn.native._specialize import Repetition, leave_to_xla
from jaxdyn.native._target import NativeStatus, Target, disabled, enabled, status, target, wanted
