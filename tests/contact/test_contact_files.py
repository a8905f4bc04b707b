"""Contact shapes of URDF and MJCF files: where MuJoCo and the meshes of the files have them, and what is left out."""

import functools
import importlib.metadata
from pathlib import Path

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
import scipy.optimize

import jaxdyn
from jaxdyn import (
    Box,
    Capsule,
    ContactLaw,
    Cylinder,
    Ellipsoid,
    HeightField,
    LeftOutWarning,
    ModelError,
    Plane,
    Points,
    RobotFileError,
    Sphere,
    State,
    UnknownNameError,
    World,
    load_contact_shapes,
)
from jaxdyn.contact._file_pairs import depths_at_zero
from jaxdyn.contact._hulls import capsule_around, hull_points
from jaxdyn.viz import load_visuals
from tests.robots import robot_path

pytestmark = pytest.mark.filterwarnings("ignore::jaxdyn.LeftOutWarning")

MJCF = """<mujoco><asset><mesh name="corner" vertex="0 0 0  .1 0 0  0 .1 0  0 0 .1  .02 .02 .02"/>
<hfield name="hills" nrow="5" ncol="7" size="3 2 0.4 0.1"/></asset>
<worldbody>
<geom name="{floor}" type="plane" size="1 1 1" pos="0 0 0.05" euler="4 -6 0" friction="0.4 .005 .0001"/>
<geom name="wall" type="box" size="1 .1 1" pos="0 5 0"/>
<body name="a" pos="0 0 1" euler="20 0 0"><freejoint name="free"/>
  <geom name="ball" type="sphere" size="0.1" pos="0.3 0 0" friction="0.7 .005 .0001"/>
  <geom name="brick" type="box" size="0.1 0.2 0.3" pos="0 0.4 0" euler="0 30 0" solref="0.05 1"/>
  <geom type="capsule" size="0.1 0.5" pos="1 0 0" group="3"/>
  <geom name="seen" type="box" size="1 1 1" contype="0" conaffinity="0"/>
  <geom name="other" type="sphere" size="1" contype="2" conaffinity="2"/>
  <body name="b" pos="0 0 0.5"><joint name="hinge" axis="0 1 0" pos="0.1 0 0"/>
    <geom name="egg" type="ellipsoid" size="0.1 0.2 0.3" pos="0 0 0.2" friction="3 .005 .0001" priority="1"/>
    <geom name="slick" type="sphere" size=".1" pos="-.3 0 0" condim="1"/>
    <geom name="can" type="cylinder" size="0.1 0.5" pos="0 0 -0.3" margin="0.01"/>
    <body name="c" pos="0.2 0 0.1" euler="0 0 30">
      <geom name="corner" type="mesh" mesh="corner" pos="0.1 0.2 0.3" euler="10 20 30"/></body></body>
</body>{more}</worldbody></mujoco>"""
FLOOR = MJCF.format(floor="floor", more="")


def slow(name):
    return pytest.param(name, marks=pytest.mark.slow)


def gaps(model, found, q, surface=None):
    """The least gap of each shape, by its name."""
    world = World(model, found.shapes, found.surface if surface is None else surface)
    gap = np.asarray(world.contact_forces(State(q), of_step=False).gap)
    # A world has the shapes of one class and number of sizes together.
    sizes = [(type(x.shape), x.shape.sizes.shape[-1]) for x in found.shapes]
    out, start = {}, 0
    for group in dict.fromkeys(sizes):
        for name, shape, size in zip(found.names, found.shapes, sizes, strict=True):
            if size == group:
                count = shape.shape.witness_count(size[1])
                out[name] = gap[start : start + count].min()
                start += count
    assert start == len(gap)
    return out


def kinds(found) -> dict:
    return {part.kind: part.names for part in found.left_out}


def test_geoms_are_where_mujoco_has_them_and_the_rest_is_named():
    compiled = mujoco.MjModel.from_xml_string(FLOOR)
    model, data = jaxdyn.load_mjcf(compiled), mujoco.MjData(compiled)
    with pytest.warns(LeftOutWarning, match="contact shapes leave out or replace") as caught:
        found = load_contact_shapes(model, compiled)
    assert sum("contact shapes" in str(w.message) for w in caught) == 1
    assert found.names == ("ball", "brick", "geom_4", "egg", "slick", "can", "corner")
    types = [Sphere, Box, Capsule, Ellipsoid, Sphere, Cylinder, Points]
    assert [type(x.shape) for x in found.shapes] == types
    assert [x.link for x in found.shapes] == ["a", "a", "a", "b", "b", "b", "c"]
    assert all(x.law is None for x in found.shapes)
    assert isinstance(found.surface, Plane)
    q = model.random_configuration(jax.random.key(1))
    data.qpos[:] = q
    mujoco.mj_forward(compiled, data)
    floor = compiled.geom("floor").id
    for name, gap in gaps(model, found, q).items():
        exact = mujoco.mj_geomDistance(
            compiled, data, floor, compiled.geom(name if "_" not in name else 4).id, 10, None
        )
        # MuJoCo's margin is 1 micrometer for some pairs.
        assert abs(gap - exact) < 1e-5, (name, gap, exact)
    left_out = kinds(found)
    assert left_out["shapes on links that are fixed in the world"] == ("'wall'",)
    assert left_out["geoms that touch nothing"] == ("'seen'",)
    assert left_out["geoms that do not touch the surface"] == ("'other'",)
    assert left_out["softness of contacts (solref, solimp)"] == ("'brick'",)
    assert left_out["margin of geoms"] == ("'can'",)
    rims = load_contact_shapes(model, compiled, rim_points=7, links=["b"])
    assert rims.shapes[rims.names.index("can")].shape.positions.shape == (14, 3)
    assert kinds(rims)["curved surfaces of cylinders"] == ("'can'",)
    assert left_out["coefficients of friction"][:3] == ("'ball' 0.7", "'brick' 1", "'geom_4' 1")
    # a and b are parent and child, and c is a part of b.
    assert "contacts between bodies, of" not in left_out


def test_friction_of_geoms_is_that_of_mujoco_and_laws_are_shared():
    model = jaxdyn.load_mjcf(FLOOR)
    law = ContactLaw(stiffness=2e4, friction=9.0)
    found = load_contact_shapes(model, FLOOR, law=law)
    compiled = mujoco.MjModel.from_xml_string(FLOOR)
    data = mujoco.MjData(compiled)
    # Everything overlaps with the floor.
    data.qpos[2] = -1
    mujoco.mj_forward(compiled, data)
    mixed = {}
    for contact in data.contact:
        name = mujoco.mj_id2name(compiled, mujoco.mjtObj.mjOBJ_GEOM, contact.geom[1]) or "geom_4"
        if contact.geom[0] == compiled.geom("floor").id:
            mixed[name] = contact.friction[0] * (contact.dim > 1)
    laws = {name: x.law for name, x in zip(found.names, found.shapes, strict=True)}
    assert set(mixed) == set(laws)
    assert {name: float(x.friction) for name, x in laws.items()} == pytest.approx(mixed)
    # The floor makes contacts with it three-dimensional; priority decides about the egg.
    assert float(laws["slick"].friction) == 1.0
    assert float(laws["egg"].friction) == 3.0
    assert laws["ball"] is laws["ball"]
    assert laws["brick"] is laws["geom_4"]
    assert all(float(x.stiffness) == 2e4 for x in laws.values())
    assert "coefficients of friction" not in kinds(found)
    assert len(World(model, found.shapes, found.surface).parts.touching.laws.friction) == 3


def test_height_fields_and_several_surfaces():
    hills = '<geom name="hills" type="hfield" hfield="hills" pos="0.5 0.2 -1"/>'
    text = MJCF.format(floor="floor", more=hills)
    compiled = mujoco.MjModel.from_xml_string(text)
    compiled.hfield_data[:] = np.random.default_rng(0).uniform(size=35)
    model = jaxdyn.load_mjcf(compiled)
    with pytest.raises(RobotFileError, match="several planes and height fields in the world: 'floor', 'hills'"):
        load_contact_shapes(model, compiled)
    with pytest.raises(UnknownNameError, match="no plane or height field named 'hill'"):
        load_contact_shapes(model, compiled, surface="hill")
    assert load_contact_shapes(model, compiled, unsupported="warn").surface is None
    found = load_contact_shapes(model, compiled, surface="hills")
    assert isinstance(found.surface, HeightField)
    assert kinds(found)["shapes on links that are fixed in the world"] == ("'floor'", "'wall'")
    # A vertical ray of MuJoCo's meets the nodes at their heights; within a cell there are two triangles.
    data = mujoco.MjData(compiled)
    data.qpos[2] = 100
    mujoco.mj_forward(compiled, data)
    number = np.zeros(1, np.int32)
    for i, j in ((1, 1), (3, 2), (5, 3)):
        x, y = 0.5 - 3 + i * 1.0, 0.2 - 2 + j * 1.0
        down = mujoco.mj_ray(compiled, data, [x + 1e-9, y + 2e-9, 9], [0, 0, -1.0], None, 1, -1, number)
        height = 9 - down
        distance, normal = found.surface.distance(jaxdyn.spatial.Vec3(jnp.array([x]), jnp.array([y]), jnp.array([2.0])))
        if number[0] == compiled.geom("hills").id:
            assert float(distance[0] / normal.z[0]) == pytest.approx(2 - height, abs=1e-6)


def test_what_is_not_read_is_refused_by_name_or_named():
    turned = MJCF.format(floor="floor", more='<geom name="h" type="hfield" hfield="hills" euler="0 0 9"/>')
    text, message = turned.replace('type="plane" size="1 1 1"', 'type="box" size="1 1 1"'), "height field 'h' is turned"
    model = jaxdyn.load_mjcf(text)
    with pytest.raises(RobotFileError, match=message):
        load_contact_shapes(model, text)
    found = load_contact_shapes(model, text, unsupported="warn")
    assert any(message in name for name in kinds(found)["what is not read"])


def test_pairs_and_exclusions_count():
    more = (
        '</worldbody><contact><exclude body1="world" body2="c"/><pair geom1="floor" geom2="seen" friction="2 2 1 1 1"/>'
    )
    more += '<pair name="both" geom1="seen" geom2="corner"/></contact><worldbody>'
    model = jaxdyn.load_mjcf(MJCF.format(floor="floor", more=more))
    found = load_contact_shapes(model, MJCF.format(floor="floor", more=more), law=ContactLaw())
    assert "corner" not in found.names
    assert float(found.shapes[found.names.index("seen")].law.friction) == 2.0
    assert kinds(found)["geoms that do not touch the surface"] == ("'other'", "'corner'")
    assert kinds(found)["explicit pairs of geoms"] == ("'both'",)


CROWDED = MJCF.format(
    floor="floor",
    more="""<body name="d" pos="0 0 3"><freejoint/><geom name="puck" type="cylinder" size=".2 .1"/>
    <geom name="log" type="capsule" size=".1 .2" pos="1 0 0" friction=".2 .1 .1" contype="2" conaffinity="2"/></body>
    <body name="shelf" pos="1 2 0"><geom name="board" type="capsule" size=".1 .2" friction="1.5 .1 .1"/></body>
    </worldbody><contact><exclude body1="c" body2="d"/><exclude body1="shelf" body2="b"/>
    <pair name="seen_puck" geom1="seen" geom2="puck" friction="2 2 1 1 1"/></contact><worldbody>""",
)


@functools.cache
def crowded():
    """The model, the shapes and pairs of a file with bodies that touch each other, and the numbers of each pair's
    shapes; MuJoCo's model with margins so wide that all that can touch has contacts, in the neutral configuration."""
    model = jaxdyn.load_mjcf(CROWDED)
    found = load_contact_shapes(model, CROWDED, law=ContactLaw(friction=9.0), pairs=True)
    numbers = {id(shape): k for k, shape in enumerate(found.shapes)}
    both = [(numbers[id(pair.link1)], numbers[id(pair.link2)]) for pair in found.pairs]
    wide = '<mujoco><default><geom margin="100"/><pair margin="100"/></default>'
    compiled = mujoco.MjModel.from_xml_string(CROWDED.replace("<mujoco>", wide).replace('margin="0.01"', ""))
    data = mujoco.MjData(compiled)
    data.qpos[:] = model.neutral()
    mujoco.mj_forward(compiled, data)
    return model, found, both, compiled, data


def test_pairs_of_geoms_are_those_of_mujoco():
    """Also what geoms of the world touch, and friction."""
    model, found, both, compiled, data = crowded()
    floor, expected = compiled.geom("floor").id, {}
    for contact in data.contact:
        if floor not in contact.geom:
            names = (mujoco.mj_id2name(compiled, mujoco.mjtObj.mjOBJ_GEOM, g) or "geom_4" for g in contact.geom)
            expected[frozenset(names)] = contact.friction[0]
    got = {
        frozenset(found.names[k] for k in x): float(pair.law.friction)
        for x, pair in zip(both, found.pairs, strict=True)
    }
    assert set(got) == set(expected), set(got) ^ set(expected)
    assert got == pytest.approx(expected)
    assert len(got) > 20
    off = {name for name, x in zip(found.names, found.shapes, strict=True) if not x.on_surface}
    assert off == {"wall", "board", "seen", "other", "log"}
    assert {x.link for name, x in zip(found.names, found.shapes, strict=True) if name in ("wall", "board")} == {
        "world",
        "shelf",
    }
    left_out = kinds(found)
    assert not {"contacts between bodies, of", "explicit pairs of geoms"} & set(left_out)
    capsules = load_contact_shapes(model, CROWDED, pairs="capsules")
    assert {"can (capsule)", "egg (capsule)", "corner (capsule)", "puck (capsule)", "can", "egg"} < set(capsules.names)
    assert len(capsules.pairs) == len(found.pairs)
    assert len(World(model, capsules.shapes, capsules.surface, capsules.pairs).contact_names) > 40
    # Each capsule contains what it stands for.
    for name in ("can", "corner"):
        inside, around = (capsules.shapes[capsules.names.index(x)] for x in (name, f"{name} (capsule)"))
        points = np.asarray(inside.shape.sizes).reshape(-1, 3) if name == "corner" else np.array([[0.1, 0, 0.5]])
        points = jaxdyn.SE3.from_vector(jnp.asarray(inside.placement)).apply(jnp.asarray(points))
        points = np.asarray(jaxdyn.SE3.from_vector(jnp.asarray(around.placement)).inverse().apply(points))
        radius, half = np.asarray(around.shape.sizes)
        along = np.clip(points[:, 2], -half, half)
        distance = np.linalg.norm(points - along[:, None] * [0, 0, 1], axis=1)
        assert distance.max() == pytest.approx(radius, rel=1e-6), name
    with pytest.raises(ModelError, match=r"(?s)Ellipsoid with \w+, on 'b' with.*apart") as caught:
        World(model, found.shapes, found.surface, found.pairs)
    assert "Box with Cylinder" in str(caught.value) or "Cylinder with Box" in str(caught.value)
    shapes = dict(zip(found.names, found.shapes, strict=True))
    some = [x for x in found.pairs if {x.link1.link, x.link2.link} == {"a", "d"}]
    some = [x for x in some if not isinstance(x.link1.shape, Cylinder) and not isinstance(x.link2.shape, Cylinder)]
    used = [shapes[name] for name in ("ball", "brick", "other", "log", "geom_4", "puck")]
    names = World(model, used, found.surface, [*some, (shapes["ball"], shapes["puck"])]).contact_names
    assert names.count("d, a") + names.count("a, d") == len(names) - sum(
        x.shape.witness_count(x.shape.sizes.shape[-1]) for x in used if x.on_surface
    )
    alone = World(model, used, found.surface, some, apart=[("a", "d")])
    assert not any("," in name for name in alone.contact_names)
    with pytest.raises(ModelError, match=r"pairs\[0\]: the Capsule on .shelf. is not one of `contacts`"):
        World(model, used, found.surface, [(shapes["ball"], shapes["board"])])


@pytest.mark.slow
def test_shapes_overlap_at_zero_as_far_as_mujoco_says():
    model, found, both, compiled, data = crowded()
    exact = {("Sphere", "Sphere"), ("Capsule", "Sphere"), ("Box", "Sphere"), ("Cylinder", "Sphere"), ("Box", "Capsule")}
    compared = 0
    for (i, j), depth in zip(both, depths_at_zero(model, found.shapes, both), strict=True):
        kind = tuple(sorted(type(found.shapes[k].shape).__name__ for k in (i, j)))
        ids = [compiled.geom(found.names[k] if found.names[k] != "geom_4" else 4).id for k in (i, j)]
        distance = mujoco.mj_geomDistance(compiled, data, *ids, 100, None)
        if kind in exact and distance > 0:
            assert depth == pytest.approx(-distance, abs=1e-3), kind
            compared += 1
        hard = "Cylinder" in kind and not {"Sphere", "Points"} & set(kind)
        assert np.isinf(depth) == ("Ellipsoid" in kind or hard or kind == ("Points", "Points"))
    assert compared > 5


INERTIAL = '<inertial><mass value="1"/><inertia ixx=".1" iyy=".1" izz=".1" ixy="0" ixz="0" iyz="0"/></inertial>'
URDF = f"""<robot name="r"><link name="world"><collision><geometry><box size="9 9 9"/></geometry></collision></link>
<link name="base">{INERTIAL}<collision name="hull"><origin xyz=".1 .2 .3" rpy=".3 .2 .1"/><geometry>
<box size=".2 .4 .6"/></geometry></collision><collision><geometry><sphere radius=".3"/></geometry></collision></link>
<link name="tool"><collision><origin xyz="0 0 .1"/><geometry><capsule radius=".1" length=".4"/></geometry></collision>
<collision><geometry><drake:ellipsoid a=".1" b=".2" c=".3"/></geometry>
<drake:proximity_properties/></collision><contact><lateral_friction value="1"/></contact></link>
<link name="bare">{INERTIAL}</link>
<gazebo reference="base"><mu1>0.9</mu1></gazebo><gazebo reference="base"><material>Red</material></gazebo>
<joint name="j" type="floating"><parent link="world"/><child link="base"/></joint>
<joint name="f" type="fixed"><origin xyz="0 0 1" rpy="1 0 0"/><parent link="base"/><child link="tool"/></joint>
<joint name="k" type="continuous"><parent link="base"/><child link="bare"/></joint></robot>"""


def test_collision_elements_of_urdf():
    model = jaxdyn.load_urdf(URDF)
    found = load_contact_shapes(model, URDF)
    assert found.names == ("hull", "base[1]", "tool[0]", "tool[1]")
    assert [type(x.shape) for x in found.shapes] == [Box, Sphere, Capsule, Ellipsoid]
    np.testing.assert_allclose(found.shapes[0].shape.half_sizes, [0.1, 0.2, 0.3], rtol=1e-6)
    np.testing.assert_allclose(found.shapes[2].shape.sizes, [0.1, 0.2], rtol=1e-6)
    assert found.surface is None
    left_out = kinds(found)
    assert left_out["shapes on links that are fixed in the world"] == ("'world'",)
    assert left_out["contacts between bodies, of"] == ("'base'", "'tool'")
    assert "<contact>" in left_out
    assert len(left_out["<gazebo>"]) == 1
    assert "<contact>" not in kinds(load_contact_shapes(model, URDF, links=["base"]))
    assert "<drake:proximity_properties>" in left_out
    assert load_contact_shapes(model, URDF, links=["tool"]).names == ("tool[0]", "tool[1]")
    with pytest.raises(UnknownNameError, match="did you mean 'tool'"):
        load_contact_shapes(model, URDF, links=["tol"])
    with pytest.raises(ModelError, match="link 'bare' has no collision geometry; links that have: 'base', 'tool'"):
        load_contact_shapes(model, URDF, links=["bare"])
    with pytest.raises(ModelError, match="URDF files have no surface"):
        load_contact_shapes(model, URDF, surface="floor")
    with pytest.raises(UnknownNameError, match="base"):
        load_contact_shapes(jaxdyn.samples.pendulum(), URDF)
    missing = URDF.replace('<sphere radius=".3"/>', '<mesh filename="package://no/such.stl"/>')
    with pytest.raises(RobotFileError, match=r"files of meshes do not exist: 'package://no/such.stl' \(line 3"):
        load_contact_shapes(model, missing)
    assert load_contact_shapes(model, missing, unsupported="warn").names == ("hull", "tool[0]", "tool[1]")
    wrong = URDF.replace('<sphere radius=".3"/>', "<cone/>").replace('<box size=".2 .4 .6"/>', '<box size="1 -1 1"/>')
    with pytest.raises(RobotFileError, match=r"(?s)'base': <geometry> contains 'cone'; known.*'hull' \(line 3\): Box"):
        load_contact_shapes(model, wrong)
    assert load_contact_shapes(model, wrong, unsupported="warn").names == ("tool[0]", "tool[1]")
    assert load_contact_shapes(model, wrong, links=["tool"]).names == ("tool[0]", "tool[1]")


@pytest.mark.slow
def test_pairs_of_urdf_files_are_those_that_can_part():
    def link(name, *shapes):
        inertial = INERTIAL if name.startswith("arm") or name == "ball" else ""
        collisions = "".join(
            f'<collision><origin xyz="{place}"/><geometry>{x}</geometry></collision>' for x, place in shapes
        )
        return f'<link name="{name}">{inertial}{collisions}</link>'

    def joint(kind, parent, child, place):
        ends = f'<parent link="{parent}"/><child link="{child}"/><origin xyz="{place}"/>'
        return f'<joint name="{child}_joint" type="{kind}">{ends}</joint>'

    ball, box = '<sphere radius=".1"/>', '<box size="2 2 .2"/>'
    text = "<robot name='r'>" + "".join(
        [
            link("world"),
            link("table", (box, "0 0 -.1")),
            link("foot", (ball, "0 0 .1")),
            *(link(f"arm{k}", ('<capsule radius=".04" length=".2"/>', "0 0 .1")) for k in (1, 2, 3)),
            link("cover", (ball, "0 0 0")),
            link("ball", (ball, "0 0 .05")),
            joint("fixed", "world", "table", "0 0 0"),
            joint("fixed", "table", "foot", "0 0 0"),
            joint("continuous", "foot", "arm1", "0 0 .2"),
            joint("continuous", "arm1", "arm2", "0 0 .2"),
            joint("continuous", "arm2", "arm3", "0 0 .2"),
            joint("fixed", "arm3", "cover", "0 0 -.2"),
            joint("floating", "world", "ball", "0 0 0"),
        ]
    )
    model = jaxdyn.load_urdf(text + "</robot>")
    found = load_contact_shapes(model, text + "</robot>", pairs=True)
    got = {frozenset((pair.link1.link, pair.link2.link)) for pair in found.pairs}
    arms = ("arm1", "arm2", "arm3", "cover")
    expected = {frozenset((one, two)) for one in ("table", "foot") for two in arms}
    expected |= {frozenset(("ball", other)) for other in ("table", "foot", *arms)}
    # The foot carries the first arm; the table does not overlap with anything; the cover reaches into that arm.
    expected |= {frozenset(("arm1", "arm3"))}
    expected -= {frozenset(("foot", "arm1"))}
    assert got == expected
    (overlap,) = kinds(found)["pairs that overlap where all joints are at zero"]
    assert overlap.startswith("'arm1' with 'cover' by")
    names = World(model, found.shapes, None, found.pairs, apart=["foot", ("table", "ball")]).contact_names
    assert "foot" not in "".join(names)
    assert "table, ball" not in names
    assert names.count("table, cover") == 1
    assert found.surface is None
    with pytest.raises(ModelError, match="pairs is 'everything'"):
        load_contact_shapes(model, text + "</robot>", pairs="everything")
    plain = load_contact_shapes(model, text + "</robot>")
    assert plain.pairs == ()
    assert kinds(plain)["shapes on links that are fixed in the world"] == ("'table'", "'foot'")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["solo12", "panda", "talos_reduced"])
def test_shapes_of_robots_are_the_hulls_of_their_meshes(name):
    """The lowest point of each link, at a random configuration, is that of its collision geometry as pictures have
    it."""
    model = jaxdyn.load_urdf(robot_path(name), free_base=True, strict=False, mimic="independent")
    links = {
        "solo12": ["FL_FOOT"],
        "panda": None,
        "talos_reduced": ["leg_left_6_link", "arm_left_4_link", "torso_2_link"],
    }[name]
    found = load_contact_shapes(model, robot_path(name), links=links, mesh_points=10000, rim_points=24)
    q = model.random_configuration(jax.random.key(2))
    exact = {}
    for visual in load_visuals(robot_path(name), collision=True):
        if links is None or visual.frame in links:
            points = jaxdyn.frame_pose(model, q, visual.frame).apply(jnp.asarray(visual.vertices))
            exact[visual.frame] = min(exact.get(visual.frame, np.inf), float(points[:, 2].min()))
    least = {}
    found_gaps = gaps(model, found, q, Plane())
    for each, label in zip(found.shapes, found.names, strict=True):
        least[each.link] = min(least.get(each.link, np.inf), found_gaps[label])
    assert set(least) == set(exact)
    for link, gap in exact.items():
        assert abs(least[link] - gap) < 1e-6, link


def test_few_points_stand_for_a_mesh_within_the_error_that_is_told():
    points = np.random.default_rng(0).normal(size=(2000, 3))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    chosen, count, error = hull_points(points, 64)
    assert (len(chosen), count) == (64, 2000)
    directions = np.random.default_rng(1).normal(size=(5000, 3))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    lost = ((points @ directions.T).max(axis=0) - (chosen @ directions.T).max(axis=0)).max()
    # Over all directions, the loss is the largest distance from the smaller hull.
    assert 0.8 * error < lost <= error + 1e-12 < 0.12
    # The distance from a hull is that of the nearest convex combination of its corners.
    sums = np.vstack([chosen.T, 1e4 * np.ones(64)])
    far = points[np.argsort(np.linalg.norm(points[:, None] - chosen, axis=-1).min(axis=1))[-50:]]
    distance = max(scipy.optimize.nnls(sums, [*x, 1e4])[1] for x in far)
    assert error == pytest.approx(distance, rel=0.02)
    assert hull_points(points, 2000)[2] == 0.0
    # Flat and straight meshes, and a point.
    angle = np.linspace(0, 2 * np.pi, 200, endpoint=False)
    disc = np.stack([np.cos(angle), np.sin(angle), 0 * angle], axis=1) @ np.linalg.qr(points[:3])[0] + 1.0
    chosen, count, error = hull_points(disc, 8)
    assert (len(chosen), count) == (8, 200)
    assert 0.5 * (1 - np.cos(np.pi / 8)) < error < 2 * (1 - np.cos(np.pi / 8))
    line = np.outer(np.linspace(0, 1, 9), [1, 2, 3]) + 1
    np.testing.assert_allclose(hull_points(line, 8)[0], line[[0, -1]])
    assert len(hull_points(np.ones((5, 3)), 8)[0]) == 1


def test_capsules_around_points():
    random = np.random.default_rng(0)
    # Inside a slanted capsule, out to its ends; a ball; a disc; a straight line.
    turn = np.linalg.qr(random.normal(size=(3, 3)))[0]
    directions = random.normal(size=(5000, 3))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    long = (0.1 * directions + np.sign(directions[:, :1]) * [0.3, 0, 0]) @ turn + [1, 2, 3]
    line = np.outer(np.linspace(-1, 1, 9), [0.0, 0.6, 0.8])
    for points, radius, half in (
        (long, 0.1, 0.3),
        (directions, 1.0, 0.0),
        (directions * [1, 1, 0], 1.0, 0.0),
        (line, 0.0, 1.0),
    ):
        found_radius, found_half, middle, axis = capsule_around(points)
        assert found_radius == pytest.approx(radius, rel=0.03, abs=1e-12)
        assert found_half == pytest.approx(half, rel=0.03, abs=0.03)
        offset = points - middle
        along = np.clip(offset @ axis, -found_half, found_half)
        # All points are inside.
        assert np.linalg.norm(offset - along[:, None] * axis, axis=1).max() <= found_radius + 1e-9
        assert np.linalg.norm(axis) == pytest.approx(1)


def ant() -> Path:
    return Path(str(importlib.metadata.distribution("gymnasium").locate_file("gymnasium/envs/mujoco/assets/ant.xml")))


@pytest.mark.parametrize("name", ["ant", *map(slow, ("humanoid", "hopper", "walker2d_v5", "half_cheetah"))])
def test_gymnasium_robots_touch_the_floor_where_mujoco_says(name):
    path = ant().with_name(f"{name}.xml")
    compiled = mujoco.MjModel.from_xml_path(str(path))
    model, data = jaxdyn.load_mjcf(compiled, unsupported="warn"), mujoco.MjData(compiled)
    found = load_contact_shapes(model, compiled)
    q = model.random_configuration(jax.random.key(3))
    data.qpos[:] = q
    mujoco.mj_forward(compiled, data)
    floor = compiled.geom("floor").id
    got = gaps(model, found, q)
    assert len(got) == compiled.ngeom - 1
    for label, gap in got.items():
        g = mujoco.mj_name2id(compiled, mujoco.mjtObj.mjOBJ_GEOM, label)
        g = g if g >= 0 else int(label.removeprefix("geom_"))
        assert gap == pytest.approx(mujoco.mj_geomDistance(compiled, data, floor, g, 10, None), abs=1e-5), label


@pytest.mark.slow
def test_an_anymal_stands_on_the_feet_of_its_file():
    path = robot_path("anymal")
    model = jaxdyn.load_urdf(path, free_base=True).with_joint_friction(damping=2.0)
    feet = [f"{leg}_FOOT" for leg in ("LF", "RF", "LH", "RH")]
    found = load_contact_shapes(model, path, links=feet)
    assert all(isinstance(x.shape, Sphere) for x in found.shapes)
    law = ContactLaw(stiffness=3e4, dissipation=1.0, friction=0.7)
    world = World(model, found.shapes, law=law, timestep=2e-3)
    q = model.neutral()
    for name, value in {"HAA": 0.0, "HFE": 0.4, "KFE": -0.8}.items():
        for leg, sign in (("LF", 1), ("RF", 1), ("LH", -1), ("RH", -1)):
            q = q.at[model.q_index(f"{leg}_{name}")].set(sign * value)
    q = q.at[2].add(0.01 - world.contact_forces(State(q), of_step=False).gap.min())
    hold = q[7:]

    @jax.jit
    def stand(start):
        def body(state, _):
            tau = jnp.zeros(model.nv).at[6:].set(150 * (hold - state.q[7:]) - 4 * state.v[6:])
            return world.step(state, torque=tau), None

        return jax.lax.scan(body, start, None, length=1500)[0]

    end = stand(world.state(q))
    forces = world.contact_forces(end, of_step=False)
    weight = 9.81 * float(model.mass.sum())
    np.testing.assert_allclose(forces.force.sum(axis=0), [0, 0, weight], atol=1e-3 * weight)
    assert float(jnp.abs(end.v).max()) < 5e-3
    assert float(end.q[2]) > 0.4
    # The feet are as deep as the law says, by the vertices of the spheres as pictures have them.
    for visual in load_visuals(path, collision=True):
        if visual.frame in feet:
            low = jaxdyn.frame_pose(model, end.q, visual.frame).apply(jnp.asarray(visual.vertices))[:, 2].min()
            k = world.contact_names.index(visual.frame)
            assert float(low) == pytest.approx(-float(forces.force[k, 2]) / 3e4, abs=2e-4)
