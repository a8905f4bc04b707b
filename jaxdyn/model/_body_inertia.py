"""`BodyInertia`: mass, center of mass and rotational inertia about it, and checks of inertias, in NumPy."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from jax.core import Tracer

from jaxdyn._errors import (
    ModelError,
    PhysicalityWarning,
    naming_arguments,
    require_finite,
    require_numbers,
    require_shape,
    warn,
)
from jaxdyn._types import ArrayLike
from jaxdyn.joints import Topology
from jaxdyn.model._fields import ModelFields
from jaxdyn.spatial import SKEW, inertia_elements, inertia_matrix

# The radius of gyration of a link that is this many times as large as the robot shows another unit: kg cm^2 makes it a
# hundred times, kg mm^2 a thousand times as large. A robot whose joints stand in one point has this size, m.
_FAR, _LEAST_SIZE = 10.0, 0.2


@dataclasses.dataclass(frozen=True)
class BodyInertia:
    """The inertia of a rigid body in some frame.

    Mass in kg; center of mass `[3]` in m; rotational inertia `[3, 3]` (or its three diagonal elements) in kg m^2 about
    the center of mass, in the axes of the frame. **Raises** `ModelError` for a negative or non-finite mass, an
    asymmetric or non-finite inertia; `ShapeError` for wrong shapes.
    """

    mass: float
    center_of_mass: ArrayLike = (0.0, 0.0, 0.0)
    rotational: ArrayLike = (0.0, 0.0, 0.0)

    def __post_init__(self):
        for name in ("mass", "center_of_mass", "rotational"):
            require_numbers(getattr(self, name), name)
        com, I = _array(self.center_of_mass), _array(self.rotational)
        require_shape(_array(self.mass), (), "mass", "one number, kg")
        I = np.diag(I) if I.shape == (3,) else I
        require_shape(com, (3,), "center_of_mass", "a position in m")
        require_shape(I, (3, 3), "rotational", "the inertia about the center of mass, kg m^2")
        if not np.isfinite(self.mass) or not np.isfinite(com).all() or not np.isfinite(I).all():
            raise ModelError(f"an inertia is not finite: mass {self.mass}, center_of_mass {com}, rotational {I}")
        if self.mass < 0:
            raise ModelError(f"negative mass: {self.mass} kg")
        if not np.allclose(I, I.T, rtol=1e-6, atol=1e-12 * (1 + np.abs(I).max())):
            raise ModelError(f"the rotational inertia is not symmetric: {I.tolist()}")
        object.__setattr__(self, "mass", float(self.mass))
        object.__setattr__(self, "center_of_mass", com)
        object.__setattr__(self, "rotational", 0.5 * (I + I.T))

    @staticmethod
    @naming_arguments
    def box(mass: float, size: ArrayLike, center_of_mass: ArrayLike = (0.0, 0.0, 0.0)) -> BodyInertia:
        """A uniform box with edges `size` (m) along the axes."""
        size = _array(size)
        require_shape(size, (3,), "size", "the lengths of a box's edges in m")
        x, y, z = size**2
        return BodyInertia(mass, center_of_mass, np.array([y + z, x + z, x + y]) * (mass / 12))

    @staticmethod
    @naming_arguments
    def sphere(mass: float, radius: float, center_of_mass: ArrayLike = (0.0, 0.0, 0.0)) -> BodyInertia:
        """A uniform ball."""
        return BodyInertia(mass, center_of_mass, np.full(3, 0.4 * mass * radius**2))

    @staticmethod
    @naming_arguments
    def rod(mass: float, start: ArrayLike, end: ArrayLike) -> BodyInertia:
        """A thin uniform rod between two points."""
        a, b = _array(start), _array(end)
        for name, point in (("start", a), ("end", b)):
            require_shape(point, (3,), name, "a point in m")
        d = b - a
        return BodyInertia(mass, 0.5 * (a + b), _of_point(d) * (mass / 12))

    def parameters(self) -> np.ndarray:
        """`[10]`: `m, mcx, mcy, mcz, Ixx, Ixy, Iyy, Ixz, Iyz, Izz` about the origin of the frame."""
        c, m = np.asarray(self.center_of_mass), self.mass
        return np.array([m, *(m * c), *inertia_elements(np.asarray(self.rotational) + m * _of_point(c))])


def real_array(x, what: str, needed: str = "an array of real numbers") -> np.ndarray:
    """Return numbers as an array in double precision. **Raises** `ShapeError`, which names `what`, for others."""
    require_numbers(x, what, needed)
    return _array(x)


def _array(x) -> np.ndarray:
    return np.asarray(x, dtype=np.float64)


def _of_point(c: np.ndarray) -> np.ndarray:
    """The rotational inertia about the origin of a unit of mass at a point `[3]`."""
    return c @ c * np.eye(3) - np.outer(c, c)


def rotational_about_center(parameters: np.ndarray) -> np.ndarray:
    """The rotational inertia about the center of mass, `[3, 3]` in kg m^2, of inertial parameters `[10]` with a mass
    that is not zero."""
    parameters = _array(parameters)
    return inertia_matrix(parameters) - _of_point(parameters[1:4]) / parameters[0]


def unphysical_reason(parameters: np.ndarray) -> str | None:
    """Return why no distribution of mass has ten inertial parameters `[10]` (kg, kg m, kg m^2), or None.

    The principal moments must be nonnegative and each at most the sum of the others (Traversaro, Brossette, Escande &
    Nori 2016, eq. 10); up to rounding of the file's digits.
    """
    return unphysical_beyond_rounding(_array(parameters), np.zeros(10))


def unphysical_beyond_rounding(parameters: np.ndarray, rounding: np.ndarray) -> str | None:
    """Return why no distribution of mass has parameters `[10]`, or None where rounding errors `[10]` explain it."""
    if not np.isfinite(parameters).all():
        return "inertial parameters that are not finite"
    if (np.abs(parameters) <= rounding).all():
        return None
    mass = parameters[0]
    I = inertia_matrix(parameters) if mass == 0 else rotational_about_center(parameters)
    if not np.isfinite(I).all():
        return "inertial parameters beyond the range of floating-point numbers"
    moments = np.linalg.eigvalsh(I)
    shown, moment = (", ".join(f"{x:.6g}" for x in values) for values in (moments, parameters[1:4]))
    if mass == 0:
        return f"zero mass with principal moments of inertia {shown} kg m^2 and first moment {moment} kg m"
    slack = max(1e-6 * abs(moments).max() + 1e-15, rounding[4:].max() if mass > 0 else 0)
    if moments[0] < -slack:
        return f"principal moments of inertia {shown} kg m^2: not all are nonnegative"
    if moments[2] > moments[0] + moments[1] + slack:
        return f"principal moments of inertia {shown} kg m^2: the largest exceeds the sum of the others"
    return None


def warn_if_unphysical(what: str, parameters: np.ndarray, rounding: np.ndarray) -> bool:
    """Warn the library's caller of parameters that no distribution of mass has, and return whether this was so."""
    reason = unphysical_beyond_rounding(parameters, rounding)
    if reason:
        warn(f"{what}: {reason}", PhysicalityWarning)
    return reason is not None


def far_masses(model: ModelFields) -> str:
    """Return a sentence about links whose mass lies far outside of the robot by their moments of inertia, or nothing.

    The radius of gyration of a link, the root of its largest moment of inertia over its mass, is compared with the
    longest way along joints to a center of mass, from each root. Models have NumPy arrays without batch axes.
    """
    topology = model.topology
    placements, bodies = _array(model.joint_placement), _array(model.inertial_parameters)
    links, reach = _array(model.attached_parameters), np.zeros(topology.nb)
    for i, parent in enumerate(topology.parents):
        reach[i] = 0.0 if parent < 0 else reach[parent] + np.linalg.norm(placements[i, :3])
    merged = [topology.links_of(i) for i in range(topology.nb)]
    parts = [(n, x - links[k].sum(axis=0)) for n, x, k in zip(topology.body_names, bodies, merged, strict=True)]
    parts += [(topology.attached_links[k], links[k]) for some in merged for k in some]
    massive = bodies[:, 0] > 0
    centers = np.linalg.norm(bodies[massive, 1:4], axis=-1) / bodies[massive, 0]
    size = max([_LEAST_SIZE, *(reach[massive] + centers)])
    far = []
    for name, parameters in parts:
        # A difference of inertias may leave a little mass by rounding. Impossible inertias are said elsewhere.
        if parameters[0] > 1e-9 * bodies[:, 0].max() and unphysical_reason(parameters) is None:
            radius = np.sqrt(max(np.linalg.eigvalsh(rotational_about_center(parameters))[-1], 0.0) / parameters[0])
            far += [f"{name!r} ({radius:.3g} m)"] if radius > _FAR * size else []
    if not far:
        return ""
    shown = ", ".join(far[:8]) + (f" and {len(far) - 8} more" if len(far) > 8 else "")
    return (
        f"the radii of gyration of links {shown} are far beyond the robot's reach of about {size:.3g} m: are the "
        "moments of inertia in kg mm^2 or kg cm^2? kg m^2, kg and m are needed"
    )


def warn_of_far_masses(model: ModelFields) -> None:
    """Warn the library's caller of what `far_masses` says."""
    if far := far_masses(model):
        warn(far, PhysicalityWarning)


def inertial_parameters(inertia: BodyInertia | ArrayLike | None, what: str) -> np.ndarray:
    """Return the ten inertial parameters `[10]`, zeros for None. **Raises** `ShapeError`, which names `what`."""
    if inertia is None:
        return np.zeros(10)
    if isinstance(inertia, BodyInertia):
        return inertia.parameters()
    out = real_array(inertia, what, "a BodyInertia or ten inertial parameters")
    require_shape(out, (10,), what, "a BodyInertia or ten inertial parameters")
    require_mass(out, what)
    return out


def rounding(parameters: np.ndarray, dtype) -> np.ndarray:
    """The rounding errors of parameters that were computed with a dtype from terms of their size."""
    return 64 * np.finfo(np.dtype(dtype)).eps * np.abs(parameters)


def require_mass(parameters: np.ndarray, what: str) -> None:
    """Raise `ModelError` unless inertial parameters `[10]` are finite and the mass is not negative."""
    require_finite(parameters.tolist(), what)
    if parameters[0] < 0:
        raise ModelError(f"{what}: negative mass {parameters[0]} kg")


def require_inertias(topology: Topology, what: str, advice: str = "") -> None:
    """Raise `ModelError`, which begins with `what`, if inertias of a model are unknown. Known while tracing."""
    if not (missing := topology.missing_inertias):
        return
    shown = ", ".join(map(repr, missing[:8])) + (f" and {len(missing) - 8} more" if len(missing) > 8 else "")
    links = "link" if len(missing) == 1 else "links"
    reason = f"the model was loaded with kinematics_only=True, and has none of {links} {shown}"
    advice = advice or "Give each by model.with_link_parameters(link, BodyInertia(...))"
    raise ModelError(f"{what} needs inertias; {reason}. {advice}")


def require_resistance(topology: Topology, leaves: Mapping[str, Any]) -> None:
    """Raise `ModelError` if a joint moves nothing with inertia, which would have no acceleration. `leaves` has the
    arrays of a model by name, with any batch axes. Nothing is checked while tracing.

    At leaves of the tree, and where nothing behind a joint has mass, `S^T I S + armature` must be positive definite.
    A joint that mimics another counts as in the spanning tree, without an armature. Models that lack inertias have
    kinematics only, so they pass.
    """
    if topology.missing_inertias:
        return
    arrays = [leaves[name] for name in ("joint_axis", "joint_pitch", "inertial_parameters", "armature")]
    if any(isinstance(x, Tracer) for x in arrays):
        return
    axes, pitches, inertias, armature = (_array(x) for x in arrays)
    massive = (inertias[..., 0] > 0).reshape(-1, topology.nb).all(axis=0)
    leaf = np.ones(topology.nb, bool)
    loose = np.zeros(topology.nb, bool)
    for i in reversed(range(topology.nb)):
        parent = topology.parents[i]
        if parent >= 0:
            # A free joint leaves its body where it is, whatever the parent does, unless an armature holds it.
            dofs = slice(*topology.v_starts[i : i + 2])
            free = dofs.stop - dofs.start == 6 and (armature[..., dofs] == 0).any()
            loose[parent] |= free
            massive[parent] |= massive[i] and not free
            leaf[parent] = False
    columns = dof_columns(topology.spanning, axes, pitches)
    for i in np.flatnonzero(leaf | ~massive).tolist():
        S = columns[..., slice(*topology.spanning.v_starts[i : i + 2]), :]
        D = S @ spatial_matrices(inertias[..., i, :]) @ np.swapaxes(S, -1, -2)
        advice = "Give it an inertia, or fix the joint, which mimics another"
        if i not in topology.leaders:
            advice = "Give it an inertia, give the joint an armature, or fix the joint"
            rotor = armature[..., topology.v_starts[i] : topology.v_starts[i + 1]]
            D = D + rotor[..., None] * np.eye(rotor.shape[-1])
        if (np.linalg.eigvalsh(D)[..., 0] <= 1e-12 * np.abs(D).max(axis=(-1, -2))).any():
            body = f"body {topology.body_names[i]!r}, moved by joint {topology.joint_names[i]!r},"
            what = "no mass" if (inertias[..., i, 0] == 0).any() else "no inertia against the motion of its joint"
            attached = "attached to it, except by a free joint" if loose[i] else "attached to it"
            reason = f"and nothing with mass is {attached}: its acceleration would be undefined"
            raise ModelError(f"{body} has {what}, {reason}. {advice}")


def dof_columns(tree: Topology, axes: np.ndarray, pitches: np.ndarray) -> np.ndarray:
    """`[*batch, nv, 6]`, angular first: the motion of each degree of freedom at `q = 0` in its body's frame."""
    batch = (*np.broadcast_shapes(axes.shape[:-2], pitches.shape[:-1]), tree.nv)
    # Without an axis, directions are x, y and z, and again x, y and z.
    number = np.arange(tree.nv) - tree.first_dofs[tree.node_of_dof]
    direction, advance = np.empty((*batch, 3)), np.empty((*batch, 1))
    direction[:], advance[:] = np.eye(3)[number % 3], tree.translating_dofs[:, None]
    direction[..., tree.axis_dofs, :] = axes / np.linalg.norm(axes, axis=-1, keepdims=True)
    advance[..., tree.helical_dofs, 0] = pitches
    return np.concatenate([tree.rotating_dofs[:, None] * direction, advance * direction], axis=-1)


def spatial_matrices(parameters: np.ndarray) -> np.ndarray:
    """`[*batch, 6, 6]`, angular first: the spatial inertia matrix of inertial parameters `[*batch, 10]`."""
    skew = np.einsum("ijk,...k->...ij", SKEW, parameters[..., 1:4])
    return np.block([[inertia_matrix(parameters), skew], [-skew, parameters[..., :1, None] * np.eye(3)]])
