"""Fits to roll-outs with contact recover the law, the shapes and the plane."""

import dataclasses
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdyn
from jaxdyn import (
    Capsule,
    ContactLaw,
    ContactShape,
    ModelError,
    Plane,
    Points,
    Sphere,
    State,
    UnknownNameError,
    World,
)
from jaxdyn.sysid import (
    Additive,
    ContactNumbers,
    ContactPlacement,
    ContactPlane,
    ContactSizes,
    Parametrization,
    Positive,
    Recording,
    RolloutFit,
    RolloutFitOptions,
    fit_fleet,
    fit_rollouts,
    loss_minimum,
    rollout_errors,
)

DT = 5e-3
POSITION, VELOCITY = 1e-3, 1e-2
TRUE = {"stiffness": 2e3, "dissipation": 0.4, "friction": 0.3}
WRONG = {"stiffness": 3e3, "dissipation": 0.2, "friction": 0.2}
HEIGHT = 0.01


def law(**numbers) -> ContactLaw:
    return ContactLaw(**{**TRUE, "stiction_velocity": 0.02, **numbers})


@functools.cache
def block() -> jaxdyn.Model:
    """A block of 1 kg that moves in a vertical plane and does not turn."""
    builder, parent = jaxdyn.ModelBuilder(), "world"
    for name, axis in (("x", (1, 0, 0)), ("z", (0, 0, 1))):
        inertia = jaxdyn.BodyInertia.box(1.0 if name == "z" else 0.0, (0.1, 0.1, 0.1))
        builder.add_body(name, parent, jaxdyn.Joint("prismatic", axis=axis), inertia=inertia)
        parent = name
    return builder.build()


def scene(height: float = 0.0, **numbers) -> World:
    plane = Plane((0.0, 0.0, 1.0), height)
    return World(block(), [ContactShape("z", Sphere(0.0))], plane, law=law(**numbers), timestep=DT)


def recorded(world: World, *, above: float = 0.05, noise: float = 0.0, seed: int = 0, n: int = 121) -> Recording:
    """A throw: the block bounces and slides, and comes to rest."""
    start = State(jnp.array([0.0, above]), jnp.array([0.8, 0.0]))
    tau = np.zeros((n, 2))
    motion = world.rollout(start, steps=n - 1)
    rng = np.random.default_rng(seed)
    q, v = (np.asarray(x, np.float64) for x in (motion.q, motion.v))
    q, v = q + noise * POSITION * rng.standard_normal(q.shape), v + noise * VELOCITY * rng.standard_normal(v.shape)
    return Recording(DT * np.arange(n), q, v, None, tau)


@functools.cache
def free() -> Parametrization:
    return Parametrization(scene(**WRONG), ContactNumbers(list(TRUE)), ContactPlane(tilt=False))


def fit(recording: Recording, parametrization: Parametrization | None = None, **options) -> RolloutFit:
    """With common settings, so that most tests share one compiled program."""
    return fit_rollouts(
        free() if parametrization is None else parametrization,
        recording,
        segment=0.15,
        position_noise=POSITION,
        velocity_noise=VELOCITY,
        options=RolloutFitOptions(**{"matching": 0.02, **options}),
    )


def numbers(world: World) -> jax.Array:
    touching = world.parts.touching
    return jnp.append(jnp.stack([getattr(touching.laws, name)[0] for name in TRUE]), touching.surface.offset)


EXPECTED = np.array([*TRUE.values(), HEIGHT])


@pytest.mark.slow
def test_the_law_and_the_height_of_the_plane_are_recovered():
    recording = recorded(scene(HEIGHT))
    out = fit(recording)
    # Without noise the cost is rounding in the end, which no step lowers.
    assert out.step_left < 0.03
    assert out.unsolved == 0
    np.testing.assert_allclose(numbers(out.robot), EXPECTED, rtol=1e-4)
    assert out.undetermined == ()
    assert set(out.intervals().names) == {*(f"{name} of contacts" for name in TRUE), "offset of the plane"}
    # The robot that was identified predicts a roll-out over the whole recording.
    errors = [rollout_errors(robot, recording, 0.6, every=1.0).rmse()[0] for robot in (out.before, out.robot)]
    assert errors[1] < 1e-5 < 1e-2 < errors[0]


@pytest.mark.slow
def test_intervals_contain_the_truth():
    inside = []
    for seed in range(8):
        out = fit(recorded(scene(HEIGHT), noise=1.0, seed=seed))
        assert out.converged, out.message
        _, low, high = out.interval(numbers, level=0.95)
        inside += list((low <= EXPECTED) & (high >= EXPECTED))
    assert np.mean(inside) > 0.8, inside
    np.testing.assert_allclose(out.position_noise, POSITION, rtol=0.2)


@pytest.mark.slow
def test_a_flight_says_nothing_of_contacts():
    out = fit(recorded(scene(HEIGHT), above=50.0))
    assert out.undetermined == free().names
    assert "log friction of contacts" in str(out)
    assert "undetermined" in str(out)


def many_shapes() -> World:
    """A cube with shapes of four kinds, two of them under a law of their own, on an inclined plane."""
    soft, model = ContactLaw(stiffness=1e3), jaxdyn.samples.cube()
    shapes = [
        ContactShape("cube", Sphere(0.01), (0.05, 0.05, -0.05), soft),
        ContactShape("cube", Sphere(0.02), (-0.05, 0.05, -0.05), soft),
        ContactShape("cube", Capsule(0.01, 0.03), (0.0, -0.05, -0.05, 0.8, 0.6, 0.0, 0.0), soft),
        ContactShape("cube", Points([[0.05, 0.05, 0.05], [-0.05, 0.05, 0.05]]), law=soft),
    ]
    return World(model, shapes, Plane((0.3, 0.0, 1.0), 0.1))


def test_free_numbers_and_contacts_determine_each_other():
    choices = ContactNumbers(), ContactSizes(), ContactPlacement(rotation=True), ContactPlane()
    p = Parametrization(many_shapes(), *choices)
    assert p.size == len(set(p.names)) == 4 + (2 + 2 + 1) + 4 * 6 + 3
    assert {"log size of Sphere 2 on cube", "log scale of Points on cube", "placement of Capsule on cube: rx"} <= {
        *p.names
    }
    rng = np.random.default_rng(0)
    x, step = (jnp.asarray(0.3 * rng.normal(size=p.size)) for _ in range(2))
    one = p.model(x)
    np.testing.assert_allclose(p.free(one), x, atol=1e-12)
    again = p.about(one).model(step)
    np.testing.assert_allclose(p.free(again), p.moved(x, step), atol=1e-12)
    found = dict(zip(p.names, np.asarray(x), strict=True))
    sizes = {g.kind: g.sizes for g in one.parts.touching.groups}
    np.testing.assert_allclose(sizes[Sphere][1, 0], 0.02 * np.exp(found["log size of Sphere 2 on cube"]))
    np.testing.assert_allclose(np.abs(sizes[Points]), 0.05 * np.exp(found["log scale of Points on cube"]))
    np.testing.assert_allclose(one.parts.touching.laws.friction, 0.8 * np.exp(found["log friction of contacts"]))
    # The tilt turns the normal by an angle whose tangent is the length of its numbers.
    normals = [np.asarray(r.parts.touching.surface.normal) for r in (p.reference, one)]
    tilt = 0.02 * np.hypot(found["tilt of the plane: 0"], found["tilt of the plane: 1"])
    cosine = normals[0] @ normals[1] / np.linalg.norm(normals[0]) / np.linalg.norm(normals[1])
    np.testing.assert_allclose(cosine, 1 / np.sqrt(1 + tilt**2))
    together = Parametrization(p.reference, ContactSizes(shared=True))
    assert together.names == ("log size of Sphere 1 on cube and 4 more",)
    bigger = together.model(np.log([2.0])).parts.touching
    for before, after in zip(p.reference.parts.touching.groups, bigger.groups, strict=True):
        np.testing.assert_allclose(after.sizes, 2 * before.sizes)


def test_laws_are_chosen_by_the_links_that_have_them():
    model, own, shared = jaxdyn.samples.quadruped(), ContactLaw(), ContactLaw()
    names = "FL_FOOT", "FR_FOOT", "HL_FOOT", "HR_FOOT"
    shapes = [ContactShape(n, Sphere(0.02), law=own if n == "FL_FOOT" else shared) for n in names]
    robot = World(model, shapes)
    one = Parametrization(robot, ContactNumbers(["friction"], links=["FL_FOOT"]))
    assert one.names == ("log friction of contacts on FL_FOOT",)
    np.testing.assert_allclose(one.model(np.ones(1)).parts.touching.laws.friction, [0.8 * np.e, 0.8])
    with pytest.raises(ModelError, match="HL_FOOT, HR_FOOT have the same law"):
        Parametrization(robot, ContactNumbers(links=["FL_FOOT", "FR_FOOT"]))
    some = Parametrization(robot, ContactSizes(["HL_FOOT"]), ContactPlacement(["HR_FOOT"]))
    assert [n.split(" on ")[1] for n in some.names] == ["HL_FOOT", *(f"HR_FOOT: {c}" for c in "xyz")]


def wrong_cases():
    # Every process calls this to collect the tests, so it compiles nothing.
    robot, still = scene(), np.zeros((31, 2))
    recording = Recording(DT * np.arange(31), still, still, None, still)
    of_two = jax.tree.map(lambda x: np.stack([x, x]), robot.parts.touching)
    of_two = eqx.tree_at(lambda w: w.parts.touching, robot, of_two)
    field = World(block(), [ContactShape("z", Sphere(0.0))], jaxdyn.HeightField(np.zeros((3, 3)), 0.1), law=law())
    free_of = functools.partial(Parametrization, robot)
    return {
        "bounciness": lambda: free_of(ContactNumbers(["bounciness"])),
        "names is 'friction'": lambda: free_of(ContactNumbers("friction")),
        "'foot'": lambda: free_of(ContactNumbers(links=["foot"])),
        "links is the string 'z'": lambda: free_of(ContactSizes(links="z")),
        "size of Sphere on z of the reference is zero": lambda: free_of(ContactSizes()),
        "width of contacts of the reference is zero": lambda: free_of(ContactNumbers(["width"])),
        "neither position nor rotation": lambda: free_of(ContactPlacement(position=False)),
        "neither height nor tilt": lambda: free_of(ContactPlane(height=False, tilt=False)),
        "length (m)": lambda: free_of(ContactPlane(length=0.0)),
        "has no contacts": lambda: Parametrization(World(block()), ContactNumbers()),
        "HeightField, no Plane": lambda: Parametrization(field, ContactPlane()),
        "have batch axes": lambda: Parametrization(of_two, ContactNumbers()),
        "both about entry 0 of parts.touching.laws.friction": lambda: free_of(
            ContactNumbers(), Positive(lambda world: world.parts.touching.laws.friction)
        ),
        "this world belong to links": lambda: free_of(ContactNumbers(geoms=["z"])),
        "leave out integrator": lambda: fit(recording, integrator="rk4"),
    }


@pytest.mark.parametrize("text", wrong_cases())
def test_wrong_arguments_are_named(text):
    with pytest.raises((ModelError, UnknownNameError)) as error:
        wrong_cases()[text]()
    assert text in str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["squared", "huber"])
def test_intervals_cover_the_truth(loss):
    """90 to 98.5 % of 400 intervals of 95 % (four numbers, 100 recordings) cover the truth."""
    inside = []
    for seed in range(100):
        out = fit(recorded(scene(HEIGHT), noise=1.0, seed=seed), loss=loss)
        # The cost has creases, where a sample begins to touch; at some of them a fit stalls, close to the minimum.
        assert out.step_left < 0.5, out.message
        _, low, high = out.interval(numbers, level=0.95)
        inside += list((low <= EXPECTED) & (high >= EXPECTED))
    assert 0.90 <= np.mean(inside) <= 0.985, np.mean(inside)


@pytest.mark.slow
def test_intervals_by_whole_throws_contain_the_truth():
    """91 to 98.5 % of 180 intervals of 95 % (three numbers, 60 sets of 100 throws) contain the truth. All samples of a
    throw share the error of its recorded start and an offset: intervals for independent samples would be too narrow."""
    truth, count, samples = np.append(np.log([TRUE["friction"], TRUE["stiffness"]]), HEIGHT), 100, 81
    inside = []

    @jax.jit
    def thrown(x, q, v):
        world = scene(x[2], friction=jnp.exp(x[0]), stiffness=jnp.exp(x[1]))
        return world.rollout(State(q, v), steps=samples - 1).q

    for seed in range(60):
        rng = np.random.default_rng(seed)
        q, v = rng.uniform((0, 0.05), (0, 0.1), (count, 2)), rng.uniform((0.5, -0.5), (1.5, 0.5), (count, 2))
        shared, own = rng.normal(size=(count, 1, 2)), rng.normal(size=(count, samples, 2))
        read = np.asarray(thrown(truth, q, v)) + 5e-4 * (shared + own)
        v = v + 0.02 * rng.normal(size=v.shape)

        def losses(x, read=read, q=q, v=v):
            apart = np.linalg.norm(np.asarray(thrown(x, q, v)) - read, axis=-1)
            return np.sqrt(apart.mean(axis=-1))

        start = truth + rng.normal(size=3) * (0.01, 0.02, 2e-4)
        found = loss_minimum(losses, start, width=(0.02, 0.05, 5e-4), rounds=2)
        inside += list(np.abs(found.free - truth) < 1.959964 * found.standard_errors)
    assert 0.91 <= np.mean(inside) <= 0.985, np.mean(inside)


@pytest.mark.slow
def test_a_robust_loss_bears_readings_that_are_wrong():
    recording, rng = recorded(scene(HEIGHT), noise=1.0), np.random.default_rng(1)
    q = np.array(recording.q)
    q[rng.choice(len(q), 6, replace=False)] += 0.05
    recording = dataclasses.replace(recording, q=q)
    errors = [np.abs(numbers(fit(recording, loss=loss).robot) / EXPECTED - 1) for loss in ("squared", "cauchy")]
    assert np.all(errors[1] < 0.05)
    assert errors[0].max() > 2 * errors[1].max()


@pytest.mark.slow
def test_single_precision():
    p = Parametrization(scene(**WRONG).astype(np.float32), ContactNumbers(list(TRUE)), ContactPlane(tilt=False))
    out = fit(recorded(scene(HEIGHT), noise=1.0), p)
    assert out.state.q.dtype == np.float32
    assert out.step_left < 0.1, out.message
    double = fit(recorded(scene(HEIGHT), noise=1.0))
    np.testing.assert_allclose(numbers(out.robot), numbers(double.robot), rtol=1e-2)


@pytest.mark.slow
def test_known_contacts_beside_other_free_numbers():
    truth = scene()
    wrong = eqx.tree_at(lambda w: w.model.gravity, truth, 1.1 * truth.model.gravity)
    p = Parametrization(wrong, Additive("gravity", at=2, scale=1.0))
    out = fit_rollouts(p, recorded(truth), segment=0.15, position_noise=POSITION, velocity_noise=VELOCITY)
    np.testing.assert_allclose(out.robot.model.gravity[2], -9.81, rtol=1e-6)


def test_numbers_of_joints_are_those_of_the_model():
    """Such as damping, which stands in the model alone, and not among the parts of a world that is made of it."""
    p = Parametrization(World(jaxdyn.samples.arm().with_joint_friction(0.1, 0.2)), *map(Positive, JOINTS))
    world = p.model(np.log(2) * np.ones(p.size))
    for name in JOINTS.values():
        np.testing.assert_allclose(getattr(world.model, name), 2 * getattr(p.reference.model, name))


JOINTS = {"damping": "damping", "frictionloss": "friction"}


@pytest.mark.slow
def test_a_fleet_with_contacts_is_fitted_as_each_alone():
    many = [scene(HEIGHT, friction=x) for x in (0.2, 0.3)]
    data = [recorded(robot, noise=1.0, seed=k) for k, robot in enumerate(many)]
    q, v, tau = (np.stack([getattr(x, name) for x in data]) for name in ("q", "v", "tau"))
    options = {"options": RolloutFitOptions(matching=0.02)}
    noise = {"position_noise": POSITION, "velocity_noise": VELOCITY}
    fleet = fit_fleet(free(), q, v, tau, DT, segment=0.15, **noise, **options)
    for k, recording in enumerate(data):
        alone = numbers(fit(recording).robot)
        np.testing.assert_allclose(jax.vmap(numbers)(fleet.robot)[k], alone, rtol=1e-3)


@pytest.mark.slow
def test_shapes_and_the_tilt_of_the_plane_are_recovered():
    """Tosses of a cube with balls at its corners: their radius, the tilt of the plane, and the friction."""
    model = jaxdyn.samples.cube()

    def robot(radius, tilt, friction):
        corners = np.stack(np.meshgrid(*[(-0.04, 0.04)] * 3), axis=-1).reshape(-1, 3)
        shapes = [ContactShape("cube", Sphere(radius), corner) for corner in corners]
        own = ContactLaw(stiffness=5e3, dissipation=0.5, friction=friction, stiction_velocity=0.02)
        return World(model, shapes, Plane((*tilt, 1.0)), law=own, timestep=DT)

    truth, rng = robot(0.01, (0.03, -0.02), 0.3), np.random.default_rng(0)
    t, tau, recordings = DT * np.arange(121), np.zeros((121, 6)), []
    for _ in range(6):
        turn, v = rng.normal(size=4), rng.normal(size=6) * (0.6, 0.6, 0.2, 4, 4, 4)
        start = State(jnp.asarray([0.0, 0, 0.12, *turn / np.linalg.norm(turn)]), jnp.asarray(v))
        motion = truth.rollout(start, steps=len(tau) - 1)
        recordings.append(Recording(t, np.asarray(motion.q), np.asarray(motion.v), None, tau))
    # Larger balls on a lower plane are the same, so only one of them is free.
    choices = ContactNumbers(["friction"]), ContactSizes(shared=True), ContactPlane(height=False)
    p = Parametrization(robot(0.012, (0.0, 0.0), 0.25), *choices)
    out = fit_rollouts(p, recordings, segment=0.1, position_noise=1e-3, velocity_noise=0.1)
    assert out.step_left < 0.03, out.message
    contacts = out.robot.parts.touching
    np.testing.assert_allclose(contacts.groups[0].sizes, 0.01, rtol=1e-3)
    np.testing.assert_allclose(contacts.surface.normal, (0.03, -0.02, 1.0), atol=1e-5)
    np.testing.assert_allclose(contacts.laws.friction, 0.3, rtol=1e-3)
