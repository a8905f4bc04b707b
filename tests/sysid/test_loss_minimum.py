"""The minimum of a mean loss by differences: closed forms of least squares, coverage of intervals, and refusals."""

import numpy as np
import pytest

import jaxdyn
from jaxdyn.sysid import loss_minimum

BETA = np.array([1.0, -2.0, 0.5])


def groups(seed: int, count: int = 80, each: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Columns that nearly depend on each other, and readings with an error that all of a group share."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(count, each, 3)) @ np.array([[1.0, 0.9, 0.0], [0.0, 0.3, 0.0], [0.0, 0.1, 1.0]])
    y = X @ BETA + rng.standard_t(5, size=(count, 1)) + 0.5 * rng.normal(size=(count, each))
    return X, y


def test_least_squares_have_the_minimum_and_the_clustered_covariance_of_the_closed_form():
    X, y = groups(0)
    start = BETA + [0.02, -0.05, 0.03]
    found = loss_minimum(lambda b: ((y - X @ b) ** 2).mean(axis=-1), start, width=10.0, rounds=3)
    A = np.einsum("nki,nkj->ij", X, X)
    value = np.linalg.solve(A, np.einsum("nki,nk->i", X, y))
    scores = np.einsum("nki,nk->ni", X, y - X @ value)
    np.testing.assert_allclose(found.free, value, rtol=1e-6)
    covariance = np.linalg.solve(A, np.linalg.solve(A, scores.T @ scores).T)
    np.testing.assert_allclose(found.covariance, covariance * len(X) / (len(X) - 3), rtol=1e-2)
    assert found.loss < found.start_loss
    assert found.moved < 1e-3
    assert found.recordings == len(X)
    table = found.intervals(["a", "b", "c"])
    np.testing.assert_allclose(table.upper - table.lower, 2 * 1.959964 * found.standard_errors, rtol=1e-6)
    assert "mean loss" in str(found)


@pytest.mark.parametrize("loss", ["root", "steps"])
def test_intervals_contain_the_truth_for_losses_with_creases_and_steps(loss):
    inside = []
    for seed in range(100):
        X, y = groups(seed)
        rng = np.random.default_rng(1000 + seed)
        J, level = rng.normal(size=(len(X), 3)), rng.normal(size=len(X))
        above = J @ BETA + rng.logistic(size=len(X)) > level

        def losses(b, X=X, y=y, J=J, level=level, above=above):
            flipped = (J @ b > level) != above
            return np.sqrt(np.abs(y - X @ b).mean(axis=-1) + 0.1) + (0.2 * flipped if loss == "steps" else 0.0)

        found = loss_minimum(losses, BETA + 0.05 * rng.normal(size=3), rounds=2)
        inside += list(np.abs(found.free - BETA) < 1.959964 * found.standard_errors)
    assert 0.88 <= np.mean(inside) <= 0.98, np.mean(inside)


def test_a_number_on_which_no_loss_depends_is_open():
    X, y = groups(0)
    found = loss_minimum(lambda b: ((y - X @ b[:3]) ** 2).mean(axis=-1), np.append(BETA, 7.0))
    assert np.isfinite(found.standard_errors).tolist() == [True, True, True, False]
    np.testing.assert_allclose(found.free[3], 7.0, rtol=1e-9)


def test_wrong_arguments_are_refused():
    def losses(b):
        return np.full(4, b.sum())

    with pytest.raises(jaxdyn.DataError, match="at least 5 recordings"):
        loss_minimum(losses, BETA)
    with pytest.raises(jaxdyn.DataError, match="0 finite entries"):
        loss_minimum(losses, [np.nan])
    for wrong in ({"width": 0.0}, {"rounds": 0}):
        with pytest.raises(jaxdyn.ModelError):
            loss_minimum(losses, [1.0], **wrong)
    with pytest.raises(jaxdyn.DataError, match="names has 1 entries"):
        loss_minimum(lambda b: b.sum() + np.arange(9.0), BETA).intervals(["a"])
