"""Candidates of contacts as arrays, and how far they are from the contacts that MuJoCo reports."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn.geometry import FAR, ShapeKind, candidate_count, candidates
from jaxdyn.native import Plain, call
from jaxdyn.spatial import Mat3, Pose, Vec3


@dataclasses.dataclass(frozen=True)
class OnArrays:
    """Candidates as a function of arrays with leading batch axes: `[n * count, 13]` of sizes `[n, 3]`, places and
    rotations `[n, 12]` of both geoms, and margins `[n]`."""

    kind1: ShapeKind
    kind2: ShapeKind
    structures: tuple

    def __call__(self, sizes1, placed1, sizes2, placed2, margin):
        # Any of the arrays may have the batch axes.
        rank = max(x.ndim - core for x, core in ((sizes1, 2), (placed1, 2), (sizes2, 2), (placed2, 2), (margin, 1)))

        def rows(x, core):
            return jnp.moveaxis(x.reshape((1,) * (rank + core - x.ndim) + x.shape), range(rank), range(-rank, 0))

        def pose(placed):
            x = rows(placed, 2)
            columns = (Vec3(x[:, 3 + j], x[:, 6 + j], x[:, 9 + j]) for j in range(3))
            return Pose(Mat3(*columns), Vec3(x[:, 0], x[:, 1], x[:, 2]))

        sizes = [rows(x, 2) for x in (sizes1, sizes2)]
        poses = [pose(x) for x in (placed1, placed2)]
        found = candidates(
            self.kind1, sizes[0], poses[0], self.kind2, sizes[1], poses[1], rows(margin, 1), self.structures
        )
        # The columns of the frame one after the other, as MuJoCo has them in rows.
        out = jnp.stack(jnp.broadcast_arrays(*jax.tree.leaves(found)), axis=1)
        return jnp.moveaxis(out, range(-rank, 0), range(rank))


def evaluate(kind1, kind2, sizes1, placed1, sizes2, placed2, margin, structures=(None, None)):
    """`[*batch, n, count, 13]`: the candidates from native code."""
    count = candidate_count(kind1, kind2)
    n = np.shape(margin)[-1]
    plain = Plain(OnArrays(kind1, kind2, structures), (2, 2, 2, 2, 1), ((n * count, 13),))
    args = [jnp.asarray(x) for x in (sizes1, placed1, sizes2, placed2, margin)]
    out = call(plain, *args)[0]
    return np.asarray(out).reshape(*out.shape[:-2], n, count, 13)


def difference(got, wanted) -> float:
    """The largest difference of two sets of contacts; infinite where their numbers differ."""
    got = [x for x in got if x[0] < FAR / 2]
    if len(got) != len(wanted):
        return np.inf
    worst = 0.0
    for each in wanted:
        errors = [np.max(np.abs(each - x)) for x in got]
        best = int(np.argmin(errors))
        worst = max(worst, errors[best])
        got.pop(best)
    return worst
