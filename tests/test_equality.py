"""Loops and couplings in MJCF files: what is read and written, and that MuJoCo's springs approach them as they stiffen."""

import functools
import warnings

import jax
import mujoco
import numpy as np
import pytest
from loop_robots import biped, forest_with_loops, four_bar
from oracles import MujocoOracle

import jaxdyn
from jaxdyn import BodyInertia, Joint, Mimic, ModelBuilder, ModelError
from jaxdyn.io import left_out, load_mjcf, to_mjcf

pytestmark = pytest.mark.filterwarnings("ignore::jaxdyn.LeftOutWarning")

BAR = "<geom type='capsule' fromto='{}' size='.02' mass='1' contype='0' conaffinity='0'/>"
BOX = "<geom type='box' size='.1 .2 .3' mass='1' contype='0' conaffinity='0'/>"
FOUR_BAR = f"""<worldbody>
  <body name="crank"><joint name="a" axis="0 1 0" damping=".1"/>{BAR.format("0 0 0 .4 0 0")}
    <body name="coupler" pos=".4 0 0" euler="0 -80 0"><joint name="b" axis="0 1 0" ref="-20"/>{BAR.format("0 0 0 1 0 0")}
    </body></body>
  <body name="rocker" pos=".9 0 0" euler="0 -100 0"><joint name="c" axis="0 1 0" pos=".1 0 0"/>
    {BAR.format("0 0 0 .7 0 0")}</body>
</worldbody><equality><connect name="pin" body1="coupler" body2="rocker" anchor="1 0 0"/></equality>"""
# A floating robot with two arms that hold one bar.
GRASP = f"""<worldbody><body name="trunk" pos="0 0 1"><freejoint/>{BOX}
  <body name="left" pos="0 .2 0" euler="10 0 20"><joint type="ball"/>{BOX}
    <body name="palm" pos=".3 0 0"><joint axis="0 1 0" pos="0 .1 0" ref="30"/><joint axis="0 0 1"/>
      {BOX}<site name="grip" pos=".2 .1 0" euler="0 30 0"/></body></body>
  <body name="right" pos="0 -.2 0" euler="0 20 0"><joint axis="0 0 1"/>{BOX}
    <body name="hand" pos=".3 0 0"><joint type="ball" stiffness="1"/>{BOX}
      <body name="finger" pos=".3 0 .1"><joint axis="0 1 0" armature=".1"/>{BOX}</body></body></body>
</body></worldbody><equality><weld name="grasp" body1="palm" body2="finger" anchor=".1 .2 .1"/></equality>"""
GEARS = f"""<worldbody><body name="one"><joint name="one" axis="0 1 0" ref="20"/>{BAR.format("0 0 0 .4 0 0")}
  <body name="two" pos=".4 0 0"><joint name="two" axis="1 1 0" ref="-50"/>{BAR.format("0 0 0 1 0 .2")}
    <body name="rack" pos="0 1 0"><joint name="rack" type="slide" ref=".3"/>{BAR.format("0 0 0 .1 0 0")}
      <body name="held"><joint name="held" axis="0 1 1" ref="5"/>{BAR.format("0 0 0 .1 .2 0")}</body></body></body></body>
</worldbody><equality><joint name="gear" joint1="rack" joint2="one" polycoef=".1 .5 2 -.3 .4"/>
  <joint name="hold" joint1="held" polycoef=".2"/></equality>"""
ROBOTS = {"four-bar": FOUR_BAR, "grasp": GRASP, "gears": GEARS}


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
        """The accelerations, and the eigenvalues of `R` and the constraints' inertia, `R u = x J M^-1 J^T u`."""
        self.mj.eq_solimp[:] = impedance, impedance, 0.001, 0.5, 2
        a = self.aba(q, v, tau)
        J = self.data.efc_J.reshape(-1, self.mj.nv) @ self._set(q, v)[0].T
        root = np.sqrt(self.data.efc_R)[:, None]
        resistance = np.linalg.eigvalsh(J @ np.linalg.solve(self.crba(q), J.T) / root / root.T)
        return a, 1 / resistance[resistance > 1e-9 * resistance.max()]


def test_springs_approach_the_constraints():
    """MuJoCo's constraint forces solve `(A + R) f = b`, `A = J M^-1 J^T`, with `R` proportional to `e = (1 - d) / d`
    for the impedance `d` (its manual, chapter Computation, Parameters), and exact ones solve `A f = b`.

    With the eigenvalues `x e` of `R u = x e A u`, a force along `u` is `1 / (1 + x e)` of the exact one. So in the
    metric of the mass matrix the accelerations differ by at most `x e` of what the constraints change. The value at
    `e = 0` of the polynomial through three answers differs by at most the product of the three `x e`. Couplings are
    compared at rest: MuJoCo leaves out the rate of their slope, of which its springs make up with time.
    """
    impedances = np.array([0.99, 0.999, 0.9999])
    e = (1 - impedances) / impedances
    to_zero = [np.prod(np.delete(e, k) / (np.delete(e, k) - e[k])) for k in range(3)]
    for name, text in ROBOTS.items():
        model, rng = loaded(name), np.random.default_rng(0)
        springs = Springs(f"<mujoco>{text}</mujoco>", model)
        guess = model.integrate(springs.mj.qpos0, 0.1 * rng.normal(size=model.nv))
        closed = jaxdyn.project_configuration(model, guess)
        assert closed.status == jaxdyn.Status.CONVERGED, name
        v, tau = rng.normal(size=(2, model.nv)) * [[name != "gears"], [1]]
        q, v = np.asarray(closed.q), np.asarray(jaxdyn.project_velocity(model, closed.q, v))
        a, tree = (np.asarray(jaxdyn.aba(m, q, v, tau)) for m in (model, model.without_loops()))
        answers, x = zip(*(springs.stiffened(d, q, v, tau) for d in impedances), strict=True)
        M = np.asarray(jaxdyn.crba(model, q))

        def size(a, M=M):
            return np.sqrt(a @ M @ a)

        bounds = [largest.max() for largest in x]
        differences = [size(answer - a) / size(tree - a) for answer in answers]
        assert size(tree - a) > 0.1 * size(a), name
        assert all(found < bound for found, bound in zip(differences, bounds, strict=True)), name
        assert differences[0] > 4 * differences[1] > 16 * differences[2], name
        limit = np.tensordot(to_zero, answers, 1)
        assert size(limit - a) < (np.prod(bounds) + 1e-8) * size(tree - a), name


def test_errors_and_allowed_motions_are_those_of_mujoco():
    """At random configurations, which do not close the loops, the distances; where they close, the allowed motions."""
    for name, text in ROBOTS.items():
        model, rng = loaded(name), np.random.default_rng(1)
        springs = Springs(f"<mujoco>{text}</mujoco>", model)
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
        np.testing.assert_allclose(np.linalg.pinv(J) @ J, np.linalg.pinv(other) @ other, atol=1e-9)
