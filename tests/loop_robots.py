"""Robots with closed loops, for several files of tests."""

import functools
from typing import NamedTuple

import jax
import numpy as np

import jaxdyn
from jaxdyn import BodyInertia, Joint, ModelBuilder
from jaxdyn._types import Array, Configuration, Float, Velocity
from jaxdyn.algorithms.recursions import Robot, algorithm, constraint_rows, equations_and_velocities, kinematics

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


def rod(length: float, mass: float = 1.0) -> BodyInertia:
    return BodyInertia.rod(mass, (0, 0, 0), (length, 0, 0))


@functools.cache
def four_bar(kind: str = "connect", axis=(0.0, 1.0, 0.0)) -> jaxdyn.Model:
    """A vertical four-bar of rods 0.4, 1.0, 0.7 m whose grounded joints are 0.9 m apart."""
    builder = ModelBuilder()
    builder.add_body("crank", "world", Joint(axis=axis, name="a", damping=0.1), inertia=rod(0.4))
    builder.add_body("coupler", "crank", Joint(axis=axis, name="b"), (0.4, 0, 0), rod(1.0))
    builder.add_body("rocker", "world", Joint(axis=axis, name="c"), (0.9, 0, 0), rod(0.7))
    turned = np.array([0, 0, 0, np.sqrt(0.5), -np.sqrt(0.5), 0, 0])
    placements = ([1.0, 0, 0, *turned[3:]], [0.7, 0, 0, *turned[3:]])
    return builder.add_loop("pin", kind, "coupler", "rocker", *placements).build()


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


def bar(length: float, mass: float) -> BodyInertia:
    return BodyInertia.box(mass, (length, 0.04, 0.04), (0.5 * length, 0, 0))


@functools.cache
def five_bar() -> jaxdyn.Model:
    """A planar five-bar in the vertical plane: driven cranks, `left` and `right`, and two bars that meet at a pin."""
    builder, y = ModelBuilder(), functools.partial(Joint, axis=(0.0, 1.0, 0.0))
    friction = {"armature": 0.02, "damping": 0.3, "friction": 0.2}
    builder.add_body("left crank", "world", y(name="left", **friction), inertia=bar(0.3, 1.0))
    builder.add_body("left bar", "left crank", y(name="left elbow"), (0.3, 0, 0), bar(0.5, 0.6))
    builder.add_body("right crank", "world", y(name="right", **friction), (0.4, 0, 0), bar(0.3, 1.0))
    builder.add_body("right bar", "right crank", y(name="right elbow"), (0.3, 0, 0), bar(0.5, 0.6))
    return builder.add_loop("pin", "connect", "left bar", "right bar", (0.5, 0, 0), (0.5, 0, 0)).build()


FIVE_BAR_GUESS = np.array([-2.0, 0.9, -1.1, -0.9])


@functools.cache
def stewart_platform() -> jaxdyn.Model:
    """A Stewart platform: six driven legs `leg0` to `leg5`, prismatic, on universal joints in the ground and with ball
    joints in a plate, which a free joint carries in the tree. The coordinates are those of the plate, and of each leg
    the two angles and the length."""
    builder, plate = ModelBuilder(), BodyInertia.box(8.0, (0.6, 0.6, 0.05))
    builder.add_body("plate", "world", Joint("free", name="plate"), inertia=plate)
    ground, top = (
        np.deg2rad(np.array(x, float)) for x in ((-10, 10, 110, 130, 230, 250), (-50, 50, 70, 170, 190, 290))
    )
    for k, (a, b) in enumerate(zip(ground, top, strict=True)):
        foot, head = (r * np.array([np.cos(x), np.sin(x), 0.0]) for r, x in ((0.6, a), (0.35, b)))
        lower, upper = BodyInertia.rod(1.0, (0, 0, 0), (0, 0, 0.4)), BodyInertia.rod(0.7, (0, 0, -0.4), (0, 0, 0))
        hinge = Joint("universal", axis=(1, 0, 0), axis2=(0, 1, 0), name=f"foot{k}")
        builder.add_body(f"cylinder{k}", "world", hinge, foot, lower)
        builder.add_body(f"piston{k}", f"cylinder{k}", Joint("prismatic", axis=(0, 0, 1), name=f"leg{k}"), None, upper)
        builder.add_loop(f"head{k}", "connect", f"piston{k}", "plate", None, head)
    return builder.build()


LEGS = tuple(f"leg{k}" for k in range(6))


def stewart_start() -> np.ndarray:
    """The configuration with the plate level at 0.7 m, and the legs upright, from which the loops close."""
    model = stewart_platform()
    q = np.array(model.neutral())
    q[2] = 0.7
    for name in LEGS:
        q[model.q_index(name)] = 0.75
    return np.asarray(jaxdyn.project_configuration(model, q, kept=("plate",)).q)
