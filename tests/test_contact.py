"""Steps with contact: their solution, derivatives of all orders, transformations, and errors."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdyn
from jaxdyn import ContactLaw, Contacts, ContactShape, ModelError, ShapeError, SolverOptions, Sphere, State, trajopt
from jaxdyn.contact import contact_accelerations, contact_step
from jaxdyn.simulate import DivergenceError, RolloutOptions

DT = 1e-3
STIFF = ContactLaw(stiffness=1e5, dissipation=0.5, friction=0.8, stiction_velocity=1e-3)


def on_its_feet(model: jaxdyn.Model) -> tuple[jaxdyn.Model, Contacts]:
    """The model with friction in its joints, and the contacts of its feet."""
    model = jaxdyn.with_joint_friction(model, friction=0.02, damping=0.01)
    return model, Contacts(model, [ContactShape(name, Sphere(0.02)) for name in feet(model)], law=STIFF)


def feet(model: jaxdyn.Model) -> list[str]:
    return [name for name in model.topology.frame_names if name.endswith("_FOOT")]


@functools.cache
def quadruped() -> tuple[jaxdyn.Model, Contacts]:
    return on_its_feet(jaxdyn.samples.quadruped())


@functools.cache
def biped() -> tuple[jaxdyn.Model, Contacts]:
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


def situation(name: str, robot=biped):
    """A configuration, velocity and torques."""
    model, contacts = robot()
    gap, size, falling = SITUATIONS[name]
    random = np.random.default_rng(0)
    q = model.integrate(model.neutral(), 0.1 * random.normal(size=model.nv))
    lowest = jaxdyn.contact_forces(model, contacts, q, np.zeros(model.nv)).gap.min()
    v = size * random.normal(size=model.nv)
    v[2] += falling
    tau = np.where(np.arange(model.nv) < 6, 0, random.normal(size=model.nv))
    return q.at[2].add(gap - lowest), jnp.asarray(v), jnp.asarray(tau)


@eqx.filter_jit
def everything(inputs, direction, weights):
    """The accelerations of a step, the forces in it, the Jacobians of the feet, and the derivatives of a weighted sum
    of the accelerations: forward along a direction of all arrays, and reverse."""

    def weighted(arrays):
        return (weights * contact_accelerations(*eqx.combine(arrays, static))[0]).sum()

    arrays, static = eqx.partition(inputs, eqx.is_inexact_array)
    model, contacts, q, v, _, dt = inputs
    a, report = contact_accelerations(*inputs)
    found = jaxdyn.contact_forces(model, contacts, q, v, after=contact_step(*inputs)[1], dt=dt)
    jacobians = [jaxdyn.frame_jacobian(model, q, name) for name in feet(model)]
    return a, report, found, jacobians, jax.jvp(weighted, (arrays,), (direction,)), jax.grad(weighted)(arrays)


@functools.cache
def solved(name: str, robot=biped):
    """The inputs of a step, a direction and weights, and what `everything` returns, in NumPy."""
    model, contacts = robot()
    inputs = model, contacts, *situation(name, robot), jnp.asarray(DT, float)
    random = np.random.default_rng(1)
    # Limits do not act, and the width is zero.
    skipped = ("position_lower", "position_upper", "velocity_limit", "effort_limit", "width")

    def along(path, x):
        if any(getattr(key, "name", None) in skipped for key in path):
            return np.zeros(x.shape)
        return random.normal(size=x.shape) * np.maximum(np.abs(x), 1e-3)

    direction = jax.device_put(jax.tree_util.tree_map_with_path(along, eqx.filter(inputs, eqx.is_inexact_array)))
    weights = jnp.asarray(random.normal(size=model.nv))
    return inputs, direction, weights, jax.tree.map(np.asarray, everything(inputs, direction, weights))


ROBOTS = (biped, pytest.param(quadruped, marks=pytest.mark.slow))


@pytest.mark.parametrize("robot", ROBOTS)
@pytest.mark.parametrize("name", SITUATIONS)
def test_a_step_solves_its_equations(name, robot):
    (model, _, q, v, tau, dt), _, _, (a, report, found, jacobians, _, _) = solved(name, robot)
    M, bias = jaxdyn.crba(model, q), jaxdyn.rnea(model, q, v, jnp.zeros(model.nv), joint_friction=False)
    model, v, tau, dt, M, bias = jax.tree.map(np.asarray, (model, v, tau, dt, M, bias))
    assert bool(report.converged)
    # M a + h = tau - F(v + dt a) + J^T f, with the joint friction F, and the Jacobian of the point that touches.
    after = v + dt * a
    friction = model.damping * after + model.friction * np.tanh(after / model.friction_velocity)
    lever = np.array([0.0, 0.0, -0.02])
    force = sum(J[:3].T @ f + J[3:].T @ np.cross(lever, f) for J, f in zip(jacobians, found.force, strict=True))
    # The linear velocity of the base is in axes that turn with it.
    own = np.concatenate([a[:3] - np.cross(v[3:6], v[:3]), a[3:]])
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
        return everything(eqx.combine(jax.device_put(x), static), direction, weights)[4][0]

    np.testing.assert_allclose((moved(1e-6) - moved(-1e-6)) / 2e-6, forward, rtol=1e-5)


@pytest.mark.slow
def test_second_derivatives():
    inputs, _, weights, _ = solved("slip", quadruped)
    model, contacts, q, v, tau, dt = inputs

    def gradient(v, law):
        def weighted(v, law):
            changed = eqx.tree_at(lambda c: c.laws, contacts, law)
            return (weights * contact_accelerations(model, changed, q, v, tau, dt)[0]).sum()

        return jax.grad(weighted, (0, 1))(v, law)

    step = jnp.asarray(np.random.default_rng(2).normal(size=model.nv))
    law = jax.tree.map(lambda x: 0.1 * x, contacts.laws)
    gradient = jax.jit(gradient)
    _, forward = jax.jit(lambda *x: jax.jvp(gradient, x[:2], x[2:]))(v, contacts.laws, step, law)
    ends = [
        gradient(v + h * step, jax.tree.map(lambda x, d, h=h: x + h * d, contacts.laws, law)) for h in (1e-6, -1e-6)
    ]
    for after, before, found in zip(*map(jax.tree.leaves, (*ends, forward)), strict=True):
        scale = np.abs(found).max()
        np.testing.assert_allclose((after - before) / 2e-6, found, atol=1e-5 * scale + 1e-12)


@pytest.mark.slow
def test_batches_of_states_models_and_laws():
    """A batch is its elements, also of models, laws, sizes and surfaces; under `vmap`."""
    model, _ = quadruped()
    states = [situation(name, quadruped) for name in SITUATIONS]
    q, v, tau = (jnp.stack(x) for x in zip(*states, strict=True))
    stiffness, radius, offset = jnp.asarray([1e4, 1e5, 1e6, 1e5]), jnp.full(4, 0.02), jnp.asarray([0.0, 1e-3, 0.0, 0])

    def contacts(k, r, z):
        law = ContactLaw(stiffness=k, dissipation=0.5, friction=0.8, stiction_velocity=1e-3)
        shapes = [ContactShape(name, Sphere(r)) for name in feet(model)]
        return Contacts(model, shapes, jaxdyn.Plane((0.0, 0.0, 1.0), z), law)

    mass = jnp.asarray([1.0, 1.1, 0.9, 1.0])
    heavier = eqx.tree_at(lambda m: m.inertial_parameters, model, mass[:, None, None] * model.inertial_parameters)

    @jax.jit
    def step(model, contacts, q, v, tau):
        return jaxdyn.step(model, State(q, v), tau, DT, contacts=contacts)

    def one(mass, k, r, z, q, v, tau):
        changed = eqx.tree_at(lambda m: m.inertial_parameters, model, mass * model.inertial_parameters)
        return jaxdyn.step(changed, State(q, v), tau, DT, contacts=contacts(k, r, z))

    batch = step(heavier, contacts(stiffness, radius, offset), q, v, tau)
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
    lowest = np.asarray(jaxdyn.contact_forces(model, Contacts(model, shapes), q, v).gap).min(axis=-1)
    contacts = Contacts(model, shapes, jaxdyn.Plane((0.0, 0.0, 1.0), lowest - gap), STIFF)

    def step(q, v):
        return jaxdyn.step(model, State(q, v), tau, DT, contacts=contacts)

    natively = jax.jit(step)(q, v)
    with jaxdyn.native.disabled():
        plain = jax.jit(lambda *x: step(*x))(q, v)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-9), natively, plain)
    free = jaxdyn.step(model, State(q, v), tau, DT)
    touched = np.abs(np.asarray(natively.v) - np.asarray(free.v)).max(axis=1) > 1e-3
    np.testing.assert_array_equal(touched, gap < 0)


@pytest.mark.slow
def test_rollouts_report_how_contacts_were_solved():
    model, contacts = quadruped()
    q = model.neutral().at[2].set(0.36)
    torques = np.zeros((40, model.nv))
    start = State(q, jnp.zeros(model.nv))
    motion = jaxdyn.rollout(model, start, torques, 2e-3, contacts=contacts, options=RolloutOptions(check=True))
    assert motion.contact is not None
    assert np.asarray(motion.contact.converged).all()
    assert motion.contact.iterations.shape == (40,)
    assert "relative errors" in str(motion)
    state = start
    for _ in range(3):
        state = jaxdyn.step(model, state, torques[0], 2e-3, contacts=contacts)
    np.testing.assert_allclose(motion.q[3], state.q, atol=1e-12)
    # Fewer samples have the sum of the iterations between them.
    few = jaxdyn.rollout(model, start, torques, 2e-3, contacts=contacts, options=RolloutOptions(save_every=8))
    np.testing.assert_array_equal(few.contact.iterations, motion.contact.iterations.reshape(5, 8).sum(1))
    rough = Contacts(
        model, [ContactShape(name, Sphere(0.02)) for name in feet(model)], law=STIFF, options=SolverOptions(1)
    )
    with pytest.raises(DivergenceError, match=r"not solved to their tolerance, first in:\nthe roll-out: step 0 .*t ="):
        jaxdyn.rollout(model, start, torques, 2e-3, contacts=rough, options=RolloutOptions(check=True))


@pytest.mark.slow
def test_reverse_mode_through_a_rollout_with_segments():
    model, contacts = quadruped()
    start = State(model.neutral().at[2].set(0.342), jnp.zeros(model.nv))

    def height(tau, friction, checkpoint):
        changed = eqx.tree_at(lambda c: c.laws.friction, contacts, friction)
        options = RolloutOptions(checkpoint=checkpoint)
        motion = jaxdyn.rollout(model, start, tau, 2e-3, contacts=changed, options=options)
        return motion.final.q[2] + motion.final.v[0]

    tau = 0.5 * jnp.asarray(np.random.default_rng(0).normal(size=(20, model.nv))).at[:, :6].set(0)
    friction = contacts.laws.friction
    gradient = jax.jit(jax.grad(height, (0, 1)), static_argnums=2)
    whole, parts = gradient(tau, friction, "none"), gradient(tau, friction, 4)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-7, atol=1e-12), whole, parts)
    direction = jnp.asarray(np.random.default_rng(1).normal(size=tau.shape))
    ends = [height(tau + h * direction, friction, "none") for h in (1e-6, -1e-6)]
    np.testing.assert_allclose((ends[0] - ends[1]) / 2e-6, (whole[0] * direction).sum(), rtol=1e-5)


@pytest.mark.slow
def test_single_precision_reaches_its_tolerance():
    model, contacts = (jax.tree.map(lambda x: x.astype(np.float32), tree) for tree in quadruped())
    states = [situation(name, quadruped) for name in SITUATIONS]
    q, v, tau = (jnp.stack(x).astype(np.float32) for x in zip(*states, strict=True))
    a, report = jax.jit(contact_accelerations)(model, contacts, q, v, tau, jnp.float32(DT))
    assert a.dtype == report.error.dtype == np.float32
    assert np.asarray(report.converged).all()
    wanted = np.stack([solved(name, quadruped)[3][0] for name in SITUATIONS])
    np.testing.assert_allclose(a, wanted, atol=2e-4 * np.abs(wanted).max())


def wrong_cases():
    model, contacts = quadruped()
    foot, state = ContactShape("FL_FOOT", Sphere(0.02)), State(model.neutral(), jnp.zeros(model.nv))
    tau = jnp.zeros(model.nv)
    fixed = jaxdyn.samples.arm()
    return {
        "stiffness is 0": lambda: ContactLaw(stiffness=0.0),
        "friction is -1": lambda: ContactLaw(friction=-1.0),
        "at least one ContactShape": lambda: Contacts(model, []),
        "`shapes[1]` is a Sphere; a ContactShape": lambda: Contacts(model, [foot, Sphere(0.1)]),
        "`contacts` is a Sphere; a Contacts": lambda: jaxdyn.step(model, state, tau, DT, contacts=Sphere(0.1)),
        "takes no contacts": lambda: jaxdyn.step(model, state, tau, DT, contacts=contacts, integrator="rk4"),
        "make them for this model": lambda: jaxdyn.step(
            fixed, State(fixed.neutral(), jnp.zeros(7)), jnp.zeros(7), DT, contacts=contacts
        ),
        "both after and dt": lambda: jaxdyn.contact_forces(model, contacts, state.q, state.v, dt=DT),
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
    contacts = Contacts(model, [ContactShape("z", Sphere(0.0))], law=law)
    dynamics = trajopt.ModelDynamics(model, 0.02, actuation=np.array([[1.0], [0.0]]), contacts=contacts)
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
    contacts = Contacts(model, [ContactShape("arm", Sphere(0.01), (0, 0, 9.0))], limits=stop)
    torque = jnp.asarray([5.0, -3.0, 0, 0, 0])
    start = State(model.neutral().at[0].set(0.39), jnp.zeros(model.nv).at[0].set(2.0))
    motion = jaxdyn.rollout(model, start, jnp.broadcast_to(torque, (4000, 5)), 1e-3, contacts=contacts)
    q = motion.final.q
    np.testing.assert_allclose(q[:2], [0.4 + 5 / 1e4, -0.3 - 3 / 1e4], atol=1e-6)
    free = eqx.tree_at(lambda c: c.limits, contacts, None)
    state, still = State(model.neutral(), jnp.zeros(5)), jnp.zeros(5)
    apart, without = (jaxdyn.step(model, state, torque, 1e-3, contacts=c) for c in (contacts, free))
    np.testing.assert_allclose(apart.v, without.v, atol=1e-12)

    def end(limits, upper, q):
        changed = eqx.tree_at(lambda c: c.limits, contacts, limits)
        at = eqx.tree_at(lambda m: m.position_upper, model, model.position_upper.at[0].set(upper))
        return (jaxdyn.step(at, State(q, still), torque, 1e-3, contacts=changed).v * jnp.arange(1.0, 6.0)).sum()

    inputs = stop, jnp.asarray(0.4), q.at[0].add(1e-4)
    gradient = jax.jit(jax.grad(end, (0, 1, 2)))(*inputs)
    for pick, h in (
        (lambda x: x[0].stiffness, 1.0),
        (lambda x: x[0].dissipation, 1e-4),
        (lambda x: x[1], 1e-8),
    ):
        ends = [end(*eqx.tree_at(pick, inputs, pick(inputs) + s * h)) for s in (1, -1)]
        np.testing.assert_allclose((ends[0] - ends[1]) / (2 * h), pick(gradient), rtol=1e-5)
