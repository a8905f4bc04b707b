"""Worlds of MJCF files under the law of Hunt and Crossley."""

import functools
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdyn
from jaxdyn import Actuator, ContactLaw, LeftOutWarning, ModelError, MujocoLaw, World, load_world
from jaxdyn.sysid import ContactNumbers, Parametrization

pytest.importorskip("mujoco")

LAW = ContactLaw(stiffness=2e4, dissipation=1.0, stiction_velocity=1e-2)
SCENE = """<mujoco><option timestep="0.002" gravity="0.3 0 -9.81"/><worldbody>
<geom name="floor" type="plane" size="5 5 .1" friction="0.7"/>
<body name="ball" pos="0 0 .099"><freejoint/><geom name="b" type="sphere" size=".1" mass="1" friction="0.2"/></body>
<body name="box" pos=".2 0 .299"><joint type="slide" axis="0 0 1"/>
<geom name="x" type="box" size=".1 .2 .3" mass="2" friction="0.2"/></body>
<body name="cap" pos="2 0 .14"><joint type="slide" axis="0 0 1" damping="3"/>
<joint name="h" axis="0 1 0" damping=".5" stiffness="2" armature=".01"/>
<geom name="c" type="capsule" size=".05 .1" mass="2" friction="0.2"/></body></worldbody>
<actuator><motor name="m" joint="h" gear="2"/><position name="p" joint="h" kp="3" kv="0.2"/></actuator></mujoco>"""
"""Shapes on a plane and against each other, dampers, a spring, a motor and a servo."""
U = jnp.array([0.3, 0.2])


@functools.cache
def scene() -> World:
    return load_world(SCENE, law=LAW)


def start(world: World):
    return world.state(np.array(scene().start), 0.3 * np.random.default_rng(0).normal(size=world.model.nv))


@functools.cache
def of_shapes() -> World:
    """The same world, made of its model and its shapes."""
    model = jaxdyn.load_mjcf(SCENE)
    found = jaxdyn.load_contact_shapes(model, SCENE, law=LAW, pairs=True)
    servos = [Actuator("h", gear=2.0, name="m"), Actuator("h", "position", kp=3.0, kv=0.2, name="p")]
    return World(model, found.shapes, found.surface, found.pairs, law=LAW, timestep=0.002, actuators=servos)


@pytest.mark.filterwarnings("ignore::jaxdyn.LeftOutWarning")
def test_a_file_under_this_law_moves_as_the_world_of_its_shapes():
    world, other = scene(), of_shapes()
    assert len(world.contact_names) == len(other.contact_names) == 15
    ours, theirs = (w.step(start(w), U) for w in (world, other))
    np.testing.assert_allclose(ours.q, theirs.q, atol=1e-13)
    np.testing.assert_allclose(ours.v, theirs.v, atol=1e-12)
    assert np.abs(ours.v - start(world).v).max() > 0.1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::jaxdyn.LeftOutWarning")
def test_motions_forces_and_rates_of_a_file_are_those_of_the_world_of_its_shapes():
    world, other = scene(), of_shapes()
    ours, theirs = (w.rollout(start(w), jnp.tile(U, (60, 1))) for w in (world, other))
    np.testing.assert_allclose(ours.q, theirs.q, atol=1e-12)
    np.testing.assert_allclose(ours.v, theirs.v, atol=1e-11)
    for of_step in (True, False):
        pushes = [w.contact_forces(start(w), U, of_step=of_step).force.sum(axis=0) for w in (world, other)]
        np.testing.assert_allclose(*pushes, rtol=1e-9)
        assert np.abs(pushes[0]).max() > 1
    rates = [w.rate(0.0, start(w), U).v for w in (world, other)]
    np.testing.assert_allclose(*rates, rtol=1e-9, atol=1e-9)


SLIDING = """<mujoco><option timestep="0.002"/><worldbody><geom name="floor" type="plane" size="5 5 .1" friction="0.7"/>
<body pos="0 0 .049"><joint type="slide" axis="1 0 0"/><joint type="slide" axis="0 0 1"/>
<joint axis="0 1 0" damping=".5"/><geom type="capsule" size=".05 .1" euler="0 90 0" mass="2"/></body></worldbody>
</mujoco>"""


@pytest.mark.slow
def test_derivatives_precisions_and_batches_of_a_file_under_this_law():
    world, v = load_world(SLIDING, law=LAW), jnp.array([0.3, -0.2, 0.5])

    def numbers(world):
        constraints = world.parts.constraints
        return constraints.compliance.stiffness, constraints.contacts.pairs[0].friction

    @jax.jit
    def end(x):
        changed = eqx.tree_at(numbers, world, tuple(a * b for a, b in zip(numbers(world), x, strict=False)))
        return (changed.step(changed.state(v=x[2] * v)).v ** 2).sum()

    x, size = jnp.ones(3), 1e-6
    forward, reverse = (jax.jit(way(end))(x) for way in (jax.jacfwd, jax.grad))
    differences = [(end(x.at[i].add(size)) - end(x.at[i].add(-size))) / (2 * size) for i in range(3)]
    np.testing.assert_allclose(forward, reverse, rtol=1e-9)
    np.testing.assert_allclose(forward, differences, rtol=1e-5)
    assert (np.abs(forward) > 1e-4).all()
    after = world.step(world.state(v=v)).v
    both = world.step(world.state(v=jnp.stack([2 * v, v])))
    np.testing.assert_allclose(both.v[1], after, atol=1e-12)
    single = world.astype(jnp.float32)
    rounded = single.step(single.state(v=v)).v
    assert rounded.dtype == jnp.float32
    np.testing.assert_allclose(rounded, after, atol=2e-4)


def test_a_ball_of_a_file_rests_on_its_margin_and_sinks_by_its_weight_over_the_stiffness():
    world = load_world(
        """<mujoco><option timestep="0.005" integrator="RK4"/><worldbody><geom type="plane" size="1 1 1" margin=".01"/>
        <body pos="0 0 .11"><joint type="slide" axis="0 0 1"/><geom size=".1" mass="3" margin=".02"/></body>
        </worldbody></mujoco>""",
        law=ContactLaw(stiffness=1e4, dissipation=1.0),
    )
    assert world.parts.integrator == "implicit_velocity"
    end = world.rollout(world.state(), steps=1000).final
    np.testing.assert_allclose(end.q, 0.03 - 0.01 - 3 * 9.81 / 1e4, rtol=1e-6)
    np.testing.assert_allclose(world.contact_forces(end).force[0], [0, 0, 3 * 9.81], rtol=1e-6, atol=1e-9)


PARTS = """<mujoco><compiler angle="radian"/><option timestep="0.01" integrator="implicitfast"/><worldbody>
<geom type="plane" size="1 1 1" pos="0 0 -9"/><site name="hook" pos=".3 0 .2"/>
<body name="one"><joint name="a" axis="0 1 0" damping=".4" range="-2 2" limited="true" frictionloss=".1"/>
<geom size=".05" pos=".2 0 0" contype="0"/><site name="s" pos=".3 0 0"/>
<body pos=".4 0 0"><joint name="b" axis="0 1 0"/><geom size=".05" pos=".2 0 0"/></body></body></worldbody>
<tendon><spatial name="rope" damping="2" stiffness="30"><site site="hook"/><site site="s"/></spatial>
<fixed name="sum"><joint joint="a" coef="1"/><joint joint="b" coef="-.5"/></fixed></tendon>
<actuator><general joint="b" gainprm="4" biastype="affine" biasprm="0 -4 -2"/>
<position tendon="sum" kp="3" kv="1.5"/></actuator>
<sensor><tendonpos tendon="rope"/><jointvel joint="b"/><tendonactuatorfrc tendon="sum"/></sensor></mujoco>"""


def test_dampers_of_joints_tendons_and_servos_push_by_the_end_of_a_step_as_in_mujocos_implicitfast():
    text = re.sub(r' frictionloss="[^"]*"', "", PARTS)
    theirs, ours = load_world(text), load_world(text, law=LAW)
    state, u = theirs.state([0.4, -0.7], [1.5, -2.0]), jnp.array([0.3, -0.8])
    np.testing.assert_allclose(ours.step(state, u).v, theirs.step(state, u).v, rtol=1e-10)


@pytest.mark.slow
def test_rates_and_sensors_without_contact_are_those_of_mujocos_law():
    theirs, ours = load_world(PARTS), load_world(PARTS, law=LAW)
    state, u = theirs.state([0.4, -0.7], [1.5, -2.0]), jnp.array([0.3, -0.8])
    np.testing.assert_allclose(*(w.rate(0.0, state, u).v for w in (ours, theirs)), rtol=1e-10)
    one, two = (w.sensors(state, u) for w in (ours, theirs))
    for name, value in one.items():
        np.testing.assert_allclose(value, two[name], rtol=1e-10)
    # Accelerations are those of a step, which dampers slow down.
    assert np.abs(np.asarray(ours.accelerations(state, u) - theirs.accelerations(state, u))).max() > 0.1


def test_numbers_of_the_law_and_friction_of_geoms_are_identified():
    p = Parametrization(scene(), ContactNumbers(["stiffness", "dissipation"]), ContactNumbers(geoms=["floor"]))
    assert p.names == tuple(
        f"log {x}" for x in ("stiffness of contacts", "dissipation of contacts", "friction of floor")
    )
    changed = p.model(jnp.array([0.1, 0.2, 0.3]))
    np.testing.assert_allclose(changed.parts.constraints.compliance.stiffness, 2e4 * np.exp(0.1))
    for names, error, message in (
        (["solref"], jaxdyn.UnknownNameError, "dissipation"),
        (["width"], ModelError, "zero"),
    ):
        with pytest.raises(error, match=message):
            Parametrization(scene(), ContactNumbers(names))
    with pytest.raises(ModelError, match="all geoms of a file share the stiffness"):
        Parametrization(scene(), ContactNumbers(["stiffness"], geoms=["floor"]))


def test_what_this_law_does_not_have_is_named():
    ball = '<mujoco>{}<worldbody><geom name="g" type="plane" size="1 1 1"/><body>{}<geom name="b" size=".1" {}/></body>'
    ball += "</worldbody></mujoco>"
    free = "<freejoint/>"
    with pytest.warns(LeftOutWarning, match=r"torsional.*of 'g' with 'b'"):
        world = load_world(ball.format("", free, 'condim="4"'), law=LAW)
    assert world.parts.constraints.kinds.cones == ((3, 1),)
    with pytest.warns(LeftOutWarning, match="sweeps against slip"):
        load_world(ball.format('<option noslip_iterations="2"/>', free, ""), law=LAW)
    smooth = load_world(ball.format("", free, 'condim="1" priority="1"'), law=LAW)
    assert float(smooth.parts.constraints.contacts.pairs[0].friction.max()) == 0
    with pytest.raises(ModelError, match=r"friction .* of the geoms"):
        load_world(SCENE, law=ContactLaw(friction=0.3))
    with pytest.raises(ModelError, match="law is MujocoLaw"):
        load_world(SCENE, law=MujocoLaw())
    with pytest.raises(ModelError, match=r"to_mjcf: .* use save_world"):
        jaxdyn.to_mjcf(scene(), template=SCENE)


def test_such_a_world_is_saved_and_loaded(tmp_path):
    jaxdyn.save_world(tmp_path / "world.npz", scene())
    again = load_world(tmp_path / "world.npz")
    np.testing.assert_array_equal(again.step(start(again), U).v, scene().step(start(scene()), U).v)
    with pytest.raises(ModelError, match="law would"):
        load_world(tmp_path / "world.npz", law=LAW)
