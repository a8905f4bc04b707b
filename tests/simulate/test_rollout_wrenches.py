"""External wrenches act in steps, roll-outs and the vector field; results match closed forms and repeated steps."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdyn
from jaxdyn import BodyInertia, Joint, Mimic, ModelBuilder, ShapeError, State
from jaxdyn.simulate import RolloutOptions, vector_field

INTEGRATORS = ("euler", "semi_implicit_euler", "implicit_velocity", "midpoint", "rk4")
MODEL = jaxdyn.samples.double_pendulum()
RNG = np.random.default_rng(0)
START = State(jnp.array([0.4, 1.0]), jnp.array([0.5, -0.3]))
TAU = jnp.array([0.1, 0.2])
ZERO = jnp.zeros((4, 2))
F = jnp.asarray(RNG.normal(size=(MODEL.nb, 6)))


def ball():
    """Return a free body of 2 kg with the inertia 0.5 kg m^2 and its center of mass at the origin."""
    inertia = BodyInertia(2.0, (0.0, 0.0, 0.0), (0.5, 0.5, 0.5))
    return ModelBuilder().add_body("ball", joint=Joint("free"), inertia=inertia).build()


def gripper():
    """Return a gripper of two sliders, the second of which mirrors the first."""
    finger = BodyInertia(0.3, (0.0, 0.0, 0.0), (0.01, 0.01, 0.01))
    builder = ModelBuilder().add_body("a", joint=Joint("prismatic", axis=(1, 0, 0)), inertia=finger)
    mirrored = Joint("prismatic", axis=(1, 0, 0), mimic=Mimic("a_joint", -1.0))
    return builder.add_body("b", joint=mirrored, inertia=finger).build()


@pytest.mark.parametrize("integrator", [pytest.param("midpoint", marks=pytest.mark.slow), "rk4"])
def test_a_constant_force_on_a_falling_ball(integrator):
    """The force keeps its world axes while the ball turns: `x = t^2 f / 2m + g t^2 / 2`, `angle = t^2 n / 2I`."""
    model, t = ball(), 0.2
    f_ext = jnp.array([[3.0, -1.0, 12.0, 0.0, 0.0, 2.0]])
    start = State(model.neutral(), jnp.zeros(6))
    final = jaxdyn.rollout(model, start, jnp.zeros((20, 6)), t / 20, integrator=integrator, f_ext=f_ext).final
    np.testing.assert_allclose(final.q[:3], 0.5 * t**2 * np.array([1.5, -0.5, 6.0 - 9.81]), atol=1e-9)
    angle = 2 * np.arctan2(final.q[6], final.q[3])
    assert angle == pytest.approx(0.5 * t**2 * 4.0, rel=1e-4 if integrator == "midpoint" else 1e-9)
    turned = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]) @ final.v[:2]
    np.testing.assert_allclose(turned, t * np.array([1.5, -0.5]), atol=1e-8)


def test_the_euler_step_is_aba():
    for model, start, tau in ((MODEL, START, TAU), (gripper(), State(jnp.array([0.1]), jnp.array([0.2])), jnp.ones(1))):
        f_ext = jnp.asarray(RNG.normal(size=(model.nb, 6)))
        end = jaxdyn.step(model, start, tau, 0.01, integrator="euler", f_ext=f_ext)
        a = jaxdyn.aba(model, start.q, start.v, tau, f_ext)
        np.testing.assert_allclose(end.v, start.v + 0.01 * a, rtol=1e-12)
        assert abs(a - jaxdyn.aba(model, start.q, start.v, tau)).max() > 0.1
        rate = vector_field(model, tau, f_ext)(0.0, start, None)
        np.testing.assert_allclose(rate.v, a, rtol=1e-12)
        of_time = vector_field(model, tau, lambda t, state, args, f=f_ext: t * f)
        np.testing.assert_allclose(of_time(1.0, start).v, a, rtol=1e-12)


@pytest.mark.slow
def test_the_midpoint_step_with_joints_that_mimic_others():
    """For constant force and mass `v1 = v0 + dt f / m`, `x1 = x0 + dt (v0 + v1) / 2`; `f` acts on both fingers."""
    f_ext = jnp.zeros((2, 6)).at[:, 0].set(jnp.array([3.0, -1.5]))
    start = State(jnp.array([0.1]), jnp.array([0.2]))
    end = jaxdyn.step(gripper(), start, jnp.zeros(1), 0.01, integrator="midpoint", f_ext=f_ext)
    np.testing.assert_allclose(end.v, 0.2 + 0.01 * 4.5 / 0.6, rtol=1e-9)
    np.testing.assert_allclose(end.q, 0.1 + 0.01 * (0.2 + 0.5 * 0.01 * 4.5 / 0.6), rtol=1e-9)


def test_a_rollout_is_its_steps():
    steps, wrenches = 4, jnp.asarray(RNG.normal(size=(3, 4, MODEL.nb, 6)))
    controls = jnp.asarray(RNG.normal(size=(steps, 2)))
    options = RolloutOptions(checkpoint=2, save_every=2)
    got = jaxdyn.rollout(MODEL, START, controls, 0.02, f_ext=wrenches, substeps=2, options=options)
    state = START
    for k in range(steps):
        state = jaxdyn.step(MODEL, state, controls[k], 0.02, f_ext=wrenches[:, k], substeps=2)
    np.testing.assert_allclose(got.final.q, state.q, rtol=1e-12)
    np.testing.assert_allclose(got.final.v, state.v, rtol=1e-12)
    assert got.q.shape == (3, 3, 2)


def test_constant_wrenches_and_functions():
    controls = ZERO
    rows = jnp.broadcast_to(F, (4, *F.shape))
    expected = jaxdyn.rollout(MODEL, START, controls, 0.02, f_ext=rows).q
    np.testing.assert_allclose(jaxdyn.rollout(MODEL, START, controls, 0.02, f_ext=F).q, expected, rtol=1e-12)
    two = jaxdyn.rollout(MODEL, START, controls, 0.02, f_ext=jnp.stack([F, 2 * F])[:, None]).q
    np.testing.assert_allclose(two[0], expected, rtol=1e-12)

    def wind(model, state, t):
        return (1 + t) * F - 0.1 * state.v.sum() * jnp.ones((model.nb, 6))

    windy = jaxdyn.rollout(MODEL, START, controls, 0.02, f_ext=wind)
    state = START
    for k in range(4):
        state = jaxdyn.step(MODEL, state, jnp.zeros(2), 0.02, f_ext=wind(MODEL, state, 0.02 * k))
    np.testing.assert_allclose(windy.final.q, state.q, rtol=1e-12)


@pytest.mark.parametrize(
    "integrator", [pytest.param(x, marks=[pytest.mark.slow] * (x in ("midpoint", "rk4"))) for x in INTEGRATORS]
)
def test_gradient_by_the_wrenches(integrator):
    model, start = jaxdyn.samples.pendulum(), State(jnp.array([0.4]), jnp.array([0.5]))

    def last(f_ext):
        end = jaxdyn.step(model, start, jnp.array([0.1]), 0.05, integrator=integrator, f_ext=f_ext)
        return end.q[0] + end.v[0]

    f_ext, h = F[:1], 1e-4
    direction = jnp.cos(jnp.arange(6.0))[None]

    # One program serves all three evaluations.
    @functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
    def derivatives(f_ext):
        value, slope = jax.jvp(last, (f_ext,), (direction,))
        return value, slope, jnp.vdot(jax.grad(last)(f_ext), direction)

    _, forward, reverse = derivatives(f_ext)
    up, down = derivatives(f_ext + h * direction)[0], derivatives(f_ext - h * direction)[0]
    assert float(forward) == pytest.approx(float(reverse), rel=1e-10)
    assert float(forward) == pytest.approx(float(up - down) / (2 * h), rel=1e-6)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: jaxdyn.step(MODEL, START, TAU, 0.1, f_ext=F[:1]), ["f_ext", "nb = 2"]),
        (lambda: jaxdyn.rollout(MODEL, START, ZERO, 0.1, f_ext=jnp.zeros((3, 2, 6))), ["f_ext", "(3, 2, 6)"]),
        (lambda: jaxdyn.rollout(MODEL, START, ZERO, 0.1, f_ext=jnp.zeros(6)), ["f_ext", "steps"]),
        (lambda: jaxdyn.rollout(MODEL, START, ZERO, 0.1, f_ext=lambda m, s, t: F[0]), ["f_ext", "(6,)"]),
        (lambda: vector_field(MODEL, None, F[:, :3]), ["f_ext", "nb = 2"]),
    ],
)
def test_errors_name_the_thing(call, words):
    with pytest.raises(ShapeError) as caught:
        call()
    for word in words:
        assert word in str(caught.value)
