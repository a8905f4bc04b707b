"""Steps with contact: their solution, derivatives of all orders, transformations, and errors."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

import jaxdyn
from jaxdyn import ContactLaw, ContactShape, ModelError, ShapeError, SolverOptions, Sphere, State, World, trajopt
from jaxdyn.simulate import DivergenceError, RolloutOptions

DT = 1e-3
STIFF = ContactLaw(stiffness=1e5, dissipation=0.5, friction=0.8, stiction_velocity=1e-3)


def on_its_feet(model: jaxdyn.Model) -> World:
    """The model with friction in its joints, on its feet."""
    model = jaxdyn.with_joint_friction(model, friction=0.02, damping=0.01)
    return World(model, [ContactShape(name, Sphere(0.02)) for name in feet(model)], law=STIFF, timestep=DT)


def feet(model: jaxdyn.Model) -> list[str]:
    return [name for name in model.topology.frame_names if name.endswith("_FOOT")]


@functools.cache
def quadruped() -> World:
    return on_its_feet(jaxdyn.samples.quadruped())


@functools.cache
def biped() -> World:
    """A free base on two legs of two joints, for which native code is made sooner than for the quadruped."""
    builder = jaxdyn.ModelBuilder()
    trunk = jaxdyn.BodyInertia(1.2, (0.01, 0.0, 0.02), (0.006, 0.019, 0.025))
    builder.add_body("trunk", joint=jaxdyn.Joint("free"), inertia=trunk)
    for side, y in (("LEFT", 0.1), ("RIGHT", -0.1)):
        thigh = jaxdyn.BodyInertia(0.15, (0.0, 0.2 * y, -0.08), (4e-4, 4e-4, 3e-5))
        builder.add_body(f"{side}_THIGH", "trunk", jaxdyn.Joint(axis=(1, 0, 0)), (0, y, 0), thigh)
        shank = jaxdyn.BodyInertia(0.04, (0.0, 0.1 * y, -0.1), (2e-4, 2e-4, 1e-5))
        builder.add_body(f"{side}_SHANK", f"{side}_THIGH", jaxdyn.Joint(axis=(0, 1, 0)), (0, 0, -0.16), shank)
        builder.add_frame(f"{side}_FOOT", f"{side}_SHANK", (0, 0, -0.16))
    return on_its_feet(builder.build())


# The least height of the feet above the plane, the size of velocities, and the velocity of the base upwards.
SITUATIONS = {
    "stick": (-1e-3, 1e-4, 0.0),
    "slip": (-1e-3, 0.1, 0.0),
    "impact": (-1e-3, 1.0, -1.0),
    "flight": (1e-2, 1.0, 0.0),
}


def gaps(world: World, q):
    return world.contact_forces(State(q), of_step=False).gap


def situation(name: str, robot=biped):
    """A state and torques."""
    world, model = robot(), robot().model
    gap, size, falling = SITUATIONS[name]
    random = np.random.default_rng(0)
    q = model.integrate(model.neutral(), 0.1 * random.normal(size=model.nv))
    v = size * random.normal(size=model.nv)
    v[2] += falling
    tau = np.where(np.arange(model.nv) < 6, 0, random.normal(size=model.nv))
    return world.state(q.at[2].add(gap - gaps(world, q).min()), v), jnp.asarray(tau)


@eqx.filter_jit
def everything(inputs, direction, weights):
    """The accelerations of a step, the velocity after it, the forces in it, the Jacobians of the feet, and the
    derivatives of a weighted sum of the accelerations: forward along a direction of all arrays, and reverse."""

    def weighted(arrays):
        world, state, tau = eqx.combine(arrays, static)
        return (weights * world.accelerations(state, torque=tau)).sum()

    arrays, static = eqx.partition(inputs, eqx.is_inexact_array)
    world, state, tau = inputs
    a, after, report = (f(state, torque=tau) for f in (world.accelerations, world.step, world.report))
    found = world.contact_forces(state, torque=tau)
    jacobians = [jaxdyn.frame_jacobian(world.model, state.q, name) for name in feet(world.model)]
    return a, after.v, report, found, jacobians, jax.jvp(weighted, (arrays,), (direction,)), jax.grad(weighted)(arrays)


@functools.cache
def solved(name: str, robot=biped):
    """The inputs of a step, a direction and weights, and what `everything` returns, in NumPy."""
    world = robot()
    inputs = world, *situation(name, robot)
    random = np.random.default_rng(1)
    # Limits do not act, and the width is zero; nor do the parts that the world lacks.
    skipped = ("position_lower", "position_upper", "velocity_limit", "effort_limit", "width", "start", "keys", "time")

    def along(path, x):
        if any(getattr(key, "name", None) in skipped for key in path):
            return np.zeros(x.shape)
        return random.normal(size=x.shape) * np.maximum(np.abs(x), 1e-3)

    direction = jax.device_put(jax.tree_util.tree_map_with_path(along, eqx.filter(inputs, eqx.is_inexact_array)))
    weights = jnp.asarray(random.normal(size=world.model.nv))
    return inputs, direction, weights, jax.tree.map(np.asarray, everything(inputs, direction, weights))


ROBOTS = (biped, pytest.param(quadruped, marks=pytest.mark.slow))


@pytest.mark.parametrize("robot", ROBOTS)
@pytest.mark.parametrize("name", SITUATIONS)
def test_a_step_solves_its_equations(name, robot):
    (world, state, tau), _, _, (own, velocity, report, found, jacobians, _, _) = solved(name, robot)
    model, q, v, dt = world.model, state.q, state.v, DT
    M, bias = jaxdyn.crba(model, q), jaxdyn.rnea(model, q, v, jnp.zeros(model.nv), joint_friction=False)
    model, v, tau, M, bias = jax.tree.map(np.asarray, (model, v, tau, M, bias))
    assert bool(report.converged)
    # The linear velocity of the base is in axes that turn with it: those of the start here.
    a = np.concatenate([own[:3] + np.cross(v[3:6], v[:3]), own[3:]])
    # M a + h = tau - F(v + dt a) + J^T f, with the joint friction F, and the Jacobian of the point that touches.
    after = v + dt * a
    friction = model.damping * after + model.friction * np.tanh(after / model.friction_velocity)
    lever = np.array([0.0, 0.0, -0.02])
    force = sum(J[:3].T @ f + J[3:].T @ np.cross(lever, f) for J, f in zip(jacobians, found.force, strict=True))
    turned = np.concatenate([Rotation.from_rotvec(dt * after[3:6]).apply(velocity[:3]), velocity[3:]])
    np.testing.assert_allclose(turned, after, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(M @ own + bias + friction - force, tau, atol=1e-9 * np.abs(M @ a).max())
    # The law at the end of the step, with friction from the normal force at its start.
    speed, now = (np.stack([(J @ x)[:3] + np.cross((J @ x)[3:], lever) for J in jacobians]) for x in (after, v))
    gap, k, d = found.gap, 1e5, 0.5
    normal = k * np.maximum(-gap - dt * speed[:, 2], 0) * np.maximum(1 - d * speed[:, 2], 0)
    lagged = k * np.maximum(-gap, 0) * np.maximum(1 - d * now[:, 2], 0)
    sliding = speed[:, :2]
    np.testing.assert_allclose(found.force[:, 2], normal, atol=1e-6)
    across = -0.8 * lagged[:, None] * sliding / np.sqrt((sliding**2).sum(1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(found.force[:, :2], across, atol=1e-6)
    assert (found.force[:, 2] > 0).any() == (name != "flight")


@pytest.mark.parametrize("robot", ROBOTS)
@pytest.mark.parametrize("name", SITUATIONS)
def test_derivatives_by_all_arrays(name, robot):
    """Forward and reverse mode are equal, and equal to central differences."""
    inputs, direction, weights, (*_, (_, forward), gradient) = solved(name, robot)
    reverse = sum(jax.tree.leaves(jax.tree.map(lambda x, y: (x * np.asarray(y)).sum(), gradient, direction)))
    np.testing.assert_allclose(forward, reverse, rtol=1e-8)
    arrays, static = eqx.partition(inputs, eqx.is_inexact_array)
    # In NumPy: each operation of JAX on an array of another shape would be a program.
    numbers, steps = jax.tree.map(np.asarray, (arrays, direction))

    def moved(h):
        x = jax.tree.map(lambda x, d: np.where(d == 0, x, x + h * d), numbers, steps)
        return everything(eqx.combine(jax.device_put(x), static), direction, weights)[5][0]

    np.testing.assert_allclose((moved(1e-6) - moved(-1e-6)) / 2e-6, forward, rtol=1e-5)


@pytest.mark.slow
def test_second_derivatives():
    (world, state, tau), _, weights, _ = solved("slip", quadruped)
    laws, v = world.parts.touching.laws, state.v

    def gradient(v, law):
        def weighted(v, law):
            changed = eqx.tree_at(lambda w: w.parts.touching.laws, world, law)
            return (weights * changed.accelerations(State(state.q, v), torque=tau)).sum()

        return jax.grad(weighted, (0, 1))(v, law)

    step = jnp.asarray(np.random.default_rng(2).normal(size=v.shape))
    law = jax.tree.map(lambda x: 0.1 * x, laws)
    gradient = jax.jit(gradient)
    _, forward = jax.jit(lambda *x: jax.jvp(gradient, x[:2], x[2:]))(v, laws, step, law)
    ends = [gradient(v + h * step, jax.tree.map(lambda x, d, h=h: x + h * d, laws, law)) for h in (1e-6, -1e-6)]
    for after, before, found in zip(*map(jax.tree.leaves, (*ends, forward)), strict=True):
        scale = np.abs(found).max()
        np.testing.assert_allclose((after - before) / 2e-6, found, atol=1e-5 * scale + 1e-12)


@pytest.mark.slow
def test_batches_of_states_models_and_laws():
    """A batch is its elements, also of models, laws, sizes and surfaces; under `vmap`."""
    model = quadruped().model
    states = [situation(name, quadruped) for name in SITUATIONS]
    q, v, tau = (jnp.stack(x) for x in zip(*((state.q, state.v, tau) for state, tau in states), strict=True))
    stiffness, radius, offset = jnp.asarray([1e4, 1e5, 1e6, 1e5]), jnp.full(4, 0.02), jnp.asarray([0.0, 1e-3, 0.0, 0])

    def world(mass, k, r, z):
        law = ContactLaw(stiffness=k, dissipation=0.5, friction=0.8, stiction_velocity=1e-3)
        shapes = [ContactShape(name, Sphere(r)) for name in feet(model)]
        inertias = jnp.asarray(mass)[..., None, None] * model.inertial_parameters
        heavier = eqx.tree_at(lambda m: m.inertial_parameters, model, inertias)
        return World(heavier, shapes, jaxdyn.Plane((0.0, 0.0, 1.0), z), law=law, timestep=DT)

    mass = jnp.asarray([1.0, 1.1, 0.9, 1.0])

    @jax.jit
    def step(world, q, v, tau):
        return world.step(State(q, v), torque=tau)

    def one(mass, k, r, z, q, v, tau):
        return world(mass, k, r, z).step(State(q, v), torque=tau)

    batch = step(world(mass, stiffness, radius, offset), q, v, tau)
    mapped = jax.jit(jax.vmap(one))(mass, stiffness, radius, offset, q, v, tau)
    single = one(mass[1], stiffness[1], radius[1], offset[1], q[1], v[1], tau[1])
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-9), mapped, batch)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y[1], rtol=1e-9, atol=1e-9), single, batch)


@pytest.mark.slow
def test_xla_gives_the_steps_of_native_code():
    """For a robot that XLA compiles quickly, with a floor at another height for each state."""
    model = jaxdyn.samples.random_tree(jax.random.key(1), 2, ("free", "revolute"))
    shapes, random = [ContactShape(name, Sphere(0.1)) for name in model.body_names[-2:]], np.random.default_rng(0)
    q = model.integrate(np.tile(model.neutral(), (4, 1)), 0.1 * random.normal(size=(4, model.nv)))
    v = np.array([[1e-4], [0.1], [1.0], [1.0]]) * random.normal(size=(4, model.nv))
    tau, gap = random.normal(size=v.shape), np.array([-1e-3, -1e-3, -1e-3, 1e-2])
    lowest = np.asarray(gaps(World(model, shapes), q)).min(axis=-1)
    world = World(model, shapes, jaxdyn.Plane((0.0, 0.0, 1.0), lowest - gap), law=STIFF, timestep=DT)

    def step(q, v):
        return world.step(State(q, v), torque=tau)

    natively = jax.jit(step)(q, v)
    with jaxdyn.native.disabled():
        plain = jax.jit(lambda *x: step(*x))(q, v)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-9), natively, plain)
    free = jaxdyn.step(model, State(q, v), tau, DT)
    touched = np.abs(np.asarray(natively.v) - np.asarray(free.v)).max(axis=1) > 1e-3
    np.testing.assert_array_equal(touched, gap < 0)


@pytest.mark.slow
def test_rollouts_report_how_contacts_were_solved():
    world, model = quadruped().with_timestep(2e-3), quadruped().model
    start = world.state(model.neutral().at[2].set(0.36))
    motion = world.rollout(start, steps=40, options=RolloutOptions(check=True))
    assert motion.contact is not None
    assert np.asarray(motion.contact.converged).all()
    assert motion.contact.iterations.shape == (40,)
    assert "relative errors" in str(motion)
    state = start
    for _ in range(3):
        state = world.step(state)
    np.testing.assert_allclose(motion.q[3], state.q, atol=1e-12)
    # Fewer samples have the sum of the iterations between them.
    few = world.rollout(start, steps=40, options=RolloutOptions(save_every=8))
    np.testing.assert_array_equal(few.contact.iterations, motion.contact.iterations.reshape(5, 8).sum(1))
    shapes = [ContactShape(name, Sphere(0.02)) for name in feet(model)]
    rough = World(model, shapes, law=STIFF, options=SolverOptions(1), timestep=2e-3)
    with pytest.raises(DivergenceError, match=r"not solved to their tolerance, first in:\nthe roll-out: step 0 .*t ="):
        rough.rollout(start, steps=40, options=RolloutOptions(check=True))


@pytest.mark.slow
def test_reverse_mode_through_a_rollout_with_segments():
    world, model = quadruped().with_timestep(2e-3), quadruped().model
    start = world.state(model.neutral().at[2].set(0.342))

    def height(tau, friction, checkpoint):
        changed = eqx.tree_at(lambda w: w.parts.touching.laws.friction, world, friction)
        motion = changed.rollout(start, torques=tau, options=RolloutOptions(checkpoint=checkpoint))
        return motion.final.q[2] + motion.final.v[0]

    tau = 0.5 * jnp.asarray(np.random.default_rng(0).normal(size=(20, model.nv))).at[:, :6].set(0)
    friction = world.parts.touching.laws.friction
    gradient = jax.jit(jax.grad(height, (0, 1)), static_argnums=2)
    whole, parts = gradient(tau, friction, "none"), gradient(tau, friction, 4)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-7, atol=1e-12), whole, parts)
    direction = jnp.asarray(np.random.default_rng(1).normal(size=tau.shape))
    ends = [height(tau + h * direction, friction, "none") for h in (1e-6, -1e-6)]
    np.testing.assert_allclose((ends[0] - ends[1]) / 2e-6, (whole[0] * direction).sum(), rtol=1e-5)


@pytest.mark.slow
def test_single_precision_reaches_its_tolerance():
    world = quadruped().astype(np.float32)
    states = [situation(name, quadruped) for name in SITUATIONS]
    rows = zip(*((state.q, state.v, tau) for state, tau in states), strict=True)
    q, v, tau = (jnp.stack(x).astype(np.float32) for x in rows)
    a = world.accelerations(State(q, v), torque=tau)
    report = world.report(State(q, v), torque=tau)
    assert a.dtype == report.error.dtype == np.float32
    assert np.asarray(report.converged).all()
    wanted = np.stack([solved(name, quadruped)[3][0] for name in SITUATIONS])
    np.testing.assert_allclose(a, wanted, atol=2e-4 * np.abs(wanted).max())


def wrong_cases():
    model = jaxdyn.samples.quadruped()
    foot = ContactShape("FL_FOOT", Sphere(0.02))
    return {
        "stiffness is 0": lambda: ContactLaw(stiffness=0.0),
        "friction is -1": lambda: ContactLaw(friction=-1.0),
        "`contacts[1]` is a Sphere; a ContactShape": lambda: World(model, [foot, Sphere(0.1)]),
        "takes no contacts and no limits": lambda: World(model, [foot], integrator="rk4"),
        "iterations": lambda: SolverOptions(iterations=0),
    }


@pytest.mark.parametrize("text", wrong_cases())
def test_wrong_arguments_are_named(text):
    with pytest.raises((ModelError, ShapeError)) as error:
        wrong_cases()[text]()
    assert text in str(error.value)


@pytest.mark.slow
def test_optimal_control_with_contact():
    """A block is pushed over a rough floor to a place, where it stops. Derivatives of its steps are those of JAX."""
    builder, parent = jaxdyn.ModelBuilder(), "world"
    for name, axis in (("x", (1, 0, 0)), ("z", (0, 0, 1))):
        inertia = jaxdyn.BodyInertia.box(1.0 if name == "z" else 0.0, (0.1, 0.1, 0.1))
        builder.add_body(name, parent, jaxdyn.Joint("prismatic", axis=axis), inertia=inertia)
        parent = name
    model = builder.build()
    law = ContactLaw(stiffness=1e4, dissipation=1.0, friction=0.5, stiction_velocity=0.05)
    push = [jaxdyn.Actuator(model.joint_names[0])]
    world = World(model, [ContactShape("z", Sphere(0.0))], law=law, actuators=push, timestep=0.02)
    dynamics = trajopt.WorldDynamics(world)
    x = jnp.asarray([0.1, -1e-3, 0.2, 0.05])
    by_x, by_u = dynamics.linearize(x, jnp.ones(1), 0, dynamics.step(x, jnp.ones(1), 0))
    wanted = jax.jacfwd(dynamics.step, (0, 1))(x, jnp.ones(1), 0)
    for got, want in zip((by_x, by_u), wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)
    goal = jnp.asarray([0.3, -9.81e-4, 0.0, 0.0])
    cost = trajopt.QuadraticCost(trajopt.ControlResidual(), 1e-3)
    end = trajopt.QuadraticCost(trajopt.StateResidual(goal), jnp.asarray([1e3, 0.0, 10.0, 0.0]))
    start = jnp.asarray([0.0, -9.81e-4, 0.0, 0.0])
    problem = trajopt.Problem(dynamics, start, 30, stage_costs=[cost], terminal_costs=[end])
    solution = trajopt.ddp(problem, jnp.full((30, 1), 6.0))
    assert solution.status == jaxdyn.Status.CONVERGED
    np.testing.assert_allclose(solution.xs[-1, :3:2], goal[:3:2], atol=0.02)
    # The push overcomes the friction of 4.9 N on the way.
    assert float(solution.us.max()) > 4.9


@pytest.mark.slow
def test_joints_rest_at_their_stops():
    """Joints that are pushed against their limits sink into them by torque over stiffness, in a step that differs from
    none only there; derivatives by all arrays are those of differences."""
    builder, parent = jaxdyn.ModelBuilder(), "world"
    for name, kind, axis in (("arm", "revolute", (0, 1, 0)), ("slide", "prismatic", (1, 0, 0)), ("end", "ball", None)):
        options = {} if axis is None else {"axis": axis, "lower": -0.3, "upper": 0.4}
        inertia = jaxdyn.BodyInertia.box(0.5, (0.3, 0.1, 0.2))
        builder.add_body(name, parent, jaxdyn.Joint(kind, **options), (0.1, 0, 0.2), inertia)
        parent = name
    model = builder.build(gravity=(0, 0, 0))
    stop = ContactLaw(stiffness=1e4, dissipation=1.0)
    world = World(model, limits=stop)
    assert world.contact_names == ()
    assert world.contact_forces(world.state()).force.shape == (0, 3)
    torque = jnp.asarray([5.0, -3.0, 0, 0, 0])
    start = State(model.neutral().at[0].set(0.39), jnp.zeros(model.nv).at[0].set(2.0))
    motion = world.rollout(start, torques=torque[None], steps=4000)
    q = motion.final.q
    np.testing.assert_allclose(q[:2], [0.4 + 5 / 1e4, -0.3 - 3 / 1e4], atol=1e-6)
    free = eqx.tree_at(lambda w: w.parts.touching.limits, world, None)
    state, still = State(model.neutral(), jnp.zeros(5)), jnp.zeros(5)
    apart, without = (each.step(state, torque=torque) for each in (world, free))
    np.testing.assert_allclose(apart.v, without.v, atol=1e-12)

    def end(limits, upper, q):
        bounds = model.position_upper.at[0].set(upper)
        where = lambda w: (w.parts.touching.limits, w.model.position_upper)  # noqa: E731
        changed = eqx.tree_at(where, world, (limits, bounds))
        return (changed.step(State(q, still), torque=torque).v * jnp.arange(1.0, 6.0)).sum()

    inputs = stop, jnp.asarray(0.4), q.at[0].add(1e-4)
    gradient = jax.jit(jax.grad(end, (0, 1, 2)))(*inputs)
    for pick, h in (
        (lambda x: x[0].stiffness, 1.0),
        (lambda x: x[0].dissipation, 1e-4),
        (lambda x: x[1], 1e-8),
    ):
        ends = [end(*eqx.tree_at(pick, inputs, pick(inputs) + s * h)) for s in (1, -1)]
        np.testing.assert_allclose((ends[0] - ends[1]) / (2 * h), pick(gradient), rtol=1e-5)
