"""Regressors times the inertial parameters are torques, wrenches, momenta and energies."""

import functools

import jax
import numpy as np
import pinocchio as pin
import pytest

from jaxdyn import algorithms as alg
from tests.oracles import relative_error
from tests.small_robots import forest

TOLERANCE = 1e-11


@functools.cache
def regressors():
    """Return the regressors of trees with all joint types and a mimic joint, reference velocities and parameters."""
    model, q, v, a, *_ = forest()
    v_r = np.asarray(jax.random.normal(jax.random.key(9), v.shape))

    def all_of(model, q, v, v_r, a):
        return (
            alg.slotine_li_regressor(model, q, v, v_r, a),
            alg.momentum_regressor(model, q, v),
            alg.energy_regressors(model, q, v),
            alg.body_regressor(model, q, v, a),
        )

    return jax.jit(all_of)(model, q, v, v_r, a), v_r, np.asarray(model.inertial_parameters).ravel()


def bodies_alone(oracle, q):
    """Return the mass matrix of the spanning tree without armature."""
    return oracle.crba(q) - np.diag(oracle.model.armature)


@pytest.mark.slow
def test_adaptive_control():
    """`Y p = M a_r + C v_r + g` holds, where `C` is the matrix for which `dM/dt - 2 C` is skew-symmetric."""
    (Y, *_), v_r, p = regressors()
    *_, oracle, on_tree, G = forest()
    want = []
    for (q, v, a), reference in zip(on_tree, v_r @ G.T, strict=True):
        C = pin.computeCoriolisMatrix(oracle.pin_model, oracle.data, oracle.q(q), oracle.v(v)).copy()
        g = pin.computeGeneralizedGravity(oracle.pin_model, oracle.data, oracle.q(q))
        want.append(G.T @ (bodies_alone(oracle, q) @ a + C @ reference + g))
    assert relative_error(Y @ p, want) < TOLERANCE


def test_momentum_and_energies():
    (_, Y, energies, _), _, p = regressors()
    *_, oracle, on_tree, G = forest()
    momenta = [bodies_alone(oracle, q) @ v for q, v, _ in on_tree]
    assert relative_error(Y @ p, momenta @ G) < TOLERANCE
    kinetic = [0.5 * v @ h for (_, v, _), h in zip(on_tree, momenta, strict=True)]
    np.testing.assert_allclose(energies.kinetic @ p, kinetic, rtol=TOLERANCE)
    potential = [oracle.potential_energy(q) for q, *_ in on_tree]
    np.testing.assert_allclose(energies.potential @ p, potential, rtol=TOLERANCE)


def test_bodies():
    """Each block equals Pinocchio's; a joint that is a chain in Pinocchio carries the body at the chain's end."""
    (*_, Y), _, _ = regressors()
    *_, oracle, on_tree, _ = forest()
    names = list(oracle.pin_model.names)
    last = [max(i for i, n in enumerate(names) if n.rsplit("_", 1)[0] == j) for j in oracle.model.joint_names]
    want = []
    for state in on_tree:
        oracle.rnea(*state)
        blocks = [pin.jointBodyRegressor(oracle.pin_model, oracle.data, i).copy() for i in last]
        want.append(np.array(blocks))
    assert relative_error(Y, want) < TOLERANCE
