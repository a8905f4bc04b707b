"""The configuration manifold of a tree of joints: functions of rows `[nq, *batch]` and `[nv, *batch]`. Each calls the
method of the same name of `Primitive` once for all joints of a class."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn.joints._primitive import Primitive
from jaxdyn.joints._topology import Topology
from jaxdyn.native import Plain, call
from jaxdyn.tree import matrix_to_leading, rows_of, take_rows, to_leading

# Compiled one by one for eager use; inlined inside a user's `jit`.
_compiled = functools.partial(jax.jit, static_argnums=0, inline=True)


def _by_class(topology: Topology, spaces: str, *arrays) -> Iterator[tuple[Primitive, dict[str, np.ndarray], list]]:
    """For each class of joints: a joint of it, the first rows of all in `q` and in `v`, and the components of each
    array. `spaces` has a letter for each array, `q` or `v`, which says what its rows are."""
    pairs = list(zip(spaces, arrays, strict=True))
    for joint, starts in topology.joint_classes:
        sizes = {"q": joint.nq, "v": joint.nv}
        yield joint, starts, [[take_rows(x, starts[s] + k) for k in range(sizes[s])] for s, x in pairs]


def _rows(topology: Topology, method: str, spaces: str, *arrays):
    """Rows from the components that a method of each class of joints returns; `spaces` says what the rows are, as in
    `qv->q`."""
    arguments, result = spaces.split("->")
    index, rows = [], []
    for joint, starts, components in _by_class(topology, arguments, *arrays):
        for k, row in enumerate(getattr(joint, method)(*components)):
            index.append(starts[result] + k)
            rows.append(row)
    batch = jnp.broadcast_shapes(*(row.shape[1:] for row in rows))
    rows = [jnp.broadcast_to(row, (row.shape[0], *batch)) for row in rows]
    return take_rows(jnp.concatenate(rows), np.argsort(np.concatenate(index)))


def _matrices(topology: Topology, method: str, spaces: str, *arrays) -> list:
    """The matrices `[nv, nv, *batch]` of whole configurations, from those that a method returns for each class of
    joints. They are zero between joints."""
    rows, index, count = [], [], 0
    batch = jnp.broadcast_shapes(*(x.shape[1:] for x in arrays))
    one = jnp.ones((1,) * (1 + len(batch)), jnp.result_type(*arrays))
    for joint, starts, components in _by_class(topology, spaces, *arrays):
        dofs = starts["v"]
        for k, matrix in enumerate(getattr(joint, method)(*components)):
            if k == len(index):
                index.append(np.full((topology.nv, topology.nv), -1))
            for i, j in np.ndindex(joint.nv, joint.nv):
                x = matrix[i][j]
                if isinstance(x, float) and x == 0:
                    continue
                index[k][dofs + i, dofs + j] = count + np.arange(len(dofs))
                rows.append(jnp.broadcast_to(x * one, (len(dofs), *batch)))
                count += len(dofs)
    table = jnp.concatenate(rows)
    return [take_rows(table, i.ravel()).reshape(topology.nv, topology.nv, *batch) for i in index]


def jacobians(function: Callable, topology: Topology, count: int, *arrays):
    """The `count` results `[*batch, nv, nv]` of one of the functions of Jacobians below for arrays with leading batch
    axes. Without ball and free joints they are constants."""
    n, on_rows = topology.nv, _OnRows(function, topology)
    if not len(topology.quaternion_starts):
        return on_rows(*arrays)
    dtype = jnp.result_type(*arrays)
    return call(Plain(on_rows, (1,) * len(arrays), ((n, n),) * count), *(x.astype(dtype) for x in arrays))


def apply_to_rows(function: Callable, topology: Topology, *arrays):
    """The result, with leading batch axes, of one of the functions below for arrays with leading batch axes."""
    on_rows = _OnRows(function, topology)
    if not len(topology.quaternion_starts):
        # Little more than a sum, which XLA merges with its neighbors.
        return on_rows(*arrays)
    size = jax.eval_shape(on_rows, *(jax.ShapeDtypeStruct(x.shape[-1:], x.dtype) for x in arrays)).shape
    dtype = jnp.result_type(*arrays)
    return call(Plain(on_rows, (1,) * len(arrays), (size,)), *(x.astype(dtype) for x in arrays))[0]


@dataclasses.dataclass(frozen=True)
class _OnRows:
    """A function of a topology and rows as one of arrays with leading batch axes."""

    function: Callable
    topology: Topology

    def __call__(self, *arrays) -> Any:
        rank = max(x.ndim for x in arrays) - 1
        rows = [rows_of(x, rank) for x in arrays]
        batch = jnp.broadcast_shapes(*(x.shape[1:] for x in rows))
        out = self.function(self.topology, *(jnp.broadcast_to(x, (x.shape[0], *batch)) for x in rows))
        return [matrix_to_leading(x) for x in out] if isinstance(out, list) else to_leading(out)


@_compiled
def integrate(topology: Topology, q, dv):
    """`q (+) dv`: displacement by the body twist `dv` over unit time (the exponential of each joint's group)."""
    return _rows(topology, "integrate", "qv->q", q, dv)


@_compiled
def difference(topology: Topology, q0, q1):
    """The `dv`, with rotations of ball, free and continuous joints of at most half a turn, for which
    `integrate(q0, dv)` is `q1` but for whole turns."""
    return _rows(topology, "difference", "qq->v", q0, q1)


@_compiled
def integrate_jacobians(topology: Topology, q, dv):
    """`[nv, nv, *batch]` twice: the derivatives of the displacement of `integrate(q, dv)` by that of `q`, and by
    `dv`."""
    return _matrices(topology, "integrate_jacobians", "qv", q, dv)


@_compiled
def difference_jacobians(topology: Topology, q0, q1):
    """`[nv, nv, *batch]` twice: the derivatives of `difference(q0, q1)` by the displacements of `q0` and of `q1`."""
    return _matrices(topology, "difference_jacobians", "qq", q0, q1)


@_compiled
def chart_jacobians(topology: Topology, q0, x, v):
    """The five matrices `[nv, nv, *batch]` of `ChartJacobians` at the point `x` of the chart around `q0`, for the
    velocity `v`."""
    return _matrices(topology, "chart_jacobians", "qvv", q0, x, v)


@_compiled
def chart_point(topology: Topology, q0, x):
    """The configuration at `x` (rows `[nv]`) in the chart around `q0`: sums for vector coordinates and positions (in
    the axes of the parent), `exp` for rotations."""
    return _rows(topology, "chart_point", "qv->q", q0, x)


@_compiled
def chart_rate(topology: Topology, q, x, v):
    """The rate of the chart coordinates `x` of `q` under the velocity `v`: `v` for vector coordinates, `R v` for
    positions, and see `Ball.chart_rate` for rotations."""
    return _rows(topology, "chart_rate", "qvv->v", q, x, v)


@_compiled
def coordinate_rate(topology: Topology, q, v):
    """Rows `[nq]`: the time derivative of the coordinates `q` under the velocity `v`."""
    return _rows(topology, "coordinate_rate", "qv->q", q, v)


def coordinate_cotangent(topology: Topology, q, g):
    """Rows `[nq]`: the derivative by the coordinates of `q` from that by the tangent space, `g`, rows `[nv]`."""
    if not len(topology.quaternion_starts):
        return g
    return _rows(topology, "coordinate_cotangent", "qv->q", q, g)


@_compiled
def spring_torque(topology: Topology, stiffness, q0, q):
    """Rows `[nv]`: the gradient, with respect to the motion of `v`, of `spring_energy`."""
    return _rows(topology, "spring_torque", "vqq->v", stiffness, q0, q)


@_compiled
def spring_energy(topology: Topology, stiffness, q0, q):
    """`[*batch]`: half of `stiffness` times the square of the deflection from `q0`, summed over all degrees of
    freedom. The deflection of a rotation is its rotation vector."""
    energies = []
    for joint, _, (k, before, now) in _by_class(topology, "vqq", stiffness, q0, q):
        deflection = joint.deflection(before, now)
        energies += [(0.5 * c * x * x).sum(axis=0) for c, x in zip(k, deflection, strict=True)]
    return functools.reduce(jnp.add, energies)


def neutral(topology: Topology) -> np.ndarray:
    """`[nq]`: the configuration of zeros and identity rotations."""
    return np.concatenate([joint.neutral for joint, _, _ in topology.blocks])


def random_configuration(topology: Topology, key, lower, upper, shape: tuple[int, ...]):
    """`[*shape, nq]`: uniform between finite limits, else angles in [-pi, pi] and shifts in [-1, 1] m; rotations are
    uniform over the sphere of quaternions."""
    low, high = coordinate_range(topology, lower, upper)
    key_vector, key_quaternion = jax.random.split(key)
    u = jax.random.uniform(key_vector, (*shape, topology.nq), lower.dtype)
    q = low + (high - low) * u
    starts = topology.quaternion_starts
    if len(starts):
        # Normalized Gaussian vectors are uniform on the sphere.
        raw = jax.random.normal(key_quaternion, (*shape, len(starts), 4), lower.dtype)
        unit = raw / jnp.linalg.norm(raw, axis=-1, keepdims=True)
        q = q.at[..., starts[:, None] + np.arange(4)].set(unit)
    return q


def coordinate_range(topology: Topology, lower, upper):
    """`[*batch, nq]` twice: the limits where they are finite, else half a turn, or one meter, to both sides of zero.
    With one finite limit, the range has the same length and starts or ends there."""
    reach = np.concatenate([joint.reach for joint, _, _ in topology.blocks])
    lib: Any = np if isinstance(lower, np.ndarray) else jnp
    below, above = lib.isfinite(lower), lib.isfinite(upper)
    low = lib.where(below, lower, lib.where(above, upper - 2 * reach, -reach))
    return low, lib.where(above, upper, lib.where(below, lower + 2 * reach, reach))
