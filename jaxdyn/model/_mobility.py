"""How many degrees of freedom loops and couplings leave to a model, in NumPy."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np

from jaxdyn.joints import LoopFrames, integrate, loop_errors, loop_forces, neutral
from jaxdyn.model._body_inertia import dof_columns
from jaxdyn.model._fields import LEAVES, ModelFields
from jaxdyn.model._singular_motions import configurations, motion_transforms, node_poses
from jaxdyn.model._spanning_tree import mimic_matrix, spanning_coordinates
from jaxdyn.spatial import IDENTITY_POSE, Mat3, Vec3, compose_poses, quaternion_to_rotation

_TOLERANCE = 1e-8
"""Singular values of the Jacobian below this part of the largest count as zero, and smaller errors as closed."""
_STEPS = 50


class Mobility(NamedTuple):
    """The degrees of freedom that loops and couplings leave at a configuration."""

    equations: int
    rank: int
    mobility: int
    """The degrees of freedom of the tree less the rank."""
    where: str
    """The configuration, in words."""


def mobility(model: ModelFields) -> Mobility:
    """Return the mobility of a model without batch axes, in double precision: at the neutral configuration if the loops
    are closed there, otherwise where Gauss-Newton steps close them, from there or from a few random configurations
    (with a fixed seed, within the limits)."""
    arrays = {name: value for name in LEAVES if (value := getattr(model, name)) is not None}
    model = dataclasses.replace(model, **{name: np.asarray(value, np.float64) for name, value in arrays.items()})
    _, J, where = closed_configuration(model)
    values = np.linalg.svd(J, compute_uv=False)
    rank = int((values > _TOLERANCE * values.max(initial=1e-300)).sum())
    return Mobility(len(J), rank, model.nv - rank, where)


def closed_configuration(model: ModelFields) -> tuple[np.ndarray, np.ndarray, str]:
    """Return the configuration of `mobility`, the Jacobian `[nc, nv]` of loops and couplings there, and where it is in
    words, for a model with NumPy arrays in double precision."""
    for k, start in enumerate(configurations(model)):
        q = start
        for step in range(_STEPS):
            J, error = _linearized(model, q)
            if np.abs(error).max() < _TOLERANCE:
                return q, J, ("where the loops close" if k or step else "at the neutral configuration")
            q = np.asarray(integrate(model.topology, q, -np.linalg.pinv(J, rcond=1e-6) @ error), np.float64)
    q = np.asarray(neutral(model.topology))
    where = "at the neutral configuration; no configuration was found where the loops close"
    return q, _linearized(model, q)[0], where


def _linearized(model: ModelFields, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the Jacobian `[nc, nv]` and the errors `[nc]` of loops and couplings."""
    topology, tree = model.topology, model.topology.spanning
    q = np.asarray(spanning_coordinates(model, q, velocity=False))
    poses = node_poses(tree, model, q[None], absolute=True)[0]
    columns = dof_columns(tree, np.asarray(model.joint_axis), np.asarray(model.joint_pitch))
    S = np.einsum("dij,dj->di", motion_transforms(poses)[tree.node_of_dof], columns)
    placements1, placements2, length = map(
        np.asarray, (model.loop_placement1, model.loop_placement2, model.loop_length)
    )
    coefficients, references = np.asarray(model.coupling_coefficients), np.asarray(model.coupling_reference)
    rows, errors = [], []
    for k, loop in enumerate(topology.loops):
        ends, moves = [], []
        for body, placements in ((loop.body1, placements1), (loop.body2, placements2)):
            ends.append(compose_poses(poses[tree.body_nodes[body]] if body >= 0 else IDENTITY_POSE, placements[k]))
            moves.append(tree.moves_body[body].astype(float) if body >= 0 else np.zeros(tree.nv))
        R1, R2 = (Mat3.from_array(quaternion_to_rotation(x[3:])) for x in ends)
        frames = LoopFrames(R1, R2, Vec3.from_array(ends[1][:3] - ends[0][:3]), length[k])
        errors += [float(e) for e in loop_errors(loop.kind, frames)]
        for force in loop_forces(loop.kind, frames):
            force = force.moved_from(Vec3.from_array(ends[1][:3]))
            F = np.concatenate([np.asarray(force.moment.to_array()), np.asarray(force.force.to_array())])
            rows.append((S @ F) * (moves[1] - moves[0]))
    for k, pair in enumerate(topology.couplings):
        c, (r1, r2) = np.polynomial.Polynomial(coefficients[k]), references[k]
        held = pair.joint2 < 0
        x = 0.0 if held else q[tree.q_starts[pair.joint2]] - r2
        row = np.eye(tree.nv)[tree.v_starts[pair.joint1]]
        rows.append(row if held else row - c.deriv()(x) * np.eye(tree.nv)[tree.v_starts[pair.joint2]])
        errors.append(q[tree.q_starts[pair.joint1]] - r1 - c(x))
    return np.array(rows) @ mimic_matrix(model), np.array(errors)
