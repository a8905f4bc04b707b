"""Cassie, a real robot with closed loops: its file in SDF has for each link where it is, and for each joint which links
it joins."""

import xml.etree.ElementTree as ET

import numpy as np
import pytest

import jaxdyn
from jaxdyn import SE3, BodyInertia, Joint, ModelBuilder, Status
from tests.constraints.test_loop_dynamics import Pinocchio
from tests.loop_robots import bias
from tests.robots import cassie_path

pytestmark = pytest.mark.slow


def numbers(parent: ET.Element, path: str, default: str) -> np.ndarray:
    return np.array((parent.findtext(path) or default).split(), float)


def pose(element: ET.Element) -> SE3:
    x, rpy = np.split(numbers(element, "pose", "0 0 0 0 0 0"), 2)
    return SE3.from_rpy(rpy, x)


def inertia(link: ET.Element, in_link: SE3) -> BodyInertia:
    """The inertia of a link in the axes of a frame."""
    found = link.find("inertial")
    at = in_link.inverse() @ pose(found)
    xx, xy, xz, yy, yz, zz = (float(found.findtext(f"inertia/i{k}") or 0) for k in ("xx", "xy", "xz", "yy", "yz", "zz"))
    R = np.asarray(at.rotation)
    about = R @ np.array([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]]) @ R.T
    return BodyInertia(float(found.findtext("mass")), np.asarray(at.translation), about)


def cassie() -> jaxdyn.Model:
    """The tree of hinges on a floating pelvis. The ball joints at the ends of the rods, which are the second joint of
    their link, close the loops. Frames of bodies are those of their joints."""
    root = ET.parse(cassie_path()).getroot().find("model")
    links = {x.get("name"): x for x in root.findall("link")}
    joints = [(x, x.findtext("parent"), x.findtext("child")) for x in root.findall("joint")]
    hinges = {child: (x, parent) for x, parent, child in joints if x.get("type") == "revolute"}
    frames = {"pelvis": pose(links["pelvis"])}
    builder = ModelBuilder().add_body("pelvis", "world", Joint("free"), None, inertia(links["pelvis"], SE3.identity()))
    waiting = dict(hinges)
    while waiting:
        child = next(x for x, (_, parent) in waiting.items() if parent in frames)
        joint, parent = waiting.pop(child)
        frames[child] = pose(links[child]) @ pose(joint)
        effects = {
            "damping": float(joint.findtext("axis/dynamics/damping") or 0),
            "stiffness": float(joint.findtext("axis/dynamics/spring_stiffness") or 0),
        }
        hinge = Joint(axis=numbers(joint, "axis/xyz", ""), name=joint.get("name"), **effects)
        at = frames[parent].inverse() @ frames[child]
        builder.add_body(child, parent, hinge, at, inertia(links[child], pose(joint)))
    for joint, parent, child in joints:
        if joint.get("type") == "ball":
            at = pose(links[child]) @ pose(joint)
            ends = (frames[x].inverse() @ at for x in (parent, child))
            builder.add_loop(joint.get("name"), "connect", parent, child, *ends)
    return builder.build()


def standing(model: jaxdyn.Model) -> np.ndarray:
    """A guess near the posture of the file `cassie_v2.srdf`, whose loops are nearly closed. Where all coordinates are
    zero, the rods of the feet lie folded on their cranks, a singular configuration."""
    q = np.array(model.neutral())
    posture = {"pitch-op": 0.19, "knee-op": -0.23, "shin-tarsus-joint": 0.69, "tarsus-spring-joint": -0.63}
    posture |= {"tarsus-crank-joint": -1.75, "crank-rod-joint": 1.75, "foot-op": -1.75}
    for side in ("left", "right"):
        for name, angle in posture.items():
            q[model.q_index(f"{side}-{name}")] = angle
    return q


def test_dynamics_as_in_pinocchio():
    model, rng, n = cassie(), np.random.default_rng(0), 20
    assert (model.nb, model.nv, model.topology.nc) == (23, 28, 12)
    assert 30 < float(model.inertial_parameters[:, 0].sum()) < 34
    # The file has the links where the loops are closed.
    assert np.abs(jaxdyn.constraint_error(model, model.neutral())).max() < 1e-5
    assert "12 equations, 2 of which say what others do: they leave 18 degrees of freedom" in model.summary()
    model = model.with_joint_friction(damping=0.0)
    guess = model.integrate(np.tile(standing(model), (n, 1)), 0.1 * rng.normal(size=(n, model.nv)))
    # The numbers of the file are rounded, so the right foot, its crank and its rod move in planes that differ by 2e-8.
    # The equations across these planes cannot be closed better, and hold nothing.
    closed = jaxdyn.project_configuration(model, guess, tolerance=1e-7)
    assert (closed.status == Status.CONVERGED).all()
    assert (closed.q[:, model.q_index("right-tarsus-crank-joint")] < -0.2).all()
    v, tau = rng.normal(size=(2, n, model.nv))
    q, v = np.asarray(closed.q), np.asarray(jaxdyn.project_velocity(model, closed.q, v))
    a, f, J, springs = (
        np.asarray(x)
        for x in (
            jaxdyn.aba(model, q, v, tau),
            jaxdyn.constraint_forces(model, q, v, tau),
            jaxdyn.constraint_jacobian(model, q),
            jaxdyn.spring_torque(model, q),
        )
    )
    across = np.linalg.norm(J, axis=-1) < 1e-6
    assert across.any(axis=0).tolist() == [False] * 8 + [True, False, False, True]
    assert not f[across].any()
    oracle, gamma = Pinocchio(model), bias(model, q, v)
    for k in range(n):
        # The springs at knees and heels are torques there. With a large regularization, the equations across the planes
        # hold little there.
        expected_a, expected_f = oracle.dynamics(q[k], v[k], tau[k] - springs[k], mu=1e-4)
        here = ~across[k]
        np.testing.assert_allclose(a[k], expected_a, rtol=0, atol=1e-6 * np.abs(expected_a).max())
        np.testing.assert_allclose(-f[k, here], expected_f[here], rtol=0, atol=1e-5 * np.abs(expected_f[here]).max())
        # Without them, as one dense system.
        M, h = (np.asarray(x) for x in (jaxdyn.crba(model, q[k]), jaxdyn.rnea(model, q[k], v[k], 0 * v[k])))
        K = np.block([[M, -J[k, here].T], [J[k, here], np.zeros((here.sum(), here.sum()))]])
        x = np.linalg.solve(K, np.concatenate([tau[k] - h, -gamma[k, here]]))
        np.testing.assert_allclose(np.append(a[k], f[k, here]), x, rtol=0, atol=1e-8 * np.abs(x).max())
