"""The motion of all joints of a robot with closed loops, from the joints that were recorded."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn._errors import DataError, ModelError
from jaxdyn._status import Status
from jaxdyn.algorithms import complete_motion, constraint_jacobian, project_configuration
from jaxdyn.model import Model

# The configurations between the guess and the first sample, so that the loops are followed and not closed anew.
_APPROACH = 32
# Programs are compiled for multiples of this number of samples.
_CHUNK = 512
# A singular value below this part of the largest counts as zero.
_RANK_TOLERANCE = 1e-6


class JointColumns(NamedTuple):
    """The columns in which the coordinates of some joints stand."""

    q: np.ndarray
    v: np.ndarray

    @classmethod
    def of(cls, model: Model, joints: tuple[str, ...]) -> JointColumns:
        """The columns of joints, in their order. **Raises** `UnknownNameError`; `DataError` for a joint that has not
        one coordinate."""
        starts = []
        for name in joints:
            follows = model.topology.joint(name) in model.topology.leaders
            q, v = model.q_index(name), model.v_index(name)
            if follows or not q.stop - q.start == v.stop - v.start == 1:
                raise DataError(
                    f"joint {name!r} was recorded and does not have one coordinate of its own; leave it out"
                )
            starts.append((q.start, v.start))
        return cls(*np.array(starts).T)


def joint_names(joints, arrays: dict[str, np.ndarray], recording: str) -> tuple[str, ...]:
    """Return the names of the recorded joints. **Raises** `DataError` for one that is named twice, and for arrays with
    another number of columns."""
    names = tuple(map(str, [joints] if isinstance(joints, str) else joints))
    if len(set(names)) < len(names):
        raise DataError(f"{recording}: joints names one twice: {', '.join(names)}")
    for name, x in arrays.items():
        if name != "current" and x.shape[1] != len(names):
            raise DataError(
                f"{recording}: {name} has {x.shape[1]} columns, but joints has {len(names)}: {', '.join(names)}"
            )
    return names


def completed(
    model: Model, joints: tuple[str, ...], assembly: np.ndarray | None, arrays: dict[str, np.ndarray], t: np.ndarray
) -> dict[str, np.ndarray]:
    """Return `q` `[n, nq]`, and those of `v`, `a`, `tau` and `clipped` `[n, nv]` that are among the arrays of the
    recorded joints.

    From the configuration `assembly` the loops are followed to the first sample and from one sample to the next.
    Torques of joints that were not recorded are zero. **Raises** `DataError` where the joints do not determine the
    motion, and where the loops cannot be closed.
    """
    columns = JointColumns.of(model, joints)
    guess = np.asarray(model.neutral() if assembly is None else assembly, np.float64)
    if guess.shape != (model.nq,):
        raise DataError(f"assembly has shape {guess.shape}; a configuration [{model.nq}] of the model is needed")
    if "a" in arrays and "v" not in arrays:
        raise DataError("there are accelerations without velocities, on which those of the other joints depend")
    n, y = len(arrays["q"]), arrays["q"]
    if model.topology.has_loops:
        approach = guess[columns.q] + np.linspace(0, 1, _APPROACH)[:, None] * (y[0] - guess[columns.q])
        path = _padded(np.concatenate([approach, y]))
        found = _follow(model, jnp.asarray(guess, model.dtype), jnp.asarray(path, model.dtype), joints, columns)
        q, status, error = (np.asarray(x)[_APPROACH:][:n] for x in found)
        bad = np.flatnonzero(status != Status.CONVERGED)
        if bad.size:
            k = int(bad[0])
            raise DataError(
                f"the loops do not close at {bad.size} of {n} samples, the first at t = {t[k]:g} s, where the recorded "
                f"positions leave an error of {error[k]:.2g}: look at the units, signs and zeros of the positions, at "
                "the model's lengths, and at assembly, a configuration from which the loops are followed"
            )
    else:
        q = np.tile(guess, (n, 1))
        q[:, columns.q] = y
    _require_determined(model, q[0], joints, columns)
    out = {"q": np.asarray(q, np.float64)}
    full = {}
    for name in ("v", "a", "tau", "clipped"):
        if name in arrays:
            full[name] = np.zeros((n, model.nv))
            full[name][:, columns.v] = arrays[name]
    if "v" in full:
        rates = (full["v"], full.get("a", np.zeros_like(full["v"])))
        motion = _complete(model, *(jnp.asarray(_padded(x), model.dtype) for x in (q, *rates)), joints)
        out |= {name: np.asarray(x[:n], np.float64) for name, x in motion._asdict().items() if name in full}
    if "measured" in arrays:
        # That passive joints have no torque is known.
        full["measured"] = np.ones((n, model.nv))
        full["measured"][:, columns.v] = arrays["measured"]
    return out | {name: x for name, x in full.items() if name in ("tau", "clipped", "measured")}


def _padded(x: np.ndarray) -> np.ndarray:
    """Repeat the last row up to a multiple of the size for which programs are compiled."""
    return np.pad(x, ((0, -len(x) % _CHUNK), (0, 0)), mode="edge")


@functools.partial(jax.jit, static_argnames=("joints",))
def _complete(model: Model, q, v, a, joints: tuple[str, ...]):
    return complete_motion(model, q, v, a, joints)


@functools.partial(jax.jit, static_argnames=("joints",))
def _follow(model: Model, guess, path, joints: tuple[str, ...], columns: JointColumns):
    """Return the configurations with the coordinates `path` `[n, k]` of the joints, each found from the one before,
    with their statuses and errors."""

    def close(q, y):
        found = project_configuration(model, q.at[columns.q].set(y), kept=joints)
        return found.q, found

    return jax.lax.scan(close, guess, path)[1]


def _require_determined(model: Model, q: np.ndarray, joints: tuple[str, ...], columns: JointColumns) -> None:
    J = np.asarray(constraint_jacobian(model, jnp.asarray(q, model.dtype)), np.float64)
    rows = np.concatenate([J, np.eye(model.nv)[columns.v]])
    missing = model.nv - int(np.linalg.matrix_rank(rows, _RANK_TOLERANCE * np.linalg.norm(rows, 2)))
    if missing:
        raise ModelError(
            f"the recorded joints {', '.join(joints)} leave {missing} degrees of freedom of the robot undetermined; "
            f"record {missing} more, or lock joints that did not move (with_locked_joints)"
        )
