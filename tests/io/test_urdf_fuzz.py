"""Random valid URDF texts give Pinocchio's models; corrupted ones give a model or an error of the library."""

# pyright: reportAttributeAccessIssue=false
# (Pinocchio is a compiled module without type stubs.)

import contextlib
import random
import sys
import warnings

import numpy as np
import pinocchio as pin
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxdyn
from jaxdyn import JaxdynError, Model, ModelError, PhysicalityWarning, RobotFileError
from jaxdyn.io import RobotFileWarning, load_urdf, patch_urdf, to_urdf
from tests.io.urdf_against_pinocchio import check_frames, check_inertias, check_joints, check_limits_and_friction
from tests.mutations import mutated, patience
from tests.robots import robot_path
from tests.same_model import assert_same
from tests.urdf_texts import INERTIAL, arm, joint, link, robot

# Valid texts

# Pinocchio's parser reads these styles too. Between numbers it accepts no white space except blanks.
NUMBER_STYLES = ("{!r}", "{:.17e}", "{:.17g}", "{:.17f}", "{:.17E}")


@st.composite
def number(draw, low: float, high: float) -> str:
    """Draw a number in one of its notations."""
    value = draw(st.floats(low, high, allow_nan=False, width=32))
    return draw(st.sampled_from(NUMBER_STYLES)).format(0.0 if abs(value) < 1e-6 else value)


@st.composite
def origin(draw) -> str:
    attributes = draw(st.sampled_from(("", "xyz", "rpy", "xyz rpy", "rpy xyz", "none")))
    if attributes == "none":
        return ""
    reach = {"xyz": 2.0, "rpy": 7.0}
    parts = [f'{a}="{" ".join(draw(number(-reach[a], reach[a])) for _ in range(3))}"' for a in attributes.split()]
    return f"<origin {' '.join(parts)}/>"


@st.composite
def inertial_of(draw) -> str:
    # This is the inertia of a random mass distribution with the second moments m L L^T, L lower triangular.
    L = np.tril(np.array(draw(st.lists(st.floats(0.05, 0.5), min_size=9, max_size=9))).reshape(3, 3))
    mass = draw(st.floats(0.1, 10))
    I = mass * (np.trace(L @ L.T) * np.eye(3) - L @ L.T)
    keys = {"ixx": (0, 0), "ixy": (0, 1), "ixz": (0, 2), "iyy": (1, 1), "iyz": (1, 2), "izz": (2, 2)}
    moments = " ".join(f'{key}="{float(I[index])!r}"' for key, index in keys.items())
    return f'<inertial>{draw(origin())}<mass value="{mass!r}"/><inertia {moments}/></inertial>'


@st.composite
def axis(draw) -> str:
    xyz = draw(st.lists(st.floats(-3, 3, width=16), min_size=3, max_size=3).filter(lambda a: np.linalg.norm(a) > 0.01))
    return draw(st.sampled_from(("", f'<axis xyz="{" ".join(map(repr, xyz))}"/>')))


@st.composite
def urdf(draw) -> str:
    """Draw a tree of links in any order with joints of all types; optional elements are missing at random."""
    count = draw(st.integers(2, 7))
    alphabet = st.sampled_from("aZ_0é手 .-/&<'")
    words = draw(st.lists(st.text(alphabet, min_size=1, max_size=6), min_size=count, max_size=count))
    names = [f"l{i}{word}" for i, word in enumerate(words)]
    elements = []
    for i in range(1, count):
        kind = draw(st.sampled_from(("revolute", "continuous", "prismatic", "fixed", "planar", "floating")))
        kind = "revolute" if i == 1 else kind
        inside = draw(origin())
        if kind in ("revolute", "continuous", "prismatic"):
            inside += draw(axis())
            # Limits of zero for motors are warned of.
            lower, effort, velocity = (draw(st.floats(least, 100, width=32)) for least in (0, 0.125, 0.125))
            bounds = "" if kind == "continuous" else f'lower="{-lower!r}" upper="{draw(number(0, 5))}"'
            inside += f'<limit {bounds} effort="{effort!r}" velocity="{velocity!r}"/>'
            inside += draw(st.sampled_from(("", '<dynamics damping="0.5"/>', '<dynamics friction="2" damping="1"/>')))
        elif kind == "planar":
            # Pinocchio ignores the axis of planar joints and uses this one.
            inside += '<axis xyz="0 0 1"/>'
        parent = names[draw(st.integers(0, i - 1))]
        # Only a link on a fixed joint may have no mass.
        mass = draw(inertial_of()) if kind != "fixed" or draw(st.booleans()) else ""
        elements += [link(escape(names[i]), mass)]
        elements += [joint(escape(f"j{i}{words[i]}"), escape(parent), escape(names[i]), inside, kind)]
    elements.append(link(escape(names[0]), draw(st.sampled_from(("", INERTIAL)))))
    return robot(*draw(st.permutations(elements)))


def escape(name: str) -> str:
    return name.replace("&", "&amp;").replace("<", "&lt;")


def check_against_pinocchio(text):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = load_urdf(text)
    parsed = pin.buildModelFromXML(text)
    for check in (check_joints, check_limits_and_friction, check_inertias, check_frames):
        check(model, parsed)
    assert_same(load_urdf(to_urdf(model)), model)


@settings(derandomize=True, max_examples=15, deadline=None)
@given(urdf())
def test_valid_texts_are_what_pinocchio_reads(text):
    check_against_pinocchio(text)


@pytest.mark.slow
@settings(derandomize=True, max_examples=150, deadline=None)
@given(urdf())
def test_many_valid_texts_are_what_pinocchio_reads(text):
    check_against_pinocchio(text)


def test_the_motion_of_all_joint_types_is_pinocchios():
    # Pinocchio expresses the velocity of a planar joint in moving axes: v' = R^T v, so a' = R^T a - w x v'.
    kinds = ("continuous", "planar", "floating", "prismatic", "fixed", "revolute", "planar")
    limits = '<limit lower="-1" upper="1" effort="1" velocity="1"/>'
    inside = '<origin xyz="0.1 0.2 -0.3" rpy="0.3 -1.2 2"/><axis xyz="{}"/>'
    inertia = INERTIAL.replace("<mass", '<origin xyz="0.1 -0.2 0.3" rpy="0.4 1 2"/><mass').replace(
        'ixy="0"', 'ixy="0.3"'
    )
    links = [link(f"l{i}", inertia) for i in range(len(kinds) + 1)]
    joints = [
        joint(
            f"j{i}", f"l{i}", f"l{i + 1}", inside.format("0 0 1" if kind == "planar" else f"0.3 -{i} 2") + limits, kind
        )
        for i, kind in enumerate(kinds)
    ]
    text = robot(*links, *joints)
    with warnings.catch_warnings():
        # The limits of planar and floating joints cause warnings.
        warnings.simplefilter("ignore", RobotFileWarning)
        model = load_urdf(text)
    parsed = pin.buildModelFromXML(text)
    rng = np.random.default_rng(0)
    q, v, a = rng.normal(size=model.nq), rng.normal(size=model.nv), rng.normal(size=model.nv)
    theirs, J, c = pin.neutral(parsed), np.eye(model.nv), np.zeros(model.nv)
    for i, name in enumerate(model.joint_names):
        part, row, joint_ = q[model.q_index(name)], model.v_index(name).start, parsed.joints[parsed.getJointId(name)]
        kind = model.topology.joint_types[i]
        if kind == "free":
            part[3:] /= np.linalg.norm(part[3:])
            part = np.concatenate([part[:3], part[4:], part[3:4]])
        elif joint_.nq > joint_.nv:
            part = np.concatenate([part[:-1], [np.cos(part[-1]), np.sin(part[-1])]])
        if kind == "planar":
            cos, sin = part[-2:]
            J[row : row + 2, row : row + 2] = [[cos, sin], [-sin, cos]]
            x, y = J[row : row + 2, row : row + 2] @ v[row : row + 2]
            c[row : row + 2] = v[row + 2] * np.array([y, -x])
        theirs[joint_.idx_q : joint_.idx_q + joint_.nq] = part
        assert (joint_.idx_v, joint_.nv) == (row, model.v_index(name).stop - row)
    expected = J.T @ pin.rnea(parsed, parsed.createData(), theirs, J @ v, J @ a + c)
    tau = jaxdyn.rnea(model, q, v, a)
    np.testing.assert_allclose(tau, expected, atol=1e-12 * np.abs(expected).max())


# Corrupted texts

FULL = f"""<?xml version="1.0" encoding="utf-8"?>
<robot name="r" version="1.1" xmlns:drake="http://drake.mit.edu">
  <!-- all that is read -->
  <material name="gray"><color rgba="1 1 1 1"/></material>
  <link name="base"><visual><geometry><mesh filename="package://a/b.stl"/></geometry></visual>{INERTIAL}</link>
  <link name="arm"><inertial><origin xyz="0.1 0 0.2" rpy="0 0.5 0"/><mass value="1.5"/>
    <inertia ixx="0.02" ixy="0.001" ixz="0" iyy="0.03" iyz="0" izz="0.025"/></inertial></link>
  <link name="hand">{INERTIAL}</link>
  <link name="finger">{INERTIAL}</link>
  <link name="thumb">{INERTIAL}</link>
  <link name="flange"/>
  <link name="cart">{INERTIAL}</link>
  <joint name="shoulder" type="revolute">
    <origin xyz="0 0 1e-1" rpy="0 1.57 -.3"/><parent link="base"/><child link="arm"/><axis xyz="0 0.6 0.8"/>
    <limit lower="-1.5" upper="2" effort="80" velocity="3"/><dynamics damping="0.1" friction="0.2"/>
    <safety_controller k_velocity="10"/>
  </joint>
  <joint name="bolts" type="fixed"><parent link="arm"/><child link="flange"/><origin quat_xyzw="0 0 0.6 0.8"/></joint>
  <joint name="wrist" type="continuous"><parent link="flange"/><child link="hand"/><axis xyz="1 0 0"/></joint>
  <joint name="grip" type="prismatic"><parent link="hand"/><child link="finger"/><limit lower="0" upper="1"/></joint>
  <joint name="follow" type="prismatic"><parent link="hand"/><child link="thumb"/>
    <mimic joint="grip" multiplier="-1" offset="0.01"/></joint>
  <joint name="wheels" type="planar"><parent link="base"/><child link="cart"/><axis xyz="0 0 1"/></joint>
  <transmission name="t"><type>transmission_interface/SimpleTransmission</type><joint name="shoulder"/>
    <actuator name="m"><mechanicalReduction>50</mechanicalReduction><motorInertia>1e-4</motorInertia></actuator>
  </transmission>
</robot>
"""


def attempt(source, **options) -> Model | None:
    """Return the model, or None if the library refuses the text. Anything else, even a NumPy warning, is an error."""
    with warnings.catch_warnings(), patience(60):
        warnings.simplefilter("error")
        for category in (RobotFileWarning, PhysicalityWarning):
            warnings.simplefilter("ignore", category)
        try:
            return load_urdf(source, **options)
        except JaxdynError as error:
            assert 0 < len(str(error)) < 20_000  # noqa: PT017
            return None


TEXTS = {"full": FULL, "double_pendulum": "", "panda": ""}


@pytest.mark.parametrize("free_base", [False, True], ids=["fixed", "free"])
@pytest.mark.parametrize("strict", [False, True], ids=["lenient", "strict"])
@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("full", 60),
        ("panda", 10),
        *(pytest.param(*x, marks=pytest.mark.slow) for x in (("full", 800), ("double_pendulum", 150), ("panda", 50))),
    ],
)
def test_spoilt_files_raise_nothing_else(name, count, strict, free_base, tmp_path):
    text = TEXTS[name] or robot_path(name).read_text()
    rng = random.Random(f"{name} {strict} {free_base}")
    path = tmp_path / "robot.urdf"
    read = 0
    for i in range(count):
        path.write_bytes(mutated(text.encode(), rng))
        model = attempt(path, strict=strict, free_base=free_base)
        if model is None:
            continue
        read += 1
        for array in (
            model.joint_placement,
            model.joint_axis,
            model.inertial_parameters,
            model.armature,
            model.damping,
        ):
            assert np.isfinite(array).all()
        if i % 10 == 0:
            assert_same(attempt(to_urdf(model), free_base=free_base), model)
    # Some of the corrupted texts still describe robots, but most do not.
    assert 0.02 * count < read < 0.8 * count


@pytest.mark.parametrize("count", [60, pytest.param(4000, marks=pytest.mark.slow)])
def test_spoilt_files_are_patched(count, tmp_path):
    """An unchanged model gives the text again, and a changed one a text that loads as this model."""
    rng, path, read = random.Random(count), tmp_path / "robot.urdf", 0
    for i in range(count):
        data = mutated(FULL.encode(), rng)
        path.write_bytes(data)
        model = attempt(path, strict=False, kinematics_only=True)
        if model is None:
            continue
        read += 1
        with warnings.catch_warnings(), patience(60):
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", RobotFileWarning)
            warnings.simplefilter("ignore", PhysicalityWarning)
            text = patch_urdf(path, model, strict=False)
            assert text in (data.decode("utf-8", "replace"), data.decode("utf-16", "replace"))
            other = model.scaled(length=1 + 0.01 * i, mass=2.0)
            try:
                new = patch_urdf(path, other, strict=False)
            except ModelError as error:
                # Lengths beyond the largest that can be written.
                assert "finite numbers up to" in str(error)  # noqa: PT017
                continue
        again = attempt(new, strict=False, kinematics_only=True)
        assert again is not None
        assert_same(again, other, 1e-11)
    assert read > 0.02 * count


def test_spoilt_texts_raise_nothing_else():
    rng = random.Random(1)
    for _ in range(200):
        attempt(mutated(FULL.encode(), rng).decode("utf-8", "replace"))


def test_truncated_texts_raise_nothing_else():
    text = FULL.strip()
    assert attempt(text) is not None
    for end in range(1, len(text), 7):
        assert attempt(text[:end]) is None


@pytest.mark.parametrize(
    "encoding",
    ["utf-7", "utf-32", "zlib_codec", "rot13", "idna", "undefined", "cp1252", "../utf-8", "\n", "x" * 300, "aliases"],
)
def test_encodings_that_are_none(encoding, tmp_path):
    path = tmp_path / "robot.urdf"
    path.write_bytes(f"<?xml version='1.0' encoding='{encoding}'?>".encode() + arm().encode())
    attempt(path)


# Texts that take a careless parser a long time


def test_deep_nesting():
    depth = 20_000
    for inside in ("<transmission>{}</transmission>", "<link name='c'>{}</link>", "<gazebo>{}</gazebo>"):
        nested = inside.format("<a>" * depth + "</a>" * depth)
        attempt(robot(link("a"), link("b"), joint("j", "a", "b"), nested))
    attempt("<a>" * depth)


def test_long_words():
    for word in ("1" * 10**6 + "x", "1." * 10**5, "-" * 10**6, "1 " * 10**6, "e" * 10**6):
        assert attempt(arm(f'<origin xyz="{word}"/>')) is None
    assert attempt(arm().replace("wrist", "w" * 10**6)) is not None
    assert attempt(arm(kind="r" * 10**6)) is None
    # The library does not look for the most similar name among names this long, which differ only at the end.
    name = "ab" * 10**5
    assert attempt(robot(link(name + "c"), link("d"), joint("j", name, "d"))) is None
    assert attempt(arm().replace("wrist", name).replace("<child", f'<mimic joint="{name}c"/><child')) is None


def test_long_chains_of_fixed_joints():
    n = 1000
    links = [link(f"l{i}", "" if i % 2 else INERTIAL) for i in range(n + 1)]
    joints = [
        joint(f"j{i}", f"l{i}", f"l{i + 1}", '<origin xyz="1 0 0"/>', "fixed" if i else "revolute") for i in range(n)
    ]
    model = attempt(robot(*links, *joints))
    assert model is not None
    np.testing.assert_allclose(model.frames[f"l{n}"].placement[:3], [n - 1, 0, 0])


def test_long_loops():
    n = 20_000
    links = [link(f"l{i}", "") for i in range(n)]
    joints = [joint(f"j{i}", f"l{max(i - 1, 0)}" if i else "l1", f"l{i}") for i in range(n)]
    with patience(60), pytest.raises(RobotFileError, match="a loop of the joints 'j0', 'j1' and links 'l0', 'l1'"):
        load_urdf(robot(link("root", ""), *links, *joints))


def test_long_lines_of_mimic_joints():
    n = 300
    links = [link(f"l{i}") for i in range(n + 1)]
    joints = [joint(f"j{i}", "l0", f"l{i + 1}", f'<mimic joint="j{i + 1}"/>' if i < n - 1 else "") for i in range(n)]
    model = attempt(robot(*links, *joints))
    assert model is not None
    assert model.nv == 1


# Entities

OPENED: list[list[str]] = []


def audit(event: str, arguments: tuple) -> None:
    watched = ("open", "socket.", "urllib.", "subprocess.", "os.system", "ftplib.", "http.")
    if OPENED and event.startswith(watched):
        OPENED[-1].append(f"{event} {arguments[:1]}")


@pytest.fixture(scope="module", autouse=True)
def hook():
    # An audit hook cannot be removed; it does nothing outside `listening`.
    sys.addaudithook(audit)


@contextlib.contextmanager
def listening():
    """Yield a list of the files and connections that the block opens."""
    OPENED.append([])
    try:
        yield OPENED[-1]
    finally:
        OPENED.pop()


LAUGHS = "".join(f'<!ENTITY a{i + 1} "{f"&a{i};" * 10}">' for i in range(9))
DOCTYPES = {
    "plain": "<!DOCTYPE robot>",
    "billion laughs": f'<!DOCTYPE robot [<!ENTITY a0 "ha">{LAUGHS}]>',
    "quadratic blow-up": f'<!DOCTYPE robot [<!ENTITY a9 "{"x" * 100_000}">]>',
    "a file": '<!DOCTYPE robot [<!ENTITY a9 SYSTEM "SECRET">]>',
    "a file by URL": '<!DOCTYPE robot [<!ENTITY a9 SYSTEM "file://SECRET">]>',
    "the network": '<!DOCTYPE robot [<!ENTITY a9 SYSTEM "http://127.0.0.1:9/a">]>',
    "external subset": '<!DOCTYPE robot SYSTEM "SECRET">',
    "public subset": '<!DOCTYPE robot PUBLIC "-//W3C//DTD XHTML 1.0//EN" "http://127.0.0.1:9/a">',
    "parameter entity": '<!DOCTYPE robot [<!ENTITY % p SYSTEM "SECRET"> %p;]>',
}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-8-sig"])
@pytest.mark.parametrize("what", DOCTYPES)
def test_entities_never_open_a_file_or_reach_the_network(what, encoding, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("secret")
    text = DOCTYPES[what].replace("SECRET", str(secret)) + "\n" + arm("&a9;" * 1000)
    path = tmp_path / "robot.urdf"
    path.write_bytes(text.encode(encoding))
    for source in (path, text):
        with (
            listening() as opened,
            patience(60),
            pytest.raises(RobotFileError, match=r"line 1: a <!DOCTYPE> is refused"),
        ):
            load_urdf(source)
        assert opened == ([f"open ({str(path)!r},)"] if source is path else [])


@pytest.mark.parametrize("inside", ["&a9;", "&lt;", '<xi:include href="SECRET"/>', '<?xml-stylesheet href="SECRET"?>'])
def test_other_ways_out_are_closed(inside, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("secret")
    with listening() as opened:
        attempt(arm(inside.replace("SECRET", str(secret))))
    assert opened == []


def test_listening_hears(tmp_path):
    # If `listening` recorded nothing, the tests above would always pass.
    with listening() as opened:
        (tmp_path / "a").write_text("")
    assert len(opened) == 1
