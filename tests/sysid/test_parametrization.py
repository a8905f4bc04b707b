"""Parametrizations are bijections between free numbers and robots."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdyn
from jaxdyn import Actuator, BodyInertia, ModelError, ShapeError, UnknownNameError, World
from jaxdyn.simulate import DCMotorLimits, FirstOrderLag
from jaxdyn.sysid import (
    Additive,
    FixedMass,
    InertiaScale,
    LinkLength,
    LogCholesky,
    Parametrization,
    Payload,
    Placement,
    Positive,
    Symmetric,
    is_physical,
    pseudo_inertia,
)


def arm():
    return jaxdyn.samples.chain(4).with_joint_friction(damping=0.1, friction=0.2).with_armature(0.01)


def everything():
    """Return a parametrization of one arm that has a part of each kind."""
    model = arm()
    names, joints = model.body_names, model.joint_names
    return Parametrization(
        model,
        LogCholesky(names[:1]),
        FixedMass(names[1:2]),
        InertiaScale(names[2:3]),
        Payload(names[3], BodyInertia.sphere(1.0, 0.1, (0, 0, 0.1))),
        Positive("damping"),
        Positive("friction", shared=True),
        Positive("armature", joints=joints[1:3]),
        Additive("gravity", at=2, scale=0.1),
        LinkLength(joints[3:4]),
        Placement(joints[1:3]),
    )


def numbers(p: Parametrization, seed: int = 0, size: float = 0.5) -> jax.Array:
    return jnp.asarray(size * np.random.default_rng(seed).standard_normal(p.size))


def assert_same(a, b, rtol=1e-9):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=rtol, atol=1e-11)


@pytest.fixture(scope="module")
def p() -> Parametrization:
    return everything()


def test_free_numbers_and_models_are_one_to_one(p):
    x = numbers(p)
    model = p.model(x)
    np.testing.assert_allclose(p.free(model), x, atol=1e-9)
    assert len(p.names) == p.size == len(set(p.names))
    # The reference does not include the payload's guess.
    assert_same(p.model(p.zeros()).inertial_parameters[:3], p.reference.inertial_parameters[:3])


def test_every_free_number_gives_a_physical_model(p):
    models = p.model(3 * jnp.asarray(np.random.default_rng(1).standard_normal((50, p.size))))
    assert models.damping.shape == (50, 4)
    assert bool(np.all(is_physical(models.inertial_parameters)))
    for leaf in (models.damping, models.friction, models.armature):
        assert bool(np.all(np.asarray(leaf) > 0))
    np.testing.assert_allclose(jnp.linalg.norm(models.joint_placement[..., 3:], axis=-1), 1, rtol=1e-9)


@pytest.mark.slow
def test_steps_are_about_the_present_model(p):
    x, step = numbers(p, 2), numbers(p, 3, 0.2)
    moved = eqx.filter_jit(lambda x, step: p.model(p.moved(x, step)))(x, step)
    here = p.model(x)
    # A payload's numbers are relative to its guess, not to the reference.
    keep = jnp.asarray(["payload" not in name for name in p.names])
    about = Parametrization(here, *_without_payload(p))
    assert_same(moved.joint_placement, about.model(step[keep]).joint_placement)
    assert_same(moved.inertial_parameters[:3], about.model(step[keep]).inertial_parameters[:3])
    assert_same(moved.friction, about.model(step[keep]).friction)


def _without_payload(p):
    model = p.reference
    names, joints = model.body_names, model.joint_names
    return (
        LogCholesky(names[:1]),
        FixedMass(names[1:2]),
        InertiaScale(names[2:3]),
        Positive("damping"),
        Positive("friction", shared=True),
        Positive("armature", joints=joints[1:3]),
        Additive("gravity", at=2, scale=0.1),
        LinkLength(joints[3:4]),
        Placement(joints[1:3]),
    )


def test_the_pull_is_the_entropic_divergence():
    model = arm()
    p = Parametrization(model, LogCholesky(), Positive("damping"))
    x = numbers(p, 4)
    new = p.model(x)
    J0, J = (np.asarray(pseudo_inertia(m.inertial_parameters)) for m in (model, new))
    ratio = np.asarray(new.damping / model.damping)
    W = np.linalg.solve(J0, J)
    expected = np.sum(np.trace(W, axis1=1, axis2=2) - np.log(np.linalg.det(W)) - 4) + np.sum(ratio - np.log(ratio) - 1)
    assert float(p.divergence(x)) == pytest.approx(expected, rel=1e-9)
    scale = Parametrization(model, InertiaScale(shared=True))
    W = np.exp(0.3) * np.eye(4)
    expected = 4 * (np.trace(W) - np.log(np.linalg.det(W)) - 4)
    assert float(scale.divergence(jnp.array([0.3]))) == pytest.approx(expected, rel=1e-9)


def test_the_pull_is_smooth_and_of_full_rank_at_the_reference(p):
    J = np.asarray(jax.jit(jax.jacfwd(p.pull))(p.zeros()))
    assert np.isfinite(J).all()
    assert np.linalg.matrix_rank(J) == p.size
    np.testing.assert_allclose(p.pull(p.zeros()), 0, atol=1e-12)
    # The series and the closed form agree where they meet.
    step = jax.vmap(jax.grad(lambda x: Parametrization(arm(), InertiaScale(shared=True)).pull(x[None])[0]))
    slopes = np.asarray(step(jnp.array([-0.030001, -0.029999, 0.029999, 0.030001])))
    np.testing.assert_allclose(slopes[::2], slopes[1::2], rtol=1e-5)


def test_fixed_masses_and_lengths_stay(p):
    model = p.model(numbers(p, 5))
    reference = p.reference
    assert float(model.mass[1]) == pytest.approx(float(reference.mass[1]), rel=1e-12)
    assert float(model.mass[0]) != pytest.approx(float(reference.mass[0]), rel=1e-3)
    a, b = (np.asarray(m.joint_placement[3, :3]) for m in (model, reference))
    np.testing.assert_allclose(np.cross(a, b), 0, atol=1e-12)
    untouched = ("joint_axis", "friction_velocity", "frame_placement")
    for field in untouched:
        assert_same(getattr(model, field), getattr(reference, field))


def test_payload_is_what_with_payload_adds():
    model = arm()
    frame = next(iter(set(model.frames) - set(model.body_names)), model.body_names[-1])
    load = BodyInertia.box(2.0, (0.1, 0.2, 0.3), (0.05, 0, 0.1))
    p = Parametrization(model, Payload(frame, BodyInertia.sphere(1.0, 0.05)))
    carrying = model.with_payload(frame, load)
    again = p.model(p.free(carrying))
    assert_same(again.inertial_parameters, carrying.inertial_parameters)
    with pytest.raises(ModelError, match="guess"):
        Parametrization(model, Payload(frame, np.zeros(10)))


def test_gains_of_drives_are_free_too():
    model = arm()
    motors = [
        Actuator(x, gear=2.0, force_path=[DCMotorLimits(5.0, 8.0)], name=f"motor{i}")
        for i, x in enumerate(model.joint_names)
    ]
    world = World(model, actuators=motors)
    first = [f"motor{i}" for i in range(3)]
    chosen = [Positive("gear", actuators=first), Positive("stall_torque", actuators=first[:1]), Positive("damping")]
    p = Parametrization(world, *chosen, Positive("armature", actuators=first[1:2]))
    assert p.names[:4] == (*(f"log gear of {x}" for x in first), "log stall_torque of motor0")
    assert p.names[-1] == "log armature of motor1"
    x = numbers(p, 6)
    new = p.model(x)
    np.testing.assert_allclose(new.parts.actuators.gear[:, 0], 2 * np.exp(np.asarray([*x[:3], 0])))
    np.testing.assert_allclose(new.parts.actuators.force_path[0].block.stall_torque, 5 * np.exp([x[3], 0, 0, 0]))
    np.testing.assert_allclose(new.model.armature[1], 0.01 * np.exp(x[-1]))
    np.testing.assert_allclose(p.free(new), x, atol=1e-12)
    with pytest.raises(ModelError, match=r"springref belongs to no actuator; .*dynprm.* stall_torque"):
        Parametrization(world, Positive("springref", actuators=first))
    lags = {"control_path": [FirstOrderLag(0.1)], "force_path": [FirstOrderLag(0.2)]}
    late = World(model, actuators=[Actuator(model.joint_names[0], name="late", **lags)])
    p = Parametrization(late, Positive("time_constant"))
    assert p.names == ("log time_constant[0] of late", "log time_constant[1] of late")


def mirrored_pair():
    """Return two arms on both sides of the plane y = 0; their frames have different orientations."""
    builder = jaxdyn.ModelBuilder()
    left = BodyInertia(
        1.2, (0.03, 0.02, -0.1), np.array([[0.02, 0.001, 0.002], [0.001, 0.03, 0.003], [0.002, 0.003, 0.015]])
    )
    builder.add_body("trunk", "world", jaxdyn.Joint("free", name="base"), inertia=BodyInertia.box(5.0, (0.3, 0.2, 0.1)))
    builder.add_body("left", "trunk", jaxdyn.Joint(axis=(0, 1, 0), damping=0.1, friction=0.1), (0.1, 0.2, 0), left)
    half_turn = np.array([0.1, -0.2, 0, 0.0, 0, 0, 1.0])
    builder.add_body("right", "trunk", jaxdyn.Joint(axis=(0, 1, 0), damping=0.3, friction=0.1), half_turn, left)
    return builder.build()


@pytest.mark.slow
def test_mirrored_bodies_share_their_numbers():
    model = mirrored_pair()
    p = Parametrization(model, Symmetric([("left", "right")], [LogCholesky(), Positive("damping")]))
    assert p.size == 11
    new = p.model(numbers(p, 7))
    assert float(new.damping[6]) == float(new.damping[7]) > 0
    # The right body's frame is turned by half a turn about z, so R.T @ M maps left to right coordinates.
    R = np.diag([-1.0, -1.0, 1.0])
    M = np.diag([1.0, -1.0, 1.0])
    G = np.eye(4)
    G[:3, :3] = R.T @ M
    J = np.asarray(pseudo_inertia(new.inertial_parameters))
    np.testing.assert_allclose(J[2], G @ J[1] @ G.T, atol=1e-12)
    np.testing.assert_allclose(p.free(new), numbers(p, 7), atol=1e-9)
    # A robot that is not symmetric has no free numbers.
    with pytest.raises(ModelError, match=r"inertial_parameters|damping"):
        p.free(model)
    with pytest.raises(ModelError, match="mirror image"):
        Parametrization(model, Symmetric([("left", "right")], [LogCholesky()], normal=(1, 0, 0)))
    with pytest.raises(ModelError, match="both about"):
        Parametrization(model, Symmetric([("left", "right")], [LogCholesky()]), LogCholesky(["right"]))


def test_vmap_over_references():
    model = arm()
    models = eqx.filter_vmap(lambda scale: dataclasses.replace(model, damping=scale * model.damping))(
        jnp.array([1.0, 2.0, 3.0])
    )
    many = eqx.filter_vmap(lambda m: Parametrization(m, Positive("damping")))(models)
    x = jnp.full((3, 4), 0.1)
    out = jax.vmap(lambda p, x: p.model(x).damping)(many, x)
    np.testing.assert_allclose(out, np.exp(0.1) * 0.1 * np.array([[1], [2], [3]]) * np.ones(4), rtol=1e-12)


@pytest.mark.slow
def test_single_precision():
    p = everything()
    p = p.about(p.reference.astype(jnp.float32))
    x = numbers(p, 8).astype(jnp.float32)
    model = p.model(x)
    assert model.dtype == jnp.float32
    np.testing.assert_allclose(p.free(model), x, atol=3e-3)


@pytest.mark.parametrize(
    ("choices", "error", "message"),
    [
        ([LogCholesky(), InertiaScale(["link1"])], ModelError, "LogCholesky and InertiaScale are both about"),
        ([Positive("damping"), Positive("damping", joints=["joint2"])], ModelError, "both about"),
        ([Positive("stiffness")], ModelError, "no stiffness"),
        ([Positive("dampin")], UnknownNameError, "damping"),
        ([Positive("damping", joints=["jont9"])], UnknownNameError, "jont9"),
        ([Positive("damping", joints="joint1")], ModelError, r"\['joint1'\]"),
        ([Positive("damping", at=9)], ModelError, "does not fit"),
        ([Positive("gravity")], ModelError, "not positive"),
        ([Additive("inertial_parameters")], ModelError, "LogCholesky"),
        ([Additive("joint_placement")], ModelError, "Placement"),
        ([Additive("gravity", scale=0.0)], ModelError, "scale"),
        ([Additive("gravity", joints=["joint1"])], ModelError, "does not belong to joints"),
        ([Additive(lambda m: m.gravity[0])], ModelError, "does not pick one array"),
        ([Additive(lambda m: (m.gravity, m.damping))], ModelError, "does not pick one array"),
        ([LogCholesky(["lnk1"])], UnknownNameError, "link1"),
        ([LinkLength(["joint0"])], ModelError, "distance of zero"),
        ([Placement(position=False, rotation=False)], ModelError, "neither"),
        ([], ModelError, "nothing is free"),
        (["damping"], ModelError, "LogCholesky"),
    ],
)
def test_mistakes_are_named(choices, error, message):
    model = eqx.tree_at(lambda m: m.joint_placement, arm(), arm().joint_placement.at[0, :3].set(0.0))
    with pytest.raises(error, match=message):
        Parametrization(model, *choices)


def test_what_a_parametrization_cannot_give_has_no_free_numbers():
    model = arm()
    p = Parametrization(model, Positive("damping"))
    with pytest.raises(ModelError, match="gravity"):
        p.free(eqx.tree_at(lambda m: m.gravity, model, jnp.array([0.0, 0.0, -1.0])))
    with pytest.raises(ShapeError, match="free"):
        p.model(jnp.zeros(3))
    unphysical = eqx.tree_at(lambda m: m.inertial_parameters, model, -model.inertial_parameters)
    with pytest.raises(ModelError, match="link0"):
        Parametrization(unphysical, LogCholesky())
    with pytest.raises(ModelError, match="has no logarithm"):
        Parametrization(model.with_joint_friction(friction={"joint3": 0.0}), Positive("friction"))
