"""Loops and couplings in MJCF files: what is read and written, and that stiff springs of MuJoCo approach them."""

import functools

import jax
import mujoco
import numpy as np
import pytest

import jaxdyn
from jaxdyn import ModelError
from jaxdyn.io import left_out, load_mjcf, to_mjcf
from jaxdyn.spatial import IDENTITY_POSE, compose_poses, invert_pose
from tests.io.test_mjcf import without_free_joint_effects
from tests.loop_robots import four_bar, random_pose
from tests.oracles import MujocoOracle

pytestmark = pytest.mark.filterwarnings("ignore::jaxdyn.LeftOutWarning")

BAR = "<geom type='capsule' fromto='{}' size='.02' mass='1' contype='0' conaffinity='0'/>"
BOX = "<geom type='box' size='.1 .2 .3' mass='1' contype='0' conaffinity='0'/>"
FOUR_BAR = f"""<worldbody>
  <body name="crank"><joint name="a" axis="0 1 0" damping=".1"/>{BAR.format("0 0 0 .4 0 0")}
    <body name="coupler" pos=".4 0 0" euler="0 -80 0"><joint name="b" axis="0 1 0" ref="-20"/>
    {BAR.format("0 0 0 1 0 0")}</body></body>
  <body name="rocker" pos=".9 0 0" euler="0 -100 0"><joint name="c" axis="0 1 0" pos=".1 0 0"/>
    {BAR.format("0 0 0 .7 0 0")}</body>
</worldbody><equality><connect name="pin" body1="coupler" body2="rocker" anchor="1 0 0"/></equality>"""
# A floating robot with two arms whose hands are welded together.
GRASP = f"""<worldbody><body name="trunk" pos="0 0 1"><freejoint/>{BOX}
  <body name="left" pos="0 .2 0" euler="10 0 20"><joint type="ball"/>{BOX}
    <body name="palm" pos=".3 0 0"><joint axis="0 1 0" pos="0 .1 0" ref="30"/><joint axis="0 0 1"/>
      {BOX}</body></body>
  <body name="right" pos="0 -.2 0" euler="0 20 0"><joint axis="0 0 1"/>{BOX}
    <body name="hand" pos=".3 0 0"><joint type="ball" stiffness="1"/>{BOX}
      <body name="finger" pos=".3 0 .1"><joint axis="0 1 0" armature=".1"/>{BOX}</body></body></body>
</body></worldbody><equality><weld name="grasp" body1="palm" body2="finger" anchor=".1 .2 .1"/></equality>"""
GEARS = f"""<worldbody><body name="one"><joint name="one" axis="0 1 0" ref="20"/>{BAR.format("0 0 0 .4 0 0")}
  <body name="two" pos=".4 0 0"><joint name="two" axis="1 1 0" ref="-50"/>
    {BAR.format("0 0 0 1 0 .2")}
    <body name="rack" pos="0 1 0"><joint name="rack" type="slide" ref=".3"/>{BAR.format("0 0 0 .1 0 0")}
      <body name="held"><joint name="held" axis="0 1 1" ref="5"/>{BAR.format("0 0 0 .1 .2 0")}</body>
    </body></body></body>
</worldbody><equality><joint name="gear" joint1="rack" joint2="one" polycoef=".1 .5 2 -.3 .4"/>
  <joint name="hold" joint1="held" polycoef=".2"/></equality>"""
ROBOTS = {"four-bar": FOUR_BAR, "grasp": GRASP, "gears": GEARS}
each_robot = pytest.mark.parametrize(
    "name", [pytest.param(x, marks=pytest.mark.slow) if k else x for k, x in enumerate(ROBOTS)]
)


@functools.cache
def loaded(name: str) -> jaxdyn.Model:
    return load_mjcf(f"<mujoco>{ROBOTS[name]}</mujoco>")


class Springs(MujocoOracle):
    """MuJoCo's accelerations with its springs of equality constraints, in the conventions of a model."""

    def __init__(self, text: str, model: jaxdyn.Model):
        self.model, self.mj = model, mujoco.MjModel.from_xml_string(text)
        self.mj.opt.tolerance, self.mj.opt.iterations = 0, 100
        self.data = mujoco.MjData(self.mj)
        free = [i for i, t in enumerate(model.topology.joint_types) if t == "free"]
        self.free = [(model.topology.q_starts[i], model.topology.v_starts[i]) for i in free]

    def stiffened(self, impedance: float, q, v, tau) -> tuple[np.ndarray, np.ndarray]:
        """The accelerations, and the finite eigenvalues `x` of `R u = x A u`, `A = J M^-1 J^T`."""
        self.mj.eq_solimp[:] = impedance, impedance, 0.001, 0.5, 2
        a = self.aba(q, v, tau)
        J = self.data.efc_J.reshape(-1, self.mj.nv) @ self._set(q, v)[0].T
        root = np.sqrt(self.data.efc_R)[:, None]
        resistance = np.linalg.eigvalsh(J @ np.linalg.solve(self.crba(q), J.T) / root / root.T)
        return a, 1 / resistance[resistance > 1e-9 * resistance.max()]


@pytest.mark.slow
@each_robot
def test_springs_approach_the_constraints(name):
    """MuJoCo's constraint forces solve `(A + R) f = b`, `A = J M^-1 J^T`, with `R` proportional to `e = (1 - d) / d`
    for the impedance `d` (its manual, chapter Computation, Parameters), and exact ones solve `A f = b`.

    With the eigenvalues `x` of `R u = x A u`, a force along `u` is `1 / (1 + x)` of the exact one. So in the metric of
    the mass matrix the accelerations differ by at most the largest `x` of what the constraints change, and the value
    at `e = 0` of the polynomial through three answers by at most the product of the three largest `x`. `solref` acts on
    errors of position and velocity, which a closed state does not have. Couplings are compared at rest: MuJoCo leaves
    out the rate of their slope, for which its springs make up with time.
    """
    impedances = np.array([0.99, 0.999, 0.9999])
    e = (1 - impedances) / impedances
    to_zero = [np.prod(np.delete(e, k) / (np.delete(e, k) - e[k])) for k in range(3)]
    model, rng = loaded(name), np.random.default_rng(0)
    springs = Springs(f"<mujoco>{ROBOTS[name]}</mujoco>", model)
    guess = model.integrate(springs.mj.qpos0, 0.1 * rng.normal(size=model.nv))
    closed = jaxdyn.project_configuration(model, guess)
    assert closed.status == jaxdyn.Status.CONVERGED
    v, tau = rng.normal(size=(2, model.nv)) * [[name != "gears"], [1]]
    q, v = np.asarray(closed.q), np.asarray(jaxdyn.project_velocity(model, closed.q, v))
    a, tree = (np.asarray(jaxdyn.aba(m, q, v, tau)) for m in (model, model.without_loops()))
    answers, eigenvalues = zip(*(springs.stiffened(d, q, v, tau) for d in impedances), strict=True)
    M = np.asarray(jaxdyn.crba(model, q))

    def size(a):
        return np.sqrt(a @ M @ a)

    bounds = [x.max() for x in eigenvalues]
    differences = [size(answer - a) / size(tree - a) for answer in answers]
    assert size(tree - a) > 0.1 * size(a)
    assert all(found < bound for found, bound in zip(differences, bounds, strict=True))
    assert differences[0] > 4 * differences[1] > 16 * differences[2]
    limit = np.tensordot(to_zero, answers, 1)
    assert size(limit - a) < (np.prod(bounds) + 1e-8) * size(tree - a)


@each_robot
def test_errors_and_allowed_motions_are_those_of_mujoco(name):
    """At random configurations, which do not close the loops, the distances; where they close, the allowed motions."""
    model, rng = loaded(name), np.random.default_rng(1)
    springs = Springs(f"<mujoco>{ROBOTS[name]}</mujoco>", model)
    topology, nv = model.topology, model.nv
    q = np.asarray(model.integrate(springs.mj.qpos0, rng.normal(size=nv)))
    springs.aba(q, np.zeros(nv), np.zeros(nv))
    error, expected = np.asarray(jaxdyn.constraint_error(model, q)), springs.data.efc_pos
    if topology.couplings:
        np.testing.assert_allclose(error, expected, atol=1e-12)
    else:
        assert np.linalg.norm(error[:3]) == pytest.approx(np.linalg.norm(expected[:3]), rel=1e-9)
    if name == "grasp":
        # MuJoCo has the sine of half the angle.
        half = np.sin(np.linalg.norm(error[3:]) / 2)
        assert half == pytest.approx(np.linalg.norm(expected[3:]), rel=1e-9)
    assert np.abs(error).max() > 0.1
    # MuJoCo finds the second frames where its configuration qpos0 closes them.
    qpos0 = springs.mj.qpos0
    if name != "gears":
        np.testing.assert_allclose(jaxdyn.constraint_error(model, qpos0), 0, atol=1e-12)
    q = np.asarray(jaxdyn.project_configuration(model, qpos0).q)
    J, turn = np.asarray(jaxdyn.constraint_jacobian(model, q)), springs._set(q, np.zeros(nv))[0]
    springs.aba(q, np.zeros(nv), np.zeros(nv))
    other = springs.data.efc_J.reshape(-1, nv) @ turn.T
    found, expected = (np.linalg.pinv(x, rcond=1e-10) @ x for x in (J, other))
    np.testing.assert_allclose(found, expected, atol=1e-9)


# The forms that a file may have

TWO = f"""<mujoco><compiler angle="radian"/>{{}}<worldbody><site name="anchor" pos=".1 .2 .3" euler=".1 .2 .3"/>
  <body name="a" pos=".1 .2 .3" euler=".2 .3 .4"><joint name="a" axis="1 2 0" ref=".5" pos=".1 0 0"/>
    <joint name="slide" type="slide" ref=".1"/>{BOX}<site name="s" pos=".1 .2 .3" euler=".5 .6 .7"/>
    <body name="flange" pos="0 .1 0" euler=".3 0 0">{BOX}</body></body>
  <body name="b" pos="1 0 0"><joint name="b" axis="0 1 0" ref=".2"/><joint name="ball" type="ball" pos="0 0 .1"/>{BOX}
    <site name="t" pos=".4 0 0" euler="0 0 .4"/></body>
  <body name="mount" pos="0 0 2"/><body name="target" mocap="true" pos="1 0 1"/>
</worldbody>{{}}</mujoco>"""
FORMS = (
    '<connect body1="a" body2="b" anchor="1 2 3"/>',
    '<connect body1="b" anchor="1 2 3"/>',
    '<connect body1="mount" body2="flange" anchor="1 2 3"/>',
    '<connect site1="s" site2="t"/>',
    '<weld body1="a" body2="b"/>',
    '<weld body1="flange" body2="b" anchor=".1 .2 .3"/>',
    '<weld body1="a" body2="b" anchor=".1 .2 .3" relpose="1 2 3 1 1 0 0"/>',
    '<weld body1="a" body2="b" anchor=".1 .2 .3" relpose="1 2 3 0 0 0 0"/>',
    '<weld body1="target" body2="b" torquescale="2"/>',
    '<weld site1="s" site2="anchor"/>',
    '<weld body1="a" body2="b" relpose="1 2 3 1 1 0 0" torquescale="0"/>',
    '<joint joint1="slide" joint2="b" polycoef=".1 2 3 .4 .5"/>',
    '<joint joint1="a" polycoef=".3"/>',
    '<joint joint1="a"/>',
)


def test_each_form_has_the_errors_of_mujoco():
    """At a random configuration; the errors of loops by the frames of the model alone, in NumPy."""
    for form in FORMS:
        text = TWO.format("", f"<equality>{form}</equality>")
        model, mj = load_mjcf(text), mujoco.MjModel.from_xml_string(text)
        q, data = np.asarray(model.random_configuration(jax.random.key(4))), mujoco.MjData(mj)
        data.qpos[:] = q
        mujoco.mj_forward(mj, data)
        expected = data.efc_pos
        if model.topology.couplings:
            error = jaxdyn.constraint_error(model, q)
            np.testing.assert_allclose(error, expected, atol=1e-12, err_msg=form)
            continue
        (loop,), poses = model.topology.loops, np.asarray(jaxdyn.forward_kinematics(model, q).to_vector())
        ends = [
            compose_poses(poses[body] if body >= 0 else IDENTITY_POSE, np.asarray(placement[0]))
            for body, placement in ((loop.body1, model.loop_placement1), (loop.body2, model.loop_placement2))
        ]
        np.testing.assert_allclose(ends[0][:3] - ends[1][:3], expected[:3], atol=1e-12, err_msg=form)
        turned = "torquescale" not in form or 'torquescale="2"' in form
        assert loop.kind == ("weld" if "weld" in form and turned else "connect"), form
        if loop.kind == "weld":
            half = compose_poses(invert_pose(ends[1]), ends[0])[4:]
            scale = 2 if "torquescale" in form else 1
            sign = np.sign(half @ expected[3:])
            np.testing.assert_allclose(sign * scale * half, expected[3:], atol=1e-12, err_msg=form)


def test_what_does_not_act_is_left_out():
    tail = """<equality><weld name="idle" body1="a" body2="b" active="false"/><weld body1="a" body2="flange"/>
      <weld name="still" body1="mount" body2="target"/><joint joint1="a" class="off"/>
      </equality>"""
    default = '<default><default class="off"><equality active="false"/></default></default>'
    bare = load_mjcf(TWO.format("", ""))
    assert load_mjcf(TWO.format(default, tail)).topology == bare.topology
    parts = {part.kind: part for part in left_out(TWO.format(default, tail))}
    part = parts["equality constraints that do not act"]
    assert part.names == ("'idle'", "'equality_1'", "'still'", "'equality_3'")
    assert not part.acts
    disabled = '<option><flag equality="disable"/></option>'
    text = TWO.format(disabled, FORMS[0].join(("<equality>", "</equality>")))
    assert load_mjcf(text).topology == bare.topology
    with pytest.warns(jaxdyn.LeftOutWarning) as caught:
        model = load_mjcf(TWO.format("", f"<equality>{FORMS[0]}{FORMS[1]}{FORMS[-1]}</equality>"))
    assert [str(w.message).count("springs of equality constraints") for w in caught] == [1]
    assert "(solref, solimp) (3): 'equality_0', 'equality_1', 'equality_2'; the model's are rigid" in str(
        caught[0].message
    )
    assert [loop.name for loop in model.topology.loops] == ["equality_0", "equality_1"]
    assert [pair.name for pair in model.topology.couplings] == ["equality_2"]


def test_joints_with_several_coordinates_are_refused():
    text = TWO.format("", "<equality><joint name='c' joint1='slide' joint2='b'/></equality>")
    with pytest.raises(jaxdyn.RobotFileError, match="only HINGE and SLIDE joint"):
        load_mjcf(text.replace("joint2='b'", "joint2='ball'"))
    mj = mujoco.MjModel.from_xml_string(text)
    mj.eq_obj2id[0] = mj.joint("ball").id
    with pytest.raises(ModelError, match="coupling 'c': joint 'ball' is ball; joints with one coordinate"):
        load_mjcf(mj)


# The writer


@functools.cache
def written() -> jaxdyn.Model:
    """A forest with the loops and couplings that MuJoCo has, without a helical joint and armature of free ones."""
    types = ("free", "revolute", "ball", "universal", "prismatic", "cylindrical", "planar")
    model, rng = jaxdyn.samples.random_tree(jax.random.key(1), 7, types, branching=2), np.random.default_rng(0)
    model = without_free_joint_effects(model)
    names = model.body_names
    for kind, ends in (("connect", ("world", names[3])), ("weld", (names[2], names[6]))):
        model = model.with_loop(kind, kind, *ends, random_pose(rng), random_pose(rng))
    joints = dict(zip(model.topology.joint_types, model.joint_names, strict=True))
    model = model.with_coupling("curve", joints["revolute"], joints["prismatic"], rng.normal(size=5), (0.1, -0.2))
    return model.with_coupling("held", joints["prismatic"], None, (0.3, 9.0), (0.5, 7.0))


def test_what_is_written_is_read():
    model = written()
    loaded = load_mjcf(to_mjcf(model))
    ends = [
        [(x.name, x.kind, *(m.body_names[b] if b >= 0 else "" for b in x[2:])) for x in m.topology.loops]
        for m in (model, loaded)
    ]
    assert ends[0] == ends[1]
    for field in ("loop_placement1", "loop_placement2"):
        np.testing.assert_allclose(getattr(loaded, field), getattr(model, field), atol=1e-12)
    joints = [
        [(x.name, *(m.joint_names[j] if j >= 0 else "" for j in x[1:])) for x in m.topology.couplings]
        for m in (model, loaded)
    ]
    assert joints[0] == joints[1]
    # The polynomial is about the origin of the second joint now.
    values = []
    for m in (model, loaded):
        (c, held), (r, r_held) = np.asarray(m.coupling_coefficients), np.asarray(m.coupling_reference)
        curve = np.polynomial.Polynomial(c)
        values.append([r[0] + curve(x - r[1]) for x in (-1.0, -0.3, 0.0, 0.4, 2.0)] + [r_held[0] + held[0]])
    np.testing.assert_allclose(values[0], values[1], atol=1e-11)


@pytest.mark.slow
def test_what_is_written_moves_alike():
    """The joints of several axes are chains of bodies then, which have the same coordinates."""
    model = written()
    loaded = load_mjcf(to_mjcf(model))
    rng = np.random.default_rng(2)
    q = np.asarray(model.random_configuration(jax.random.key(3)))
    v, tau = rng.normal(size=(2, model.nv))

    @jax.jit
    def answers(model):
        J = jaxdyn.constraint_jacobian(model, q)
        return jaxdyn.constraint_error(model, q), J, jaxdyn.aba(model, q, v, tau, joint_friction=False)

    for value, expected in zip(answers(loaded), answers(model), strict=True):
        np.testing.assert_allclose(value, expected, rtol=0, atol=1e-9 * np.abs(expected).max())


def test_mujoco_reads_bars_without_moments_about_their_axes():
    model = jaxdyn.samples.five_bar()
    mj = mujoco.MjModel.from_xml_string(to_mjcf(model))
    assert (mj.neq, mj.nv) == (1, 4)
    np.testing.assert_allclose(load_mjcf(mj).inertial_parameters, model.inertial_parameters, atol=1e-12)


def test_what_mujoco_does_not_have_is_refused_by_name():
    for kind, length in (("revolute", None), ("cylindrical", None), ("distance", 0.5)):
        model = four_bar().with_loop("odd", kind, "crank", "rocker", length=length)
        with pytest.raises(ModelError, match=rf"'odd' \({kind}\); write model.without_loops\(\['odd'\]\)"):
            to_mjcf(model)
    assert "connect" in to_mjcf(four_bar().with_armature(0.1))
