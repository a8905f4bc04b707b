"""Worlds of MJCF files are identified from recordings of positions, velocities and controls, made by MuJoCo's C."""

import dataclasses
import functools
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdyn
from jaxdyn import DataError, ModelError, PhysicalityWarning, UnknownNameError
from jaxdyn.sysid import (
    Additive,
    ContactNumbers,
    ContactPlacement,
    ContactPlane,
    ContactSizes,
    InertiaScale,
    Parametrization,
    Positive,
    Recording,
    RolloutFitOptions,
    fit_fleet,
    fit_rollouts,
    judge_rollouts,
    rollout_errors,
)

mujoco = pytest.importorskip("mujoco")

POSITION, VELOCITY = 1e-3, 1e-2
LEG = """<mujoco><option timestep=".005"/><worldbody><body name="leg"><joint name="hip" axis="0 1 0" damping=".2"
armature=".02"/><geom name="shank" type="capsule" size=".03" fromto="0 0 0 0 0 -.3" mass=".5"/></body></worldbody>
<actuator><general joint="hip" name="drive" gear="2" dyntype="filter" dynprm=".05"/></actuator></mujoco>"""
"""A pendulum with an actuator that follows its control with a delay."""


def recorded(m, controls: np.ndarray, *, every: int = 1, seed: int = 0, noise: float = 1.0, start=0.3) -> Recording:
    """A motion of an `mjModel` with slides and hinges under controls that are held for `every` steps each."""
    d, rng = mujoco.MjData(m), np.random.default_rng(seed)
    d.qpos[:] = start
    q, v = np.zeros((2, len(controls), m.nv))
    for k, u in enumerate(controls):
        q[k], v[k], d.ctrl[:] = d.qpos, d.qvel, u
        mujoco.mj_step(m, d, every)
    q, v = q + noise * POSITION * rng.normal(size=q.shape), v + noise * VELOCITY * rng.normal(size=v.shape)
    return Recording(every * m.opt.timestep * np.arange(len(q)), q, v, control=controls)


@functools.cache
def leg():
    m = mujoco.MjModel.from_xml_string(LEG)
    controls = np.repeat(np.random.default_rng(1).normal(size=(50, 1)), 4, axis=0)
    controls[0] = 0  # The activation, which begins at zero, is that at which the first control holds it.
    return m, jaxdyn.load_world(m), recorded(m, controls, every=2)


def choices():
    return Positive("damping"), Positive("armature"), Positive("gear"), Positive("dynprm")


def wrong(world, *free, part=0.25):
    """A parametrization whose reference is off by a part, up and down in turns."""
    p = Parametrization(world, *free)
    return p.about(p.model(part * (-1.0) ** jnp.arange(p.size)))


@functools.cache
def fit_of_leg():
    _, world, recording = leg()
    return fit(wrong(world, *choices()), recording)


def fit(p, recording, **options):
    options = RolloutFitOptions(**options)
    return fit_rollouts(p, recording, segment=0.2, position_noise=POSITION, velocity_noise=VELOCITY, options=options)


def covered(out, world, **which) -> np.ndarray:
    """Which intervals of free entries have the values of a world."""
    found, truth = out.intervals(**which), np.asarray(out.free_entries(world))
    return (found.lower <= truth) & (truth <= found.upper)


def test_a_world_is_identified_from_its_controls_with_intervals():
    world, out = leg()[1], fit_of_leg()
    assert out.converged, out.message
    assert out.unsolved == 0
    assert set(out.intervals().names) == {"armature of hip", "damping of hip", "dynprm of drive", "gear of drive"}
    assert covered(out, world).all()
    assert (out.standard_errors < 0.05).all()
    np.testing.assert_allclose(out.position_noise, POSITION, rtol=0.2)


def test_roll_outs_from_measured_and_estimated_states_judge_a_world():
    _, _, recording = leg()
    out = fit_of_leg()
    errors = [rollout_errors(x, recording, 0.4, every=0.1).rmse().mean() for x in (out.before, out.robot)]
    assert errors[1] < 3 * POSITION < errors[0]
    noise = {"position_noise": POSITION, "velocity_noise": VELOCITY}
    judged = judge_rollouts(out.robot, recording, 0.4, every=0.4, history=0.2, **noise)
    assert judged.errors.rmse().mean() < 1.5 * POSITION


@pytest.mark.slow
def test_a_fleet_of_worlds_is_identified_at_once():
    m, world, recording = leg()
    others = [recording, recorded(m, 0.7 * recording.require("control")[0], every=2, seed=5)]
    q, v, control = (np.stack([getattr(x, name) for x in others]) for name in ("q", "v", "control"))
    numbers = {"segment": 0.2, "position_noise": POSITION, "velocity_noise": VELOCITY}
    p = wrong(world, *choices())
    fleet = fit_fleet(p, q, v, control, float(recording.t[1]), **numbers)
    assert fleet.converged.all()
    np.testing.assert_allclose(fleet.free[0], fit_of_leg().free, atol=1e-3)


def test_recordings_that_do_not_fit_a_world_are_refused_by_name():
    _, world, recording = leg()
    p = Parametrization(world, *choices())
    twice = np.hstack([recording.control] * 2)
    for change, message in (
        ({"control": None}, "no controls; give control .*drive"),
        ({"control": None, "tau": 0 * recording.q}, "beside those of the actuators"),
        ({"control": twice}, "control has 2 columns, but the world needs 1.*drive"),
        ({"activation": twice}, "activation has 2 columns"),
        ({"t": 1.3 * recording.t}, r"no multiple of the world's time step, 0.005 s; call resampled"),
    ):
        with pytest.raises(DataError, match=message):
            fit(p, dataclasses.replace(recording, **change))
    with pytest.raises(ModelError, match="leave out integrator and substeps"):
        fit(p, recording, substeps=2)
    with pytest.raises(DataError, match="controls, which only worlds take, and no torques"):
        fit(Parametrization(world.model, Positive("armature")), recording)
    summing = mujoco.MjModel.from_xml_string(LEG.replace('"filter"', '"integrator"'))
    with pytest.raises(DataError, match=r"drive integrate their controls.*activation"):
        fit(Parametrization(jaxdyn.load_world(summing), Positive("gear")), recording)
    # Controls that are resampled are held, and not interpolated.
    slow = recording.resampled(50.0)
    np.testing.assert_array_equal(slow.control, recording.control[::2])


SCENE = """<mujoco><worldbody><geom name="floor" type="plane" size="1 1 1" friction=".8"/>
<body name="a" pos="0 0 .5"><freejoint name="free"/><geom name="trunk" type="box" size=".1 .2 .05" mass="1.3"
 friction=".5"/><body name="b" pos=".2 0 0"><joint name="hinge" axis="0 1 0" armature=".02" range="-1 1" damping=".1"
 limited="true" frictionloss=".1"/><geom name="arm" type="capsule" size=".03 .1" pos=".1 0 .02" mass=".4" friction=".8"
 /><site name="tip" pos=".1 0 0"/><body name="c" pos=".2 0 0"><joint name="ball" type="ball" range="0 1" limited="true"
 /><geom name="hand" size=".06" pos=".03 0 0" mass=".2" friction=".9" condim="4"/></body></body></body>
<body name="d" pos="1 0 1" gravcomp="1"><joint name="slide" type="slide" axis="0 0 1"/><geom name="weight" size=".1"
 mass=".7" priority="1" friction=".2"/><site name="eye"/></body></worldbody>
<contact><pair geom1="trunk" geom2="hand" friction=".3 .3 .1 .1 .1"/></contact>
<tendon><spatial name="rope" limited="true" range="0 2" frictionloss=".2" damping=".1" stiffness="3"><site site="tip"/>
 <site site="eye"/></spatial></tendon>
<equality><weld body1="a" body2="d"/><joint joint1="hinge" joint2="slide"/></equality>
<actuator><muscle tendon="rope" name="muscle" lengthrange=".1 3"/><position name="servo" joint="hinge" kp="7" kv=".5"/>
 <velocity name="brake" joint="slide" kv="2"/><motor name="pull" tendon="rope" gear="2"/></actuator></mujoco>"""
"""A scene with constants of every kind that follow from inertias, and numbers of every kind of owner."""


@functools.cache
def scene(**masses: str):
    text = SCENE
    for old, new in masses.items():
        text = text.replace(f'mass="{old.replace("_", ".").lstrip("m")}"', f'mass="{new}"')
    return jaxdyn.load_world(text)


def constants(world):
    """All arrays of a world that MuJoCo derives from inertias."""
    constraints, equalities = world.parts.constraints, world.parts.constraints.equalities
    pairs = [x.weight for x in constraints.contacts.pairs]
    held = [equalities.held.weight, equalities.held.turning_weight, equalities.joints.weight]
    others = [constraints.limits.weight, constraints.losses.weight, world.parts.actuators.unit_acceleration]
    return [*pairs, *held, *others, world.parts.passive.weight]


@pytest.mark.parametrize("masses", [{"m_7": "1.7"}, {"m1_3": "2.6", "m_2": ".3"}])
def test_constants_that_follow_from_inertias_are_those_that_mujoco_compiles(masses):
    world = scene()
    other = scene(**masses)
    changed = jax.jit(lambda model: constants(world.with_model(model)))(other.model)
    for ours, theirs, before in zip(changed, constants(other), constants(world), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9)
        assert before.shape == theirs.shape
    assert any(np.abs(x - y).max() > 0.01 * np.abs(x).max() for x, y in zip(constants(world), changed, strict=True))


def test_masses_and_armature_of_a_parametrization_bring_their_constants_along():
    world = scene()
    p = Parametrization(world, InertiaScale(["b"]), Positive("armature", ["hinge"]))
    numbers = jnp.array([0.3, -0.2])
    other = p.model(numbers)
    assert not np.allclose(other.parts.constraints.limits.weight, world.parts.constraints.limits.weight)
    expected = constants(world.with_model(other.model))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-9), constants(other), expected)
    np.testing.assert_allclose(p.free(other), numbers, atol=1e-9)
    with pytest.raises(ModelError, match="weight differs"):
        p.free(eqx.tree_at(lambda x: x.model, world, other.model))
    with pytest.raises(ModelError, match="another tree"):
        world.with_model(jaxdyn.samples.arm())


def test_inertias_that_are_replaced_in_the_model_of_a_world_are_warned_of():
    """Constants of MuJoCo's law would be those of the former ones, also where the new ones are traced."""
    world, other = scene(), scene(m_7="1.7").model

    def replaced(model):
        return eqx.tree_at(lambda w: w.model, world, model)

    for call in (lambda: replaced(other).state(), lambda: jax.eval_shape(lambda m: replaced(m).state(), other)):
        with pytest.warns(PhysicalityWarning, match="world.with_model"):
            call()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        world.state()
        world.with_model(other).state()
        world.astype(jnp.float32).state()
        jax.eval_shape(lambda m: world.with_model(m).state(), other)
        jax.vmap(lambda s: world.with_model(other.scaled(mass=s)))(jnp.ones(2)).state()
        # A pendulum has no such constants.
        text = '<mujoco><worldbody><body><joint/><geom size=".1" pos="0 0 1"/></body></worldbody></mujoco>'
        alone = jaxdyn.load_world(text)
        eqx.tree_at(lambda w: w.model.armature, alone, alone.model.armature + 1).state()


def test_numbers_have_the_names_of_their_owners():
    world = scene()
    p = Parametrization(
        world,
        Positive("kp"),
        Positive("kv"),
        Positive("damping", tendons=["rope"]),
        Positive("stiffness", tendons=["rope"]),
        Positive("frictionloss"),
        Additive("range", 0.1, ["hinge"]),
        ContactNumbers(["friction"], geoms=["weight", "hand", ("floor", "arm")]),
        ContactSizes(geoms=["arm"]),
        ContactPlacement(geoms=["floor"], position=True),
    )
    of_actuators = "log kp of servo", "log kv of servo", "log kv of brake"
    assert p.names[:5] == (*of_actuators, "log damping of tendon rope", "log stiffness of tendon rope")
    assert {"log friction of weight", "log friction of hand", "log friction of floor and arm"} < set(p.names)
    x = 0.1 * jnp.ones(p.size)
    other = p.model(x)
    np.testing.assert_allclose(p.free(other), x, atol=1e-9)
    servo, brake = 1, 2
    gain, bias = (np.asarray(getattr(other.parts.actuators, x)) for x in ("gain", "bias"))
    np.testing.assert_allclose(bias[servo, 1], -gain[servo, 0])
    np.testing.assert_allclose([gain[servo, 0], bias[servo, 2], gain[brake, 0]], np.exp(0.1) * np.array([7, -0.5, 2]))
    # The slider has priority over all others, the hand more friction than the floor, and its pair with the trunk
    # numbers of its own.
    free = {("floor", "hand"), ("floor", "arm"), *((x, "weight") for x in ("floor", "trunk", "arm", "hand"))}
    expected = dict.fromkeys(map(frozenset, free), np.exp(0.1)) | dict.fromkeys(
        map(frozenset, [("trunk", "hand"), ("floor", "trunk")]), 1.0
    )
    assert friction_ratios(world, other) == pytest.approx(expected)


def friction_ratios(world, other) -> dict:
    contacts, ratios = world.parts.constraints.contacts, {}
    for a, b in zip(contacts.pairs, other.parts.constraints.contacts.pairs, strict=True):
        for i, (one, two) in enumerate(zip(a.first, a.second, strict=True)):
            pair = frozenset((contacts.names[one], contacts.names[two]))
            ratios[pair] = float(b.friction[i, 0] / a.friction[i, 0])
    return ratios


def test_choices_that_a_world_does_not_have_are_refused_by_name():
    world = scene()
    for choice, error, message in (
        (Positive("dampng"), UnknownNameError, "damping"),
        (Positive("friction"), UnknownNameError, "frictionloss"),
        (Positive("damping"), ModelError, r"damping\[0\] of free.* zero.*joints="),
        (Positive("gear", ["hinge"]), ModelError, "gear belongs to no joint"),
        (Positive("gear", actuators=["sevo"]), UnknownNameError, "servo"),
        (Positive("kp", actuators=["pull"]), ModelError, "no kp of actuator pull"),
        (Positive("gear", at=0), ModelError, "not by at"),
        (Positive("damping", ["hinge"], tendons=["rope"]), ModelError, "one kind"),
        (Additive("kp"), ModelError, "several arrays"),
        (ContactNumbers(), ModelError, "friction of both"),
        (ContactNumbers(geoms=["trunk"]), ModelError, "friction of floor, weight, whose.*larger.*priority"),
        (ContactNumbers(["rolling"], geoms=["floor"]), ModelError, "no contact of floor has rolling"),
        (ContactNumbers(["stiffness"]), UnknownNameError, "solref"),
        (ContactNumbers(links=["a"]), ModelError, "belong to geoms"),
        (ContactSizes(geoms=["floor"]), ModelError, "no sizes"),
        (ContactPlane(), ModelError, "ContactPlacement"),
    ):
        with pytest.raises(error, match=message):
            Parametrization(world, choice)
    with pytest.raises(ModelError, match="has no contacts"):
        Parametrization(jaxdyn.samples.arm(), ContactNumbers(geoms=["floor"]))


@pytest.mark.slow
def test_the_half_cheetah_is_identified_with_true_intervals():
    """Five recordings of 4 s at 30 % of the largest controls. Joints, gears and friction start wrong by 20 to 30 %."""
    folder = pytest.importorskip("gymnasium").__path__[0]
    m = mujoco.MjModel.from_xml_path(f"{folder}/envs/mujoco/assets/half_cheetah.xml")
    world = jaxdyn.load_world(m)
    legs = world.model.joint_names[3:]
    free = Positive("damping", legs), Positive("armature", legs), Positive("gear"), ContactNumbers(geoms=["floor"])
    p, inside, t = Parametrization(world, *free), [], 0.01 * np.arange(401)[:, None]
    for seed in range(5):
        rng = np.random.default_rng(seed)
        rate, phase = rng.uniform(2, 12, (2, 6)), rng.uniform(0, 6, (2, 6))
        controls = 0.3 * np.clip(0.9 * np.sin(rate[0] * t + phase[0]) + 0.5 * np.sin(rate[1] * t + phase[1]), -1, 1)
        recording = recorded(m, controls, seed=seed, start=rng.uniform(-0.1, 0.1, 9))
        start = p.about(p.model(rng.choice([-1, 1], p.size) * rng.uniform(0.2, 0.3, p.size)))
        noise = {"position_noise": POSITION, "velocity_noise": VELOCITY}
        out = fit_rollouts(start, recording, segment=0.05, **noise)
        # Where residuals have kinks, as at impacts, steps may stall about a standard error beside the minimum.
        assert out.step_left < 2, out.message
        # The states of short segments follow a part of the noise, so residuals are smaller than it; none is in excess.
        assert np.max(out.position_noise) < 1.1 * POSITION
        assert np.max(out.velocity_noise) < 1.1 * VELOCITY
        assert "far beyond" not in out.message
        assert out.unsolved == 0
        inside.append(covered(out, world))
    assert np.mean(inside) > 0.9
