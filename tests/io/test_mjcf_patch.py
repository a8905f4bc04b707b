"""`patch_mjcf` writes numbers into a file of a user's own, and all else in it stays as it is."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdyn
from jaxdyn import ModelError, patch_mjcf
from jaxdyn.sysid import ContactNumbers, Parametrization, Positive

pytest.importorskip("mujoco", reason="needs the package mujoco")

TEXT = """<?xml version="1.0"?>
<!-- A cart with a pole, by hand. -->
<mujoco model="cart">
  <compiler autolimits="true"/>   <!-- degrees -->
  <option timestep = "0.005"  integrator="implicitfast"/>
  <default>
    <joint damping="0.2" armature='0.010'/>
    <default class="slow"><joint damping="3"/></default>
  </default>
  <worldbody>
    <geom name="floor" type="plane" size="1 1 1" friction="0.3 0.005"/>
    <body name="cart" pos="0 0 0.1">
      <joint name="x" type="slide" axis="1 0 0" class="slow" range="-1.0 1.0"/>
      <inertial pos="0 0 0" mass="1.50" diaginertia="0.01 0.02 0.015"/> <!-- weighed -->
      <geom name="box" type="box" size="0.1 0.1 0.1" friction="0.2"/>
      <body name="pole" pos="0 0 0.1" euler="0 10 0">
        <joint name="hinge" axis="0 1 0" range="-90 45.0" stiffness="0.5" springref="30" frictionloss="0.1"/>
        <geom name="rod" type="capsule" fromto="0 0 0 0 0 0.6" size="0.02" mass="0.2"/>
      </body>
    </body>
  </worldbody>
  <tendon><fixed name="cable" stiffness="5"><joint joint="x" coef="1"/></fixed></tendon>
  <actuator>
    <motor name="push" joint="x" gear="8"/>
    <position name="servo" joint="hinge" kp="4.0" kv="0.5"/>
  </actuator>
</mujoco>
"""


def same(world, other) -> None:
    """Require that all arrays agree; constants that MuJoCo derives from inertias have about nine digits."""
    pairs = zip(jax.tree_util.tree_leaves_with_path(world), jax.tree.leaves(other), strict=True)
    for (path, x), y in pairs:
        # MuJoCo computes it for muscles, from gears; a world with other gears keeps its own, which nothing reads.
        if "unit_acceleration" not in jax.tree_util.keystr(path):
            np.testing.assert_allclose(x, y, rtol=1e-8, atol=1e-10, err_msg=str(path))


def different_lines(text: str) -> list[tuple[str, str]]:
    return [(a, b) for a, b in zip(TEXT.splitlines(), text.splitlines(), strict=True) if a != b]


def test_a_world_goes_into_its_file_and_comes_back():
    world = jaxdyn.load_world(TEXT)
    assert patch_mjcf(TEXT, world) == TEXT
    choices = Positive("damping", ["x"]), Positive("gear", actuators=["push"]), ContactNumbers(geoms=["floor"])
    choices += Positive("stiffness", tendons=["cable"]), Positive("kp"), Positive("frictionloss", ["hinge"])
    free = Parametrization(world, *choices)
    fitted = free.model(0.3 * jnp.arange(1.0, free.size + 1))
    text = patch_mjcf(TEXT, fitted)
    same(jaxdyn.load_world(text), fitted)
    # Only numbers differ, each in its place; a class of defaults keeps its own.
    changed = different_lines(text)
    assert len(changed) == 6
    assert changed[1][1].startswith(
        '      <joint name="x" type="slide" axis="1 0 0" class="slow" range="-1.0 1.0" damping='
    )
    assert '<default class="slow"><joint damping="3"/></default>' in text
    assert ' 0.005"/>' in changed[0][1]
    assert 'kv="0.5"/>' in changed[-1][1]


def test_a_model_goes_into_its_file_and_comes_back():
    model = jaxdyn.load_mjcf(TEXT, unsupported="warn")
    assert patch_mjcf(TEXT, model) == TEXT
    inertial = np.array(model.inertial_parameters)
    inertial[0, 0], inertial[1] = 1.75, 1.1 * inertial[1]
    changed = dataclasses.replace(
        model,
        inertial_parameters=jnp.asarray(inertial),
        armature=jnp.array([0.010, 0.0375]),
        position_upper=jnp.array([1.0, 0.9]),
        spring_reference=jnp.array([0.0, 0.4]),
        gravity=jnp.array([0.1, 0.0, -9.8]),
    )
    text = patch_mjcf(TEXT, changed)
    again = jaxdyn.load_mjcf(text, unsupported="warn")
    same(again, changed)
    assert '<inertial pos="0.0 0.0 0.0" mass="1.75" diaginertia="0.01 0.02 0.015"/> <!-- weighed -->' in text
    assert 'armature="0.0375"' in text
    assert 'range="-90 51.56' in text
    assert 'gravity="0.1 0.0 -9.8"' in text
    # The pole's inertia came from its geom.
    assert text.count("<inertial ") == 2
    single = jaxdyn.load_mjcf(patch_mjcf(TEXT, changed.astype(np.float32)), unsupported="warn")
    np.testing.assert_allclose(single.inertial_parameters, changed.inertial_parameters, rtol=1e-6, atol=1e-8)


def test_numbers_in_files_that_a_file_includes(tmp_path):
    arm = (
        '<mujocoinclude>\n <body name="arm"><joint name="j" damping="1"/><geom size="0.1"/></body>\n</mujocoinclude>\n'
    )
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "arm.xml").write_text(arm)
    main = tmp_path / "main.xml"
    main.write_text('<mujoco><worldbody><include file="parts/arm.xml"/></worldbody></mujoco>')
    model = jaxdyn.load_mjcf(main)
    damped = model.with_joint_friction(damping=2.5)
    with pytest.raises(ModelError, match=r"stand in .*arm\.xml.*files=True"):
        patch_mjcf(main, damped)
    texts = patch_mjcf(main, damped, files=True)
    assert isinstance(texts, dict)
    assert texts[str(main)] == main.read_text()
    assert texts[str(tmp_path / "parts" / "arm.xml")] == arm.replace('"1"', '"2.5"')


@pytest.mark.parametrize(
    ("edit", "text", "message"),
    [
        (lambda m: m.scaled(length=1.1), TEXT, "does not get what has changed in .*joint_placement"),
        (lambda m: m.scaled(mass=1.1), TEXT.replace("<compiler ", '<compiler inertiafromgeom="true" '), "from geoms"),
        (
            lambda m: m.scaled(mass=1.1),
            TEXT.replace("<compiler ", '<compiler settotalmass="5" '),
            "inertial_parameters",
        ),
        (lambda m: jaxdyn.samples.arm(), TEXT, "other joints, bodies or frames"),
    ],
)
def test_what_cannot_be_written_in_place_is_named(edit, text, message):
    model = jaxdyn.load_mjcf(text, unsupported="warn")
    with pytest.raises(ModelError, match=message):
        patch_mjcf(text, edit(model))


def test_frictions_that_one_geom_cannot_have_are_named():
    text = TEXT.replace(
        "</worldbody>", '<body pos="1 0 1"><freejoint/><geom name="ball" size="0.1"/></body></worldbody>'
    )
    text = text.replace('friction="0.3 0.005"', 'friction="0.3 0.005" priority="1"')
    world = jaxdyn.load_world(text)
    free = Parametrization(world, ContactNumbers(geoms=[("floor", "ball")]))
    with pytest.raises(ModelError, match="contacts of geom floor have different frictions now"):
        patch_mjcf(text, free.model(jnp.array([0.5])))
    # Below the friction of the other geom, that would count.
    box = Parametrization(jaxdyn.load_world(TEXT), ContactNumbers(geoms=["floor"])).model(jnp.array([-1.0]))
    with pytest.raises(ModelError, match="does not get what has changed in 'contact of geoms"):
        patch_mjcf(TEXT, box)
    springs = eqx.tree_at(lambda w: w.parts.constraints.limits.solref, world, replace_fn=lambda x: 2 * x)
    with pytest.raises(ModelError, match=r"does not get what has changed in 'parts\.constraints\.limits\.solref"):
        patch_mjcf(text, springs)
