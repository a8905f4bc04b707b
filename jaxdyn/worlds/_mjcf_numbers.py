"""The places in an `mjModel` of the numbers of a world: the inverse of what loading reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from jaxdyn._errors import ModelError
from jaxdyn.io.mjcf import Names
from jaxdyn.model import rotational_about_center
from jaxdyn.spatial import compose_poses, invert_pose, quaternion_to_rotation, rotation_to_quaternion
from jaxdyn.worlds._parts import frames_of
from jaxdyn.worlds._world import World
from jaxdyn.worlds._world_velocities import world_velocity

_UNLIMITED = 1e29
"""Bounds beyond are those of what the file does not limit."""

type Writer = Callable[[np.ndarray, np.ndarray], None]
"""Called with an array of a world, and with the same one as its file has it."""


def put(array: np.ndarray, rows: Any, new: np.ndarray, old: np.ndarray) -> None:
    """Write numbers that changed into rows of an array of an `mjModel`, in place. A number of the world can be the sum
    of one of the file and of another, as damping is of those of joint and actuator, so differences are added to what is
    not the number itself. **Raises** `ModelError` for new bounds of what the file does not limit."""
    before, changed = np.array(array[rows], np.float64), new != old
    if (changed & (np.abs(old) > _UNLIMITED)).any():
        raise ModelError("to_mjcf: a range has changed of an actuator or joint that the template does not limit")
    moved = np.where(before == old, new, before + (new - old))
    array[rows] = np.where(changed, moved, before)


def _rows(*targets: tuple[np.ndarray, Any]) -> Writer:
    """Return the writer of an array whose rows are those of several arrays, one after the other."""

    def write(new: np.ndarray, old: np.ndarray) -> None:
        start = 0
        for array, rows in targets:
            end = start + len(array[rows])
            put(array, rows, new[start:end], old[start:end])
            start = end

    return write


def _polynomial(first: np.ndarray, others: np.ndarray, rows: Any) -> Writer:
    """Return the writer of factors `[n, 3]`, of which MuJoCo has the first apart."""

    def write(new: np.ndarray, old: np.ndarray) -> None:
        put(first, rows, new[:, 0], old[:, 0])
        put(others, rows, new[:, 1:], old[:, 1:])

    return write


def _option(m, name: str) -> Writer:
    return lambda new, old: setattr(m.opt, name, new if new.ndim else float(new))


def writers(m, world: World) -> dict[str, Writer]:
    """Return for the arrays of a world that can be written, by their names as in `numbers_of`, what writes them into an
    `mjModel` of its file."""
    parts, every = world.parts, slice(None)
    out_rows = np.asarray(m.actuator_outadr, int)
    options = {"model.gravity": "gravity", "parts.timestep": "timestep", "parts.sensors.magnetic": "magnetic"}
    options |= {"parts.constraints.contacts.impratio": "impratio"}
    options |= {f"parts.passive.fluid.{name}": name for name in ("density", "viscosity", "wind")}
    out = {name: _option(m, option) for name, option in options.items()}
    out |= {
        f"parts.actuators.{name}": _rows((array, rows))
        for name, array, rows in (
            ("gear", m.actuator_gear, out_rows),
            ("rod", m.actuator_cranklength, every),
            ("gain", m.actuator_gainprm[:, :9], every),
            ("bias", m.actuator_biasprm[:, :9], every),
            ("time", m.actuator_dynprm[:, :3], every),
            ("control_range", m.actuator_ctrlrange, every),
            ("force_range", m.actuator_forcerange, every),
            ("activation_range", m.actuator_actrange, every),
            ("length_range", m.actuator_lengthrange, out_rows),
            ("joint_range", m.jnt_actfrcrange, np.asarray(m.dof_jntid, int)),
            ("tendon_range", m.tendon_actfrcrange, every),
        )
    }
    out["model.armature"] = _rows((m.dof_armature, every))
    return out | _passive(m, parts) | _constraints(m, parts) | _keyframes(m, world)


def _passive(m, parts: Any) -> dict[str, Writer]:
    joint_of = {int(q): j for j, q in enumerate(m.jnt_qposadr)}
    springs = [joint_of[q] for q in parts.passive.springs]
    of_tendons = slice(None)
    return {
        f"parts.passive.{name}": writer
        for name, writer in (
            ("stiffness", _polynomial(m.jnt_stiffness, m.jnt_stiffnesspoly, springs)),
            ("reference", _rows((m.qpos_spring, list(parts.passive.springs)))),
            ("damping", _polynomial(m.dof_damping, m.dof_dampingpoly, slice(None))),
            ("tendon_stiffness", _polynomial(m.tendon_stiffness, m.tendon_stiffnesspoly, of_tendons)),
            ("tendon_rest", _rows((m.tendon_lengthspring, of_tendons))),
            ("tendon_damping", _polynomial(m.tendon_damping, m.tendon_dampingpoly, of_tendons)),
        )
    } | {
        "parts.tendons.armature": _rows((m.tendon_armature, of_tendons)),
        "parts.tendons.radius": _rows((m.geom_size[:, 0], list(parts.tendons.geom_numbers))),
        "parts.tendons.geoms.placement": _frames(m, list(parts.tendons.geom_numbers)),
    }


def _constraints(m, parts: Any) -> dict[str, Writer]:
    limits, losses, contacts = (getattr(parts.constraints, name) for name in ("limits", "losses", "contacts"))
    joints = np.asarray(m.dof_jntid, int)[[v for _, v in (*limits.joints, *limits.balls)]]
    limited, dry, slow = list(limits.tendons), list(losses.dofs), list(losses.tendons)
    geoms = list(contacts.numbers)
    out = {
        "limits.range": _rows((m.jnt_range, joints), (m.tendon_range, limited)),
        "limits.margin": _rows((m.jnt_margin, joints), (m.tendon_margin, limited)),
        "limits.solref": _rows((m.jnt_solref, joints), (m.tendon_solref_lim, limited)),
        "limits.solimp": _rows((m.jnt_solimp, joints), (m.tendon_solimp_lim, limited)),
        "losses.loss": _rows((m.dof_frictionloss, dry), (m.tendon_frictionloss, slow)),
        "losses.solref": _rows((m.dof_solref, dry), (m.tendon_solref_fri, slow)),
        "losses.solimp": _rows((m.dof_solimp, dry), (m.tendon_solimp_fri, slow)),
        "contacts.sizes": _rows((m.geom_size, geoms)),
        "contacts.geoms.placement": _frames(m, geoms),
    }
    for kind in ("held", "joints", "tendons"):
        part = getattr(parts.constraints.equalities, kind)
        if part is None:
            continue
        rows = list(part.numbers)
        for name, array in (("solref", m.eq_solref), ("solimp", m.eq_solimp), ("active", m.eq_active0)):
            out[f"equalities.{kind}.{name}"] = _rows((array, rows))
        if kind != "held":
            out[f"equalities.{kind}.polynomial"] = _rows((m.eq_data[:, :5], rows))
        else:
            out["equalities.held.scale"] = _rows((m.eq_data[:, 10], rows[part.connections :]))
    return {f"parts.constraints.{name}": writer for name, writer in out.items()}


def _frames(m, geoms: list[int]) -> Writer:
    """Return the writer of the places of geoms, which MuJoCo has in their bodies."""

    def write(new: np.ndarray, old: np.ndarray) -> None:
        bodies = frames_of(m, "body")[1][m.geom_bodyid[geoms]]
        for g, body, pose, before in zip(geoms, bodies, new, old, strict=True):
            if (pose != before).any():
                pose = compose_poses(invert_pose(body), pose)
                m.geom_pos[g], m.geom_quat[g] = pose[:3], pose[3:]

    return write


def _keyframes(m, world: World) -> dict[str, Writer]:
    """Return the writers of keyframes, whose velocities MuJoCo has along axes of the world."""

    def velocities(new: np.ndarray, old: np.ndarray) -> None:
        m.key_qvel[:] = np.asarray(world_velocity(world.model.topology, world.keys.q, world.keys.v))

    def poses(new: np.ndarray, old: np.ndarray) -> None:
        m.key_mpos[:] = new[..., :3].reshape(m.key_mpos.shape)
        m.key_mquat[:] = new[..., 3:].reshape(m.key_mquat.shape)

    names = ("q", m.key_qpos), ("activation", m.key_act), ("control", m.key_ctrl), ("time", m.key_time)
    out = {f"keys.{name}": _rows((array, slice(None))) for name, array in names}
    return out | {"keys.v": velocities, "keys.mocap": poses}


def put_inertias(m, world: World, before: World) -> None:
    """Write the inertias of bodies that differ from those `before` into an `mjModel`, in place."""
    names = Names.of(m)
    for i in range(1, m.nbody):
        if m.body_weldid[i] == 0 or m.body_mass[i] == 0:
            continue
        parameters, old = (np.asarray(x.model.link_parameters(names.bodies[i]), np.float64) for x in (world, before))
        if (parameters == old).all():
            continue
        m.body_mass[i], m.body_ipos[i] = parameters[0], parameters[1:4] / parameters[0]
        m.body_inertia[i], m.body_iquat[i] = _principal(rotational_about_center(parameters), m.body_iquat[i])


def _principal(inertia: np.ndarray, quaternion: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return principal moments, and the quaternion of their axes: the old one where its axes still are principal."""
    R = np.asarray(quaternion_to_rotation(quaternion))
    turned = R.T @ inertia @ R
    moments = np.diagonal(turned)
    # The rounding of the inertia about the origin, from which that about the center comes.
    if np.abs(turned - np.diag(moments)).max() < 1e-12 * moments.sum():
        return moments, quaternion
    moments, axes = np.linalg.eigh(inertia)
    axes *= np.sign(np.linalg.det(axes))
    # MuJoCo has the largest moment first.
    order = [2, 1, 0]
    return moments[order], rotation_to_quaternion(axes[:, order] * np.array([1, 1, -1]))
