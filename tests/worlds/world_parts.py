"""All parts of a world that make its smooth forces and its sensors, as one function of states, and MuJoCo's answers."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdyn
from jaxdyn.algorithms.recursions import RobotAndParts
from jaxdyn.io.mjcf import reasons_against_actuators
from jaxdyn.worlds import _actuators as actuators
from jaxdyn.worlds import _actuators_of_file as file_actuators
from jaxdyn.worlds import _passive as passive
from jaxdyn.worlds import _sensors as sensors
from jaxdyn.worlds import _slopes as slopes
from jaxdyn.worlds import _tendons as tendons
from jaxdyn.worlds._parts import Part, instant

mujoco = pytest.importorskip("mujoco")


class Parts(Part):
    """The parts of a world that stand on its tree, without constraints."""

    tendons: tendons.Tendons | None
    actuators: actuators.Actuators
    passive: passive.Passive
    sensors: sensors.Sensors | None

    @classmethod
    def of(cls, m, with_sensors: bool = False):
        against = {} if not with_sensors else sensors.reasons_against_sensors(m)
        names = [m.sensor(i).name or f"sensor_{i}" for i in range(m.nsensor)]
        return cls(
            tendons.Tendons.of(m) if m.ntendon else None,
            file_actuators.actuators_of_file(m),
            passive.Passive.of(m),
            sensors.Sensors.of(m, [n for n in names if n not in against]) if with_sensors else None,
        )


def reasons(m) -> dict[str, str]:
    """What of a world is refused."""
    found = (tendons.reasons_against_tendons, reasons_against_actuators, passive.reasons_against_passive)
    return {name: reason for of in found for name, reason in of(m).items()}


def model_of(m):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return jaxdyn.load_mjcf(m, unsupported="warn")


def forces(robot, parts, q, v, control, activation, dt):
    """All that makes the smooth forces at a state, by MuJoCo's names."""
    at = instant(robot, q, v)
    pulled = None if parts.tendons is None else tendons.tendon_rows(robot, parts.tendons, at)
    without = passive.passive_forces(robot, parts.passive, at, pulled)
    acting = actuators.actuated(robot, parts.actuators, at, pulled, control, activation, dt, without.compensation)
    by_velocity = slopes.smooth_slopes(
        robot, at, parts.passive, without, parts.actuators, acting, pulled, symmetric=True
    )
    out = {
        "qfrc_passive": without.torque,
        "qfrc_actuator": acting.torque,
        "actuator_force": acting.force,
        "actuator_length": acting.transmission.length,
        "actuator_velocity": acting.transmission.velocity,
        "act_dot": acting.rate,
        "act": actuators.next_activation(robot, parts.actuators, activation, acting.rate, dt),
        "qDeriv": flat(by_velocity),
    }
    if pulled is not None:
        out |= {"ten_length": pulled.length, "ten_velocity": pulled.velocity, "ten_J": flat(pulled.jacobian)}
    return {name: x for name, x in out.items() if x.shape[0]}


def flat(x):
    """Rows from a matrix of rows."""
    return x.reshape((-1, *x.shape[2:]))


def evaluated(m, model, parts, states, function=forces, *further):
    """The results of a function of rows at states `(qpos, qvel, ctrl, act)`, of which the batch is made."""
    q, v, u, a = (np.array(x) for x in zip(*states, strict=True))
    v = np.array([in_body(m, *x) for x in zip(q, v, strict=True)])

    def run(parts, *arguments):
        bound, operands = RobotAndParts.of(model, parts, jnp.float64, "world")
        return bound.call(function, operands, *arguments)

    dt = jnp.asarray(m.opt.timestep)
    return jax.tree.map(np.array, jax.jit(run)(parts, *map(jnp.asarray, (q, v, u, a)), *further, dt))


def states_of(m, count: int, seed: int = 0) -> list[tuple]:
    """Random states and controls."""
    rng, out = np.random.default_rng(seed), []
    for _ in range(count):
        q = m.qpos0.copy()
        mujoco.mj_integratePos(m, q, 0.7 * rng.normal(size=m.nv), 1.0)
        out.append((q, rng.normal(size=m.nv), rng.normal(size=m.nu), rng.uniform(0, 1, m.na)))
    return out


def data_at(m, state):
    """MuJoCo's data at a state."""
    d = mujoco.MjData(m)
    d.qpos, d.qvel, d.ctrl, d.act = state
    d.time = 1.25
    mujoco.mj_forward(m, d)
    return d


def in_body(m, q, x):
    """MuJoCo's velocities or forces with the linear parts of free joints in axes of the body."""
    x = np.array(x)
    for j in np.flatnonzero(m.jnt_type == mujoco.mjtJoint.mjJNT_FREE):
        R, first, turn = np.zeros(9), m.jnt_dofadr[j], m.jnt_qposadr[j] + 3
        mujoco.mju_quat2Mat(R, q[turn : turn + 4] / np.linalg.norm(q[turn : turn + 4]))
        x[first : first + 3] = R.reshape(3, 3).T @ x[first : first + 3]
    return x


def theirs(m, state) -> dict[str, np.ndarray]:
    """MuJoCo's answers, in the axes of this library."""
    d, q = data_at(m, state), state[0]
    names = ("actuator_force", "actuator_length", "actuator_velocity", "act_dot", "ten_length", "ten_velocity")
    out = {name: np.array(getattr(d, name)) for name in names}
    out |= {name: in_body(m, q, getattr(d, name)) for name in ("qfrc_passive", "qfrc_actuator")}
    J = np.zeros((m.ntendon, m.nv))
    mujoco.mju_sparse2dense(J, d.ten_J, m.ten_J_rownnz, m.ten_J_rowadr, m.ten_J_colind) if m.ntendon else None
    out["ten_J"] = np.array([in_body(m, q, row) for row in J]).ravel()
    m.opt.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    mujoco.mj_step(m, d)
    D = np.zeros((m.nv, m.nv))
    mujoco.mju_sparse2dense(D, d.qDeriv, m.D_rownnz, m.D_rowadr, m.D_colind)
    D = np.array([in_body(m, q, row) for row in D])
    out["qDeriv"] = np.array([in_body(m, q, row) for row in D.T]).T.ravel()
    out["act"] = np.array(d.act)
    return out


def errors(m, ours: dict, states) -> dict[str, float]:
    """The largest error of each quantity, over its largest size at the states."""
    answers = [theirs(m, state) for state in states]
    out = {}
    for name, x in ours.items():
        y = np.array([answer[name] for answer in answers])
        out[name] = float(np.abs(x - y).max() / max(np.abs(y).max(), 1e-3))
    return out
