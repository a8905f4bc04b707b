"""`ModelBuilder`: a model body by body."""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import numpy as np

from jaxdyn._errors import (
    ModelError,
    ShapeError,
    UnknownNameError,
    look_up,
    require_finite,
    require_kind,
    require_shape,
)
from jaxdyn._types import ArrayLike
from jaxdyn.joints import JOINT_TYPES, Topology, joint_nq, joint_nv
from jaxdyn.model._body_inertia import (
    BodyInertia,
    inertial_parameters,
    real_array,
    require_resistance,
    warn_if_unphysical,
    warn_of_far_masses,
)
from jaxdyn.model._edit_arguments import require_poses, require_values
from jaxdyn.model._fields import FRICTION_VELOCITY, JOINT_FIELDS, LEAVES
from jaxdyn.model._loop_edits import with_coupling, with_loop
from jaxdyn.model._model import Model
from jaxdyn.model._singular_motions import warn_of_singular_motions
from jaxdyn.spatial import IDENTITY_POSE, SE3, compose_poses, rotation_to_quaternion, transform_inertial_parameters

STANDARD_GRAVITY = (0.0, 0.0, -9.81)
_ADVICE = "A rough guess is enough for a fit; kinematics_only=True loads what needs no inertia"


@dataclasses.dataclass(frozen=True)
class Mimic:
    """The rule by which a joint with one degree of freedom follows another one, `joint`: its coordinate is `multiplier`
    times that of `joint`, plus `offset` (rad, m)."""

    joint: str
    multiplier: float = 1.0
    offset: float = 0.0


@dataclasses.dataclass(frozen=True)
class Joint:
    """A joint: its type, its axes, its limits, friction and springs.

    | type | coordinates `q` | velocities `v` |
    |---|---|---|
    | `revolute`, `continuous` | angle about `axis` (a continuous joint has no limits) | its rate |
    | `prismatic` | shift along `axis` | its rate |
    | `helical` | angle about `axis`; advances by `pitch` m/rad along it | its rate |
    | `cylindrical` | shift along, then angle about `axis` | their rates |
    | `universal` | angle about `axis`, then about `axis2` (which turns with the first) | their rates |
    | `planar` | shifts in the plane with normal `axis`, then angle about it; for the normal z the plane's axes are \
      x and y, otherwise these are turned with it by the smallest rotation | their rates |
    | `ball` | quaternion `w x y z` | angular velocity in child axes |
    | `free` | position, quaternion | linear and angular velocity of the body, in its axes |

    Angles are in rad, lengths in m. `lower` and `upper` are limits of `q`, `velocity_limit` and `effort_limit` of `v`
    and `tau`; `armature`, `damping`, `friction`, `friction_velocity`, `stiffness` and `spring_reference` are as in
    `Model` (`spring_reference` None: zero, and the identity for rotations). Each is one number for all coordinates of
    the joint, or an array with one for each.

    A joint that mimics another has no coordinates of its own. Its armature, damping, Coulomb friction and spring act
    on the joint that it follows, through the multiplier; its limits are dropped.
    """

    type: str = "revolute"
    axis: ArrayLike = (0.0, 0.0, 1.0)
    axis2: ArrayLike | None = None
    pitch: float | None = None
    name: str | None = None
    lower: ArrayLike = -math.inf
    upper: ArrayLike = math.inf
    velocity_limit: ArrayLike = math.inf
    effort_limit: ArrayLike = math.inf
    armature: ArrayLike = 0.0
    damping: ArrayLike = 0.0
    friction: ArrayLike = 0.0
    friction_velocity: ArrayLike = FRICTION_VELOCITY
    stiffness: ArrayLike = 0.0
    spring_reference: ArrayLike | None = None
    mimic: Mimic | None = None


class ModelBuilder:
    """Collects bodies and builds a `Model`.

    ```python
    builder = ModelBuilder()
    rod = BodyInertia.rod(1.0, (0, 0, 0), (0, 0, -1))
    builder.add_body("upper", "world", Joint("revolute", axis=(0, 1, 0)), inertia=rod)
    builder.add_body("lower", "upper", Joint("revolute", axis=(0, 1, 0)), placement=(0, 0, -1), inertia=rod)
    model = builder.build()
    ```

    The model has bodies in depth-first order, children in the order in which they were added. A placement is an `SE3`,
    a vector of position (m) and quaternion `w x y z`, or a position. A parent is a body, a link added with
    `add_fixed_body`, a frame, or `"world"`.
    """

    def __init__(self):
        self._bodies: dict[str, _Body] = {}
        self._fixed: dict[str, _Fixed] = {}
        self._joint_names: set[str] = set()
        self._loops: dict[str, Callable[[Model], Model]] = {}

    def add_body(
        self,
        name: str,
        parent: str = "world",
        joint: Joint | None = None,
        placement: SE3 | ArrayLike | None = None,
        inertia: BodyInertia | ArrayLike | None = None,
    ) -> ModelBuilder:
        """Add a body moved by a joint; `placement` is the joint's pose in the frame of `parent`, `inertia` a
        `BodyInertia` or the ten inertial parameters (None: massless).

        **Raises** `ModelError`, `ShapeError` or `UnknownNameError`, each of which names the body.
        """
        joint = Joint() if joint is None else joint
        require_kind(joint, Joint, f"body {name!r}: joint", error=ModelError)
        require_kind(joint.name, (str, type(None)), f"body {name!r}: the name of its joint", error=ModelError)
        joint = dataclasses.replace(joint, name=joint.name or f"{name}_joint")
        self._check_new(name, parent)
        if joint.name in self._joint_names:
            raise ModelError(f"body {name!r}: there is already a joint named {joint.name!r}; names must be unique")
        where = f"joint {joint.name!r} of body {name!r}"
        axes, pitch = _joint_geometry(joint, where)
        self._joint_names.add(str(joint.name))
        carrier, pose = self._place(parent, placement, f"placement of body {name!r}")
        parameters = inertial_parameters(inertia, f"inertia of body {name!r}")
        self._bodies[name] = _Body(carrier, pose, parameters, joint, axes, pitch)
        return self

    def add_fixed_body(
        self,
        name: str,
        parent: str = "world",
        placement: SE3 | ArrayLike | None = None,
        inertia: BodyInertia | ArrayLike | None = None,
    ) -> ModelBuilder:
        """Add a body fixed to `parent`: its inertia is merged, its name stays as a frame and as a link."""
        self._check_new(name, parent)
        carrier, pose = self._place(parent, placement, f"placement of body {name!r}")
        self._fixed[name] = _Fixed(carrier, pose, inertial_parameters(inertia, f"inertia of body {name!r}"))
        return self

    def add_frame(self, name: str, parent: str, placement: SE3 | ArrayLike | None = None) -> ModelBuilder:
        """Add a named frame fixed in `parent`."""
        self._check_new(name, parent)
        self._fixed[name] = _Fixed(*self._place(parent, placement, f"placement of frame {name!r}"), None)
        return self

    def add_loop(
        self,
        name: str,
        kind: str,
        link1: str,
        link2: str,
        placement1: SE3 | ArrayLike | None = None,
        placement2: SE3 | ArrayLike | None = None,
        length: ArrayLike | None = None,
    ) -> ModelBuilder:
        """Add a closed loop between frames placed in two links, as `Model.with_loop` does, which has the kinds.

        **Raises** `UnknownNameError` for a link, `ModelError` for a name that exists; other errors of `with_loop` are
        raised by `build`.
        """
        for link in (link1, link2):
            look_up(link, ("world", *self._bodies, *self._fixed), f"link for loop {name!r}")
        return self._add_loop(name, with_loop, kind, link1, link2, placement1, placement2, length)

    def add_coupling(
        self,
        name: str,
        joint1: str,
        joint2: str | None = None,
        coefficients: ArrayLike = (0.0, 1.0),
        reference: ArrayLike = (0.0, 0.0),
    ) -> ModelBuilder:
        """Let the coordinate of one joint follow that of another by a polynomial, as `Model.with_coupling` does.

        **Raises** `UnknownNameError` for a joint, `ModelError` for a name that exists; other errors of `with_coupling`
        are raised by `build`.
        """
        for joint in (joint1,) if joint2 is None else (joint1, joint2):
            look_up(joint, self._joint_names, f"joint for coupling {name!r}")
        return self._add_loop(name, with_coupling, joint1, joint2, coefficients, reference)

    def _add_loop(self, name: str, edit: Callable[..., Model], *arguments: Any) -> ModelBuilder:
        if name in self._loops:
            raise ModelError(f"there is already a loop or coupling named {name!r}; names must be unique")
        self._loops[name] = lambda model: edit(model, name, *arguments)
        return self

    def build(self, gravity: ArrayLike = STANDARD_GRAVITY, *, kinematics_only: bool = False) -> Model:
        """The model, in JAX's default floating-point type; `gravity` `[3]` is in m/s^2, in world axes.

        With `kinematics_only`, the inertia of each body that has none counts as unknown: the model has all of the
        kinematics, and functions of its dynamics raise `ModelError` until `Model.with_link_parameters` has given the
        inertias.

        **Raises** `ModelError` without a body, or, unless `kinematics_only`, if a joint moves nothing with inertia.
        **Warns** (`PhysicalityWarning`) of inertias that no distribution of mass has, or that look like another unit,
        and of a mass matrix that is singular, with the joints that move together without resistance.
        """
        if not self._bodies:
            raise ModelError("the model has no moving body: every link is fixed to the world; add a body with a joint")
        gravity = real_array(gravity, "gravity")
        require_shape(gravity, (3,), "gravity", "an acceleration in m/s^2, world axes")
        require_finite(gravity, "gravity")
        children = defaultdict(list)
        for name, body in self._bodies.items():
            children[body.carrier].append(name)
        order = [*depth_first(children["world"], children.__getitem__)]
        index = {name: i for i, name in enumerate(order)} | {"world": -1}
        bodies = [self._bodies[name] for name in order]
        links = {name: fixed for name, fixed in self._fixed.items() if fixed.parameters is not None}
        topology = Topology(
            body_names=tuple(order),
            joint_names=tuple(str(b.joint.name) for b in bodies),
            joint_types=tuple(b.joint.type for b in bodies),
            parents=tuple(index[b.carrier] for b in bodies),
            frame_names=(*order, *self._fixed),
            frame_bodies=(*range(len(order)), *(index[x.carrier] for x in self._fixed.values())),
            attached_links=tuple(links),
            attached_bodies=tuple(index[x.carrier] for x in links.values()),
            mimics=_mimics([b.joint for b in bodies]),
        )
        for name, link in (*links.items(), *zip(order, bodies, strict=True)):
            require_finite(link.parameters, f"inertial parameters of link {name!r}")
            warn_if_unphysical(f"link {name!r}", np.asarray(link.parameters), np.zeros(10))
        attached = [transform_inertial_parameters(np.asarray(x.parameters), x.placement) for x in links.values()]
        parameters = np.array([b.parameters for b in bodies])
        for body, extra in zip(topology.attached_bodies, attached, strict=True):
            if body >= 0:
                parameters[body] += extra
        if kinematics_only:
            unknown = tuple(name for name, inertia in zip(order, parameters, strict=True) if not inertia.any())
            topology = dataclasses.replace(topology, unknown_inertias=unknown)
        mimics = [bodies[i].joint.mimic for i, _ in topology.mimics]
        leaves = {
            "joint_placement": [b.placement for b in bodies],
            "joint_axis": [axis for b in bodies for axis in b.axes],
            "joint_pitch": [p for b in bodies for p in b.pitch],
            "inertial_parameters": parameters,
            "gravity": gravity,
            "frame_placement": [*[IDENTITY_POSE] * len(order), *(x.placement for x in self._fixed.values())],
            "attached_parameters": attached,
            "mimic_multiplier": [m.multiplier for m in mimics if m],
            "mimic_offset": [m.offset for m in mimics if m],
        }
        for field, name in JOINT_FIELDS.items():
            leaves[name] = np.concatenate([_spread(b.joint, field, n) for n, b in zip(order, bodies, strict=True)])
        _merge_followers(topology, leaves)
        arrays = {name: np.reshape(x, LEAVES[name].shape(topology)).astype(np.float64) for name, x in leaves.items()}
        try:
            require_resistance(topology, arrays)
        except ModelError as error:
            raise error if kinematics_only else ModelError(f"{error}. {_ADVICE}") from None
        if not arrays["stiffness"].any():
            del arrays["stiffness"], arrays["spring_reference"]
        numbers: dict[str, Any] = arrays
        model = Model(topology=topology, **numbers)
        warn_of_far_masses(model)
        warn_of_singular_motions(model)
        model = jax.device_put(model)
        for close in self._loops.values():
            model = close(model)
        return model

    def _check_new(self, name: str, parent: str) -> None:
        if not isinstance(name, str) or not name:
            raise ModelError(f"a body or frame needs a name that is a non-empty string, not {name!r}")
        if name == "world" or name in self._bodies or name in self._fixed:
            raise ModelError(f"there is already a body or frame named {name!r}; names must be unique")
        try:
            look_up(parent, ("world", *self._bodies, *self._fixed), "parent")
        except UnknownNameError as error:
            raise UnknownNameError(f"{name!r}: {error}; a parent must be added before its children") from None

    def _place(self, parent: str, placement: SE3 | ArrayLike | None, what: str) -> tuple[str, np.ndarray]:
        """The moving body (or the world) that carries what is placed in a parent, and the pose in it."""
        pose, fixed = pose_vector(placement, what), self._fixed.get(parent)
        return (parent, pose) if fixed is None else (fixed.carrier, compose_poses(fixed.placement, pose))


@dataclasses.dataclass(frozen=True)
class _Fixed:
    carrier: str
    """The moving body, or `"world"`."""
    placement: np.ndarray
    parameters: np.ndarray | None


@dataclasses.dataclass(frozen=True)
class _Body(_Fixed):
    joint: Joint
    axes: list[np.ndarray]
    pitch: list[float]


def depth_first[T](roots: Iterable[T], children: Callable[[T], Iterable[T]]) -> Iterator[T]:
    """Yield the nodes of trees, each before its children. Without recursion: trees may be deep."""
    stack = [*roots][::-1]
    while stack:
        yield (node := stack.pop())
        stack.extend([*children(node)][::-1])


def _mimics(joints: list[Joint]) -> tuple[tuple[int, int], ...]:
    """Return the pairs of a joint that mimics and the joint that it follows."""
    names = [str(joint.name) for joint in joints]
    pairs = []
    for i, joint in enumerate(joints):
        if joint.mimic is None:
            continue
        where = f"joint {joint.name!r}"
        require_kind(joint.mimic, Mimic, f"{where}: mimic", error=ModelError)
        try:
            leader = look_up(joint.mimic.joint, names, "joint")
        except UnknownNameError as error:
            raise UnknownNameError(f"{where} mimics a joint that does not exist: {error}") from None
        for each in (joint, joints[leader]):
            if joint_nv(each.type) != 1:
                reason = f"joint {each.name!r} is {each.type}; both must have one degree of freedom"
                raise ModelError(f"{where} mimics {names[leader]!r}, but {reason}")
        if joints[leader].mimic is not None or leader == i:
            raise ModelError(f"{where} mimics {names[leader]!r}, which itself mimics a joint; follow that one's leader")
        require_finite([joint.mimic.multiplier, joint.mimic.offset], f"{where}: multiplier and offset of a mimic")
        pairs.append((i, leader))
    return tuple(pairs)


def _merge_followers(topology: Topology, leaves: dict[str, Any]) -> None:
    """Add, in place, the friction, armature and springs of joints that mimic to the joints that they follow, and remove
    their entries. With `q' = m q + o`, armature, damping and stiffness are multiplied by `m^2`, Coulomb friction by
    `|m|`. Two springs on one coordinate are one, whose reference is the mean of theirs weighted by stiffness."""
    tree, stiffness, reference = topology.spanning, leaves["stiffness"], leaves["spring_reference"]
    multipliers, offsets = leaves["mimic_multiplier"], leaves["mimic_offset"]
    for (i, leader), m, o in zip(topology.mimics, multipliers, offsets, strict=True):
        v, to_v, q, to_q = tree.v_starts[i], tree.v_starts[leader], tree.q_starts[i], tree.q_starts[leader]
        for name in ("armature", "damping"):
            leaves[name][to_v] += m * m * leaves[name][v]
        leaves["friction"][to_v] += abs(m) * leaves["friction"][v]
        total = stiffness[to_v] + m * m * stiffness[v]
        if total > 0:
            moment = stiffness[to_v] * reference[to_q] + m * stiffness[v] * (reference[q] - o)
            stiffness[to_v], reference[to_q] = total, moment / total
    for name in JOINT_FIELDS.values():
        leaves[name] = np.delete(leaves[name], tree.rows(str(LEAVES[name].rows), list(topology.leaders)))


def _joint_geometry(joint: Joint, where: str) -> tuple[list[np.ndarray], list[float]]:
    """The unit axis of every degree of freedom (none for ball and free joints), and the pitch of a helical joint."""
    if not isinstance(joint.type, str) or joint.type not in JOINT_TYPES:
        types = ", ".join(JOINT_TYPES)
        raise ModelError(f"{where}: unknown joint type {joint.type!r}; known: {types} (a fixed body needs no joint)")
    first = JOINT_TYPES[joint.type][0]
    axes = [_unit(joint.axis, "axis", where)] if first.has_axis else []
    if (joint.axis2 is not None) != (joint.type == "universal"):
        raise ModelError(f"{where}: axis2 belongs to universal joints, which need it; the type is {joint.type!r}")
    if (joint.pitch is not None) != first.has_pitch:
        raise ModelError(f"{where}: pitch (m/rad) belongs to helical joints, which need it; the type is {joint.type!r}")
    if joint.pitch is not None:
        require_finite(joint.pitch, f"{where}: pitch (m/rad)")
    if joint.axis2 is not None:
        axes.append(_unit(joint.axis2, "axis2", where))
        if np.linalg.norm(np.cross(axes[0], axes[1])) < 1e-6:
            raise ModelError(f"{where}: the two axes of a universal joint are parallel: {joint.axis}, {joint.axis2}")
    if joint.type == "cylindrical":
        axes = axes * 2
    if joint.type == "planar":
        axes = [*plane_axes(axes[0]), axes[0]]
    return axes, [] if joint.pitch is None else [float(joint.pitch)]


def _unit(axis: ArrayLike, label: str, where: str) -> np.ndarray:
    axis = real_array(axis, f"{where}: {label}")
    require_shape(axis, (3,), f"{where}: {label}", "a direction")
    norm = np.linalg.norm(axis)
    if not np.isfinite(norm) or norm < 1e-9:
        raise ModelError(f"{where}: {label} is {axis.tolist()}, which has no direction; give a vector that is not zero")
    return axis / norm


def plane_axes(normal: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return x and y after the smallest rotation that takes z to the unit vector `normal` `[3]`. These are the
    directions in which a planar joint shifts. For -z the rotation is half a turn about x."""
    c = normal[2]
    if c < -1 + 1e-12:
        return np.array([1.0, 0, 0]), np.array([0, -1.0, 0])
    k = 1 / (1 + c)
    nx, ny = normal[0], normal[1]
    return np.array([1 - k * nx * nx, -k * nx * ny, -nx]), np.array([-k * nx * ny, 1 - k * ny * ny, -ny])


def _spread(joint: Joint, field: str, body: str) -> np.ndarray:
    """A field of a joint as `[nq]` or `[nv]`."""
    leaf, value = LEAVES[JOINT_FIELDS[field]], getattr(joint, field)
    size = (joint_nq if leaf.rows == "q" else joint_nv)(joint.type)
    if value is None and field == "spring_reference":
        value = np.concatenate([primitive.neutral for primitive in JOINT_TYPES[joint.type]])
    where = f"{field} of joint {joint.name!r} of body {body!r}"
    value = real_array(value, where)
    if value.shape not in ((), (size,)):
        raise ShapeError(f"{where} has shape {value.shape}; a number or [{size}] is needed")
    require_values(leaf, value, where)
    if field == "upper" and (value < np.asarray(joint.lower, dtype=np.float64)).any():
        raise ModelError(f"{where} is {value}, below lower {joint.lower}; swap or correct them")
    if joint.type == "continuous" and field in ("lower", "upper") and np.isfinite(value).any():
        raise ModelError(f"{where} is {value}, but a continuous joint has no limits; make it a revolute one")
    return np.broadcast_to(value, (size,)).copy()


def pose_vector(placement: SE3 | ArrayLike | None, what: str = "placement") -> np.ndarray:
    """The pose `[7]`, position (m) and unit quaternion `w x y z`, of an `SE3`, a vector `[7]`, or a position `[3]`.
    **Raises** `ShapeError`; `ModelError` for numbers that are not finite or a quaternion that is not unit (to 1e-3)."""
    if placement is None:
        return IDENTITY_POSE
    if isinstance(placement, SE3):
        p, R = np.asarray(placement.translation, np.float64), np.asarray(placement.rotation, np.float64)
        require_shape(p, (3,), f"translation of the {what}", "one position in m")
        require_shape(R, (3, 3), f"rotation of the {what}", "one rotation matrix")
        try:
            placement = np.concatenate([p, rotation_to_quaternion(R)])
        except ShapeError as error:
            raise ShapeError(f"{what}: {error}") from None
    out = real_array(placement, what, "an SE3, position and quaternion [7], or position [3]")
    out = np.concatenate([out, IDENTITY_POSE[3:]]) if out.shape == (3,) else out
    if out.shape != (7,):
        needed = "an SE3, position and quaternion [7], or position [3] is needed"
        raise ShapeError(f"{what} has shape {out.shape}; {needed}")
    require_poses(out, what)
    return np.concatenate([out[:3], out[3:] / np.linalg.norm(out[3:])])
