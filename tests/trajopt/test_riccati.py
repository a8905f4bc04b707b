"""The Riccati recursion: its native program beside XLA's, batches, and wrong curvatures."""

import jax
import numpy as np
import pytest

from jaxdyn import native
from jaxdyn.trajopt.ddp._expansion import Expansion
from jaxdyn.trajopt.ddp._riccati import HeldControls, backward, linear_roll_out
from jaxdyn.trajopt.problem import Quadratic

SIZES = ((3, 1, 1), (3, 12, 4), (2, 7, 17), (2, 70, 3))
"""Horizons, displacements and controls: less and more than a vector of the processor has lanes."""


def expansion(horizon: int, n: int, m: int, dtype, seed: int = 0) -> tuple[Expansion, HeldControls]:
    """Return a random expansion with positive curvature, and controls of which some are held at a step."""
    rng = np.random.default_rng(seed)

    def draw(*shape):
        return rng.normal(size=shape).astype(dtype)

    root, end_root = draw(horizon, n + m, n + m), draw(n, n)
    Z = 0.3 * root @ np.swapaxes(root, 1, 2) + np.eye(n + m, dtype=dtype)
    stage = Quadratic(draw(horizon), draw(horizon, n), draw(horizon, m), Z[:, :n, :n], Z[:, n:, :n], Z[:, n:, n:])
    end = Quadratic(draw(), draw(n), draw(0), end_root @ end_root.T, draw(0, n), draw(0, 0))
    A, B, gaps = np.eye(n, dtype=dtype) + 0.2 * draw(horizon, n, n), draw(horizon, n, m), draw(horizon + 1, n)
    free = rng.integers(0, 2, (horizon, m)).astype(dtype)
    return Expansion(A, B, gaps, stage, end), HeldControls(free, 0.3 * (1 - free) * draw(horizon, m))


def compare(a, b, tolerance: float) -> None:
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=tolerance * (1e-30 + np.abs(y).max()))


@pytest.mark.slow
@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_native_program_is_equal_to_xla(dtype, held):
    if not native.enabled():
        pytest.skip(f"no native code: {native.status().reason}")
    problems = [expansion(*size, dtype) for size in SIZES]
    if not held:
        problems = [(e, None) for e, _ in problems]
    # One program for all sizes compiles faster.
    solve = jax.jit(lambda problems: [backward(e, dtype(1e-3), held) for e, held in problems])
    text = solve.lower(problems).as_text()
    policies = solve(problems)
    with native.disabled():
        others = jax.jit(lambda problems: [backward(e, dtype(1e-3), held) for e, held in problems])(problems)
    assert text.count("jaxdyn_") >= len(SIZES)
    for policy, other in zip(policies, others, strict=True):
        assert policy.ok
        compare(policy, other, 1e-12 if dtype == np.float64 else 1e-4)


def test_policy_minimizes_the_quadratic_problem():
    """The solution of the system of all states, controls and costates at once."""
    horizon, n, m = 4, 3, 2
    e, _ = expansion(horizon, n, m, np.float64)
    policy = jax.jit(backward)(e, 0.0)
    dxs, dus = linear_roll_out(e, policy)
    # Variables: states of all stages, then controls; each state has a row of dynamics.
    states, count = (horizon + 1) * n, (horizon + 1) * n + horizon * m
    H, g = np.zeros((count, count)), np.zeros(count)
    C, c = np.zeros((states, count)), np.zeros(states)
    C[:n, :n], c[:n] = np.eye(n), e.gaps[0]
    for t in range(horizon + 1):
        x = slice(t * n, t * n + n)
        H[x, x], g[x] = (e.terminal.xx, e.terminal.x) if t == horizon else (e.stage.xx[t], e.stage.x[t])
        if t < horizon:
            u, after = slice(states + t * m, states + t * m + m), slice(t * n + n, t * n + 2 * n)
            H[u, u], g[u], H[u, x], H[x, u] = e.stage.uu[t], e.stage.u[t], e.stage.ux[t], e.stage.ux[t].T
            C[after, after], C[after, x], C[after, u], c[after] = np.eye(n), -e.A[t], -e.B[t], e.gaps[t + 1]
    system = np.block([[H, C.T], [C, np.zeros((states, states))]])
    solution = np.linalg.solve(system, np.concatenate([-g, c]))
    np.testing.assert_allclose(dxs.ravel(), solution[:states], atol=1e-10)
    np.testing.assert_allclose(dus.ravel(), solution[states:count], atol=1e-10)


def test_curvature_that_is_not_positive_is_not_ok():
    e, _ = expansion(3, 4, 2, np.float64)
    wrong = e._replace(stage=e.stage._replace(uu=e.stage.uu.copy()))
    wrong.stage.uu[1] -= 1e3 * np.eye(2)
    assert jax.jit(backward)(e, 0.0).ok
    assert not jax.jit(backward)(wrong, 0.0).ok
    assert jax.jit(backward)(wrong, 1e4).ok


def test_batches():
    """A batch of expansions that share some arrays."""
    e, held = expansion(3, 4, 2, np.float64)
    others = np.linspace(-1, 1, 3)[:, None, None] + e.stage.x

    def solve(slopes):
        return backward(e._replace(stage=e.stage._replace(x=slopes)), 1e-3, held)

    together = jax.jit(jax.vmap(solve))(others)
    one = jax.jit(solve)
    for i, slopes in enumerate(others):
        compare(jax.tree.map(lambda a, i=i: a[i], together), one(slopes), 1e-13)
