"""Momentum about the center of mass, its motion, and the motion of frames equal Pinocchio's; power equals the rate of
the energy along a motion."""

import jax
import jax.numpy as jnp
import numpy as np
import pinocchio as pin
import pytest

import jaxdyn
from jaxdyn import ModelError, UnknownNameError
from jaxdyn import algorithms as alg
from tests.oracles import relative_error
from tests.small_robots import forest

TOLERANCE = 1e-11
REFERENCES = {
    "local": (pin.LOCAL, "spatial"),
    "world": (pin.WORLD, "spatial"),
    "local_world_aligned": (pin.LOCAL_WORLD_ALIGNED, "classical"),
}
"""Pinocchio's references, each with the kind of acceleration that is the rate of the frame's velocity."""


def everything(model, q, v, a, frame):
    """Compute all quantities in one program."""
    out = {
        "momentum": alg.centroidal_momentum(model, q, v),
        "force": alg.centroidal_momentum_time_derivative(model, q, v, a),
        "matrix": alg.centroidal_momentum_matrix(model, q),
        "matrix_rate": alg.centroidal_momentum_matrix_time_derivative(model, q, v),
        "inertia": alg.centroidal_inertia(model, q),
        "com_jacobian": alg.com_jacobian(model, q),
        "com_velocity": alg.com_velocity(model, q, v),
        "com_acceleration": alg.com_acceleration(model, q, v, a),
        "com_bias": alg.com_bias_acceleration(model, q, v),
        "other": alg.frame_acceleration(model, q, v, a, frame, "local", "classical"),
        "bias": alg.frame_bias_acceleration(model, q, v, frame),
    }
    for name, (_, kind) in REFERENCES.items():
        out[f"acceleration {name}"] = alg.frame_acceleration(model, q, v, a, frame, name, kind)
        out[f"jacobian {name}"] = alg.frame_jacobian_time_derivative(model, q, v, frame, name)
    return out


def expected(oracle, q, v, a, G, frame):
    """The same quantities by Pinocchio, for one state of the spanning tree."""
    model, data = oracle.pin_model, oracle.pin_model.createData()
    state = oracle.q(q), oracle.v(v), oracle.v(a)
    number = model.getFrameId(frame)
    out = {
        "force": pin.computeCentroidalMomentumTimeVariation(model, data, *state).vector.copy(),
        "momentum": data.hg.vector.copy(),
        "matrix_rate": pin.dccrba(model, data, *state[:2]) @ G,
        "matrix": pin.ccrba(model, data, *state[:2]) @ G,
        "inertia": data.Ig.matrix().copy(),
        "com_jacobian": pin.jacobianCenterOfMass(model, data, state[0]) @ G,
    }
    pin.centerOfMass(model, data, *state)
    out |= {"com_velocity": data.vcom[0].copy(), "com_acceleration": data.acom[0].copy()}
    pin.centerOfMass(model, data, *state[:2], 0 * state[2])
    out["com_bias"] = data.acom[0].copy()
    pin.forwardKinematics(model, data, *state)
    pin.updateFramePlacements(model, data)
    out["other"] = pin.getFrameClassicalAcceleration(model, data, number, pin.LOCAL).vector.copy()
    for name, (code, kind) in REFERENCES.items():
        function = pin.getFrameAcceleration if kind == "spatial" else pin.getFrameClassicalAcceleration
        out[f"acceleration {name}"] = function(model, data, number, code).vector.copy()
    pin.computeJointJacobiansTimeVariation(model, data, *state[:2])
    pin.updateFramePlacements(model, data)
    for name, (code, _) in REFERENCES.items():
        out[f"jacobian {name}"] = pin.getFrameJacobianTimeVariation(model, data, number, code) @ G
    out["bias"] = out["jacobian local_world_aligned"] @ np.linalg.lstsq(G, v, rcond=None)[0]
    return out


def test_against_pinocchio():
    model, q, v, a, oracle, on_tree, G = forest()
    # The frame comes after free, ball or universal joints. The mimic joints, in another tree, count in all sums.
    frame = "body3"
    got = jax.jit(everything, static_argnames="frame")(model, q, v, a, frame)
    want = [expected(oracle, *state, G, frame) for state in on_tree]
    for name, value in got.items():
        assert relative_error(value, [w[name] for w in want]) < TOLERANCE, name
    # The force is the rate of the momentum `matrix @ v`.
    force = np.einsum("bij,bj->bi", got["matrix"], a) + np.einsum("bij,bj->bi", got["matrix_rate"], v)
    assert relative_error(got["force"], force) < TOLERANCE


@pytest.mark.slow
def test_power_balance():
    """The rate of the mechanical energy is the power of actuators, friction and external wrenches."""
    model, q, v, a, *_ = forest()
    q, v, a = q[0], v[0], a[0]
    f_ext = jax.random.normal(jax.random.key(5), (model.nb, 6))
    tau = jaxdyn.rnea(model, q, v, a, f_ext)
    got = alg.power(model, q, v, tau, f_ext)
    # The energies before and after along this motion, and at rest after a displacement of each degree of freedom.
    n, h = model.nv, 1e-5
    t = h * jnp.array([[1.0], [-1.0]])
    displacements = jnp.concatenate([t * v + 0.5 * t**2 * a, h * jnp.eye(n), -h * jnp.eye(n)])
    displaced_q = model.integrate(jnp.broadcast_to(q, (2 + 2 * n, model.nq)), displacements)
    energy = alg.mechanical_energy(model, displaced_q, jnp.concatenate([v + t * a, jnp.zeros((2 * n, n))]))
    assert float(got.total) == pytest.approx(float(energy[0] - energy[1]) / (2 * h), rel=1e-7)
    assert float(got.actuators) == pytest.approx(float(tau @ v), rel=1e-12)
    assert float(got.friction) < 0
    gradient = (energy[2 : 2 + n] - energy[2 + n :]) / (2 * h)
    np.testing.assert_allclose(alg.potential_energy_gradient(model, q), gradient, rtol=1e-7, atol=1e-7)


def test_errors():
    model, q, v, a, *_ = forest()
    with pytest.raises(ModelError, match=r"'sideways'.*'local_world_aligned'"):
        alg.frame_acceleration(model, q, v, a, "hand", "sideways")
    with pytest.raises(ModelError, match=r"kind is 'proper'.*'spatial'"):
        alg.frame_acceleration(model, q, v, a, "hand", kind="proper")
    with pytest.raises(UnknownNameError, match="hand"):
        alg.frame_jacobian_time_derivative(model, q, v, "hnad")
    with pytest.raises(jaxdyn.ShapeError, match="v has shape"):
        alg.centroidal_momentum(model, q, v[:, :-1])
