"""What results print: first how it ended, in few lines, also without values and in batches, and as HTML."""

import functools
import re
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdyn import (
    ContactShape,
    Model,
    ShapeError,
    Sphere,
    State,
    World,
    algorithms,
    inverse_kinematics,
    load_world,
    rollout,
    samples,
    sysid,
    trajopt,
)
from jaxdyn._status import Status
from jaxdyn.sysid import Recording


@functools.cache
def pendulum() -> Model:
    """A pendulum with thickness: a rod without is no start for a fit."""
    return sysid.nearest_physical_model(samples.pendulum())[0]


def recording() -> Recording:
    model = pendulum()
    t = np.linspace(0, 6, 601)
    q = np.stack([np.sin(1.3 * t) + 0.4 * np.sin(3.1 * t + 1)] * model.nv, axis=-1)
    r = Recording(t, q, name="<swing>").differentiated(model=model)
    v, a = r.require("v", "a")
    tau = np.asarray(jax.vmap(lambda q, v, a: algorithms.rnea(model, q, v, a))(r.q, v, a))
    return Recording(r.t, r.q, v, a, tau + 0.01 * np.random.default_rng(0).normal(size=tau.shape), name="<swing>")


def problem() -> trajopt.Problem:
    dynamics = trajopt.ContinuousDynamics(lambda x, u, t, p: jnp.stack([x[1], u[0]]), 2, 1, dt=0.1)
    cost = trajopt.QuadraticCost(trajopt.StateResidual(jnp.array([1.0, 0.0])))
    return trajopt.Problem(dynamics, jnp.zeros(2), 8, stage_costs=[cost])


def solution() -> trajopt.Solution:
    return trajopt.ddp(problem())


def closed_loop() -> trajopt.ClosedLoop:
    mpc = trajopt.MPC(problem())
    return trajopt.closed_loop(mpc, lambda x, u: np.asarray(mpc.problem.step(x, u, 0)), np.zeros(2), 2)


@functools.cache
def world() -> World:
    return load_world(
        """<mujoco><worldbody><body name="arm"><joint name="turn"/><geom size="0.1"/></body></worldbody>
        <actuator><motor name="motor" joint="turn"/></actuator></mujoco>"""
    )


def with_contacts() -> World:
    return World(pendulum(), [ContactShape("rod", Sphere(0.1))])


def trajectory():
    return rollout(pendulum(), State(0.3 * np.ones(1), np.zeros(1)), np.zeros((5, 1)), 0.01)


def kinematics():
    model = pendulum()
    frame = model.body_names[-1]
    goal = algorithms.frame_pose(model, 0.5 * np.ones(model.nq), frame)
    return inverse_kinematics(model, algorithms.FrameTarget.of_pose(frame, goal), np.zeros(model.nq))


@functools.cache
def fit():
    return sysid.fit_inverse_dynamics(pendulum(), recording())


def of_zeros(kind, **changes):
    """An object of a `NamedTuple` with zeros in its fields."""
    return kind(**({name: np.zeros(3) for name in kind._fields} | changes))


RESULTS = {
    "State": (lambda: State(0.3 * np.ones(1), np.zeros(1)), r"State\(q \[1\], v \[1\]\)", r"q +0\.3"),
    "World": (
        world,
        r"World\(1 moving bodies, nq = 1, nv = 1\)",
        r"actuators +motor[\s\S]*step +0\.002 s, euler",
    ),
    "State of a world": (lambda: world().state(), r"State\(q \[1\], v \[1\]\)", r"time +0 s"),
    "Problem": (problem, r"Problem\(8 stages, nx = 2, nu = 1\)", r"stage costs +1 StateResidual"),
    "World with contacts": (with_contacts, r"World\(1 moving", r"contacts +1\n[\s\S]*surface +Plane"),
    "Recording": (recording, r"Recording\('<swing>', 5\.9[0-9]+ s, 5[0-9]+ samples, 100 per second\)", "tau"),
    "Solution": (solution, r"Solution\(converged, cost [0-9.]+, [0-9]+ iterations\)", "violation"),
    "ClosedLoop": (closed_loop, r"ClosedLoop\(2 of 2 converged\)", "latency"),
    "MPC": (lambda: trajopt.MPC(problem()), r"MPC\(a horizon of 8 steps\)", "solver .* DDPOptions"),
    "Plan": (lambda: trajopt.MPC(problem()).start(np.zeros(2)), r"Plan\(8 controls from t = 0 s\)", "next control"),
    "Trajectory": (trajectory, r"Trajectory\(6 samples from 0 to 0\.05 s\)", "tau"),
    "IKSolution": (kinematics, r"IKSolution\(converged", "error"),
    "Model": (pendulum, r"Model\(.*nv=1, mass [0-9.]+ kg", "Model"),
    "InverseDynamicsFit": (fit, r"InverseDynamicsFit\(converged", r"m\(rod\), kg +[0-9.]+ \([0-9.e-]+ to [0-9.e-]+\)"),
    "Evaluation": (lambda: fit().evaluate(recording()), r"Evaluation\(relative error 0\.0", "R2"),
    "Intervals": (lambda: fit().intervals(), r"Intervals\([0-9]+ values with intervals of 95 %", r"\(.* to .*\)"),
    "BaseParameters": (lambda: fit().base_parameters(), r"BaseParameters\([0-9]+ combinations of", "condition number"),
    "Bootstrap": (
        lambda: of_zeros(
            sysid.Bootstrap, parameters=np.zeros((4, 10)), blocks=7, converged=np.array([True] * 3 + [False])
        ),
        r"Bootstrap\(3 of 4 draws converged\)",
        "blocks +7",
    ),
    "FleetFit": (
        lambda: of_zeros(sysid.FleetFit, free=np.zeros((3, 2)), status=np.array([1, 1, 4])),
        r"FleetFit\(2 of 3 converged\)",
        "not converged +2",
    ),
}


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=[pytest.mark.slow] * (x in ("ClosedLoop", "IKSolution"))) for x in RESULTS]
)
def test_results_print_what_a_person_asks_first(name):
    make, first, content = RESULTS[name]
    result = make()
    assert type(result).__name__ == name.split()[0]
    assert re.match(first, repr(result)), repr(result)
    assert "\n" not in repr(result)
    assert len(repr(result)) < 300
    text = str(result)
    assert re.search(content, text), text
    assert len(text.splitlines()) <= 12
    assert not any(word in text for word in ("dtype", "Array(", "np."))
    page = result._repr_html_()
    assert not any(word in page for word in ("<swing>", "<script"))
    assert page.startswith(("<table>", "<div>"))


def test_derivatives_by_a_world_or_a_model_do_not_print_as_one():
    """They are objects of the same class, whose time step or masses would be shown as if they were some."""
    slope = jax.grad(lambda w: w.timestep * w.model.inertial_parameters.sum() * -1832)(world())
    for text in (str(slope), repr(slope), slope._repr_html_(), str(slope.model), slope.model._repr_html_()):
        assert "derivatives" in text
        assert not any(word in text for word in ("1832", "step", "kg"))
    assert "derivatives" not in str(world())
    assert "derivatives" not in str(jax.tree.map(lambda x: jnp.stack([x, x]).astype("float32"), world()))


@pytest.mark.parametrize(
    "name",
    [
        "State",
        "World",
        "Problem",
        "Solution",
        "Trajectory",
        "IKSolution",
        "Model",
        "MPC",
        "Plan",
        "InverseDynamicsFit",
    ],
)
def test_results_without_values_print_too(name):
    """Under transformations, as shapes, and with objects in the place of arrays, as JAX prints them in errors."""
    result = RESULTS[name][0]()
    seen = []

    def look(x):
        seen.extend([repr(x), str(x), x._repr_html_()])
        return jnp.zeros(())

    eqx.filter_jit(look)(result)
    arrays, rest = eqx.partition(result, eqx.is_array)
    jax.eval_shape(lambda x: look(eqx.combine(x, rest)), arrays)
    structure = jax.tree.structure(result)
    for leaf in (None, object(), jax.ShapeDtypeStruct((2,), np.float32), "text"):
        look(jax.tree.unflatten(structure, [leaf] * structure.num_leaves))
    assert all(name in x for x in seen)
    batch = jax.tree.map(lambda x: jnp.stack([x] * 3) if eqx.is_array(x) else x, result)
    look(batch)
    if name in ("Solution", "IKSolution"):
        assert repr(batch) == f"{name}(3 of 3 converged)"


@pytest.mark.slow
def test_statuses_of_batches_are_counted():
    result = eqx.filter_vmap(lambda x0: trajopt.ddp(problem().starting_at(x0)))(jnp.array([[0.0, 0.0], [0.1, 0.0]]))
    assert repr(result) == "Solution(2 of 2 converged)"
    left = eqx.tree_at(lambda s: s.status, result, jnp.array([int(Status.STALLED), int(Status.CONVERGED)]))
    assert repr(left) == "Solution(1 of 2 converged)"


def test_vmap_of_a_function_of_a_model():
    """JAX's default maps the rows of the model's arrays. `None` and `vmap_axes` say what is meant."""
    model, q = samples.arm(), 0.1 * np.arange(35.0).reshape(5, 7)
    inertias = jnp.stack([(1 + k) * model.inertial_parameters for k in range(5)])
    some = eqx.tree_at(lambda m: m.inertial_parameters, model, inertias)
    expected = algorithms.crba(some, q)
    mapped = jax.vmap(algorithms.crba, in_axes=(some.vmap_axes(), 0))(some, q)
    np.testing.assert_allclose(mapped, expected, rtol=1e-12)
    assert not jax.tree.leaves(model.vmap_axes())
    mapped = jax.vmap(algorithms.crba, in_axes=(None, 0))(model, q)
    np.testing.assert_allclose(mapped, algorithms.crba(model, q), rtol=1e-12)
    # JAX refuses its default before the library is called; a page explains the message.
    page = (Path(__file__).parent.parent / "docs/concepts/speed.md").read_text()
    for mapped in (model, some):
        with pytest.raises(ValueError, match="vmap got inconsistent sizes for array axes to be mapped") as caught:
            jax.vmap(algorithms.crba)(mapped, q)
        assert str(caught.value).split(":")[0] in page
    first = eqx.tree_at(lambda m: m.inertial_parameters, model, inertias[0, 0])
    with pytest.raises(ShapeError, match=r"lacks an axis, .*in_axes=None .*=model\.vmap_axes\(\)"):
        algorithms.crba(first, q[0])
