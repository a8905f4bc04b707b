"""Serial arms from tables of Denavit-Hartenberg parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal, TypedDict, Unpack, get_args

import numpy as np
from jaxtyping import Float

from jaxdyn._errors import (
    ArgumentError,
    JaxdynError,
    ModelError,
    ShapeError,
    require_choice,
    require_finite,
    require_numbers,
    require_shape,
)
from jaxdyn._types import ArrayLike
from jaxdyn.model import STANDARD_GRAVITY, BodyInertia, Joint, Model, ModelBuilder, inertial_parameters, pose_vector
from jaxdyn.spatial import SE3, axis_angle_to_quaternion, compose_poses, pose_array, transform_inertial_parameters

type Convention = Literal["standard", "modified"]
type InertiaAbout = Literal["center_of_mass", "frame_origin"]

COLUMNS = ("a", "alpha", "d", "theta")
"""Order of the columns of a table."""

_TYPES = ("revolute", "continuous", "prismatic")
_LETTERS = {"R": "revolute", "P": "prismatic"}


@dataclasses.dataclass(frozen=True)
class DHRow:
    """One row of a table of Denavit-Hartenberg parameters: a link and the joint that moves it.

    Lengths `a` and `d` are in m, angles `alpha` and `theta` in rad. The joint's coordinate adds to `theta` (revolute,
    continuous) or to `d` (prismatic), which is then an offset. `joint` has its type, limits, friction and so on; its
    axis must be left at z. `inertia` is given in the row's Denavit-Hartenberg frame, as a `BodyInertia` or as the ten
    inertial parameters about the frame's origin; None makes a massless link. `name` is the link's name.
    """

    a: float
    alpha: float
    d: float
    theta: float
    joint: Joint = dataclasses.field(default_factory=Joint)
    inertia: BodyInertia | ArrayLike | None = None
    name: str | None = None


class _LinkArguments(TypedDict, total=False):
    """The arguments of `from_dh` that have a value for every link or joint, which a `DHRow` holds itself."""

    joint_types: str | Sequence[str] | None
    masses: ArrayLike | None
    centers_of_mass: ArrayLike | None
    inertias: ArrayLike | None
    names: Sequence[str] | None
    joint_names: Sequence[str] | None
    armature: ArrayLike | None
    damping: ArrayLike | None
    friction: ArrayLike | None
    friction_velocity: ArrayLike | None
    limits: ArrayLike | None
    velocity_limit: ArrayLike | None
    effort_limit: ArrayLike | None


_JOINT_NUMBERS = ("armature", "damping", "friction", "friction_velocity", "velocity_limit", "effort_limit")


def from_dh(
    table: Float[np.ndarray, "n 4"] | Sequence[Sequence[float]] | Sequence[DHRow],
    *,
    convention: Convention,
    inertia_about: InertiaAbout = "center_of_mass",
    base: SE3 | ArrayLike | None = None,
    tool: SE3 | ArrayLike | None = None,
    gravity: ArrayLike = STANDARD_GRAVITY,
    kinematics_only: bool = False,
    columns: Sequence[str] = COLUMNS,
    **links: Unpack[_LinkArguments],
) -> Model:
    """Return a serial arm from its Denavit-Hartenberg parameters and the inertias of its links.

    | convention | from frame i-1 to frame i | where frame i is |
    |---|---|---|
    | `"standard"` | `Rz(theta_i) Tz(d_i) Tx(a_i) Rx(alpha_i)` | at the far end of link i: joint i is about z of i-1 |
    | `"modified"` | `Rx(alpha_{i-1}) Tx(a_{i-1}) Rz(theta_i) Tz(d_i)` | at joint i, which is about its z |

    Standard, or distal: Denavit & Hartenberg 1955; Spong, Hutchinson & Vidyasagar, Robot Modeling and Control, section
    3.2; Siciliano, Sciavicco, Villani & Oriolo, Robotics, section 2.8.2. Modified, or proximal: Craig, Introduction to
    Robotics, section 3.4, whose row i holds `alpha_{i-1}` and `a_{i-1}`, as does row i here.

    The frames are `dh0` (fixed in the world) to `dhn` in `Model.frames`, in either convention: frame `dhi` moves with
    link i. **A body's frame is its joint's moving frame**, as everywhere in the library: for the modified convention it
    is `dhi`; for the standard one it lies on the joint's axis, at the foot of the common normal, and `dhi` is
    `Tx(a_i) Rx(alpha_i)` from it. Inertias are given in the frames `dhi`, where books and Corke's Robotics Toolbox have
    them, and moved; `Model.inertial_parameters` has them in the bodies' frames.

    **Arguments**

    - `table`: `[n, 4]`, lengths in m and angles in rad, the columns `a, alpha, d, theta`, row i for joint i, whose
      coordinate adds to `theta`, or to `d` if it is prismatic. Or a sequence of `DHRow`, which hold the arguments from
      `joint_types` on in this list; these may not be given then.
    - `convention`: `"standard"` or `"modified"`. There is no default, as the same numbers give two robots.
    - `inertia_about`: whether `inertias` are about the centers of mass, or about the origins of the frames `dhi`.
    - `base`, `tool`: the pose of `dh0` in the world, and in `dhn` that of a frame `tool`, which exists if this is
      given: an `SE3`, position and quaternion `w x y z`, or a position.
    - `gravity`: `[3]`, m/s^2, world axes. Many books let it act along -y.
    - `kinematics_only`: whether a table without inertias is a model of the kinematics alone, whose dynamics raise
      `ModelError` (see `ModelBuilder.build`).
    - `columns`: the names of the table's columns, in their order, for a table copied from a book with another order.
    - `joint_types`: `"revolute"` (the default), `"continuous"` or `"prismatic"`, one for all or one for each joint; or
      letters such as `"RRP"`.
    - `masses`: `[n]`, kg. `centers_of_mass`: `[n, 3]`, m, in the frames `dhi`, by default at their origins. `inertias`:
      `[n, 3, 3]`, or `[n, 3]` for the diagonals, kg m^2, in the axes of the frames `dhi`; by default links are point
      masses.
    - `names`, `joint_names`: names of links and joints, by default `link1` and `joint1` and so on.
    - `armature`, `damping`, `friction`, `friction_velocity`, `velocity_limit`, `effort_limit`: as in `Joint`; a number
      for all, or `[n]`. Armature is reflected through the gear: motor inertia times the gear ratio squared.
    - `limits`: `[n, 2]`, lower and upper limit of each coordinate, without the offset in the table.

    **Raises** `ShapeError` for arrays of the wrong shape; `ArgumentError` for other arguments; `ModelError` for an
    unknown convention, type or column, for numbers that are not finite, for angles beyond one turn (which are likely to
    be degrees), and for a robot that `ModelBuilder` refuses, one with a massless last link for instance. **Warns**
    `PhysicalityWarning` of inertias that no mass distribution has.
    """
    unexpected = sorted(set(links) - set(_LinkArguments.__annotations__))
    if unexpected:
        raise ArgumentError(f"from_dh: got an unexpected keyword argument {unexpected[0]!r}")
    if not isinstance(convention, str) or convention not in get_args(Convention.__value__):
        known = "'standard' (Denavit & Hartenberg, Spong, Siciliano) and 'modified' (Craig)"
        raise ModelError(f"convention is {convention!r}; known: {known}")
    require_choice(inertia_about, get_args(InertiaAbout.__value__), "inertia_about")
    require_choice(kinematics_only, (False, True), "kinematics_only")
    if isinstance(table, Sequence) and any(isinstance(row, DHRow) for row in table):
        rows = _check_rows(table, [name for name, value in links.items() if value is not None], columns)
    else:
        rows = _rows(_table(table, columns), inertia_about, links)
    builder = ModelBuilder().add_frame("dh0", "world", pose_vector(base, "base"))
    for i, row in enumerate(rows, start=1):
        _check_numbers(row, f"row {i} of the table")
        name = f"link{i}" if row.name is None else row.name
        joint = dataclasses.replace(row.joint, name=f"joint{i}" if row.joint.name is None else row.joint.name)
        inertia = inertial_parameters(row.inertia, f"inertia of link {name!r}")
        # Both parts are screws, along z and x: rotation and translation commute.
        along_z, along_x = _screw([0, 0, 1], row.theta, row.d), _screw([1, 0, 0], row.alpha, row.a)
        if convention == "standard":
            placement, frame, inertia = along_z, along_x, transform_inertial_parameters(inertia, along_x)
        else:
            placement, frame = compose_poses(along_x, along_z), None
        builder.add_body(name, f"dh{i - 1}", joint, placement, inertia)
        builder.add_frame(f"dh{i}", name, frame)
    if tool is not None:
        builder.add_frame("tool", f"dh{len(rows)}", pose_vector(tool, "tool"))
    return builder.build(gravity, kinematics_only=kinematics_only)


def _screw(axis: Sequence[float], angle: float, shift: float) -> np.ndarray:
    """Return the pose `[7]` after a rotation about an axis and a translation along it."""
    return pose_array(shift * np.asarray(axis), axis_angle_to_quaternion(axis, angle))


def _table(table, columns: Sequence[str]) -> np.ndarray:
    order: tuple[Any, ...] = tuple(columns) if isinstance(columns, list | tuple) else (columns,)
    if sorted(map(str, order)) != sorted(COLUMNS):
        raise ModelError(f"columns is {columns!r}; it must name {', '.join(COLUMNS)}, each once, in the table's order")
    try:
        values = _numbers(table, "the table")
    except ShapeError as error:
        advice = f"give [n, 4], columns {', '.join(order)}, or DHRow objects"
        raise ShapeError(f"the table is not an array of numbers ({error}); {advice}") from None
    if values.ndim != 2 or values.shape[1] != 4 or len(values) == 0:
        needed = f"[n, 4] is needed: a row a joint, columns {', '.join(order)}"
        raise ShapeError(f"the table has shape {values.shape}, but {needed}")
    return values[:, [order.index(c) for c in COLUMNS]]


def _numbers(value, what: str) -> np.ndarray:
    """Return numbers in double precision. **Raises** `ShapeError`, which names `what`, for anything else."""
    require_numbers(value, what)
    return np.asarray(value, dtype=np.float64)


def _check_numbers(row: DHRow, where: str) -> None:
    for column in COLUMNS:
        value = getattr(row, column)
        require_finite(value, f"{where}: {column}")
        require_shape(np.asarray(value), (), f"{where}: {column}", "one number")
        if column in ("alpha", "theta") and abs(value) > 2 * np.pi + 1e-6:
            reason = "more than a turn; angles are in rad: np.deg2rad converts degrees"
            advice = "If the columns are in another order than a, alpha, d, theta, say so by columns=..."
            raise ModelError(f"{where}: {column} is {value}, {reason}. {advice}")


def _check_rows(table: Sequence, arguments: list[str], columns: Sequence[str]) -> list[DHRow]:
    arguments = arguments + ["columns"] * (tuple(columns) != COLUMNS)
    if arguments:
        raise ModelError(f"a table of DHRow holds {', '.join(arguments)} in its rows; give it there only")
    for i, row in enumerate(table, start=1):
        where = f"row {i} of the table"
        if not isinstance(row, DHRow):
            raise ModelError(f"{where} is {row!r}, while others are DHRow; give one kind only")
        if not isinstance(row.joint, Joint):
            raise ModelError(f"{where}: joint is {row.joint!r}; a Joint is needed")
        require_choice(row.joint.type, _TYPES, f"{where}: joint type")
        if _numbers(row.joint.axis, f"{where}: the joint's axis").tolist() != [0.0, 0.0, 1.0]:
            raise ModelError(f"{where}: the joint's axis is {row.joint.axis}; it is z by the convention: leave it out")
    return list(table)


def _rows(table: np.ndarray, inertia_about: InertiaAbout, links: _LinkArguments) -> list[DHRow]:
    n = len(table)
    names, joint_names = _names(links, "names", "link", n), _names(links, "joint_names", "joint", n)
    types = _joint_types(links.get("joint_types"), n)
    limits = _array(links, "limits", [(n, 2)], "lower and upper for each joint")
    numbers = {k: _array(links, k, [(), (n,)], "one number, or one for each joint") for k in _JOINT_NUMBERS}
    inertias = _inertias(names, inertia_about, links)
    rows = []
    for i, values in enumerate(table):
        options = {name: np.broadcast_to(x, n)[i] for name, x in numbers.items() if x is not None}
        if limits is not None:
            options |= {"lower": limits[i, 0], "upper": limits[i, 1]}
        joint = Joint(types[i], name=joint_names[i], **options)
        rows.append(DHRow(*map(float, values), joint=joint, inertia=inertias[i], name=names[i]))
    return rows


def _names(links: _LinkArguments, argument: str, prefix: str, n: int) -> list[str]:
    names = links.get(argument)
    if names is None:
        return [f"{prefix}{i}" for i in range(1, n + 1)]
    listed = list(names) if isinstance(names, list | tuple) or np.ndim(names) == 1 else None
    if listed is None or len(listed) != n:
        shown = repr(names) if listed is None else f"{len(listed)} names"
        raise ShapeError(f"{argument} is {shown}; the table has {n} rows: give a sequence of {n} names")
    for name in listed:
        if not isinstance(name, str):
            raise ModelError(f"{argument} has {name!r}; a name is a text")
    return [str(name) for name in listed]


def _joint_types(types: str | Sequence[str] | None, n: int) -> list[str]:
    if types is None or (isinstance(types, str) and types in _TYPES):
        return [types or "revolute"] * n
    given: Any = types if isinstance(types, str | list | tuple) or np.ndim(types) == 1 else [types]
    kinds = [_LETTERS.get(kind, kind) if isinstance(kind, str) else kind for kind in given]
    choices = f"{', '.join(_TYPES)}, one for all or one for each joint, or letters R and P such as {'RRP'!r}"
    for i, kind in enumerate(kinds, start=1):
        if not isinstance(kind, str) or kind not in _TYPES:
            raise ModelError(f"joint_types is {types!r}, in which number {i}, {kind!r}, is unknown; known: {choices}")
    if len(kinds) != n:
        raise ShapeError(f"joint_types has {len(kinds)} entries, {types!r}, but the table has {n} rows")
    return kinds


def _array(links: _LinkArguments, name: str, shapes: list[tuple[int, ...]], meaning: str) -> np.ndarray | None:
    if links.get(name) is None:
        return None
    out = _numbers(links[name], name)
    if out.shape not in shapes:
        needed = " or ".join(str(list(s)) if s else "a number" for s in shapes)
        raise ShapeError(f"{name} has shape {out.shape}, but {needed} is needed: {meaning}")
    return out


def _inertias(names: list[str], about: InertiaAbout, links: _LinkArguments) -> list[Any]:
    """Return the inertia of each link in its Denavit-Hartenberg frame, as a `DHRow` has it."""
    n = len(names)
    mass = _array(links, "masses", [(n,)], "kg, one for each link")
    centers = _array(links, "centers_of_mass", [(n, 3)], "m, in the Denavit-Hartenberg frame of each link")
    order = "a symmetric matrix, or Ixx, Iyy, Izz, for each link; six numbers have no order that all books share"
    moments = _array(links, "inertias", [(n, 3, 3), (n, 3)], f"kg m^2, {order}")
    if mass is None:
        if centers is not None or moments is not None:
            raise ModelError("centers_of_mass or inertias are given, but no masses; give masses [n], too")
        return [None] * n
    about_center = about == "center_of_mass" or moments is None
    centers = np.zeros((n, 3)) if centers is None else centers
    moments = np.zeros((n, 3)) if moments is None else moments
    inertias = []
    for i, name in enumerate(names):
        try:
            inertia = BodyInertia(float(mass[i]), centers[i], moments[i])
        except JaxdynError as error:
            raise type(error)(f"link {name!r}: {error}") from None
        # A matrix about the origin is one of the inertial parameters.
        about_origin = BodyInertia(inertia.mass, rotational=inertia.rotational).parameters()
        about_origin[1:4] = mass[i] * centers[i]
        inertias.append(inertia if about_center else about_origin)
    return inertias
