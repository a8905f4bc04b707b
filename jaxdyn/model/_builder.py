"""`ModelBuilder`: a model body by body."""

from __future__ import annotations

import dataclasses
import math
import pathlib
import warnings

import jax.numpy as jnp
import numpy as np

from jaxdyn._errors import ModelError, PhysicalityWarning, ShapeError, UnknownNameError, look_up, require_shape
from jaxdyn._types import ArrayLike
from jaxdyn.model._checks import unresisted_joint
from jaxdyn.model._inertia import BodyInertia, moved_parameters, unphysical_reason
from jaxdyn.model._model import FRICTION_VELOCITY, Model
from jaxdyn.model._topology import PRIMITIVES, Topology, joint_nq, joint_nv
from jaxdyn.spatial import SE3, Pose, rotation_to_quaternion

STANDARD_GRAVITY = (0.0, 0.0, -9.81)
_IDENTITY = np.array([0.0, 0, 0, 1, 0, 0, 0])

# What `Joint.axes` has for each type: how many axes, and which.
_AXES = {"cylindrical": 1, "planar": 1, "universal": 2, "ball": 0, "free": 0}


@dataclasses.dataclass(frozen=True)
class Mimic:
    """How a joint with one degree of freedom follows another: its coordinate is `multiplier` times that of `joint`,
    plus `offset` (rad, m)."""

    joint: str
    multiplier: float = 1.0
    offset: float = 0.0


@dataclasses.dataclass(frozen=True)
class Joint:
    """A joint: its type, its axis, and what acts in it.

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

    Angles in rad, lengths in m. `lower`, `upper`: limits of `q`; `velocity_limit`, `effort_limit`: of `v` and `tau`;
    `armature`, `damping`, `friction`, `friction_velocity`, `stiffness` and `spring_reference`: as in `Model`
    (`spring_reference` None: the joint's coordinates at zero, and the identity for rotations). Each is one number for
    all coordinates of the joint, or an array of one for each.

    A joint that mimics another has no coordinates of its own. Its armature, damping, Coulomb friction and spring act
    on the joint that it follows, seen through the multiplier; its limits are not kept.
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

    Bodies are kept in depth-first order, children in the order in which they were added. A placement is an `SE3`, a
    vector of position and quaternion `w x y z`, or a position alone. A parent may be a body, a link added with
    `add_fixed_body`, a frame, or `"world"`.
    """

    def __init__(self):
        self._bodies: dict[str, _Body] = {}
        self._fixed: dict[str, _Fixed] = {}
        self._joint_names: set[str] = set()

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
        joint = joint or Joint()
        joint = dataclasses.replace(joint, name=joint.name or f"{name}_joint")
        self._check_new(name, parent)
        if joint.name in self._joint_names:
            raise ModelError(f"body {name!r}: there is already a joint named {joint.name!r}; names must be unique")
        where = f"joint {joint.name!r} of body {name!r}"
        axes, pitch = _joint_geometry(joint, where)
        self._joint_names.add(str(joint.name))
        self._bodies[name] = _Body(
            parent=parent,
            joint=joint,
            axes=axes,
            pitch=pitch,
            placement=pose_vector(placement, f"placement of body {name!r}"),
            parameters=_parameters(inertia, f"inertia of body {name!r}"),
        )
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
        placement = pose_vector(placement, f"placement of body {name!r}")
        self._fixed[name] = _Fixed(parent, placement, _parameters(inertia, f"inertia of body {name!r}"))
        return self

    def add_frame(self, name: str, parent: str, placement: SE3 | ArrayLike | None = None) -> ModelBuilder:
        """Add a named frame fixed in `parent`."""
        self._check_new(name, parent)
        self._fixed[name] = _Fixed(parent, pose_vector(placement, f"placement of frame {name!r}"), None)
        return self

    def build(self, gravity: ArrayLike = STANDARD_GRAVITY) -> Model:
        """The model, in JAX's default floating-point type.

        **Raises** `ModelError` if there is no body, or if a body with nothing behind it has no inertia against the
        motion of its joint. **Warns** (`PhysicalityWarning`) of inertias that no distribution of mass has.
        """
        if not self._bodies:
            raise ModelError("the model has no moving body: every link is fixed to the world; add a body with a joint")
        gravity = np.asarray(gravity, dtype=np.float64)
        require_shape(gravity, (3,), "gravity", "an acceleration in m/s^2, world axes")
        if not np.isfinite(gravity).all():
            raise ModelError(f"gravity is not finite: {gravity.tolist()}")
        order = self._depth_first()
        index = {name: i for i, name in enumerate(order)} | {"world": -1}
        bodies = [self._bodies[name] for name in order]
        anchors = {name: self._anchor(name) for name in self._fixed}

        placements, parents = [], []
        for body in bodies:
            anchor, pose = self._resolve(body.parent, anchors)
            parents.append(index[anchor])
            placements.append(compose(pose, body.placement))
        parameters = np.array([body.parameters for body in bodies])
        own_parameters = {name: f.parameters for name, f in self._fixed.items() if f.parameters is not None}
        links = list(own_parameters)
        attached = [moved_parameters(own_parameters[name], anchors[name][1]) for name in links]
        attached_bodies = [index[anchors[name][0]] for name in links]
        own_parameters |= {name: body.parameters for name, body in self._bodies.items()}
        for name, own in own_parameters.items():
            reason = unphysical_reason(own)
            if reason:
                package = str(pathlib.Path(__file__).parents[1])
                warnings.warn(f"link {name!r}: {reason}", PhysicalityWarning, skip_file_prefixes=(package,))
        for body, extra in zip(attached_bodies, attached, strict=True):
            if body >= 0:
                parameters[body] += extra

        topology = Topology(
            body_names=tuple(order),
            joint_names=tuple(str(b.joint.name) for b in bodies),
            joint_types=tuple(b.joint.type for b in bodies),
            parents=tuple(parents),
            frame_names=(*order, *self._fixed),
            frame_bodies=(*range(len(order)), *(index[anchors[n][0]] for n in self._fixed)),
            attached_links=tuple(links),
            attached_bodies=tuple(attached_bodies),
            mimics=_mimics([b.joint for b in bodies]),
        )

        def per_coordinate(field: str, size) -> np.ndarray:
            parts = [_spread(b.joint, field, size(b.joint.type), n) for n, b in zip(order, bodies, strict=True)]
            return np.concatenate(parts)

        fields = ("armature", "damping", "friction", "friction_velocity", "stiffness", "velocity_limit", "effort_limit")
        per_v = {name: per_coordinate(name, joint_nv) for name in fields}
        per_q = {
            "position_lower": per_coordinate("lower", joint_nq),
            "position_upper": per_coordinate("upper", joint_nq),
        }
        per_q["spring_reference"] = np.concatenate(
            [_spring_reference(b.joint, n) for n, b in zip(order, bodies, strict=True)]
        )
        mimics = [bodies[i].joint.mimic for i, _ in topology.mimics]
        multiplier, offset = (np.array([getattr(m, a) for m in mimics], np.float64) for a in ("multiplier", "offset"))
        _follow(topology, multiplier, offset, per_v, per_q)
        axes = np.array([axis for b in bodies for axis in b.axes]).reshape(-1, 3)
        pitches = np.array([p for b in bodies for p in b.pitch], dtype=np.float64)
        _require_resistance(topology, axes, pitches, parameters, per_v["armature"])
        if not per_v["stiffness"].any():
            del per_v["stiffness"], per_q["spring_reference"]
        return Model(
            topology=topology,
            joint_placement=jnp.asarray(np.array(placements)),
            joint_axis=jnp.asarray(axes),
            joint_pitch=jnp.asarray(pitches),
            inertial_parameters=jnp.asarray(parameters),
            gravity=jnp.asarray(gravity),
            frame_placement=jnp.asarray(np.array([_IDENTITY] * len(order) + [anchors[n][1] for n in self._fixed])),
            attached_parameters=jnp.asarray(np.array(attached, dtype=np.float64).reshape(-1, 10)),
            mimic_multiplier=jnp.asarray(multiplier),
            mimic_offset=jnp.asarray(offset),
            **{name: jnp.asarray(value) for name, value in (per_v | per_q).items()},
        )

    def _check_new(self, name: str, parent: str) -> None:
        if not isinstance(name, str) or not name:
            raise ModelError(f"a body or frame needs a name that is a non-empty string, not {name!r}")
        if name == "world" or name in self._bodies or name in self._fixed:
            raise ModelError(f"there is already a body or frame named {name!r}; names must be unique")
        if parent != "world" and parent not in self._bodies and parent not in self._fixed:
            try:
                look_up(parent, ("world", *self._bodies, *self._fixed), "parent")
            except UnknownNameError as error:
                raise UnknownNameError(f"{name!r}: {error}; a parent must be added before its children") from None

    def _resolve(self, name: str, anchors: dict) -> tuple[str, np.ndarray]:
        return anchors.get(name, (name, _IDENTITY))

    def _anchor(self, name: str) -> tuple[str, np.ndarray]:
        """The moving body (or the world) that a fixed body belongs to, and its pose in it."""
        pose = _IDENTITY
        while name in self._fixed:
            pose = compose(self._fixed[name].placement, pose)
            name = self._fixed[name].parent
        return name, pose

    def _depth_first(self) -> list[str]:
        children: dict[str, list[str]] = {}
        for name, body in self._bodies.items():
            anchor = self._anchor(body.parent)[0]
            children.setdefault(anchor, []).append(name)
        order, stack = [], children.get("world", [])[::-1]
        while stack:
            name = stack.pop()
            order.append(name)
            stack.extend(children.get(name, [])[::-1])
        return order


@dataclasses.dataclass(frozen=True)
class _Body:
    parent: str
    joint: Joint
    axes: list[np.ndarray]
    pitch: list[float]
    placement: np.ndarray
    parameters: np.ndarray


@dataclasses.dataclass(frozen=True)
class _Fixed:
    parent: str
    placement: np.ndarray
    parameters: np.ndarray | None


def _require_resistance(topology: Topology, axes, pitches, parameters: np.ndarray, armature: np.ndarray) -> None:
    """A joint that moves nothing with inertia has no acceleration."""
    i = unresisted_joint(topology, axes, pitches, parameters, armature)
    if i is None:
        return
    what = "no mass" if parameters[i, 0] == 0 else "no inertia against the motion of its joint"
    advice = "Give it an inertia, give the joint an armature, or fix the joint"
    if i in topology.leaders:
        advice = "Give it an inertia, or fix the joint, which mimics another"
    raise ModelError(
        f"body {topology.body_names[i]!r}, moved by joint {topology.joint_names[i]!r}, has {what}, and nothing with "
        f"mass is attached to it: its acceleration would be undefined. {advice}"
    )


def _mimics(joints: list[Joint]) -> tuple[tuple[int, int], ...]:
    """Pairs of a joint that mimics and the one that it follows."""
    names = [str(joint.name) for joint in joints]
    pairs = []
    for i, joint in enumerate(joints):
        if joint.mimic is None:
            continue
        where = f"joint {joint.name!r}"
        try:
            leader = look_up(joint.mimic.joint, names, "joint")
        except UnknownNameError as error:
            raise UnknownNameError(f"{where} mimics a joint that does not exist: {error}") from None
        for one in (joint, joints[leader]):
            if joint_nv(one.type) != 1:
                raise ModelError(
                    f"{where} mimics {names[leader]!r}, but joint {one.name!r} is {one.type}; both must have one "
                    "degree of freedom"
                )
        if joints[leader].mimic is not None or leader == i:
            raise ModelError(
                f"{where} mimics {names[leader]!r}, which itself mimics a joint; follow the one at the end of the line"
            )
        if not np.isfinite([joint.mimic.multiplier, joint.mimic.offset]).all():
            raise ModelError(f"{where}: {joint.mimic} is not finite")
        pairs.append((i, leader))
    return tuple(pairs)


def _follow(topology: Topology, multiplier, offset, per_v: dict, per_q: dict) -> None:
    """In place: what acts in a joint that mimics acts on the one that it follows; then its entries go.

    With `q' = m q + o`: armature, damping and stiffness times `m^2`, Coulomb friction times `|m|`; two springs on one
    coordinate are one, at the mean of their references by stiffness.
    """
    tree, followers = topology.spanning, [i for i, _ in topology.mimics]
    for (i, leader), m, o in zip(topology.mimics, multiplier, offset, strict=True):
        v, to_v, q, to_q = tree.v_starts[i], tree.v_starts[leader], tree.q_starts[i], tree.q_starts[leader]
        for name in ("armature", "damping"):
            per_v[name][to_v] += m * m * per_v[name][v]
        per_v["friction"][to_v] += abs(m) * per_v["friction"][v]
        stiffness, reference = per_v["stiffness"], per_q["spring_reference"]
        total = stiffness[to_v] + m * m * stiffness[v]
        if total > 0:
            moment = stiffness[to_v] * reference[to_q] + m * stiffness[v] * (reference[q] - o)
            stiffness[to_v], reference[to_q] = total, moment / total
    for values, starts in ((per_v, tree.v_starts), (per_q, tree.q_starts)):
        for name, value in values.items():
            values[name] = np.delete(value, [starts[i] for i in followers])


def _spring_reference(joint: Joint, body: str) -> np.ndarray:
    nq = joint_nq(joint.type)
    if joint.spring_reference is not None:
        return _spread(joint, "spring_reference", nq, body)
    out = np.zeros(nq)
    if joint.type in ("ball", "free"):
        out[nq - 4] = 1.0
    return out


def _joint_geometry(joint: Joint, where: str) -> tuple[list[np.ndarray], list[float]]:
    """The unit axis of every degree of freedom (none for ball and free), and the pitch of a helical one."""
    if joint.type not in PRIMITIVES:
        known = ", ".join(PRIMITIVES)
        raise ModelError(f"{where}: unknown joint type {joint.type!r}; known: {known} (a fixed body is no joint)")
    count = _AXES.get(joint.type, 1)
    axes = [_unit(joint.axis, "axis", where)] if count else []
    if (joint.axis2 is not None) != (count == 2):
        raise ModelError(f"{where}: axis2 belongs to universal joints, which need it; the type is {joint.type!r}")
    if (joint.pitch is not None) != (joint.type == "helical"):
        raise ModelError(f"{where}: pitch (m/rad) belongs to helical joints, which need it; the type is {joint.type!r}")
    if joint.pitch is not None and not np.isfinite(joint.pitch):
        raise ModelError(f"{where}: pitch is {joint.pitch}; a finite number of m/rad is needed")
    if joint.axis2 is not None:
        axes.append(_unit(joint.axis2, "axis2", where))
        if np.linalg.norm(np.cross(axes[0], axes[1])) < 1e-6:
            raise ModelError(f"{where}: the two axes of a universal joint are parallel: {joint.axis}, {joint.axis2}")
    if joint.type == "cylindrical":
        axes = axes * 2
    if joint.type == "planar":
        axes = [*_plane(axes[0]), axes[0]]
    return axes, [] if joint.pitch is None else [float(joint.pitch)]


def _unit(axis: ArrayLike, label: str, where: str) -> np.ndarray:
    axis = np.asarray(axis, dtype=np.float64)
    if axis.shape != (3,):
        raise ShapeError(f"{where}: {label} has shape {axis.shape}, but [3] is needed")
    norm = np.linalg.norm(axis)
    if not np.isfinite(norm) or norm < 1e-9:
        raise ModelError(f"{where}: {label} is {axis.tolist()}, which has no direction; give a vector that is not zero")
    return axis / norm


def _plane(normal: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """x and y turned by the smallest rotation that takes z to `normal` (about x by half a turn for -z)."""
    c = normal[2]
    if c < -1 + 1e-12:
        return np.array([1.0, 0, 0]), np.array([0, -1.0, 0])
    k = 1 / (1 + c)
    nx, ny = normal[0], normal[1]
    return np.array([1 - k * nx * nx, -k * nx * ny, -nx]), np.array([-k * nx * ny, 1 - k * ny * ny, -ny])


def _spread(joint: Joint, field: str, size: int, body: str) -> np.ndarray:
    value = np.asarray(getattr(joint, field), dtype=np.float64)
    where = f"{field} of joint {joint.name!r} of body {body!r}"
    if value.shape not in ((), (size,)):
        raise ShapeError(f"{where} has shape {value.shape}; a number or [{size}] is needed")
    if np.isnan(value).any():
        raise ModelError(f"{where} is NaN")
    if field not in ("lower", "upper", "spring_reference") and (value < 0).any():
        raise ModelError(f"{where} is negative: {value}")
    finite = ("armature", "damping", "friction", "friction_velocity", "stiffness", "spring_reference")
    if field in finite and not np.isfinite(value).all():
        raise ModelError(f"{where} is not finite: {value}")
    if field == "friction_velocity" and (value == 0).any():
        raise ModelError(f"{where} must be positive: {value}")
    if field == "upper" and (value < np.asarray(joint.lower, dtype=np.float64)).any():
        raise ModelError(f"{where} is {value}, below lower {joint.lower}; swap or correct them")
    if joint.type == "continuous" and field in ("lower", "upper") and np.isfinite(value).any():
        raise ModelError(f"{where} is {value}, but a continuous joint has no limits; make it a revolute one")
    return np.broadcast_to(value, (size,)).copy()


def _parameters(inertia: BodyInertia | ArrayLike | None, what: str) -> np.ndarray:
    if inertia is None:
        return np.zeros(10)
    if isinstance(inertia, BodyInertia):
        return inertia.parameters()
    out = np.asarray(inertia, dtype=np.float64)
    if out.shape != (10,):
        raise ShapeError(f"{what} has shape {out.shape}; a BodyInertia or ten inertial parameters are needed")
    if not np.isfinite(out).all():
        raise ModelError(f"{what} is not finite: {out.tolist()}")
    if out[0] < 0:
        raise ModelError(f"{what}: negative mass {out[0]} kg")
    return out


def pose_vector(placement: SE3 | ArrayLike | None, what: str = "placement") -> np.ndarray:
    """`[7]`, position and unit quaternion, of whatever a placement may be given as."""
    if placement is None:
        return _IDENTITY
    if isinstance(placement, SE3):
        p, R = np.asarray(placement.translation, np.float64), np.asarray(placement.rotation, np.float64)
        require_shape(p, (3,), f"translation of the {what}", "one position in m")
        try:
            placement = np.concatenate([p, rotation_to_quaternion(R)])
        except ShapeError as error:
            raise ShapeError(f"{what}: {error}") from None
    out = np.asarray(placement, dtype=np.float64)
    if out.shape == (3,):
        out = np.concatenate([out, _IDENTITY[3:]])
    if out.shape != (7,):
        raise ShapeError(
            f"{what} has shape {out.shape}; an SE3, position and quaternion [7], or position [3] is needed"
        )
    norm = np.linalg.norm(out[3:])
    if not np.isfinite(out).all() or abs(norm - 1) > 1e-3:
        raise ModelError(f"{what}: {out.tolist()} is no pose; its last four numbers must be a unit quaternion w x y z")
    return np.concatenate([out[:3], out[3:] / norm])


def compose(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The pose `a b`, all as `[7]`."""
    X, Y = Pose.from_vector(a), Pose.from_vector(b)
    p = X.apply(Y.translation)
    (aw, *av), (bw, *bv) = a[3:], b[3:]
    av, bv = np.array(av), np.array(bv)
    return np.array([p.x, p.y, p.z, aw * bw - av @ bv, *(aw * bv + bw * av + np.cross(av, bv))])
