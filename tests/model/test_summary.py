"""A model's table is right and fits its width, and `repr` works whatever stands for the leaves."""

import re
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdyn import BodyInertia, Joint, Model, ModelBuilder, samples
from jaxdyn.model import Mimic, summary, with_locked_joints
from jaxdyn.model._summary import WIDTH, short

BALL = BodyInertia.sphere(2.0, 0.1)
ODD = BodyInertia(1.0, (0, 0, 0), (1.0, 1.0, 2.1))


@pytest.fixture(scope="module")
def gripper() -> Model:
    builder = ModelBuilder()
    builder.add_fixed_body("table", "world", None, BodyInertia.box(30.0, (1, 1, 1)))
    builder.add_body("base", "table", Joint("free", name="root"), (0, 0, 1), BALL)
    builder.add_body(
        "arm",
        "base",
        Joint(axis=(0, -2, 0), name="elbow", lower=-1.5, upper=2.25, friction=0.5, effort_limit=12.0),
        (0, 0, 1),
    )
    builder.add_fixed_body("plate", "arm", (0, 0, 0.5), ODD)
    builder.add_frame("camera", "plate")
    wrist = Joint("ball", name="wrist", armature=(0.1, 0.2, 0.3), stiffness=4.0)
    builder.add_body("hand", "arm", wrist, (0, 0, 1), BALL)
    slide = Joint("prismatic", axis=(1, 0, 0), name="left", lower=0.0, upper=0.04, stiffness=7.0, spring_reference=0.02)
    builder.add_body("left_finger", "hand", slide, None, BALL)
    follow = Joint("prismatic", axis=(1, 1, 0), name="right", mimic=Mimic("left", -1.0, 0.01))
    builder.add_body("right_finger", "hand", follow, None, BALL)
    builder.add_body("screw", "hand", Joint("helical", pitch=0.05), None, BALL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return builder.build(gravity=(0, 0, -1.62))


def line_with(text: str, *words: str) -> list[str]:
    """Return the cells of the only line that contains all the words."""
    (line_found,) = [line for line in text.splitlines() if all(word in line.split() for word in words)]
    return re.split("  +", line_found.strip())


def test_bodies_and_joints(gripper):
    text = summary(gripper)
    assert line_with(text, "base", "root") == ["0", "base", "world", "root", "free", "0:7", "0:6", "2"]
    assert line_with(text, "arm", "revolute") == [
        "1",
        "arm",
        "base",
        "elbow",
        "revolute",
        "-y",
        "7",
        "6",
        "-1.5 to 2.25",
        "1",
    ]
    assert line_with(text, "hand", "ball") == ["2", "hand", "arm", "wrist", "ball", "8:12", "7:10", "2"]
    assert line_with(text, "left_finger", "prismatic")[5:] == ["x", "12", "10", "0 to 0.04", "2"]
    assert line_with(text, "right_finger", "prismatic")[5:] == ["(0.707, 0.707, 0)", "-", "-", "2"]
    assert "z, 0.05 m/rad" in line_with(text, "screw", "helical")


def test_head(gripper):
    lines = summary(gripper).splitlines()
    assert "6 bodies" in lines[0]
    assert f"nq={gripper.nq}, nv={gripper.nv}" in lines[0]
    assert "free base" in lines[0]
    assert "11 kg in motion" in lines[0]
    assert "fixed base" in summary(samples.arm())
    assert lines[1] == "gravity (0, 0, -1.62) m/s^2"
    two = ModelBuilder().add_body("a", inertia=BALL).add_body("b", inertia=BALL).build()
    assert "2 bodies: a, b; nq=2, nv=2" in summary(two).splitlines()[0]
    assert "2 trees" in summary(two)


def test_what_acts_in_the_joints(gripper):
    text = summary(gripper)
    head = ["joint", "armature", "Coulomb friction", "over velocity", "stiffness", "at rest at", "effort limit"]
    assert line_with(text, "joint", "armature") == head
    assert line_with(text, "elbow", "0.5") == ["elbow", "0.5", "0.01", "12"]
    assert line_with(text, "wrist", "4") == ["wrist", "(0.1, 0.2, 0.3)", "4", "(1, 0, 0, 0)"]
    assert line_with(text, "left", "7") == ["left", "7", "0.02"]
    # The table leaves out the screw's joint, in which nothing acts.
    assert len([line for line in text.splitlines() if "screw_joint" in line]) == 1
    # Columns and tables without entries are left out.
    assert "armature" not in summary(samples.arm())
    assert "velocity limit" in summary(samples.arm())
    assert "limit" not in summary(samples.pendulum())


def test_what_is_fixed_and_what_follows(gripper):
    text = summary(gripper)
    assert "links fixed in world: table (30 kg)" in text
    assert "links fixed in arm: plate (1 kg)" in text
    assert "joint right mimics left: q = -1 q(left) + 0.01" in text
    assert "1 frame besides bodies and links: camera" in text


def test_warnings(gripper):
    text = summary(gripper)
    assert "warning: link 'plate': principal moments" in text
    assert "'arm'" not in text
    massless = ModelBuilder().add_body("a").add_body("b", "a", inertia=BALL).build()
    assert "warning: body 'a' has no mass" in summary(massless)
    assert "warning" not in summary(samples.arm())
    odd = eqx.tree_at(
        lambda m: m.inertial_parameters, samples.arm(), samples.arm().inertial_parameters.at[2, 5].set(jnp.nan)
    )
    assert "warning: link 'link3': inertial parameters that are not finite" in summary(odd)
    negative = eqx.tree_at(lambda m: m.inertial_parameters, samples.arm(), -samples.arm().inertial_parameters)
    assert "has a negative mass, -0.6469 kg" in summary(negative)


def test_rounding_is_no_warning():
    """In single precision, rounding of inertias of links far from their bodies causes no warning."""
    chain = samples.chain(12)
    locked = with_locked_joints(chain, dict.fromkeys(chain.joint_names[1:], 0.3))
    assert "warning" not in summary(locked)
    assert "warning" not in summary(locked.astype(jnp.float32))


def lines_fit(text: str) -> bool:
    return all(len(line) <= WIDTH or line.startswith(("warning", "Model(")) for line in text.splitlines())


def test_large_models_stay_readable():
    """Each body has one line, long names are cut, and lists are wrapped and cut."""
    text = summary(samples.chain(100))
    assert len(text.splitlines()) < 110
    assert lines_fit(text)
    builder, parent = ModelBuilder(), "world"
    for i in range(100):
        name = f"a_rather_long_name_of_a_body_in_a_large_robot_{i}"
        builder.add_body(
            name, parent, Joint("universal", axis=(1, 2, 3), axis2=(3, 2, 1), lower=-1, upper=1), None, BALL
        )
        builder.add_fixed_body(f"link_{i}", "world" if i % 2 else name, None, BALL)
        builder.add_frame(f"frame_{i}", name)
        parent = name if i % 3 else "world"
    text = summary(builder.build())
    assert lines_fit(text)
    assert "and 60 more" in text
    assert "100 bodies" in text
    assert "..." in text


class Shown(Model):
    """A model whose `repr` is the short text."""

    def __repr__(self) -> str:
        return short(self)


def as_shown(model: Model) -> Shown:
    return Shown(**{name: getattr(model, name) for name in model.__dataclass_fields__})


def test_short(gripper):
    model = as_shown(gripper)
    text = f"Model(6 bodies: base, ..., screw; nq={gripper.nq}, nv={gripper.nv}, "
    assert repr(model) == str(model) == text + f"mass {float(gripper.mass.sum()):.6g} kg, float64)"
    assert repr(jax.tree.map(lambda x: jnp.stack([x] * 3), model)) == text + "float64, batch (3,))"
    assert repr(model.astype(jnp.float32)).endswith("float32)")
    assert short(samples.pendulum()) == "Model(1 body: rod; nq=1, nv=1, mass 1 kg, float64)"


def test_short_of_whatever_stands_for_the_leaves(gripper):
    seen = []

    def look(model):
        seen.append(repr(model))
        seen.append(summary(model))
        return model

    model = as_shown(gripper)
    jax.jit(look)(model)
    jax.vmap(look, in_axes=None, axis_size=2, out_axes=None)(model)
    shapes = jax.eval_shape(look, model)
    jax.grad(lambda m: look(m).inertial_parameters.sum())(model)
    assert all("nq=" in text for text in seen)
    assert "? stands for what is traced or has batch axes: all" in seen[1]
    assert "gravity ? m/s^2" in seen[1]
    for stand_in in (shapes, jax.tree.map(lambda x: None, model), jax.tree.map(lambda x: "leaf", model)):
        assert repr(stand_in).startswith("Model(6 bodies")
        assert "hand" in summary(stand_in)
    leaves, structure = jax.tree.flatten(model)
    assert repr(jax.tree.unflatten(structure, leaves)) == repr(model)


def test_batched_models_show_what_has_one_value(gripper):
    model = eqx.tree_at(lambda m: m.damping, gripper, jnp.ones((5, gripper.nv)))
    text = summary(model)
    assert "batch (5,)" in text
    assert "? stands for what is traced or has batch axes: damping" in text
    assert line_with(text, "arm", "revolute")[-1] == "1"
    assert np.ndim(model.damping) == 2


def test_longest_stable_steps():
    sticky = samples.pendulum().with_joint_friction(friction=2.0)
    text = summary(sticky)
    (line,) = [x for x in text.splitlines() if x.startswith("longest stable steps (s)")]
    # Those of the Euler method are 2 m w / F.
    euler = 2 * float(sticky.inertial_parameters[0, 4:].max()) * 0.01 / 2.0
    assert f"joint {sticky.joint_names[0]!r}: euler {euler:.4g}," in line
    assert "implicit_velocity any" in text
    assert lines_fit(text)
    assert "longest stable" not in summary(samples.pendulum())
    assert "longest stable" not in summary(jax.tree.map(lambda x: jnp.stack([x] * 2), sticky))
