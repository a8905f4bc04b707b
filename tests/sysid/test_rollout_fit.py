"""Multiple shooting fits roll-outs to recordings."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdyn
from jaxdyn import DataError, ModelError, State, Status, rollout
from jaxdyn.simulate import FirstOrderLag
from jaxdyn.sysid import (
    Additive,
    InertiaScale,
    LinkLength,
    Parametrization,
    Positive,
    Recording,
    RolloutFit,
    RolloutFitOptions,
    fit_fleet,
    fit_rollouts,
    rollout_errors,
    write_rollout_report,
)
from jaxdyn.sysid.rollouts._arrow import (
    ArrowSystem,
    column_norms,
    compress,
    eliminate_states,
    gradient,
    influence,
    product,
    solution,
    solve_normal,
)
from jaxdyn.sysid.rollouts._recorded_rollouts import cut_recordings
from jaxdyn.sysid.rollouts._shooting import (
    RobustLoss,
    ShootingProblem,
    ShootingState,
    displace,
    first_state,
    linearize,
    residuals,
)

DT = 0.01
POSITION, VELOCITY = 1e-3, 1e-2


def fit_recordings(
    parametrization,
    recordings,
    *,
    segment=0.1,
    noise=(POSITION, VELOCITY),
    start=None,
    report=None,
    state=None,
    **options,
) -> RolloutFit:
    """Call `fit_rollouts` with common settings, so that most tests share one compiled program."""
    position, velocity = noise
    return fit_rollouts(
        parametrization,
        recordings,
        segment=segment,
        position_noise=position,
        velocity_noise=velocity,
        options=RolloutFitOptions(**{"integrator": "implicit_velocity", "max_iterations": 30, **options}),
        start=start,
        report=report,
        state=state,
    )


def truth():
    return jaxdyn.samples.double_pendulum().with_joint_friction(damping=0.05, friction=0.1, friction_velocity=0.2)


def record(model, duration: float, seed: int, noise: float = 1.0) -> Recording:
    rng = np.random.default_rng(seed)
    t = DT * np.arange(round(duration / DT) + 1)
    frequency, phase = rng.uniform(2, 8, 2), rng.uniform(0, 6, 2)
    tau = 2 * np.sin(frequency * t[:, None] + phase)
    start = State(jnp.asarray(rng.uniform(-1, 1, 2)), jnp.zeros(2))
    motion = rollout(model, start, 0.5 * (tau[:-1] + tau[1:]), DT)
    q, v = (np.asarray(x) for x in (motion.q, motion.v))
    q, v = q + noise * POSITION * rng.standard_normal(q.shape), v + noise * VELOCITY * rng.standard_normal(v.shape)
    return Recording(t, q, v, None, tau)


def wrong(model):
    """Return the model with friction, the second link's length and gravity wrong by a third to a half."""
    start = model.with_joint_friction(damping=0.1, friction=0.05)
    return eqx.tree_at(
        lambda m: (m.gravity, m.joint_placement),
        start,
        (0.7 * start.gravity, start.joint_placement.at[1, :3].multiply(1.4)),
    )


@pytest.fixture(scope="module")
def parametrization():
    start = wrong(truth())
    return Parametrization(
        start,
        Positive("damping"),
        Positive("friction", shared=True),
        Additive("gravity", at=2, scale=10.0),
        LinkLength(start.joint_names[1:]),
    )


@pytest.fixture(scope="module")
def recordings():
    return [record(truth(), 2.0, 0), record(truth(), 1.04, 1)]


@pytest.fixture(scope="module")
def fit(parametrization, recordings):
    steps = []
    out = fit_recordings(parametrization, recordings, report=steps.append)
    return out, steps


def test_gravity_length_and_friction_are_recovered(fit, parametrization):
    out, _ = fit
    assert out.converged
    assert out.iterations < 25
    exact = truth()
    np.testing.assert_allclose(out.robot.gravity[2], exact.gravity[2], rtol=0.01)
    np.testing.assert_allclose(out.robot.joint_placement[1, 2], exact.joint_placement[1, 2], rtol=0.01)
    np.testing.assert_allclose(out.robot.damping, exact.damping, atol=0.004)
    np.testing.assert_allclose(out.robot.friction, exact.friction, atol=0.01)
    # The residuals give the noise and the standard errors of the parameters.
    np.testing.assert_allclose(out.position_noise, POSITION, rtol=0.15)
    np.testing.assert_allclose(out.velocity_noise, VELOCITY, rtol=0.15)
    names = ("gravity", "damping", "joint_placement")
    for name in names:
        value, low, high = out.interval(lambda m, name=name: getattr(m, name), level=0.9999)
        assert np.all((low <= getattr(exact, name) + 1e-12) & (getattr(exact, name) <= high + 1e-12)), name
        np.testing.assert_array_equal(value, getattr(out.robot, name))
    ratio = np.sqrt(np.diagonal(out.clustered_covariance)) / out.standard_errors
    assert np.all((ratio > 0.4) & (ratio < 2.0))
    assert out.before.gravity[2] == parametrization.reference.gravity[2]


@pytest.mark.slow
def test_intervals_by_name_and_by_bootstrap(fit, parametrization):
    out, _ = fit
    table = out.intervals()
    assert "damping(lower_joint)" in table.names
    assert "gravity[2]" in table.names
    assert "position z(lower_joint)" in table.names
    assert len(table.names) == len(set(table.names))
    # Without a prior, only quantities that the free numbers cannot change count as decided by the prior.
    assert "gravity[2]" not in table.decided_by_prior()
    value, low, high = out.interval(lambda m: m.gravity)
    k = table.names.index("gravity[2]")
    np.testing.assert_allclose([table.value[k], table.lower[k], table.upper[k]], [x[2] for x in (value, low, high)])
    quantities = {"g": lambda m: m.gravity[2], "b": lambda m: m.damping, "c": lambda m: m.friction}
    expected = out.intervals(quantities, clustered=True)
    assert expected.names == ("g", "b[0]", "b[1]", "c[0]", "c[1]")
    drawn = out.bootstrap(draws=300, blocks=30)
    assert drawn.blocks == 30
    assert drawn.free.shape == (300, parametrization.size)
    intervals = drawn.intervals(quantities)
    # The noise is independent and the blocks are segments, so the bootstrap agrees with the sandwich estimate.
    np.testing.assert_allclose(intervals.standard_error, expected.standard_error, rtol=0.35)
    np.testing.assert_array_equal(intervals.value, expected.value)
    assert np.all((intervals.lower < intervals.value) & (intervals.value < intervals.upper))
    with pytest.raises(DataError, match="blocks is 1; an integer of at least 2"):
        out.bootstrap(blocks=1)


def test_the_result_says_where_each_segment_is_from(fit, recordings):
    out, _ = fit
    assert out.segment_recordings.tolist() == [0] * 20 + [1] * 10
    np.testing.assert_allclose(out.segment_times[[0, 1, 19, 20]], [0, 0.1, 1.9, 0])
    assert np.all(out.segment_residuals < 2)
    # A recording's last segment has no successor, so it has no defect.
    assert np.all(out.defects[[19, 29]] == 0)
    assert np.all(np.abs(out.defects[:19]).max(axis=0) < 10 * np.array([POSITION, POSITION, VELOCITY, VELOCITY]))


def test_the_held_out_error_falls(fit, tmp_path):
    out, _ = fit
    held_out = record(truth(), 1.5, 9)
    errors = [
        rollout_errors(robot, held_out, 0.5, every=0.1, integrator="implicit_velocity")
        for robot in (out.before, out.robot)
    ]
    assert errors[0].position.shape == (11, 51, 2)
    medians = [np.median(e.rmse(0.5)) for e in errors]
    assert medians[1] < 0.1 * medians[0]
    assert np.all(errors[1].rmse(0.2) <= errors[1].rmse(0.5) * 3)
    with pytest.raises(DataError, match="horizon"):
        errors[0].rmse(0.6)
    with pytest.raises(DataError, match="does not fit"):
        rollout_errors(out.robot, held_out, 3.0, every=0.1)
    page = tmp_path / "page.html"
    write_rollout_report(page, out, {"held out": dict(zip(("before", "identified"), errors, strict=True))})
    text = page.read_text()
    assert all(x in text for x in ("Roll-out errors", "held out", "identified", *out.intervals().names))
    with pytest.raises(DataError, match="nothing to report"):
        write_rollout_report(page, out, {})


def test_an_interrupted_fit_goes_on_to_the_same_end(fit, parametrization, recordings):
    out, steps = fit

    def stop(step):
        if step.iteration == 3:
            saved.append(ShootingState.from_arrays(step.state.arrays()))
            raise KeyboardInterrupt

    saved = []
    with pytest.raises(KeyboardInterrupt):
        fit_recordings(parametrization, recordings, report=stop)
    again = fit_recordings(parametrization, recordings, state=saved[0])
    np.testing.assert_array_equal(again.free, out.free)
    assert again.iterations == out.iterations == len(steps)
    costs = [step.cost for step in steps]
    assert all(b <= a for a, b in itertools.pairwise(costs))
    assert out.cost == costs[-1]
    with pytest.raises(DataError, match="another fit"):
        fit_recordings(parametrization, recordings[:1], state=saved[0])
    with pytest.raises(DataError, match="damping"):
        ShootingState.from_arrays({k: v for k, v in saved[0].arrays().items() if k != "damping"})


def test_exact_matching_joins_the_segments(fit, parametrization, recordings):
    exact = fit_recordings(parametrization, recordings, matching=0.0, start=fit[0].free, max_iterations=60)
    assert exact.converged
    scale = np.array([POSITION, POSITION, VELOCITY, VELOCITY])
    assert np.all(np.abs(exact.defects) <= 1.1e-3 * scale)
    # One roll-out over the whole recording ends in the same state.
    q, v = exact.state.q[0], exact.state.v[0]
    tau = np.asarray(recordings[0].tau)
    motion = rollout(exact.robot, State(q, v), 0.5 * (tau[:-1] + tau[1:]), DT)
    assert np.abs(np.asarray(motion.q[::10][:20]) - np.asarray(exact.state.q)[:20]).max() < 1e-3


def test_independent_segments(fit, parametrization, recordings):
    apart = fit_recordings(parametrization, recordings, matching=None, start=fit[0].free)
    assert apart.converged
    assert np.all(apart.defects == 0)
    np.testing.assert_allclose(apart.robot.gravity[2], -9.81, rtol=0.05)
    # Joining the segments adds information.
    assert np.all(apart.standard_errors > fit[0].standard_errors)


def test_noise_is_estimated_in_rounds(fit, parametrization, recordings):
    noise = (2 * POSITION, 0.5 * VELOCITY)
    out = fit_recordings(parametrization, recordings, noise=noise, start=fit[0].free, rounds=5)
    assert out.converged
    assert out.rounds > 1
    np.testing.assert_allclose(out.state.position_noise, POSITION, rtol=0.2)
    np.testing.assert_allclose(out.state.velocity_noise, VELOCITY, rtol=0.2)


def test_a_pull_keeps_what_the_data_do_not_say(fit, parametrization, recordings):
    pulled = fit_recordings(parametrization, recordings, prior_weight=1e9)
    assert np.all(np.abs(pulled.free) < 0.05 * np.abs(fit[0].free).max())
    # Quantities that the prior decides are as uncertain as the prior, whatever the size of the residuals.
    held = fit_recordings(parametrization.about(fit[0].robot), recordings, prior_weight=1e9)
    table = held.intervals({"gravity": lambda m: m.gravity[2], "damping": lambda m: m.damping})
    assert set(table.decided_by_prior()) == set(table.names)
    for covariance in (held.covariance, held.clustered_covariance):
        np.testing.assert_allclose(np.diagonal(covariance), np.diagonal(held.prior_covariance), rtol=0.05)


@pytest.mark.slow
def test_derivatives_of_the_residuals(fit, parametrization, recordings):
    """The tangents equal central differences, and the arrow system's elimination equals a dense solution."""
    segments, dt = cut_recordings(truth(), (recordings[1],), 0.2, "mean")
    numbers = [jnp.asarray(x) for x in (dt, 1.0, 0.3)]
    loss = RobustLoss("squared", jnp.asarray(3.0))
    # The offsets of the sensors are among the unknowns.
    zeros = jnp.ones((len(segments.linked), 1)), jnp.asarray(0.05)
    problem = ShootingProblem(parametrization, segments, *numbers, loss, "implicit_velocity", 1, *zeros)
    state = first_state(problem, fit[0].free + 0.1, np.full(2, POSITION), np.full(2, VELOCITY))
    rows = eqx.filter_jit(linearize)(problem, state)
    S, n, P = state.q.shape[0], 4, problem.shared
    assert parametrization.size + 2 == P
    value = eqx.filter_jit(lambda z, x: residuals(problem, displace(problem, state, z, x)))
    h = 1e-6
    for s, k in ((0, 1), (2, 3)):
        dz = jnp.zeros((S, n)).at[s, k].set(h)
        up, down = value(dz, jnp.zeros(P)), value(-dz, jnp.zeros(P))
        np.testing.assert_allclose(rows.data[s, :, k], (up.data - down.data)[s] / (2 * h), rtol=1e-5, atol=1e-2)
        np.testing.assert_allclose(rows.match[s, :, k], (up.match - down.match)[s] / (2 * h), rtol=1e-5, atol=1e-2)
        if s:
            before = (up.match - down.match)[s - 1] / (2 * h)
            np.testing.assert_allclose(rows.match[s - 1, :, n + k], before, rtol=1e-5, atol=1e-2)
    for k in range(P):
        dx = jnp.zeros(P).at[k].set(h)
        up, down = value(jnp.zeros((S, n)), dx), value(jnp.zeros((S, n)), -dx)
        np.testing.assert_allclose(rows.data[..., n + k], (up.data - down.data) / (2 * h), rtol=1e-4, atol=1e-2)
        np.testing.assert_allclose(rows.match[..., 2 * n + k], (up.match - down.match) / (2 * h), rtol=1e-4, atol=1e-2)
        np.testing.assert_allclose(rows.border[:, k], (up.pull - down.pull) / (2 * h), rtol=1e-5, atol=1e-6)


def random_rows(seed: int, S: int, m: int, n: int, P: int, k: int) -> ArrowSystem:
    rng = np.random.default_rng(seed)
    match = rng.standard_normal((S, n, 2 * n + P + 1))
    match[[S // 2, S - 1]] = 0.0  # two chains
    return ArrowSystem(
        *(jnp.asarray(x) for x in (rng.standard_normal((S, m, n + P + 1)), match, rng.standard_normal((k, P + 1))))
    )


@pytest.mark.parametrize("m", [pytest.param(2, marks=pytest.mark.slow), 12])
def test_elimination_is_least_squares(m):
    S, n, P, k = 6, 3, 4, 5
    rows = random_rows(m, S, m, n, P, k)
    damping_z, damping_x = np.full((S, n), 0.3), np.full(P, 0.2)

    @jax.jit
    def computed(rows, damping_z, damping_x):
        factor = eliminate_states(compress(rows), damping_z, damping_x)
        by_z_and_x = gradient(rows, product(rows, *solution(factor)))
        return (
            *(solution(factor), factor.decrease, column_norms(rows), influence(factor), by_z_and_x),
            solve_normal(factor, *by_z_and_x),
        )

    (z, x), decrease, norms, (of_z, of_x), both, returned = jax.tree.map(
        np.asarray, computed(rows, damping_z, damping_x)
    )
    blocks = []
    for s in range(S):
        block = np.zeros((m, S * n + P + 1))
        block[:, s * n : (s + 1) * n] = rows.data[s, :, :n]
        block[:, S * n :] = rows.data[s, :, n:]
        link = np.zeros((n, S * n + P + 1))
        if s < S - 1:
            link[:, s * n : (s + 2) * n] = rows.match[s, :, : 2 * n]
            link[:, S * n :] = rows.match[s, :, 2 * n :]
        blocks += [block, link]
    border = np.zeros((k, S * n + P + 1))
    border[:, S * n :] = rows.border
    damping = np.column_stack([np.diag(np.concatenate([damping_z.ravel(), damping_x])), np.zeros(S * n + P)])
    undamped = np.concatenate([*blocks, border])
    A = np.concatenate([undamped, damping])
    expected, *_ = np.linalg.lstsq(A[:, :-1], -A[:, -1], rcond=None)
    np.testing.assert_allclose(np.concatenate([np.ravel(z), x]), expected, atol=1e-10)
    left = A[:, :-1] @ expected + A[:, -1]
    assert float(decrease) == pytest.approx(0.5 * (A[:, -1] @ A[:, -1] - left @ left), rel=1e-9)
    columns = np.linalg.norm(undamped[:, :-1], axis=0)
    np.testing.assert_allclose(np.concatenate([np.ravel(c) for c in norms]), columns, rtol=1e-12)
    inverse = np.linalg.inv(A[:, :-1].T @ A[:, :-1])[:, S * n :]
    np.testing.assert_allclose(np.concatenate([of_z.reshape(S * n, P), of_x]), inverse, atol=1e-10)
    normal = undamped[:, :-1].T @ undamped[:, :-1] @ expected
    np.testing.assert_allclose(np.concatenate([np.ravel(g) for g in both]), normal, rtol=1e-9, atol=1e-10)
    back = np.concatenate([np.ravel(y) for y in returned])
    np.testing.assert_allclose(back, -np.linalg.solve(A[:, :-1].T @ A[:, :-1], normal), rtol=1e-9, atol=1e-10)


def pendulum_recording(outliers: bool = False, noise: float = 1.0) -> Recording:
    model = jaxdyn.samples.pendulum().with_joint_friction(damping=0.2)
    t = DT * np.arange(101)
    tau = 3 * np.sin(5 * t)[:, None]
    motion = rollout(model, State(jnp.array([0.5]), jnp.array([0.0])), 0.5 * (tau[:-1] + tau[1:]), DT)
    rng = np.random.default_rng(3)
    sizes = noise * POSITION, noise * VELOCITY
    q, v = (np.asarray(x) + s * rng.standard_normal(x.shape) for x, s in zip((motion.q, motion.v), sizes, strict=True))
    if outliers:
        q[5::7] += 0.2
    return Recording(t, q, v, None, tau)


@pytest.mark.slow
def test_a_fit_is_not_done_while_damping_holds_it_back():
    """Under a torque of 3e-5 N m the motion hardly tells the size of inertia and damping, only their ratio. At the
    start the ratio is right, so a damped step promises nothing, 10 standard errors from the minimum."""
    model = jaxdyn.samples.pendulum().with_joint_friction(damping=0.2)
    rng, t, noise = np.random.default_rng(3), DT * np.arange(401), 3e-7
    tau = 3e-5 * np.sin(5 * t)[:, None]
    motion = rollout(model, State(jnp.array([1.5]), jnp.array([0.0])), 0.5 * (tau[:-1] + tau[1:]), DT)
    q, v = (x + s * rng.standard_normal(x.shape) for x, s in ((motion.q, noise), (motion.v, 10 * noise)))
    p = Parametrization(model, InertiaScale(), Positive("damping"))
    recording = Recording(t, q, v, None, tau)
    options = {"segment": 0.25, "noise": (noise, 10 * noise), "matching": 0.1, "tolerance": 1e-5}
    far, near = (fit_recordings(p, recording, start=np.full(2, start), **options) for start in (0.05, 0.0))
    for fit in (far, near):
        assert fit.converged
        assert fit.step_left <= 0.03
    np.testing.assert_allclose(far.free, near.free, atol=0.06 * near.standard_errors.min())
    early = fit_recordings(p, recording, start=np.full(2, 0.05), **options, max_iterations=3)
    assert early.status == Status.OUT_OF_ITERATIONS
    assert early.step_left > 1
    assert f"{early.step_left:.2g} standard errors away" in early.message


def test_the_step_that_is_left(parametrization, recordings):
    """It is the Gauss-Newton step in the metric of its covariance."""
    early = fit_recordings(parametrization, recordings, max_iterations=1, prior_weight=100.0)
    none = jnp.zeros(early.state.multiplier.shape), jnp.zeros(parametrization.size)
    step = np.asarray(solution(eliminate_states(early.rows, *none))[1])
    expected = np.sqrt(step @ np.linalg.solve(early.covariance, step))
    assert expected > 0.1
    np.testing.assert_allclose(early.step_left, expected, rtol=1e-3)


def driven_pendulum(damping: float = 0.1) -> Parametrization:
    model = jaxdyn.samples.pendulum().with_joint_friction(damping=damping)
    # The gear ratio is wrong; the true one is 1.
    world = jaxdyn.World(model, actuators=[jaxdyn.Actuator("hinge", gear=1.3)], timestep=DT)
    return Parametrization(world, Positive("damping"), Positive("gear"))


def gear_of(robot) -> jax.Array:
    return robot.parts.actuators.gear[0, 0]


def controlled(data: Recording) -> Recording:
    """The recording with the controls of a motor in the place of the torques, those from a sample to the next."""
    assert data.tau is not None
    control = np.concatenate([0.5 * (data.tau[:-1] + data.tau[1:]), data.tau[-1:]])
    return Recording(data.t, data.q, data.v, control=control)


@pytest.mark.slow
def test_a_robust_loss_bears_outliers_and_gains_are_found():
    data, options = controlled(pendulum_recording(outliers=True)), {"segment": 0.25, "integrator": None}
    fits = {loss: fit_recordings(driven_pendulum(), data, loss=loss, **options) for loss in ("squared", "cauchy")}
    off = {loss: abs(float(gear_of(fit.robot)) - 1) for loss, fit in fits.items()}
    assert fits["cauchy"].converged
    assert off["cauchy"] < 0.02
    assert off["squared"] > 2 * off["cauchy"]


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        ("squared", lambda r, c: r**2),
        ("huber", lambda r, c: 2 * c**2 * (np.sqrt(1 + (r / c) ** 2) - 1)),
        ("cauchy", lambda r, c: c**2 * np.log(1 + (r / c) ** 2)),
    ],
)
def test_losses(loss, expected):
    robust = RobustLoss(loss, jnp.asarray(2.0))
    r = np.asarray([-30.0, -1.0, -0.02, -0.019, 1e-9, 0.0, 0.5, 4.0])
    half = jax.grad(lambda x: 0.5 * robust.residual(x) ** 2)

    @jax.jit
    def computed(r):
        derivatives = (jax.vmap(f)(r) for f in (jax.grad(robust.residual), half, jax.grad(half)))
        return robust.residual(r), robust.weight(r), robust.curvature(r), *derivatives

    residual, weight, curvature, slope, half_slope, second = map(np.asarray, computed(r))
    np.testing.assert_allclose(residual**2, expected(r, 2.0), rtol=1e-8, atol=1e-18)
    assert np.isfinite(slope).all()
    np.testing.assert_allclose(slope[np.abs(r) < 1e-3], 1, atol=1e-6)
    # Weighted residuals have the slope of the loss, and `curvature` is its second derivative.
    np.testing.assert_allclose(weight**2 * r, half_slope, rtol=1e-7, atol=1e-18)
    far = np.abs(r) > 0.1
    np.testing.assert_allclose(curvature[far], second[far], rtol=1e-7, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["squared", "huber", "cauchy"])
def test_intervals_cover_the_truth(loss):
    """90 to 98.5 % of 200 intervals of 95 % (two quantities, 100 recordings) cover the truth, for robust losses too."""
    data = pendulum_recording(noise=0.0)
    inside = []
    for seed in range(100):
        rng = np.random.default_rng(seed)
        q, v = (x + s * rng.standard_normal(x.shape) for x, s in ((data.q, POSITION), (data.v, VELOCITY)))
        # The assumed noise is three times too large, as the residuals reveal; the dynamics between segments are exact.
        fit = fit_recordings(
            driven_pendulum(),
            controlled(Recording(data.t, q, v, None, data.tau)),
            segment=0.25,
            integrator=None,
            noise=(3 * POSITION, 3 * VELOCITY),
            loss=loss,
            loss_scale=0.6,
            matching=0.02,
            max_iterations=100,
        )
        assert fit.converged
        table = fit.intervals({"b": lambda r: r.model.damping[0], "gear": gear_of})
        inside += list((table.lower <= [0.2, 1.0]) & (table.upper >= [0.2, 1.0]))
    assert 0.90 <= np.mean(inside) <= 0.985, np.mean(inside)


@pytest.mark.slow
def test_what_swinging_alone_does_not_tell():
    """Without torques, masses and friction may grow together; the lengths are found nevertheless."""
    exact = truth().with_joint_friction(damping=0.05, friction=0.0).with_armature(0.0)  # which would tell the masses
    swinging = [rollout(exact, State(jnp.asarray(q), jnp.zeros(2)), jnp.zeros((200, 2)), DT) for q in ([2, 1], [1, -2])]
    rng = np.random.default_rng(0)
    recordings = [
        Recording(
            DT * np.arange(201),
            x.q + POSITION * rng.standard_normal(x.q.shape),
            x.v + VELOCITY * rng.standard_normal(x.v.shape),
            tau=np.zeros((201, 2)),
        )
        for x in swinging
    ]
    start = eqx.tree_at(lambda m: m.joint_placement, exact, exact.joint_placement.at[1, :3].multiply(1.2))
    free = Parametrization(start, InertiaScale(), Positive("damping"), LinkLength(["lower_joint"]))
    out = fit_recordings(free, recordings)
    length = "log length to lower_joint"
    assert set(out.undetermined) == set(free.names) - {length}
    (direction,) = out.undetermined_directions
    assert all(name in direction for name in out.undetermined)
    assert direction.count(" + ") == 3  # all four by the same factor
    assert length not in direction
    held = fit_recordings(free, recordings, prior_weight=1.0)
    assert held.converged
    assert held.undetermined == held.undetermined_directions == ()
    value, lower, upper = held.interval(lambda m: m.joint_placement[1, 2])
    assert lower <= exact.joint_placement[1, 2] <= upper
    assert upper - lower < 0.02 * abs(value)


@pytest.mark.slow
def test_a_fleet_is_fitted_as_each_alone():
    data = controlled(pendulum_recording())
    many = [driven_pendulum(damping) for damping in (0.1, 0.15, 0.06)]
    p = jax.tree.map(lambda *x: jnp.stack(x), *many)
    q, v, tau = (np.broadcast_to(x, (3, *x.shape)) for x in (data.q, data.v, data.control))
    options = {"position_noise": POSITION, "velocity_noise": VELOCITY, "segment": 0.25}
    options["options"] = RolloutFitOptions(max_iterations=50)
    calls = []
    fleet = fit_fleet(p, q, v, tau, DT, chunk=2, report=lambda *x: calls.append(x), **options)
    assert fleet.converged.all()
    assert calls[-1][0] == 3
    alone = fit_recordings(many[0], data, segment=0.25, integrator=None)
    np.testing.assert_allclose(fleet.robot.model.damping, np.full((3, 1), alone.robot.model.damping[0]), rtol=1e-3)
    assert fleet.free.shape == (3, 2)
    with pytest.raises(ModelError, match="3 robots"):
        fit_fleet(p, q[:2], v[:2], tau[:2], DT, **options)


def test_mistakes_are_named(parametrization, recordings):
    def attempt(recordings=recordings, **changes):
        return fit_recordings(parametrization, recordings, **changes)

    run = recordings[0]
    jitter = Recording(run.t + 1e-3 * np.sin(np.arange(len(run.t))), run.q, run.v, None, run.tau)
    slower = Recording(2 * run.t, run.q, run.v, None, run.tau)
    for wrong_arguments, error, message in (
        ({"recordings": [jitter]}, DataError, "not uniform"),
        ({"recordings": [run, slower]}, DataError, "same rate"),
        ({"recordings": []}, DataError, "no recordings"),
        ({"segment": 5.0}, DataError, "shorter segments"),
        ({"segment": 1e-4}, DataError, "shorter than a sample"),
        ({"recordings": Recording(run.t, run.q, None, None, run.tau)}, DataError, "no velocities"),
        ({"recordings": Recording(run.t, run.q[:, :1], None, None, run.tau[:, :1])}, DataError, "columns"),
        ({"noise": (0.0, VELOCITY)}, ModelError, "position_noise"),
        ({"matching": -1.0}, ModelError, "matching"),
        ({"loss": "squares"}, ModelError, "'squared', 'huber', 'cauchy'"),
        ({"integrator": "rk5"}, ModelError, "rk4"),
        ({"hold": "end"}, ModelError, "hold"),
        ({"start": np.zeros(2)}, ModelError, "start"),
    ):
        with pytest.raises(error, match=message):
            attempt(**wrong_arguments)
    late = [jaxdyn.Actuator(x, force_path=[FirstOrderLag(0.1)]) for x in truth().joint_names]
    lagging = jaxdyn.World(truth(), actuators=late, timestep=DT)
    with pytest.raises(ModelError, match="remember something"):
        fit_recordings(Parametrization(lagging, Positive("damping")), controlled(run), integrator=None)
