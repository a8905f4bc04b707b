"""Native code for the functions of a robot: one straight-line program for each, compiled by LLVM in this process.

A function is traced for one state, its jaxpr becomes a graph of scalar operations, and the graph becomes machine code
that computes as many states at once as a vector register has lanes, or for NVIDIA GPUs a kernel with a thread for each
state. XLA calls it like one of its own operations. Where there is no such program, XLA compiles the function itself.
Operations on whole arrays become loops over their elements instead (`arrays`).

A call such as `jaxdyn.aba(model, q, v, tau)` takes this way:

1. The decorator of algorithms (`algorithms/recursions/_algorithm.py`) checks the arguments, and binds the model's
   structure and its constants to the function of rows. The result is a hashable function of arrays with leading batch
   axes (`_batched_functions.py`).
2. `call` (`_batching.py`) binds it to one primitive of JAX. Its batches and derivatives are calls of the same primitive
   with other functions.
3. When the program around it is lowered, the primitive's rule asks `target` for a native program, which is made once in
   a process: `specialize` reads the jaxpr (`_jaxprs.py`) and interprets it (`_interpreter.py`) with nodes of a `Graph`,
   in which constants are folded (`_operations.py`); `module_of` orders the nodes, cuts them into functions, and writes
   these as LLVM text (`_values.py`, `_emit.py`) with a handler that XLA can call (`_interface.py`); `registered_name`
   compiles the text and registers it under a hash of itself.
4. XLA calls the handler, which goes over the batch in blocks, and shares large batches between threads.

On an NVIDIA GPU the third step has `kernel` in place of `target`: the same module, for values of one lane
(`_gpu.py`), has a function that XLA launches in place of the handler, and LLVM makes PTX of it (`_ptx.py`).

Functions of users (`_natively.py`) and loops over steps (`repeated`) enter at the second step. The algebra of solvers
(`_array_programs.py`) is traced as a whole, and read in the same way; what has a rule in `arrays` becomes programs with
loops, of the same operations.
"""

from jaxdyn.native._array_programs import of_wanted, only_where, with_array_programs
from jaxdyn.native._batched_functions import Collected, Derivatives, Plain
from jaxdyn.native._batching import call
from jaxdyn.native._collection import Collection, Searched
from jaxdyn.native._each_row import each_row
from jaxdyn.native._interpreter import expand, expansion
from jaxdyn.native._jaxprs import tracing
from jaxdyn.native._kernel import kernel
from jaxdyn.native._natively import natively
from jaxdyn.native._repeated_functions import repeated
from jaxdyn.native._specialize import add_gram, leave_to_xla
from jaxdyn.native._target import NativeStatus, disabled, enabled, status, target, wanted
