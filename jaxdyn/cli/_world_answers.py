"""The answers of a world and of MuJoCo in the same states: accelerations, the state after a time step, and sensors."""

# pyright: reportAttributeAccessIssue=false
# (MuJoCo is a compiled module without type stubs.)

from __future__ import annotations

import numpy as np

from jaxdyn.cli._comparison import free_joint_axes, free_joint_turning
from jaxdyn.cli._world_contacts import contacts_of, forward_with_contacts
from jaxdyn.cli._world_perturbations import forward_with_turned_contacts, perturbed
from jaxdyn.cli._world_stages import unoptimized
from jaxdyn.cli._world_states import MujocoState, displace, place
from jaxdyn.io.mjcf import enum_name, object_name
from jaxdyn.simulate import State
from jaxdyn.worlds import World, accelerations_step_and_sensors

PERTURBATION = 1e-12
"""The change of MuJoCo's states."""
_DRAWS_OF_STATES = 12
"""How often a state of MuJoCo is changed. Where a body only just touches, half of the draws have a contact."""
AFTER = ("velocities", "configurations", "activations")
"""The parts of the state that are compared after a time step."""


def state_of(world: World, case: MujocoState) -> State:
    """Return a state of MuJoCo as the world has it."""
    active = case.active if len(case.active) else None
    return world.state(case.qpos, free_joint_axes(world.model, case.qpos) @ case.qvel, case.act, active=active)


def answers_of(world: World, m, cases: list[MujocoState], rng) -> tuple[list, list, np.ndarray]:
    """Return the answers found and expected at each state, as MuJoCo has them, and the relative changes of MuJoCo's
    own, `[n, answers]`: accelerations, `AFTER`, and each sensor."""
    import mujoco

    d, expected, found, changes = mujoco.MjData(m), [], [], []
    for case in cases:
        place(m, d, case)
        mujoco.mj_forward(m, d)
        expected.append(_mujoco_answers(world, m, d))
        change = np.zeros(len(expected[-1]))
        for _ in perturbed(m, _DRAWS_OF_STATES):
            place(m, d, case)
            displace(m, d, PERTURBATION * rng.normal(size=m.nv))
            d.qvel[:] += PERTURBATION * rng.normal(size=m.nv)
            forward_with_turned_contacts(m, d, rng)
            own = _mujoco_answers(world, m, d)
            change = np.maximum(change, [relative(*x) for x in zip(own, expected[-1], strict=True)])
        changes.append(change)
        found.append(world_answers(world, state_of(world, case), case.ctrl, expected[-1]))
    return found, expected, np.array(changes)


def world_answers(world: World, state: State, control: np.ndarray, expected: list[np.ndarray]) -> list[np.ndarray]:
    """Return the answers of the world in a state, as MuJoCo has them; quaternions are those nearest to the expected."""
    a, after, values = advanced(world, state, control)
    T, v = free_joint_axes(world.model, np.asarray(state.q)), np.asarray(state.v)
    q = _nearest(world, np.array(after.q), expected[2])
    before = T.T @ (np.asarray(a) - free_joint_turning(world.model, v))
    speed = free_joint_axes(world.model, q).T @ np.asarray(after.v)
    sensors = np.split(np.asarray(values), np.cumsum(world.parts.sensors.sizes)[:-1]) if len(values) else []
    return [before, speed, q, np.asarray(after.activation), *sensors]


def answers_with_contacts(world: World, m, case: MujocoState, rng) -> tuple[list, list[str]]:
    """Return the answers of MuJoCo with the contacts of the world, and the pairs of geoms whose contacts differ; none
    where MuJoCo's are the better ones."""
    import mujoco

    d = mujoco.MjData(m)
    place(m, d, case)
    pairs = forward_with_contacts(m, d, contacts_of(world, state_of(world, case), case.ctrl), rng)
    # Later stages of this integrator would have MuJoCo's contacts.
    if pairs is None or enum_name("mjtIntegrator", m.opt.integrator) == "rk4":
        mujoco.mj_forward(m, d)
        pairs = []
    return _mujoco_answers(world, m, d), pairs


def _mujoco_answers(world: World, m, d) -> list[np.ndarray]:
    """Return the answers of MuJoCo's data after its forward dynamics, and go on by a time step."""
    import mujoco

    known = {object_name(m, "sensor", i): i for i in range(m.nsensor)}
    read = [known[name] for name in world.parts.sensors.names]
    sensors = [d.sensordata[m.sensor_adr[i] :][: m.sensor_dim[i]].copy() for i in read]
    accelerations, integrator = d.qacc.copy(), enum_name("mjtIntegrator", m.opt.integrator)
    if integrator == "rk4":
        mujoco.mj_RungeKutta(m, d, 4)
    else:
        (mujoco.mj_Euler if integrator == "euler" else mujoco.mj_implicit)(m, d)
    return [accelerations, d.qvel.copy(), d.qpos.copy(), d.act.copy(), *sensors]


def _nearest(world: World, q: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return a configuration with the signs of quaternions, which say nothing, that are nearest to another one."""
    for start in world.model.topology.quaternion_starts:
        own = slice(start, start + 4)
        q[own] *= 1 if q[own] @ other[own] >= 0 else -1
    return q


# One program does for the whole comparison.
advanced = unoptimized(accelerations_step_and_sensors)


def relative(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Return differences relative to the largest number expected, and to at least 1; infinite if they are none."""
    error = np.abs(found - expected).max(axis=-1, initial=0) / np.maximum(1, np.abs(expected).max(axis=-1, initial=0))
    return np.where(np.isfinite(error), error, np.inf)
