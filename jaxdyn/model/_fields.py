"""The fields of a model, each declared with the facts about its array: a `Leaf`."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxdyn._errors import require_floating
from jaxdyn._types import Array, Float
from jaxdyn.joints import Topology

FRICTION_VELOCITY = 0.01
"""Default transition velocity of the smooth Coulomb friction, rad/s or m/s."""

type Rows = Literal["joint", "axis", "pitch", "q", "v", "frame", "link", "mimic", "loop", "coupling"]
"""An array of a model has a row for each joint, axis of `Topology.axis_dofs`, pitch of `Topology.helical_dofs`,
coordinate, degree of freedom, frame, merged link, joint that mimics another, loop, or coupling of joints."""


@dataclasses.dataclass(frozen=True)
class Leaf:
    """The facts about one array of a model that functions of all arrays need.

    If lengths grow by the factor `l` and masses by `m` (`jaxdyn.scaled`), an entry grows by `m^mass l^length`; also by
    `l^coordinate` if its coordinate is a length, and by `l^leader` if the coordinate that its joint follows is one. A
    power is one number, or one for each column.
    """

    rows: Rows | None = None
    columns: int | None = None
    """The length of a row; None for one number."""
    unit: str = "1"
    mass: int = 0
    length: int | tuple[int, ...] = 0
    coordinate: int | tuple[int, ...] = 0
    leader: int | tuple[int, ...] = 0
    default: float = 0.0
    """The value without effect; zero stands for the neutral configuration."""
    sign: Literal["any", "nonnegative", "positive"] = "any"
    dynamics: bool = False
    """Whether the motion, or a quantity computed from it, depends on the array."""
    identified: bool = False
    """Whether system identification estimates the array, and files of fits contain it."""
    column: str = ""
    """The title of the array's column in a model's summary, if it has one."""
    beside: str = ""
    """The name of the array next to whose column this one stands."""

    @property
    def axes(self) -> int:
        """The number of axes without batch axes."""
        return (self.rows is not None) + (self.columns is not None)

    @property
    def finite(self) -> bool:
        """Whether entries must be finite; limits may be infinite."""
        return bool(np.isfinite(self.default))

    def shape(self, topology: Topology) -> tuple[int, ...]:
        """Return the shape without batch axes."""
        others = {"frame": topology.frame_names, "link": topology.attached_links, "mimic": topology.mimics}
        others |= {"loop": topology.loops, "coupling": topology.couplings}
        count = len((topology.row_joints | others)[self.rows]) if self.rows else None
        return tuple(n for n in (count, self.columns) if n is not None)


def leaf(*, optional: bool = False, **facts: Any) -> Any:
    """Declare a field of a model that holds an array; `facts` are the fields of `Leaf`."""
    metadata = {"leaf": Leaf(**facts)}
    return eqx.field(default=None, metadata=metadata) if optional else eqx.field(metadata=metadata)


# Facts that arrays share.
_PLACEMENT: dict[str, Any] = {"columns": 7, "unit": "m, 1", "length": (1, 1, 1, 0, 0, 0, 0), "dynamics": True}
_INERTIA: dict[str, Any] = {"columns": 10, "unit": "kg, kg m, kg m^2", "mass": 1, "length": (0, *(1,) * 3, *(2,) * 6)}
_COORDINATE: dict[str, Any] = {"rows": "q", "unit": "rad or m", "coordinate": 1}
_VELOCITY: dict[str, Any] = {"rows": "v", "unit": "rad/s or m/s", "coordinate": 1}
_FORCE: dict[str, Any] = {"rows": "v", "unit": "N m or N", "mass": 1, "length": 2, "coordinate": -1}
_GAIN: dict[str, Any] = {"rows": "v", "mass": 1, "length": 2, "coordinate": -2, "sign": "nonnegative"}
_LIMIT: dict[str, Any] = {"default": math.inf, "sign": "nonnegative"}
_ESTIMATED: dict[str, Any] = {"dynamics": True, "identified": True}


class ModelFields(eqx.Module):
    """The static `topology`, and arrays, of a `Model`."""

    topology: Topology = eqx.field(static=True)
    joint_placement: Float[Array, "*batch nb 7"] = leaf(rows="joint", **_PLACEMENT)
    """Pose of each joint (of the body, at `q = 0`) in the parent body's frame: position (m), quaternion `w x y z`."""
    joint_axis: Float[Array, "*batch na 3"] = leaf(rows="axis", columns=3, dynamics=True)
    """Axis of each degree of freedom of every joint but ball and free, in the joint's frame; its direction counts."""
    joint_pitch: Float[Array, "*batch nh"] = leaf(rows="pitch", unit="m/rad", length=1, dynamics=True)
    """Advance of each helical joint along its axis, m/rad."""
    inertial_parameters: Float[Array, "*batch nb 10"] = leaf(rows="joint", **_INERTIA, **_ESTIMATED)
    """`m, mcx, mcy, mcz, Ixx, Ixy, Iyy, Ixz, Iyz, Izz` of each body: mass (kg), first moment (kg m) and rotational
    inertia (kg m^2) about the origin of the body's frame, in its axes. The dynamics are linear in them."""
    armature: Float[Array, "*batch nv"] = leaf(unit="kg m^2 or kg", column="armature", **_GAIN, **_ESTIMATED)
    """Rotor inertia reflected to the joint; adds to the diagonal of the mass matrix. kg m^2 or kg."""
    damping: Float[Array, "*batch nv"] = leaf(unit="N m s/rad or N s/m", column="damping", **_GAIN, **_ESTIMATED)
    """Viscous friction, N m s/rad or N s/m."""
    friction: Float[Array, "*batch nv"] = leaf(sign="nonnegative", column="Coulomb friction", **_FORCE, **_ESTIMATED)
    """Coulomb friction, N m or N: the torque `friction * tanh(v / friction_velocity)`."""
    friction_velocity: Float[Array, "*batch nv"] = leaf(
        default=FRICTION_VELOCITY, sign="positive", column="over velocity", beside="friction", **_VELOCITY, **_ESTIMATED
    )
    """Velocity over which Coulomb friction changes its sign, rad/s or m/s."""
    gravity: Float[Array, "*batch 3"] = leaf(columns=3, unit="m/s^2", dynamics=True)
    """Acceleration of gravity in world axes, m/s^2."""
    frame_placement: Float[Array, "*batch nf 7"] = leaf(rows="frame", **_PLACEMENT)
    """Pose of each frame in its body's frame."""
    attached_parameters: Float[Array, "*batch nl 10"] = leaf(rows="link", **_INERTIA)
    """Inertial parameters, in the body's frame, of each link that was merged into a body (counted in
    `inertial_parameters`; kept to tell the links apart)."""
    position_lower: Float[Array, "*batch nq"] = leaf(default=-math.inf, **_COORDINATE)
    position_upper: Float[Array, "*batch nq"] = leaf(default=math.inf, **_COORDINATE)
    velocity_limit: Float[Array, "*batch nv"] = leaf(column="velocity limit", **_LIMIT, **_VELOCITY)
    effort_limit: Float[Array, "*batch nv"] = leaf(column="effort limit", **_LIMIT, **_FORCE)
    mimic_multiplier: Float[Array, "*batch nm"] = leaf(rows="mimic", coordinate=1, leader=-1, default=1.0)
    """The coordinate of each joint that mimics another, in the order of `Topology.mimics`, is `mimic_multiplier` times
    the coordinate of the joint that it follows, plus `mimic_offset`."""
    mimic_offset: Float[Array, "*batch nm"] = leaf(rows="mimic", unit="rad or m", coordinate=1)
    stiffness: Float[Array, "*batch nv"] | None = leaf(
        optional=True, unit="N m/rad or N/m", column="stiffness", **_GAIN, **_ESTIMATED
    )
    """Stiffness of the joints' springs, N m/rad or N/m; None for a model without springs."""
    spring_reference: Float[Array, "*batch nq"] | None = leaf(
        optional=True, column="at rest at", beside="stiffness", **_COORDINATE, **_ESTIMATED
    )
    """The configuration in which no spring acts; None for a model without springs."""
    loop_placement1: Float[Array, "*batch nl 7"] | None = leaf(optional=True, rows="loop", **_PLACEMENT)
    """Pose of the first frame of each loop, in the order of `Topology.loops`, in its body's frame or in the world;
    None for a model without loops."""
    loop_placement2: Float[Array, "*batch nl 7"] | None = leaf(optional=True, rows="loop", **_PLACEMENT)
    """Pose of the second frame of each loop."""
    loop_length: Float[Array, "*batch nl"] | None = leaf(optional=True, rows="loop", unit="m", length=1, dynamics=True)
    """The distance that each loop of the kind `distance` holds, m; zero for others."""
    coupling_coefficients: Float[Array, "*batch nc 5"] | None = leaf(
        optional=True, rows="coupling", columns=5, coordinate=1, leader=(0, -1, -2, -3, -4), dynamics=True
    )
    """The coefficients `c` of each coupling, in the order of `Topology.couplings`: the coordinates `q1` and `q2` of its
    joints, with the references `r`, have `q1 - r1 = sum_k c_k (q2 - r2)^k`; without a second joint `q1 - r1 = c_0`."""
    coupling_reference: Float[Array, "*batch nc 2"] | None = leaf(
        optional=True, rows="coupling", columns=2, unit="rad or m", coordinate=(1, 0), leader=(0, 1), dynamics=True
    )
    """The references `r1, r2` of each coupling."""

    @property
    def nq(self) -> int:
        """The length of a configuration `q`."""
        return self.topology.nq

    @property
    def nv(self) -> int:
        """The number of degrees of freedom: the length of `v`, `a` and `tau`."""
        return self.topology.nv

    @property
    def nb(self) -> int:
        """The number of moving bodies, and of joints."""
        return self.topology.nb

    @property
    def joint_names(self) -> tuple[str, ...]:
        return self.topology.joint_names

    @property
    def body_names(self) -> tuple[str, ...]:
        return self.topology.body_names

    @property
    def dtype(self):
        """The common dtype of the physical arrays."""
        return jnp.result_type(self.inertial_parameters, self.joint_placement, self.gravity)

    @property
    def mass(self) -> Float[Array, "*batch nb"]:
        """Mass of each body, kg."""
        return self.inertial_parameters[..., 0]

    @property
    def center_of_mass(self) -> Float[Array, "*batch nb 3"]:
        """Center of mass of each body in its frame, m (NaN for a massless body)."""
        return self.inertial_parameters[..., 1:4] / self.inertial_parameters[..., :1]

    def astype(self, dtype) -> Self:
        """The same model with every array in `dtype`. **Raises** `ShapeError` for a type that is not one of
        floating-point numbers."""
        require_floating(dtype)
        return jax.tree.map(lambda x: _of_type(x, dtype), self)


def _of_type(x: Any, dtype: Any) -> Any:
    """An array in another type, by NumPy where JAX would compile a program for each shape: not while tracing, and not
    on a device that the user has chosen. JAX warns of types that it does not have."""
    in_numpy = isinstance(x, jax.Array) and not isinstance(x, Tracer) and not x.committed
    if in_numpy and jax.dtypes.canonicalize_dtype(dtype) == dtype:
        return jax.device_put(np.asarray(x).astype(dtype))
    return x.astype(dtype)


LEAVES: dict[str, Leaf] = {f.name: f.metadata["leaf"] for f in dataclasses.fields(ModelFields) if "leaf" in f.metadata}
"""The arrays of a model by name, in the order of their fields."""

JOINT_FIELDS: dict[str, str] = {
    name.removeprefix("position_"): name for name, leaf in LEAVES.items() if leaf.rows in ("q", "v")
}
"""For each field of `Joint` with a number for every coordinate or degree of freedom, the name of the model's array."""
