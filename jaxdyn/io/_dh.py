"""Serial arms from tables of Denavit-Hartenberg parameters."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Literal, get_args

import numpy as np
from jaxtyping import Float

from jaxdyn._errors import JaxdynError, ModelError, ShapeError
from jaxdyn._types import ArrayLike
from jaxdyn.model import STANDARD_GRAVITY, BodyInertia, Joint, Model, ModelBuilder
from jaxdyn.model._builder import compose, pose_vector
from jaxdyn.model._inertia import moved_parameters
from jaxdyn.spatial import SE3

type Convention = Literal["standard", "modified"]
type InertiaAbout = Literal["center_of_mass", "frame_origin"]

COLUMNS = ("a", "alpha", "d", "theta")
"""Order of the columns of a table."""

_TYPES = ("revolute", "continuous", "prismatic")
_LETTERS = {"R": "revolute", "P": "prismatic"}


@dataclasses.dataclass(frozen=True)
class DHRow:
    """One row of a table of Denavit-Hartenberg parameters: a link and the joint that moves it.

    Lengths `a` and `d` in m, angles `alpha` and `theta` in rad. The joint's coordinate adds to `theta` (revolute,
    continuous) or to `d` (prismatic), so what stands there is an offset. `joint`: its type, limits, friction and so on;
    its axis must be left at z. `inertia`: in the row's Denavit-Hartenberg frame, a `BodyInertia`, or the ten inertial
    parameters about the frame's origin; None for a massless link. `name`: of the link.
    """

    a: float
    alpha: float
    d: float
    theta: float
    joint: Joint = dataclasses.field(default_factory=Joint)
    inertia: BodyInertia | ArrayLike | None = None
    name: str | None = None


def from_dh(
    table: Float[np.ndarray, "n 4"] | Sequence[Sequence[float]] | Sequence[DHRow],
    *,
    convention: Convention,
    joint_types: str | Sequence[str] | None = None,
    masses: ArrayLike | None = None,
    centers_of_mass: ArrayLike | None = None,
    inertias: ArrayLike | None = None,
    inertia_about: InertiaAbout = "center_of_mass",
    names: Sequence[str] | None = None,
    joint_names: Sequence[str] | None = None,
    base: SE3 | ArrayLike | None = None,
    tool: SE3 | ArrayLike | None = None,
    gravity: ArrayLike = STANDARD_GRAVITY,
    armature: ArrayLike | None = None,
    damping: ArrayLike | None = None,
    friction: ArrayLike | None = None,
    friction_velocity: ArrayLike | None = None,
    limits: ArrayLike | None = None,
    velocity_limit: ArrayLike | None = None,
    effort_limit: ArrayLike | None = None,
    columns: Sequence[str] = COLUMNS,
) -> Model:
    """A serial arm from its Denavit-Hartenberg parameters and the inertias of its links.

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
      coordinate adds to `theta`, or to `d` if it is prismatic. Or a sequence of `DHRow`, which hold what the arguments
      from `joint_types` to `joint_names` and from `armature` on say; those may not be given then.
    - `convention`: `"standard"` or `"modified"`. There is no default: the same table is another robot.
    - `joint_types`: `"revolute"` (where not given), `"continuous"` or `"prismatic"`, one for all or one for each joint;
      or letters such as `"RRP"`.
    - `masses`: `[n]`, kg. `centers_of_mass`: `[n, 3]`, m, in the frames `dhi`; not given, at their origins. `inertias`:
      `[n, 3, 3]`, or `[n, 3]` for the diagonals, kg m^2, in the axes of the frames `dhi`; not given, links are point
      masses. `inertia_about`: whether they are about the centers of mass, or about the origins of the frames `dhi`.
    - `names`, `joint_names`: of links and joints; not given, `link1` and `joint1` and so on.
    - `base`: pose of `dh0` in the world; `tool`: pose of a frame `tool` in `dhn`, which exists if this is given. An
      `SE3`, position and quaternion `w x y z`, or a position.
    - `gravity`: `[3]`, m/s^2, world axes. Many books let it act along -y.
    - `armature`, `damping`, `friction`, `friction_velocity`, `velocity_limit`, `effort_limit`: as in `Joint`; a number
      for all, or `[n]`. Armature is reflected through the gear: motor inertia times the gear ratio squared.
    - `limits`: `[n, 2]`, lower and upper limit of each coordinate, without the offset in the table.
    - `columns`: what the table's columns are, in their order, for a table copied from a book that has another one.

    **Raises** `ShapeError` for arrays of the wrong shape; `ModelError` for an unknown convention, type or column, for
    what is not finite, for angles beyond one turn (which are likely to be degrees), and for what `ModelBuilder`
    refuses, a last link without mass for instance. **Warns** `PhysicalityWarning` of inertias that no distribution of
    mass has.
    """
    if convention not in get_args(Convention.__value__):
        raise ModelError(
            f"convention is {convention!r}; known: 'standard' (Denavit & Hartenberg, Spong, Siciliano) and "
            "'modified' (Craig)"
        )
    of_links = {
        "joint_types": joint_types,
        "masses": masses,
        "centers_of_mass": centers_of_mass,
        "inertias": inertias,
        "names": names,
        "joint_names": joint_names,
        "armature": armature,
        "damping": damping,
        "friction": friction,
        "friction_velocity": friction_velocity,
        "limits": limits,
        "velocity_limit": velocity_limit,
        "effort_limit": effort_limit,
    }
    if isinstance(table, Sequence) and any(isinstance(row, DHRow) for row in table):
        rows = _checked_rows(table, of_links, columns)
    else:
        rows = _rows(_table(table, columns), inertia_about, **of_links)
    return _build(rows, convention, base, tool, gravity)


def _build(rows: list[DHRow], convention: Convention, base, tool, gravity) -> Model:
    builder = ModelBuilder().add_frame("dh0", "world", pose_vector(base, "base"))
    for i, row in enumerate(rows, start=1):
        name = row.name or f"link{i}"
        joint = dataclasses.replace(row.joint, name=row.joint.name or f"joint{i}")
        inertia = _in_frame(row.inertia, name)
        # Both parts are screws, along z and x: rotation and translation commute.
        along_z, along_x = _screw(2, row.theta, row.d), _screw(0, row.alpha, row.a)
        if convention == "standard":
            placement, frame = along_z, along_x
            if inertia is not None:
                inertia = moved_parameters(inertia, along_x)
        else:
            placement, frame = compose(along_x, along_z), None
        builder.add_body(name, f"dh{i - 1}", joint, placement, inertia)
        builder.add_frame(f"dh{i}", name, frame)
    if tool is not None:
        builder.add_frame("tool", f"dh{len(rows)}", pose_vector(tool, "tool"))
    return builder.build(gravity)


def _screw(axis: int, angle: float, shift: float) -> np.ndarray:
    """`[7]`: rotation about an axis (0: x, 2: z) and translation along it."""
    out = np.zeros(7)
    out[axis], out[3], out[4 + axis] = shift, math.cos(0.5 * angle), math.sin(0.5 * angle)
    return out


def _in_frame(inertia: BodyInertia | ArrayLike | None, link: str) -> np.ndarray | None:
    """The ten inertial parameters about the origin of the Denavit-Hartenberg frame."""
    if inertia is None:
        return None
    if isinstance(inertia, BodyInertia):
        return inertia.parameters()
    out = np.asarray(inertia, dtype=np.float64)
    if out.shape != (10,):
        raise ShapeError(
            f"inertia of link {link!r} has shape {out.shape}; a BodyInertia or ten inertial parameters about the "
            "origin of its Denavit-Hartenberg frame are needed"
        )
    return out


def _table(table, columns: Sequence[str]) -> np.ndarray:
    """`[n, 4]` with the columns in the order of `COLUMNS`."""
    order = tuple(columns)
    if sorted(map(str, order)) != sorted(COLUMNS):
        raise ModelError(f"columns is {order}; it must name {', '.join(COLUMNS)}, each once, in the table's order")
    try:
        values = np.asarray(table, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ShapeError(
            f"the table is no array of numbers ({error}); give [n, 4], columns {', '.join(order)}, or DHRow objects"
        ) from None
    if values.ndim != 2 or values.shape[1] != 4 or len(values) == 0:
        raise ShapeError(
            f"the table has shape {values.shape}, but [n, 4] is needed: a row a joint, columns {', '.join(order)}"
        )
    return values[:, [order.index(c) for c in COLUMNS]]


def _check_numbers(row: DHRow, where: str) -> None:
    for column in COLUMNS:
        value = getattr(row, column)
        if not np.isfinite(value):
            raise ModelError(f"{where}: {column} is {value}; a finite number is needed")
        if column in ("alpha", "theta") and abs(value) > 2 * np.pi + 1e-6:
            raise ModelError(
                f"{where}: {column} is {value}, more than a turn; angles are in rad: np.deg2rad converts degrees. If "
                "the columns are in another order than a, alpha, d, theta, say so by columns=..."
            )


def _checked_rows(table: Sequence, others: dict, columns: Sequence[str]) -> list[DHRow]:
    given = [name for name, value in others.items() if value is not None]
    given += ["columns"] if tuple(columns) != COLUMNS else []
    if given:
        raise ModelError(f"a table of DHRow holds {', '.join(given)} in its rows; give it there only")
    for i, row in enumerate(table, start=1):
        if not isinstance(row, DHRow):
            raise ModelError(f"row {i} of the table is no DHRow but {row!r}, while others are; give one kind only")
        where = f"row {i} of the table"
        _check_numbers(row, where)
        if row.joint.type not in _TYPES:
            raise ModelError(f"{where}: joint type {row.joint.type!r}; known: {', '.join(_TYPES)}")
        if tuple(np.asarray(row.joint.axis, dtype=np.float64)) != (0.0, 0.0, 1.0):
            raise ModelError(f"{where}: the joint's axis is {row.joint.axis}; it is z by the convention: leave it out")
    return list(table)


def _rows(table: np.ndarray, inertia_about: InertiaAbout, **of_links) -> list[DHRow]:
    n = len(table)
    names = _names(of_links["names"], "names", "link", n)
    joint_names = _names(of_links["joint_names"], "joint_names", "joint", n)
    types = _joint_types(of_links["joint_types"], n)
    limits = _array(of_links["limits"], [(n, 2)], "limits", "lower and upper for each joint")
    scalars = ("armature", "damping", "friction", "friction_velocity", "velocity_limit", "effort_limit")
    numbers = {name: _array(of_links[name], [(), (n,)], name, "one number, or one for each joint") for name in scalars}
    inertia_of = _inertias(n, names, inertia_about, *(of_links[k] for k in ("masses", "centers_of_mass", "inertias")))
    rows = []
    for i, values in enumerate(table):
        options = {name: np.broadcast_to(x, n)[i] for name, x in numbers.items() if x is not None}
        if limits is not None:
            options |= {"lower": limits[i, 0], "upper": limits[i, 1]}
        joint = Joint(types[i], name=joint_names[i], **options)
        row = DHRow(*(float(x) for x in values), joint=joint, inertia=inertia_of(i), name=names[i])
        _check_numbers(row, f"row {i + 1} of the table")
        rows.append(row)
    return rows


def _names(given: Sequence[str] | None, what: str, prefix: str, n: int) -> list[str]:
    if given is None:
        return [f"{prefix}{i}" for i in range(1, n + 1)]
    if isinstance(given, str) or len(given) != n:
        shown = repr(given) if isinstance(given, str) else f"{len(given)} names"
        raise ShapeError(f"{what} is {shown}; the table has {n} rows: give a sequence of {n} names")
    return list(given)


def _joint_types(given: str | Sequence[str] | None, n: int) -> list[str]:
    if given is None or (isinstance(given, str) and given in _TYPES):
        return [given or "revolute"] * n
    kinds = [_LETTERS.get(kind, kind) for kind in given]
    known = f"{', '.join(_TYPES)}, one for all or one for each joint, or letters R and P such as {'RRP'!r}"
    for i, kind in enumerate(kinds, start=1):
        if kind not in _TYPES:
            raise ModelError(f"joint_types is {given!r}, in which number {i}, {kind!r}, is unknown; known: {known}")
    if len(kinds) != n:
        raise ShapeError(f"joint_types has {len(kinds)} entries, {given!r}, but the table has {n} rows")
    return kinds


def _array(value: ArrayLike | None, shapes: list[tuple[int, ...]], what: str, meaning: str) -> np.ndarray | None:
    if value is None:
        return None
    out = np.asarray(value, dtype=np.float64)
    if out.shape not in shapes:
        needed = " or ".join(str(list(s)) if s else "a number" for s in shapes)
        raise ShapeError(f"{what} has shape {out.shape}, but {needed} is needed: {meaning}")
    return out


def _inertias(
    n: int, names: list[str], about: InertiaAbout, masses, centers, inertias
) -> Callable[[int], BodyInertia | np.ndarray | None]:
    """Gives the inertia of each link in its Denavit-Hartenberg frame."""
    if about not in get_args(InertiaAbout.__value__):
        raise ModelError(f"inertia_about is {about!r}; known: 'center_of_mass', 'frame_origin'")
    if masses is None and (centers is not None or inertias is not None):
        raise ModelError("centers_of_mass or inertias are given, but no masses; give masses [n], too")
    mass = _array(masses, [(n,)], "masses", "kg, one for each link")
    com = _array(centers, [(n, 3)], "centers_of_mass", "m, in the Denavit-Hartenberg frame of each link")
    moments = _array(
        inertias,
        [(n, 3, 3), (n, 3)],
        "inertias",
        "kg m^2, a symmetric matrix, or Ixx, Iyy, Izz, for each link; six numbers have no order that all books share",
    )
    if mass is None:
        return lambda i: None

    def inertia_of(i: int) -> BodyInertia | np.ndarray:
        c = np.zeros(3) if com is None else com[i]
        I = np.zeros(3) if moments is None else moments[i]
        try:
            if about == "center_of_mass" or moments is None:
                return BodyInertia(float(mass[i]), c, I)
            # Only to check the numbers, and to have the matrix of a diagonal.
            I = np.asarray(BodyInertia(float(mass[i]), c, I).rotational)
        except JaxdynError as error:
            raise type(error)(f"link {names[i]!r}: {error}") from None
        return np.array([mass[i], *(mass[i] * c), I[0, 0], I[0, 1], I[1, 1], I[0, 2], I[1, 2], I[2, 2]])

    return inertia_of
