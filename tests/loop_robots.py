"""Robots with closed loops, for several files of tests."""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import jaxdyn
from jaxdyn import BodyInertia, Joint, ModelBuilder
from jaxdyn._types import Array, Configuration, Float, Velocity
from jaxdyn.algorithms.recursions import Robot, algorithm, constraint_rows, equations_and_velocities, kinematics
from jaxdyn.spatial import compose_poses, invert_pose, pose_array, rotation_to_quaternion

KINDS = ("connect", "weld", "revolute", "cylindrical", "distance")


def random_pose(rng: np.random.Generator) -> np.ndarray:
    q = rng.normal(size=4)
    return np.concatenate([rng.normal(size=3) * 0.3, q / np.linalg.norm(q)])


@functools.cache
def forest_with_loops() -> jaxdyn.Model:
    """Two trees with all types of joints, and loops of all kinds within a tree, between trees and to the world, with
    couplings; the loops do not close at any configuration of interest."""
    types = ("free", "revolute", "ball", "universal", "helical", "prismatic")
    first = jaxdyn.samples.random_tree(jax.random.key(1), 6, types, branching=2)
    types = ("cylindrical", "planar", "revolute", "prismatic", "continuous")
    second = jaxdyn.samples.random_tree(jax.random.key(2), 5, types, branching=2)
    model, rng = first.with_attached(second, "world", prefix="second_"), np.random.default_rng(0)
    names, n = model.body_names, first.nb
    for k, kind in enumerate(KINDS):
        ends = {
            "within": (names[k], names[n - 1]),
            "between": (names[n + k % 5], names[k]),
            "world": ("world", names[n + k]),
        }
        for where, (link1, link2) in ends.items():
            if link1 == link2:
                link1 = names[0]
            length = 0.7 if kind == "distance" else None
            model = model.with_loop(f"{kind} {where}", kind, link1, link2, random_pose(rng), random_pose(rng), length)
    single = [
        name
        for name, t in zip(model.joint_names, model.topology.joint_types, strict=True)
        if t in ("revolute", "prismatic", "continuous", "helical")
    ]
    model = model.with_coupling("polynomial", single[0], single[-1], rng.normal(size=5), (0.1, -0.2))
    return model.with_coupling("held", single[1], None, (0.3,), (0.5, 7.0))


@functools.cache
def four_bar(kind: str = "connect") -> jaxdyn.Model:
    """The sample with damping and another kind of pin, which turns about z of its frames."""
    model = jaxdyn.samples.four_bar().with_joint_friction(damping={"a": 0.1}).without_loops()
    turned = np.array([0, 0, 0, np.sqrt(0.5), -np.sqrt(0.5), 0, 0])
    placements = ([1.0, 0, 0, *turned[3:]], [0.7, 0, 0, *turned[3:]])
    return model.with_loop("pin", kind, "coupler", "rocker", *placements)


def close_four_bar(theta: float) -> np.ndarray:
    """The configuration of `four_bar` with the crank at an angle, from the triangles of its plane."""
    # A rotation by q about y takes x to (cos q, 0, -sin q).
    A = 0.4 * np.array([np.cos(theta), -np.sin(theta)])
    span = np.array([0.9, 0.0]) - A
    r = np.linalg.norm(span)
    along = np.arctan2(-span[1], span[0])
    at_a = np.arccos((1.0 + r * r - 0.49) / (2 * r))
    b = along - at_a
    tip = A + np.array([np.cos(b), -np.sin(b)])
    c = np.arctan2(-(tip[1]), tip[0] - 0.9)
    return np.array([theta, b - theta, c])


@functools.cache
def biped() -> jaxdyn.Model:
    """A biped with rod loops: a floating pelvis with two legs, each of which has a rod on a ball joint from the thigh
    to the heel, and in the plane of the leg one from a crank to the foot. At the neutral configuration they close."""
    builder = ModelBuilder().add_body("pelvis", joint=Joint("free"), inertia=BodyInertia.box(10.0, (0.2, 0.3, 0.2)))
    for side, sign in (("left", 1.0), ("right", -1.0)):
        _add_leg(builder, side, sign)
    return builder.build()


def _add_leg(builder: ModelBuilder, side: str, sign: float) -> None:
    axis, heel, toe = (0.0, 1.0, 0.0), np.array([-0.08, 0.03 * sign, 0.02]), np.array([-0.05, 0.02 * sign, -0.01])

    def add(name, parent, joint, place, mass, end=(0.05, 0.0, -0.05)):
        ball = BodyInertia.sphere(0.2 * mass, 0.03).parameters()
        inertia = BodyInertia.rod(0.8 * mass, (0, 0, 0), end).parameters() + ball
        builder.add_body(f"{side}_{name}", parent if parent == "pelvis" else f"{side}_{parent}", joint, place, inertia)

    add("roll", "pelvis", Joint(axis=(1, 0, 0)), (0.02, 0.13 * sign, 0), 1.8)
    add("yaw", "roll", Joint(axis=(0, 0, 1)), (0, 0, -0.07), 1.2)
    # The plane of the leg is oblique, so that its equations have rounding errors.
    oblique = jaxdyn.SE3.from_rpy(np.array([0.1 * sign, 0.2, 0.3 * sign]), np.array([0.01, 0.02 * sign, -0.09]))
    add("thigh", "yaw", Joint(axis=axis, armature=0.1), oblique, 5.5, (0.12, 0, -0.02))
    add("knee", "thigh", Joint(axis=axis, armature=0.1), (0.12, 0, -0.02), 0.8)
    add("shin", "knee", Joint(axis=axis), (0.06, 0, -0.05), 0.6, (0.3, 0, -0.3))
    add("tarsus", "shin", Joint(axis=axis), (0.3, 0, -0.3), 0.8, (0.25, 0, -0.3))
    add("foot", "tarsus", Joint(axis=axis), (0.25, 0, -0.3), 0.15)
    base, knee_to_heel = np.array([0, 0.045 * sign, 0]), np.array([0.48, 0, -0.37]) + heel
    add("heel_rod", "thigh", Joint("ball"), base, 0.16, knee_to_heel - base)
    add("crank", "tarsus", Joint(axis=axis), (0.05, 0.02 * sign, -0.03), 0.13, (0.04, 0, 0.04))
    tip = np.array([0.25, 0, -0.3]) + toe - [0.09, 0.02 * sign, 0.01]
    add("toe_rod", "crank", Joint(axis=axis), (0.04, 0, 0.04), 0.12, tip)
    builder.add_loop(f"{side}_heel", "connect", f"{side}_heel_rod", f"{side}_tarsus", knee_to_heel - base, heel)
    builder.add_loop(f"{side}_toe", "connect", f"{side}_toe_rod", f"{side}_foot", tip, toe)


def admissible_velocity(model: jaxdyn.Model, q, v) -> np.ndarray:
    """The nearest velocity that the loops allow."""
    J = np.asarray(jaxdyn.constraint_jacobian(model, q))
    return np.asarray(v) - np.linalg.pinv(J, rcond=1e-10) @ (J @ np.asarray(v))


def rows_of(model: jaxdyn.Model, kind: str, part: slice) -> np.ndarray:
    """Whether an equation is among those of the loops of one kind with the numbers `part`."""
    out = np.zeros(model.topology.nc, bool)
    for loop, start in zip(model.topology.loops, model.topology.loop_starts, strict=False):
        if loop.kind == kind:
            out[start + part.start : start + part.stop] = True
    return out


def bias(model: jaxdyn.Model, q, v) -> np.ndarray:
    """The `gamma` of the constraints, `J a + gamma = 0`, that the recursions compute."""

    def gamma(robot: Robot, q: Configuration, v: Velocity) -> Float[Array, "*batch nc"]:
        at = kinematics(robot, q)
        equations, moving = equations_and_velocities(robot, *at, v)
        return constraint_rows(robot, q, at, v, moving.velocity, equations.c).gamma

    return np.asarray(algorithm()(gamma)(model, q, v))


class Dense(NamedTuple):
    a: np.ndarray
    torque: np.ndarray
    """The torque of the constraints."""


def dense_dynamics(model: jaxdyn.Model, q, v, tau) -> Dense:
    """Forward dynamics by the least solution of the equations of motion and the constraints as one system."""
    M, J = (np.asarray(f(model, q)) for f in (jaxdyn.crba, jaxdyn.constraint_jacobian))
    h, gamma, n = np.asarray(jaxdyn.rnea(model, q, v, np.zeros(model.nv))), bias(model, q, v), model.nv
    K = np.block([[M, J.T], [J, np.zeros((len(J), len(J)))]])
    x = np.linalg.lstsq(K, np.concatenate([np.asarray(tau) - h, -gamma]), rcond=1e-12)[0]
    return Dense(x[:n], -J.T @ x[n:])


def bricard() -> tuple[jaxdyn.Model, np.ndarray]:
    """Bricard's mechanism: five rods of 1 m and 1 kg, with a square section of 0.1 m, between six hinges (library of
    benchmarks of IFToMM, problem A04). It moves although it has as many equations as would hold it."""
    points = np.array([(0, 0, 0), (1, 0, 0), (1, -1, 0), (1, -1, 1), (0, -1, 1), (0, 0, 1)], float)
    axes, builder, parent = ("y", "z", "x", "y", "z", "x"), ModelBuilder(), "world"
    unit = dict(zip("xyz", np.eye(3), strict=True))
    for k in range(5):
        along = points[k + 1] - points[k]
        size = np.where(np.abs(along) > 0.5, 1.0, 0.1)
        inertia = BodyInertia.box(1.0, size, 0.5 * along)
        placement = points[k] - (points[k - 1] if k else 0)
        builder.add_body(f"rod{k}", parent, Joint(axis=unit[axes[k]], name=f"hinge{k}"), placement, inertia)
        parent = f"rod{k}"
    # The loop's hinge turns about z of its frames: a quarter turn about y takes z to x.
    quarter = np.array([np.sqrt(0.5), 0, np.sqrt(0.5), 0])
    ends = np.concatenate([points[5] - points[4], quarter]), np.concatenate([points[5], quarter])
    builder.add_loop("hinge5", "revolute", "rod4", "world", *ends)
    return builder.build(gravity=(0, -9.81, 0)), np.zeros(5)


def pose_of(model, q, frame: str) -> np.ndarray:
    pose = jaxdyn.frame_pose(model, q, frame)
    return np.asarray(pose_array(np.asarray(pose.translation), rotation_to_quaternion(np.asarray(pose.rotation))))


def closed_forest(redundant: bool) -> tuple[jaxdyn.Model, np.ndarray, np.ndarray, np.ndarray]:
    """Two trees of many joint types with loops of all kinds that close at one configuration, and a coupling; with
    `redundant` each loop twice."""
    key = jax.random.key(1)
    model = jaxdyn.samples.random_tree(key, 6, ("free", "ball", "revolute", "universal", "helical"), branching=2)
    types = ("cylindrical", "planar", "revolute", "prismatic")
    other = jaxdyn.samples.random_tree(jax.random.key(2), 5, types, branching=2)
    model, rng = model.with_attached(other, "world", prefix="other_"), np.random.default_rng(0)
    q, names = np.asarray(model.random_configuration(jax.random.key(3))), model.body_names
    pairs = ((3, 5), (8, 2), (4, -1), (10, 7), (-1, 9))
    for kind, pair in zip(KINDS, pairs, strict=True):
        link1, link2 = ("world" if i < 0 else names[i] for i in pair)
        frame = np.concatenate([rng.normal(size=3) * 0.2, rng.normal(size=4)])
        frame[3:] /= np.linalg.norm(frame[3:])
        here = frame if link1 == "world" else compose_poses(pose_of(model, q, link1), frame)
        if kind == "distance":
            here = compose_poses(here, np.array([0, 0, 0.7, 1, 0, 0, 0]))
        there = here if link2 == "world" else compose_poses(invert_pose(pose_of(model, q, link2)), here)
        for copy in ("", " again")[: 1 + redundant]:
            length = 0.7 if kind == "distance" else None
            model = model.with_loop(kind + copy, kind, link1, link2, frame, there, length)
    q1, q2 = (float(q[model.q_index(name)][0]) for name in ("joint2", "other_joint2"))
    for copy in ("", " again")[: 1 + redundant]:
        model = model.with_coupling("poly" + copy, "joint2", "other_joint2", (0.0, 0.5, 2.0, 0.3, 0.1), (q1, q2))
    assert np.abs(jaxdyn.constraint_error(model, q)).max() < 1e-12
    v, tau = rng.normal(size=(2, model.nv))
    return model, q, admissible_velocity(model, q, v), tau


DRIVES = ("left", "right")


@functools.cache
def five_bar() -> jaxdyn.Model:
    """The sample with bars that have a width, and with friction and armature at the driven joints."""
    model = jaxdyn.samples.five_bar().with_joint_friction(dict.fromkeys(DRIVES, 0.3), dict.fromkeys(DRIVES, 0.2))
    armature = np.isin(model.joint_names, DRIVES) * 0.02
    bars = [BodyInertia.box(m, (x, 0.04, 0.04), (0.5 * x, 0, 0)).parameters() for m, x in ((1.0, 0.3), (0.6, 0.5))]
    return dataclasses.replace(model, armature=jnp.asarray(armature), inertial_parameters=jnp.asarray(2 * bars))


LEGS = tuple(f"leg{k}" for k in range(1, 7))


@functools.cache
def jansen_leg() -> jaxdyn.Model:
    """A leg of Jansen's walking machine, of seven bodies with three closed pins, whose crank turns all the way. At the
    neutral configuration its loops are closed; the figures are in meters (Jansen, The Great Pretender, 2007)."""
    places = {"O": (0, 0), "B": (-0.38, -0.078), "C": (0.1433, 0.044328), "D": (-0.272035, 0.32271)}
    places |= {"E": (-0.759581, 0.051302), "F": (-0.237008, -0.444063), "G": (-0.572595, -0.295501)}
    point = {name: np.array([x, 0.0, z]) for name, (x, z) in (places | {"H": (-0.362032, -0.917845)}).items()}
    builder = ModelBuilder()

    def add(name: str, parent: str, at: str, ends: str, origin: str | None = None):
        rods = [BodyInertia.rod(0.3, (0, 0, 0), point[end] - point[at]).parameters() for end in ends]
        place = point[at] - (0 if origin is None else point[origin])
        builder.add_body(name, parent, Joint(axis=(0, 1, 0), name=name), place, sum(rods))

    add("crank", "world", "O", "C")
    add("upper rod", "crank", "C", "D", "O")
    add("lower rod", "crank", "C", "F", "O")
    add("rocker", "world", "B", "DE")
    add("link", "world", "B", "F")
    add("coupler", "rocker", "E", "G", "B")
    add("foot", "link", "F", "GH", "B")
    loops = (
        ("D", "upper rod", "C", "rocker", "B"),
        ("F", "lower rod", "C", "link", "B"),
        ("G", "coupler", "E", "foot", "F"),
    )
    for pin, first, origin1, second, origin2 in loops:
        ends = point[pin] - point[origin1], point[pin] - point[origin2]
        builder.add_loop(pin, "connect", first, second, *ends)
    return builder.build()


def parallel_cranks(kind: str = "connect") -> tuple[jaxdyn.Model, np.ndarray]:
    """Three parallel cranks of 0.5 m that carry one bar by pins of a kind of loop, and the guess of a configuration."""
    builder, gap, crank = ModelBuilder(), 0.6, BodyInertia.rod(0.5, (0, 0, 0), (0.5, 0, 0))
    quarter = np.sqrt([0.5, 0.5, 0, 0])  # takes z to -y, the axis of the pins
    y = Joint(axis=(0, 1, 0))
    builder.add_body("crank0", "world", y, inertia=crank)
    builder.add_body("bar", "crank0", y, (0.5, 0, 0), BodyInertia.rod(1.2, (0, 0, 0), (2 * gap, 0, 0)))
    for k in (1, 2):
        builder.add_body(f"crank{k}", "world", y, (k * gap, 0, 0), crank)
        ends = (np.concatenate([(x, 0, 0), quarter]) for x in (k * gap, 0.5))
        builder.add_loop(f"pin{k}", kind, "bar", f"crank{k}", *ends)
    return builder.build(), np.array([-0.7, 0.7, -0.7, -0.7])


def sarrus() -> tuple[jaxdyn.Model, np.ndarray]:
    """Sarrus' linkage: a plate on two chains of three hinges in perpendicular planes, which moves straight up and down
    (Sarrus, Comptes rendus de l'Academie des sciences 36, 1853). One of the five equations of its loop is redundant."""
    builder, rod = ModelBuilder(), BodyInertia.box(0.5, (0.05, 0.05, 0.5), (0, 0, 0.25))
    for name, axis, place in (("first", (0, 1, 0), (0.4, 0, 0)), ("second", (1, 0, 0), (0, 0.4, 0))):
        builder.add_body(f"{name} lower", "world", Joint(axis=axis), place, rod)
        builder.add_body(f"{name} upper", f"{name} lower", Joint(axis=axis), (0, 0, 0.5), rod)
    plate = BodyInertia.box(1.0, (0.4, 0.4, 0.05), (-0.4, 0, 0))
    builder.add_body("plate", "first upper", Joint(axis=(0, 1, 0)), (0, 0, 0.5), plate)
    quarter = np.array([np.sqrt(0.5), 0, np.sqrt(0.5), 0])  # takes z to x
    ends = (np.concatenate([place, quarter]) for place in ((-0.4, 0.4, 0), (0, 0, 0.5)))
    builder.add_loop("hinge", "revolute", "plate", "second upper", *ends)
    # The knees bend outward by the same angle.
    return builder.build(), np.array([0.6, -1.2, -0.6, 1.2, 0.6])
