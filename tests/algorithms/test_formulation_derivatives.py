"""Derivatives of the formulations' quantities by states and by every physical array of the model are correct."""

import equinox as eqx
import numpy as np
import pytest

from tests.algorithms.formulation_cases import QUANTITIES, case
from tests.derivatives import check_derivatives

LEAVES = {
    "gravity": lambda m: m.gravity,
    "inertial_parameters": lambda m: m.inertial_parameters,
    "armature": lambda m: m.armature,
    "joint_placement": lambda m: m.joint_placement,
    "joint_axis": lambda m: m.joint_axis,
    "joint_pitch": lambda m: m.joint_pitch,
}
# The other quantities are computed from these. Friction is left out: it is linear in its parameters except its width.
QUICK = ("LD",)
OTHERS = (("Minv", "solved"), ("C", "M of jacobians"), ("newton_euler", "denoc"), ("bodies",))


@pytest.mark.parametrize("names", [QUICK, *(pytest.param(x, marks=pytest.mark.slow) for x in OTHERS)])
def test_forward_reverse_and_central_differences(names):
    """Derivatives of a smooth function of the results, for a model with a massless body, agree; only the slow tests use
    forward mode."""
    model, *arrays = case("chain")
    model = eqx.tree_at(lambda m: m.inertial_parameters, model, model.inertial_parameters.at[0].set(0))
    q, v, x, f_ext = (y[0] for y in arrays)
    arguments = {"q": q, "v": v, "x": x, "f_ext": f_ext} | {name: get(model) for name, get in LEAVES.items()}

    def results(values):
        changed = eqx.tree_at(lambda m: [get(m) for get in LEAVES.values()], model, [values[n] for n in LEAVES])
        state = [values[name] for name in ("q", "v", "x", "f_ext")]
        return [QUANTITIES[name](changed, *state) for name in names]

    rng = np.random.default_rng(0)
    along = {name: rng.normal(size=value.shape) for name, value in arguments.items()}
    # The massless body stays massless: its center of mass could not change smoothly.
    along["inertial_parameters"] *= 0.01 * np.arange(len(model.inertial_parameters))[:, None]
    modes = ["reverse"] if names == QUICK else ["forward", "reverse"]
    check_derivatives(results, arguments, along=(along,), each=True, modes=modes, reverse_rtol=1e-8, dependent=False)
