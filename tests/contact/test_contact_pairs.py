"""Contacts between bodies, and steps with contact of models with loops and joints that mimic others."""

import functools
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import null_space
from scipy.spatial.transform import Rotation

import jaxdyn
from jaxdyn import (
    BodyInertia,
    Box,
    ContactLaw,
    ContactPair,
    ContactShape,
    Ellipsoid,
    Joint,
    Mimic,
    ModelBuilder,
    ModelError,
    ShapeError,
    SolverOptions,
    Sphere,
    State,
    World,
)
from tests.derivatives import check_derivatives

DT = 1e-3
HALF = 0.03
EXACT = SolverOptions(tolerance=1e-10)


def workbench(options: SolverOptions = EXACT) -> World:
    """A hand, one of whose fingers mimics the other, a cube between them on a table, and a linkage that touches the
    ground."""
    builder = ModelBuilder()
    lift = Joint("prismatic", axis=(0, 0, 1), name="lift")
    builder.add_body("hand", joint=lift, inertia=BodyInertia.box(0.7, (0.1, 0.1, 0.1)))
    for side, sign in (("left", 1), ("right", -1)):
        mimic = None if sign > 0 else Mimic("left", 1.0, 0.0)
        joint = Joint("prismatic", axis=(0, -sign, 0), name=side, mimic=mimic, damping=0.1)
        builder.add_body(f"{side}_finger", "hand", joint, (0, 0.07 * sign, 0), BodyInertia.box(0.1, (0.02, 0.02, 0.02)))
    builder.add_body("cube", joint=Joint("free", name="free"), inertia=BodyInertia.box(0.2, (2 * HALF,) * 3))
    axis = (0, 1, 0)
    rods = [BodyInertia.rod(1.0, (0, 0, 0), (length, 0, 0)) for length in (0.4, 1.0, 0.7)]
    builder.add_body("crank", "world", Joint(axis=axis, name="a"), (1, 0, 0), rods[0])
    builder.add_body("coupler", "crank", Joint(axis=axis, name="b"), (0.4, 0, 0), rods[1])
    builder.add_body("rocker", "world", Joint(axis=axis, name="c"), (1.9, 0, 0), rods[2])
    builder.add_frame("table", "world", (0, 0, -0.1)).add_frame("cube_feet", "cube")
    # A rod with balls at its ends: its one equation is never redundant, as two of a pin are that stay redundant only
    # while all axes are parallel.
    model = builder.add_loop("rod", "distance", "coupler", "rocker", (1.0, 0, 0), (0.7, 0, 0), 0.1).build()
    corners = [(x, y, -HALF + 0.002) for x in (-HALF, HALF) for y in (-HALF, HALF)]
    shapes = [
        ContactShape("left_finger", Sphere(0.01)),
        ContactShape("right_finger", Sphere(0.01)),
        ContactShape("cube", Box((HALF, HALF, HALF))),
        *(ContactShape("cube_feet", Sphere(0.002), corner) for corner in corners),
        ContactShape("table", Box((0.2, 0.2, 0.1))),
        ContactShape("rocker", Sphere(0.02), (0.7, 0, 0)),
    ]
    law = ContactLaw(stiffness=1e4, dissipation=0.5, friction=0.8, stiction_velocity=1e-2)
    firm = ContactLaw(stiffness=2e4, dissipation=0.2, friction=0.5, stiction_velocity=1e-2)
    pairs = [("left_finger", "cube"), ContactPair("cube", "right_finger", firm), ("table", "cube_feet")]
    return World(model, shapes, jaxdyn.Plane((0, 0, 1), -0.657), pairs, law=law, options=options, timestep=DT)


@functools.cache
def pressed():
    """A step in which the fingers press the cube on the table, and the linkage strikes the ground."""
    world = workbench()
    model = world.model
    random = np.random.default_rng(0)
    q = model.neutral().at[jnp.array([0, 1, 4])].set(jnp.array([0.035, 0.0305, HALF - 1e-3]))
    q = jaxdyn.project_configuration(model, q.at[-3:].set(jnp.array([-0.845, 2.061, 1.993]))).q
    v = jaxdyn.project_velocity(model, q, 0.3 * random.normal(size=model.nv))
    tau = jnp.asarray(random.normal(size=model.nv))
    return world, State(q, v), tau


@pytest.mark.slow
def test_a_step_solves_its_equations():
    """The forces of contact and of the other torques balance what the loops and the mimicking joint leave free."""
    world, state, tau = pressed()
    model, q = world.model, state.q
    assert bool(world.report(state, torque=tau).converged)
    own, v, tau, dt = map(np.asarray, (world.accelerations(state, torque=tau), state.v, tau, DT))
    # The linear velocity of the cube is in axes that turn with it: those of the start here.
    a = own.copy()
    a[2:5] += np.cross(v[5:8], v[2:5])
    found = jax.tree.map(np.asarray, world.contact_forces(state, torque=tau))
    touching = world.parts.touching.touching
    pressing = {n for n, force in zip(world.contact_names, found.force, strict=True) if np.linalg.norm(force) > 1}
    assert pressing == {"left_finger, cube", "cube, right_finger", "table, cube_feet", "rocker"}
    places = np.asarray(jaxdyn.forward_kinematics(model, q).translation)
    wrenches = np.zeros((model.nb, 6))
    for bodies, sign in ((touching.bodies1, -1.0), (touching.bodies2, 1.0)):
        for body, point, force in zip(bodies, found.point, sign * found.force, strict=True):
            if body >= 0:
                wrenches[body, :3] += force
                wrenches[body, 3:] += np.cross(point - places[body], force)
    friction = np.asarray(model.damping) * (v + dt * a)
    missing = np.asarray(jaxdyn.rnea(model, q, v, own, wrenches, joint_friction=False)) + friction - tau
    J = np.asarray(jaxdyn.constraint_jacobian(model, q))
    free = null_space(J)
    assert free.shape[1] == model.nv - 1
    size = np.abs(np.asarray(jaxdyn.crba(model, q)) @ a).max()
    np.testing.assert_allclose(free.T @ missing, 0, atol=1e-9 * size)
    h = 1e-6
    jacobians = (np.asarray(jaxdyn.constraint_jacobian(model, model.integrate(q, x * v))) for x in (h, -h))
    rates = [J @ (v + x * own) for J, x in zip(jacobians, (h, -h), strict=True)]
    np.testing.assert_allclose((rates[0] - rates[1]) / (2 * h), 0, atol=1e-6 * np.abs(a).max())


@pytest.mark.slow
def test_derivatives_by_all_arrays():
    inputs, random = pressed(), np.random.default_rng(1)
    skipped = ("position_lower", "position_upper", "velocity_limit", "effort_limit", "width", "start", "keys")

    def along(path, x):
        if any(getattr(key, "name", None) in skipped for key in path):
            return np.zeros(np.shape(x))
        return random.normal(size=np.shape(x)) * np.maximum(np.abs(x), 1e-3)

    def accelerations(world, state, tau):
        return world.accelerations(state, torque=tau)

    direction = jax.tree_util.tree_map_with_path(along, eqx.filter(inputs, eqx.is_inexact_array_like))
    check_derivatives(accelerations, *inputs, along=direction, rtol=1e-5, reverse_rtol=1e-8)


@pytest.mark.slow
def test_a_hand_lifts_a_cube_from_a_table():
    """Fingers, one of which mimics the other, hold the cube by friction; a linkage beside them keeps its rod."""
    world = workbench(SolverOptions())
    model = world.model
    # The cube is as deep in the table as it rests there.
    q = pressed()[1].q.at[4].set(HALF - 5e-5)
    weight = 9.81 * (0.7 + 2 * 0.1 + 0.2)
    tau = jnp.zeros(model.nv).at[jnp.array([0, 1])].set(jnp.array([1.05 * weight, 20.0]))
    motion = world.rollout(world.state(q), torques=tau[None], steps=500)
    assert bool(motion.contact.converged.all())
    # 5 % of the weight lifts, once the table is left; the fingers creep on the cube slower than the stiction velocity.
    late, early = motion.v[-1], motion.v[200]
    np.testing.assert_allclose((late - early)[jnp.array([0, 4])], 0.05 * 9.81 * 0.3, rtol=1e-3)
    assert 0 < float(late[0] - late[4]) < 1e-2
    assert float(jnp.abs(jaxdyn.constraint_error(model, motion.q)).max()) < 1e-9
    rocker = world.contact_forces(motion.final, of_step=False)
    assert float(rocker.force[world.contact_names.index("rocker"), 2]) > 10.0


@functools.cache
def two_balls(joints: str) -> World:
    """Balls of 1 kg with a radius of 5 cm, without gravity, elastic."""
    builder = ModelBuilder()
    for name in ("one", "two"):
        joint = Joint("prismatic", axis=(1, 0, 0), name=name) if joints == "slides" else Joint("free", name=name)
        builder.add_body(f"ball_{name}", joint=joint, inertia=BodyInertia.sphere(1.0, 0.05))
    model = builder.build(gravity=(0, 0, 0))
    shapes = [ContactShape(f"ball_{name}", Sphere(0.05)) for name in ("one", "two")]
    law = ContactLaw(stiffness=1e3, dissipation=0.0, friction=0.3)
    return World(model, shapes, None, [("ball_one", "ball_two")], law=law)


def test_balls_keep_their_momentum():
    """Linear and angular momentum stay to rounding, whatever the balls do to each other."""
    world = two_balls("free")
    q = jnp.array([0.0, 0, 0, 1, 0, 0, 0, 0.13, 0.03, 0.01, 1, 0, 0, 0])
    v = jnp.array([1.0, 0, 0, 0, 0.3, 2, 0, 0, 0, 1, 0, 0])
    motion = world.rollout(State(q, v), steps=300)
    assert bool(motion.contact.converged.all())
    inertia = 0.4 * 0.05**2

    def momentum(q, v):
        p, L = np.zeros(3), np.zeros(3)
        for at, rate in zip(np.split(np.asarray(q), 2), np.split(np.asarray(v), 2), strict=True):
            rotation = Rotation.from_quat([*at[4:], at[3]])
            linear = rotation.apply(rate[:3])
            p, L = p + linear, L + np.cross(at[:3], linear) + inertia * rotation.apply(rate[3:])
        return np.concatenate([p, L])

    before, after = momentum(motion.q[0], motion.v[0]), momentum(motion.q[-1], motion.v[-1])
    np.testing.assert_allclose(after, before, atol=1e-12)
    # They met, and friction turned them.
    assert np.abs(np.asarray(motion.v[-1] - motion.v[0]))[[0, 3, 4, 5, 6]].min() > 1e-3


@pytest.mark.slow
def test_gradients_through_a_collision_of_two_balls():
    """A ball strikes one at rest. By the time of impact, and not only by the momentum, the end depends on the start:
    derivatives by the gap are what penalties on discrete steps get wrong (Zhong, Han & Brikis 2022).

    A linear spring takes the time `d = pi sqrt(m / (2 k))`, during which the center of mass goes on; then the second
    ball has the speed `u` of the first, and is at `x1 + 2 r + u T - u d / 2`."""
    duration, steps = 0.4, 4000
    world = two_balls("slides").with_timestep(duration / steps)
    d = np.pi * np.sqrt(1.0 / (2 * 1e3))

    @jax.jit
    @jax.value_and_grad
    def end(x):
        start = State(jnp.stack([x[0], x[1]]), jnp.stack([x[2], 0.0 * x[2]]))
        return world.rollout(start, steps=steps).q[-1, 1]

    x1, x2, u = 0.0, 0.2, 1.0
    value, gradient = end(jnp.array([x1, x2, u]))
    np.testing.assert_allclose(value, x1 + 0.1 + u * duration - u * d / 2, rtol=5e-3)
    # Implicit steps of 0.1 ms lose 3 % of the speed in this impact.
    np.testing.assert_allclose(gradient, [1.0, 0.0, duration - d / 2], atol=2e-2)
    # The speed that brings the second ball to 0.6 m, known in closed form, by Newton's method.
    for _ in range(3):
        u = u - (value - 0.6) / gradient[2]
        value, gradient = end(jnp.array([x1, x2, u]))
    np.testing.assert_allclose(u, 0.5 / (duration - d / 2), rtol=5e-3)


@pytest.mark.slow
def test_a_stack_of_boxes_stands():
    """Three boxes on each other and on a fixed table: each carries those above it, and nothing creeps away."""
    builder = ModelBuilder()
    for k in range(3):
        box = BodyInertia.box(0.3, (0.1, 0.1, 0.1))
        builder.add_body(f"box{k}", joint=Joint("free", name=f"free{k}"), inertia=box)
    model = builder.build()
    shapes = [ContactShape(f"box{k}", Box((0.05, 0.05, 0.05))) for k in range(3)]
    shapes += [ContactShape("world", Box((0.3, 0.3, 0.05)), (0, 0, -0.05))]
    law = ContactLaw(stiffness=1e4, dissipation=20.0)
    world = World(model, shapes, None, "all", law=law)
    q = jnp.concatenate([jnp.array([0.004 * k, -0.003 * k, 0.05 + 0.1 * k, 1, 0, 0, 0]) for k in range(3)])
    motion = world.rollout(world.state(q), steps=1000)
    assert bool(motion.contact.converged.all())
    assert float(jnp.abs(motion.v[-1]).max()) < 1e-3
    assert float(jnp.abs(motion.q[-1] - q).max()) < 2e-3
    found = world.contact_forces(motion.final, of_step=False)
    for lower, upper, weight in (("box0", "world", 0.9), ("box0", "box1", 0.6), ("box1", "box2", 0.3)):
        total = sum(
            f[2] for n, f in zip(world.contact_names, found.force, strict=True) if set(n.split(", ")) == {lower, upper}
        )
        np.testing.assert_allclose(abs(total), 9.81 * weight, rtol=1e-3)


@pytest.mark.slow
def test_what_couples_branches_and_what_does_not_are_one_problem():
    """A pair that never touches makes the equations a matrix, and changes nothing."""
    model = jaxdyn.samples.quadruped()
    shapes = jaxdyn.samples.quadruped_shapes()
    exact = SolverOptions(tolerance=1e-12)
    alone = World(model, shapes, options=exact)
    coupled = World(model, shapes, options=exact, pairs=[(shapes[0].link, shapes[1].link)])
    random = np.random.default_rng(0)
    q = model.integrate(model.neutral(), 0.1 * random.normal(size=model.nv))
    q = q.at[2].add(-1e-3 - alone.contact_forces(State(q), of_step=False).gap.min())
    v, tau = random.normal(size=(2, model.nv))
    one, two = (world.accelerations(State(q, jnp.asarray(v)), torque=tau) for world in (alone, coupled))
    np.testing.assert_allclose(one, two, rtol=1e-10, atol=1e-10 * float(jnp.abs(one).max()))


def wrong_cases():
    sphere = ContactShape("ball_one", Sphere(0.05))
    other = ContactShape("ball_two", Sphere(0.05))
    return {
        "no shape is on 'ball_two'": ([sphere], None, [("ball_one", "ball_two")]),
        "belong to one body": ([sphere], None, [("ball_one", "ball_one")]),
        "there is no surface": ([sphere, other], None, ()),
        "'all', or pairs": ([sphere, other], None, "everything"),
        "a tuple or a ContactPair is needed": ([sphere, other], None, ["ball_one"]),
        "touches surfaces only": ([ContactShape("ball_one", Ellipsoid((1, 1, 1))), other], None, "all"),
        "'ground' or None is needed": ([sphere], "floor", ()),
        "pairs[0] has the law 0.5; a jaxdyn.ContactLaw": ([sphere, other], None, [("ball_one", "ball_two", 0.5)]),
        "`contacts[0].shape` is a float (0.1); an AbstractShape": ([ContactShape("ball_one", 0.1)], None, ()),
        "`contacts[0].law` is a dict; a ContactLaw or a MujocoLaw is needed": ([sphere._replace(law={})], None, ()),
        "apart[0]: no shape is on 'ball'": ([sphere, other], None, "all", ["ball"]),
        "a list of links is needed": ([sphere, other], None, "all", "ball_one"),
        "the name of a link, or those of two": ([sphere, other], None, "all", [("ball_one",) * 3]),
        "nothing is left that can touch": ([sphere, other], None, "all", ["ball_one"]),
        "it does not touch the surface": ([sphere._replace(on_surface=False)], "ground", ()),
        "fixed in the world": ([sphere, ContactShape("world", Sphere(0.1))], "ground", ()),
    }


@pytest.mark.parametrize("text", wrong_cases())
def test_wrong_pairs_are_named(text):
    shapes, surface, pairs, *apart = wrong_cases()[text]
    with pytest.raises((ModelError, ShapeError), match=re.escape(text)):
        World(two_balls("slides").model, shapes, surface, pairs, *apart)
