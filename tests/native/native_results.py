"""Results of native programs, to compare processes whose compilers have other options.

As a program it writes them to a file, with LLVM's level of optimization.
"""

import sys

import jax
import numpy as np

import jaxdyn
from jaxdyn.native._compiler import host
from tests import draws

ALGORITHMS = ("aba", "rnea", "crba")
BATCHES = (1, 7, 64)


def results() -> dict[str, np.ndarray]:
    """Compute the dynamics of a small tree in both precisions for batches below, of and above the length of vectors."""
    out = {}
    for precision in ("float32", "float64"):
        model = jaxdyn.samples.random_tree(jax.random.key(1), 2, ("ball", "revolute")).astype(precision)
        batches = [[x.astype(precision) for x in draws.states(model, n, n)[:3]] for n in BATCHES]

        @jax.jit
        def compute(model, batches):
            return [(jaxdyn.aba(model, *x), jaxdyn.rnea(model, *x), jaxdyn.crba(model, x[0])) for x in batches]

        program = compute.lower(model, batches)
        assert program.as_text().count("@jaxdyn_") >= len(ALGORITHMS) * len(BATCHES)
        for n, values in zip(BATCHES, program.compile()(model, batches), strict=True):
            out |= {f"{name}, {precision}, {n}": np.asarray(x) for name, x in zip(ALGORITHMS, values, strict=True)}
    return out


if __name__ == "__main__":
    np.savez(sys.argv[1], optimization=host().optimization, **results())
