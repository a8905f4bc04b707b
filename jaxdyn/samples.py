"""Sample robots: `jaxdyn.samples.arm()` and others, most with published parameters and their source."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from jaxdyn._errors import ModelError, naming_arguments
from jaxdyn.contact import ContactShape
from jaxdyn.geometry import Box, Points, Sphere
from jaxdyn.joints import JOINT_TYPES
from jaxdyn.model import BodyInertia, Joint, Model, ModelBuilder
from jaxdyn.spatial import rotation_to_quaternion

__all__ = [
    "acrobot",
    "arm",
    "cartpole",
    "chain",
    "cube",
    "cube_shapes",
    "double_pendulum",
    "five_bar",
    "four_bar",
    "gripper",
    "gripper_shapes",
    "hopper",
    "hopper_shapes",
    "pendulum",
    "quadruped",
    "quadruped_shapes",
    "random_tree",
    "stewart_platform",
]


def pendulum() -> Model:
    """A uniform rod of 1 kg and 1 m, hinged at its end about y; `q = 0` hangs down."""
    rod = BodyInertia.rod(1.0, (0, 0, 0), (0, 0, -1.0))
    return ModelBuilder().add_body("rod", joint=Joint(axis=(0, 1, 0), name="hinge"), inertia=rod).build()


def double_pendulum() -> Model:
    """The DFKI double pendulum, design C.1, with its drives; both angles 0 when it hangs down, the second relative.

    Parameters of model 1.0: Wiebe et al., Open source dual-purpose acrobot and pendubot platform, IEEE RAM 2024, and
    its repository (dfki-ric-underactuated-lab/double_pendulum). The rotors count through the gear of 6 as armature.
    Coulomb friction is an exception: its coefficients c, 0.16 and 0.12 N m, are for the law `c arctan(100 v)` there,
    which tends to pi/2 c. Here they are the limits themselves, so this pendulum has 2/pi of that plant's friction.
    """
    rotor = 6.2872e-5 * 6**2
    builder = ModelBuilder()
    parent, placement = "world", (0.0, 0.0, 0.0)
    for name, m, r, inertia_about_joint, coulomb, length in (
        ("upper", 0.52346, 0.2, 0.031887, 0.16, 0.2),
        ("lower", 0.62557, 0.25569, 0.050870, 0.12, 0.3),
    ):
        # The inertia is published about the joint, perpendicular to the plane of motion.
        across = inertia_about_joint - m * r**2
        joint = Joint(axis=(0, 1, 0), armature=rotor, damping=0.001, friction=coulomb, effort_limit=10.0)
        builder.add_body(name, parent, joint, placement, BodyInertia(m, (0, 0, -r), (across, across, 0.0)))
        parent, placement = name, (0.0, 0.0, -length)
    return builder.add_frame("tip", parent, placement).build()


def cartpole() -> Model:
    """A pole hinged on a cart; `q = (position, angle)`, the pole upright at 0.

    Barto, Sutton & Anderson, Neuronlike adaptive elements that can solve difficult learning control problems, IEEE
    SMC 1983, appendix: cart 1 kg, pole 0.1 kg and half-length 0.5 m, friction of the hinge 2e-6, track of 2.4 m.
    """
    builder, pole = ModelBuilder(), BodyInertia.rod(0.1, (0, 0, 0), (0, 0, 1.0))
    slider = Joint("prismatic", axis=(1, 0, 0), name="slider", lower=-2.4, upper=2.4, effort_limit=10.0)
    builder.add_body("cart", joint=slider, inertia=BodyInertia.box(1.0, (0.4, 0.2, 0.2)))
    builder.add_body("pole", "cart", Joint(axis=(0, 1, 0), name="hinge", damping=2e-6), inertia=pole)
    return builder.build(gravity=(0.0, 0.0, -9.8))


def acrobot() -> Model:
    """Two links in a vertical plane, driven at the elbow only; both angles 0 when it hangs down, the second relative.

    Sutton & Barto, Reinforcement Learning, 2nd edition, section 11.3: lengths and masses 1, centers of mass at 0.5,
    inertias 1 about them, g 9.8. The effort limit of the undriven shoulder is zero.
    """
    link = BodyInertia(1.0, (0, 0, -0.5), (1.0, 1.0, 0.0))
    builder = ModelBuilder()
    shoulder, elbow = (Joint(axis=(0, 1, 0), name=n, effort_limit=e) for n, e in (("shoulder", 0.0), ("elbow", 1.0)))
    builder.add_body("upper", joint=shoulder, inertia=link)
    builder.add_body("lower", "upper", elbow, (0, 0, -1.0), link)
    return builder.add_frame("tip", "lower", (0, 0, -1.0)).build(gravity=(0.0, 0.0, -9.8))


# Placement in the parent: rotation about x in quarter turns, position. Mass, center of mass, inertia about it as xx,
# xy, xz, yy, yz, zz, all in link axes. Limits: lower, upper, velocity, effort.
_PANDA = (
    (0, (0, 0, 0.333), 4.970684, (0.003875, 0.002081, -0.04762),
     (0.70337, -0.000139, 0.006772, 0.70661, 0.019169, 0.009117), (-2.8973, 2.8973, 2.175, 87)),
    (-1, (0, 0, 0), 0.646926, (-0.003141, -0.02872, 0.003495),
     (0.007962, -0.003925, 0.010254, 0.02811, 0.000704, 0.025995), (-1.7628, 1.7628, 2.175, 87)),
    (1, (0, -0.316, 0), 3.228604, (0.027518, 0.039252, -0.066502),
     (0.037242, -0.004761, -0.011396, 0.036155, -0.012805, 0.01083), (-2.8973, 2.8973, 2.175, 87)),
    (1, (0.0825, 0, 0), 3.587895, (-0.05317, 0.104419, 0.027454),
     (0.025853, 0.007796, -0.001332, 0.019552, 0.008641, 0.028323), (-3.0718, -0.0698, 2.175, 87)),
    (-1, (-0.0825, 0.384, 0), 1.225946, (-0.011953, 0.041065, -0.038437),
     (0.035549, -0.002117, -0.004037, 0.029474, 0.000229, 0.008627), (-2.8973, 2.8973, 2.61, 12)),
    (1, (0, 0, 0), 1.666555, (0.060149, -0.014117, -0.010517),
     (0.001964, 0.000109, -0.001158, 0.004354, 0.000341, 0.005433), (-0.0175, 3.7525, 2.61, 12)),
    (1, (0.088, 0, 0), 0.735522, (0.010517, -0.004252, 0.061597),
     (0.012516, -0.000428, -0.001196, 0.010027, -0.000741, 0.004815), (-2.8973, 2.8973, 2.61, 12)),
)  # fmt: skip


def arm() -> Model:
    """A Franka Emika Panda without its gripper: seven revolute joints.

    Kinematics and limits: Franka Control Interface documentation (modified Denavit-Hartenberg parameters). Inertias:
    Gaz, Cognetti, Oliva, Robuffo Giordano & De Luca, Dynamic identification of the Franka Emika Panda robot with
    retrieval of feasible parameters, RA-L 2019.
    """
    builder, parent = ModelBuilder(), "world"
    for i, (quarters, position, mass, com, moments, limits) in enumerate(_PANDA, start=1):
        half = quarters * np.pi / 4
        xx, xy, xz, yy, yz, zz = moments
        lower, upper, speed, effort = limits
        joint = Joint(name=f"joint{i}", lower=lower, upper=upper, velocity_limit=speed, effort_limit=effort)
        inertia = BodyInertia(mass, com, ((xx, xy, xz), (xy, yy, yz), (xz, yz, zz)))
        builder.add_body(f"link{i}", parent, joint, (*position, np.cos(half), np.sin(half), 0.0, 0.0), inertia)
        parent = f"link{i}"
    return builder.add_frame("flange", parent, (0, 0, 0.107)).build()


def quadruped() -> Model:
    """Solo12: a free base and four legs of three revolute joints.

    Grimminger et al., An open torque-controlled modular robot architecture for legged locomotion research, RA-L 2020;
    numbers of its open description (open-dynamic-robot-initiative, BSD-3). Legs: front left, front right, hind left,
    hind right; the foot is merged into the lower leg.
    """
    base = BodyInertia(1.16115091, (0, 0, 0), (0.00578574, 0.01938108, 0.02476124))
    builder = ModelBuilder().add_body("base", joint=Joint("free", name="root_joint"), inertia=base)
    for leg, front, left in (("FL", 1, 1), ("FR", 1, -1), ("HL", -1, 1), ("HR", -1, -1)):
        xy, yz = 4.671e-5 * front * left, 4.671e-5 * left
        # Name of the link and of its joint, axis, placement; mass, center of mass, inertia about it.
        parts = (
            ("SHOULDER", "HAA", (1, 0, 0), (0.1946 * front, 0.0875 * left, 0), 0.14853845,
             (-0.078707 * front, 0.01 * left, 0.0), ((3.024e-5, xy, 0), (xy, 41.193e-5, 0), (0, 0, 41.107e-5))),
            ("UPPER_LEG", "HFE", (0, 1, 0), (0, 0.014 * left, 0), 0.14853845,
             (1.377e-5 * left, 0.01935853 * left, -0.078707),
             ((41.107e-5, 0, 0), (0, 41.193e-5, yz), (0, yz, 3.024e-5))),
            ("LOWER_LEG", "KFE", (0, 1, 0), (0, 0.03745 * left, -0.16), 0.03070001,
             (0.0, 0.00787644 * left, -0.08928215),
             ((12.024e-5, 0, 0), (0, 12.029e-5, 0.305e-5 * left), (0, 0.305e-5 * left, 0.216e-5))),
        )  # fmt: skip
        parent = "base"
        for part, joint, axis, placement, mass, center, moments in parts:
            joint = Joint(axis=axis, name=f"{leg}_{joint}")
            builder.add_body(f"{leg}_{part}", parent, joint, placement, BodyInertia(mass, center, moments))
            parent = f"{leg}_{part}"
        foot = BodyInertia(0.00693606, (0, 0, 0.00035767), (0.057e-5, 0.084e-5, 0.053e-5))
        builder.add_fixed_body(f"{leg}_FOOT", parent, (0, 0.008 * left, -0.16), foot)
    return builder.build()


def quadruped_shapes() -> list[ContactShape]:
    """The feet of `quadruped` as contact shapes: spheres of 16 mm, the radius of the wheel-shaped feet in the open
    description, on `FL_FOOT`, `FR_FOOT`, `HL_FOOT` and `HR_FOOT`."""
    return [ContactShape(f"{leg}_FOOT", Sphere(0.016)) for leg in ("FL", "FR", "HL", "HR")]


CUBE_HALF_WIDTH = 0.0524
"""Half the width of `cube`, m."""


def cube() -> Model:
    """A free body: the acrylic cube of 0.1048 m and 0.37 kg that was tossed for ContactNets.

    Pfrommer, Halm & Posa, ContactNets: learning discontinuous contact dynamics with smooth, implicit representations,
    CoRL 2020, and its repository (DAIRLab/contact-nets): mass, width and moments of inertia, 0.00081 kg m^2.
    """
    inertia = BodyInertia(0.37, (0, 0, 0), (0.00081,) * 3)
    return ModelBuilder().add_body("cube", joint=Joint("free", name="root_joint"), inertia=inertia).build()


def cube_shapes() -> list[ContactShape]:
    """The eight corners of `cube` as one contact shape, a box."""
    return [ContactShape("cube", Box((CUBE_HALF_WIDTH,) * 3))]


def hopper() -> Model:
    """A body on one springy leg, in the vertical plane: `q = (x, z, pitch, hip, slide)`, the hip at `(x, z)`.

    At zero the leg is vertical, 1 m long below the hip, and its spring at rest.

    Raibert, Hopping in legged systems: modeling and simulation for the two-dimensional one-legged case, IEEE SMC 1984:
    body 10 kg and 10 kg m^2, 0.4 m above the hip; leg 1 kg and 1 kg m^2, 0.5 m above the foot; a spring of 1000 N/m.
    Raibert's spring only pushes, against a stop; this one pulls as well, and is damped by 10 N s/m.
    """
    builder, nothing = ModelBuilder(), BodyInertia(0.0)
    builder.add_body("across", joint=Joint("prismatic", axis=(1, 0, 0), name="x"), inertia=nothing)
    builder.add_body("up", "across", Joint("prismatic", axis=(0, 0, 1), name="z"), inertia=nothing)
    body = BodyInertia(10.0, (0, 0, 0.4), (10.0, 10.0, 10.0))
    builder.add_body("body", "up", Joint(axis=(0, 1, 0), name="pitch"), inertia=body)
    builder.add_body("hip_link", "body", Joint(axis=(0, 1, 0), name="hip"), inertia=nothing)
    # The slide grows as the leg grows shorter.
    slide = Joint("prismatic", axis=(0, 0, 1), name="slide", stiffness=1000.0, damping=10.0)
    leg = BodyInertia(1.0, (0, 0, -0.5), (1.0, 1.0, 1.0))
    builder.add_body("leg", "hip_link", slide, inertia=leg)
    return builder.add_frame("foot", "leg", (0, 0, -1.0)).build()


def hopper_shapes() -> list[ContactShape]:
    """The foot of `hopper` as a contact shape: a point."""
    return [ContactShape("foot", Points(((0.0, 0.0, 0.0),)))]


def gripper() -> Model:
    """A hand on a vertical slide with two fingers: `q = (lift, left, right)`, the fingers apart by `0.14 m - left -
    right` at their pads.

    The numbers are round ones. The hand has 0.7 kg and hangs at the height `lift` (m) above the world's origin; each
    finger has 0.1 kg, slides by up to 0.07 m and can push with 20 N. The middle between the pads is the frame `grasp`,
    0.1 m below the hand.
    """
    builder = ModelBuilder()
    lift = Joint("prismatic", axis=(0, 0, 1), name="lift", effort_limit=100.0)
    builder.add_body("hand", joint=lift, inertia=BodyInertia.box(0.7, (0.06, 0.2, 0.06)))
    for side, sign in (("left", 1), ("right", -1)):
        inward = Joint("prismatic", axis=(0, -sign, 0), name=side, lower=0.0, upper=0.07, effort_limit=20.0)
        finger = BodyInertia.box(0.1, (0.06, 0.02, 0.1), (0, 0.01 * sign, -0.05))
        builder.add_body(f"{side}_finger", "hand", inward, (0, 0.07 * sign, 0), finger)
        builder.add_frame(f"{side}_pad", f"{side}_finger", (0, 0, -0.1))
    return builder.add_frame("grasp", "hand", (0, 0, -0.1)).build()


def gripper_shapes() -> list[ContactShape]:
    """The pads of `gripper` as contact shapes: two spheres of 10 mm on each finger, 40 mm apart, so that what is held
    does not turn about the line between the fingers. They touch what is at the inner sides of the fingers."""
    return [
        ContactShape(f"{side}_pad", Sphere(0.01), (along, 0.01 * sign, 0.0))
        for side, sign in (("left", 1), ("right", -1))
        for along in (-0.02, 0.02)
    ]


@naming_arguments
def chain(n: int, length: float = 0.2) -> Model:
    """`n` uniform rods of 1 kg in a row, hinged about z, y, x in turn; hangs along z at `q = 0`. **Raises**
    `ModelError` unless `n` is at least 1."""
    if n < 1:
        raise ModelError(f"a chain needs at least one link, not {n}")
    builder, parent = ModelBuilder(), "world"
    # A thin rod has no inertia about its own axis, and the joints about z need one: a square rod.
    link = BodyInertia.box(1.0, (0.2 * length, 0.2 * length, length), (0, 0, -0.5 * length))
    for i in range(n):
        axis = np.eye(3)[2 - i % 3]
        builder.add_body(f"link{i}", parent, Joint(axis=axis, name=f"joint{i}"), (0, 0, -length if i else 0.0), link)
        parent = f"link{i}"
    return builder.build()


def four_bar() -> Model:
    """A four-bar in the vertical plane of x and z: uniform rods of 1 kg, a crank of 0.4 m, a coupler of 1 m and a
    rocker of 0.7 m, whose grounded joints are 0.9 m apart, and a pin that closes the loop.

    Joints `a` (crank), `b` (coupler on crank) and `c` (rocker). At `q = 0` all rods point along x, and the loop is
    open; `project_configuration(model, [0.6, -1.0, -1.2])` closes it. One degree of freedom.
    """
    builder, axis = ModelBuilder(), (0, 1, 0)
    crank, coupler, rocker = (BodyInertia.rod(1.0, (0, 0, 0), (length, 0, 0)) for length in (0.4, 1.0, 0.7))
    builder.add_body("crank", "world", Joint(axis=axis, name="a"), inertia=crank)
    builder.add_body("coupler", "crank", Joint(axis=axis, name="b"), (0.4, 0, 0), coupler)
    builder.add_body("rocker", "world", Joint(axis=axis, name="c"), (0.9, 0, 0), rocker)
    return builder.add_loop("pin", "connect", "coupler", "rocker", (1.0, 0, 0), (0.7, 0, 0)).build()


def five_bar() -> Model:
    """A planar parallel robot of two arms in the vertical plane of x and z, each with an upper arm of 0.3 m and a
    forearm of 0.5 m, uniform rods of 1 kg for each meter. A pin joins the ends of the forearms, at the frame `tip`.

    The joints `left` and `right` at the shoulders, 0.2 m apart, are those to be driven; `left_elbow` and `right_elbow`
    are passive. At `q = 0` the robot is closed and symmetric: upper arms level and outward, the tip 0.3 m below the
    shoulders. Two degrees of freedom.
    """
    builder = ModelBuilder()
    bend = np.pi - np.arcsin(0.6)
    for side, shoulder, shoulder_angle, elbow_angle in (("left", -0.1, np.pi, -bend), ("right", 0.1, 0.0, bend)):
        parent, x = "world", shoulder
        for part, joint, angle, length in (
            ("upper", side, shoulder_angle, 0.3),
            ("forearm", f"{side}_elbow", elbow_angle, 0.5),
        ):
            # A turn about y takes x downward.
            placement = (x, 0, 0, np.cos(angle / 2), 0, np.sin(angle / 2), 0)
            inertia = BodyInertia.rod(length, (0, 0, 0), (length, 0, 0))
            builder.add_body(f"{side}_{part}", parent, Joint(axis=(0, 1, 0), name=joint), placement, inertia)
            parent, x = f"{side}_{part}", length
    builder.add_frame("tip", "left_forearm", (0.5, 0, 0))
    return builder.add_loop("pin", "connect", "tip", "right_forearm", None, (0.5, 0, 0)).build()


def stewart_platform() -> Model:
    """A Stewart platform: a steel plate on six legs of variable length, each with a universal joint at the base, a
    prismatic joint, and a ball joint at the plate. Six degrees of freedom.

    The first seven coordinates are the pose of the body `platform` relative to its home, 2 m above the base. There all
    coordinates are neutral, the loops are closed, and the legs are equally long. The prismatic joints `leg1` to `leg6`
    are those to be driven; their coordinates are the changes of length.

    Numbers of the demonstration `mech_stewart_control` of SimMechanics (The MathWorks, 2002-2003): ball joints at a
    radius of 1 m, universal joints at 3 m, plate 5 cm thick, tubes with radii of 5 and 3 cm and three quarters of the
    legs' length, rods as long that fill them, density 76e3 / 9.81 kg/m^3.
    """
    density, height = 76e3 / 9.81, 2.0

    def cylinder(length: float, outer: float, inner: float, center: float) -> BodyInertia:
        mass, radii = density * np.pi * (outer**2 - inner**2) * length, outer**2 + inner**2
        across = mass * (3 * radii + length**2) / 12
        return BodyInertia(mass, (0, 0, center), (across, across, mass * radii / 2))

    builder = ModelBuilder()
    builder.add_body("platform", "world", Joint("free"), (0, 0, height), cylinder(0.05, 1.0, 0.0, 0.0))
    for k in range(6):
        # Two legs start beside each third of the base's circle, and end beside the sixths of the plate's around it.
        third, side = 2 * np.pi / 3 * (k // 2), 2 * (k % 2) - 1
        at_base, at_plate = third + side * np.radians(2.5), third + side * (np.pi / 3 - np.radians(10.0))
        start = 3.0 * np.array([np.cos(at_base), np.sin(at_base), 0.0])
        end = np.array([np.cos(at_plate), np.sin(at_plate), 0.0])
        along = end + (0, 0, height) - start
        length = float(np.linalg.norm(along))
        z = along / length
        x = np.cross(z, (0, 0, 1)) / np.linalg.norm(np.cross(z, (0, 0, 1)))
        placement = (*start, *rotation_to_quaternion(np.stack([x, np.cross(z, x), z], axis=1)))
        base = Joint("universal", (1, 0, 0), (0, 1, 0), name=f"base{k + 1}")
        part = 0.75 * length
        builder.add_body(f"tube{k + 1}", "world", base, placement, cylinder(part, 0.05, 0.03, part / 2))
        leg = Joint("prismatic", (0, 0, 1), name=f"leg{k + 1}")
        builder.add_body(f"rod{k + 1}", f"tube{k + 1}", leg, (0, 0, length), cylinder(part, 0.03, 0.0, -part / 2))
        builder.add_loop(f"ball{k + 1}", "connect", f"rod{k + 1}", "platform", None, tuple(end))
    return builder.build()


@naming_arguments
def random_tree(key: jax.Array, n: int, joint_types: tuple[str, ...] = tuple(JOINT_TYPES), branching: int = 3) -> Model:
    """A random tree of `n` bodies: random placements, oblique axes, physical inertias, armature, damping and friction.

    Joint types are taken in turn from `joint_types`, so that each occurs; the parent of a body is one of the
    `branching` bodies before it (1: a chain). A free joint only ever comes first, from the world.

    **Raises** `ModelError` for an `n` below 1 or an unknown type.
    """
    if n < 1 or branching < 1:
        raise ModelError(f"a tree needs at least one body and one candidate for a parent, not n={n}, {branching=}")
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).astype(np.uint32))
    inner = tuple(t for t in joint_types if t != "free")
    types = [inner[i % len(inner)] if inner else "free" for i in range(n)]
    if "free" in joint_types:
        types = ["free", *types[: n - 1]]
    builder, names = ModelBuilder(), []
    for i, kind in enumerate(types):
        parent = names[rng.integers(max(0, i - branching), i)] if i and kind != "free" else "world"
        first, second = np.linalg.qr(rng.normal(size=(3, 3)))[0][:2]
        points = rng.normal(size=(6, 3)) * 0.2
        masses = rng.uniform(0.1, 0.5, 6)
        # A cloud of point masses is a physical inertia.
        com = masses @ points / masses.sum()
        arms = points - com
        second_moments = np.einsum("k,ki,kj->ij", masses, arms, arms)
        inertia = np.trace(second_moments) * np.eye(3) - second_moments
        pitch = float(rng.uniform(-0.5, 0.5)) if kind == "helical" else None
        armature, damping, friction = (float(rng.uniform(0.0, most)) for most in (0.2, 0.5, 0.5))
        effects: dict[str, Any] = {"armature": armature, "damping": damping, "friction": friction}
        joint = Joint(kind, first, second if kind == "universal" else None, pitch, name=f"joint{i}", **effects)
        rotation = np.linalg.qr(rng.normal(size=(3, 3)))[0]
        rotation *= np.linalg.det(rotation)
        placement = np.concatenate([rng.normal(size=3) * 0.3, rotation_to_quaternion(rotation)])
        builder.add_body(f"body{i}", parent, joint, placement, BodyInertia(masses.sum(), com, inertia))
        names.append(f"body{i}")
    return builder.build()
