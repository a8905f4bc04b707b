"""Forces of a fluid on the bodies of a world: on boxes of equal inertia, or on ellipsoids in place of geoms.

MuJoCo's documentation, chapter Computation, section "Fluid forces"; `engine_passive.c` of MuJoCo 4.0
(`mj_inertiaBoxFluidModel`, `mj_ellipsoidFluidModel`).
"""

from __future__ import annotations

from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn._types import Array, Float, float_leaf
from jaxdyn.algorithms.recursions import Robot
from jaxdyn.io.mjcf import enum_name
from jaxdyn.spatial import Force, Motion, Vec3
from jaxdyn.tree import columns_of
from jaxdyn.worlds._parts import (
    SMALL,
    Instant,
    Part,
    PartRows,
    Places,
    length_of,
    point_rows,
    wrenches_on_dofs,
)


class Fluid(Part):
    """The fluid of a world."""

    density: Float[Array, "*batch"]
    """kg/m^3"""
    viscosity: Float[Array, "*batch"]
    """Pa s"""
    wind: Float[Array, "*batch 3"]
    """The velocity of the fluid, m/s, world axes."""
    lone: tuple[tuple[bool, ...], tuple[bool, ...]] = eqx.field(static=True)
    """Whether each of `boxes`, and of `ellipsoids`, is on a free body that no joint connects to others."""
    boxes: Places
    """The frames of inertia of the bodies that are boxes to the fluid."""
    mass: Float[Array, "*batch nb"]
    inertia: Float[Array, "*batch nb 3"]
    ellipsoids: Places
    """The frames of the geoms that are ellipsoids to the fluid."""
    semiaxes: Float[Array, "*batch ng 3"]
    coefficients: Float[Array, "*batch ng 12"]
    """MuJoCo's `geom_fluid`: a factor of all; of blunt, slender and angular drag; of Kutta's and Magnus' lift; and
    virtual masses and moments of inertia over the density."""

    @classmethod
    def of(cls, m) -> Self | None:
        """Return the fluid of an `mjModel`, None without."""
        if m.opt.density <= 0 and m.opt.viscosity <= 0:
            return None
        moving = (m.body_weldid > 0) & (m.body_mass >= SMALL)
        shaped = m.geom_fluid[:, 0] > 0
        with_shapes = np.isin(np.arange(m.nbody), m.geom_bodyid[shaped])
        boxes = np.flatnonzero(moving & ~with_shapes)
        geoms = np.flatnonzero(shaped & moving[m.geom_bodyid])
        return cls(
            float_leaf(m.opt.density),
            float_leaf(m.opt.viscosity),
            float_leaf(np.array(m.opt.wind)),
            (tuple(_is_lone(m, int(i)) for i in boxes), tuple(_is_lone(m, int(m.geom_bodyid[i])) for i in geoms)),
            Places.of(m, "inertia", boxes),
            float_leaf(m.body_mass[boxes]),
            float_leaf(m.body_inertia[boxes]),
            Places.of(m, "geom", geoms),
            float_leaf(np.array([_semiaxes(m, int(i)) for i in geoms]).reshape(-1, 3)),
            float_leaf(m.geom_fluid[geoms]),
        )


def _is_lone(m, body: int) -> bool:
    dofs = np.flatnonzero(m.dof_treeid == m.body_treeid[body])
    return len(dofs) == 6 and enum_name("mjtJoint", m.jnt_type[m.dof_jntid[dofs[0]]]) == "free"


def _semiaxes(m, geom: int) -> list[float]:
    kind, (a, b, c) = enum_name("mjtGeom", m.geom_type[geom]), m.geom_size[geom]
    if kind == "sphere":
        return [a, a, a]
    if kind == "capsule":
        return [a, a, a + b]
    return [a, a, b] if kind == "cylinder" else [a, b, c]


def fluid_forces(robot: Robot, fluid: PartRows, at: Instant):
    """Return the torque of the fluid on the degrees of freedom, rows `[nv]`."""
    torque: Any = robot.broadcast(robot.zeros())
    for place, local, velocity in _groups(robot, fluid, at):
        force, R = local(velocity), place.pose.rotation
        torque = torque + wrenches_on_dofs(robot, at, place, Force(R.apply(force.moment), R.apply(force.force)))
    return torque


def fluid_slopes(robot: Robot, fluid: PartRows, at: Instant, symmetric: bool):
    """Return the derivatives of that torque by the velocities, `[nv, nv, *batch]`. With `symmetric` they are as
    MuJoCo's integrator `implicitfast` has them: those of the force on each body are made symmetric, unless it is a
    free body alone."""
    total: Any = jnp.zeros((robot.nv, robot.nv, *robot.batch), robot.dtype)
    for (place, local, velocity), lone in zip(_groups(robot, fluid, at), _present(fluid), strict=True):
        share = robot.constant(np.where(lone, 0.0, 0.5) * symmetric)
        rows, R = point_rows(robot, at, place), jax.tree.map(lambda x: x[:, None], place.pose.rotation)
        angular, linear = R.apply_transpose(rows.angular), R.apply_transpose(rows.linear)
        J = [angular.x, angular.y, angular.z, linear.x, linear.y, linear.z]
        ones, zeros = jnp.ones_like(velocity.linear.x), jnp.zeros_like(velocity.linear.x)
        columns = []
        for k in range(6):
            unit = [ones if i == k else zeros for i in range(6)]
            tangent = jax.jvp(local, (velocity,), (Motion(Vec3(*unit[:3]), Vec3(*unit[3:])),))[1]
            columns.append([*jax.tree.leaves(tangent.moment), *jax.tree.leaves(tangent.force)])
        for i in range(6):
            for k in range(6):
                slope = (1 - share) * columns[k][i] + share * columns[i][k]
                total = total + (J[i][:, :, None] * (slope[:, None] * J[k])[:, None]).sum(axis=0)
    return total


def _groups(robot: Robot, fluid: PartRows, at: Instant):
    """Yield for boxes and for ellipsoids their frames, the function that gives their force from their velocity, and
    their velocity relative to the fluid: all in the axes and at the origins of their frames."""
    for name, function in (("boxes", _on_boxes), ("ellipsoids", _on_ellipsoids)):
        part = getattr(fluid, name)
        if part.dofs:
            place = Places.located(part, at)
            velocity, R = place.velocity(at), place.pose.rotation
            wind = Vec3(*(fluid.wind[i : i + 1] for i in range(3)))
            relative = Motion(R.apply_transpose(velocity.angular), R.apply_transpose(velocity.linear - wind))
            yield place, _bound(function, fluid), jax.tree.map(robot.broadcast, relative)


def _present(fluid: PartRows) -> list:
    return [x for x in fluid.lone if x]


def _bound(function, fluid: PartRows):
    return lambda velocity: function(fluid, velocity)


def _on_boxes(fluid: PartRows, v: Motion) -> Force:
    """Return the forces on boxes with the bodies' masses and moments of inertia."""
    density, viscosity = fluid.density, fluid.viscosity
    a, b, c = columns_of(fluid.inertia)
    x, y, z = (jnp.sqrt(jnp.maximum(twice, SMALL) / fluid.mass * 6) for twice in (b + c - a, a + c - b, a + b - c))
    diameter = (x + y + z) / 3
    slow = (jnp.pi * viscosity * diameter**3, 3 * jnp.pi * viscosity * diameter)
    areas = [0.5 * density * s for s in (y * z, x * z, x * y)]
    turning = [density * s / 64 for s in (x * (y**4 + z**4), y * (x**4 + z**4), z * (x**4 + y**4))]

    def drag(velocity: Vec3, linear, quadratic) -> Vec3:
        w = jax.tree.leaves(velocity)
        return Vec3(*(-(linear + q * jnp.abs(u)) * u for u, q in zip(w, quadratic, strict=True)))

    return Force(drag(v.angular, slow[0], turning), drag(v.linear, slow[1], areas))


def _on_ellipsoids(fluid: PartRows, v: Motion) -> Force:
    """Return the forces on ellipsoids: those of the mass of fluid that moves along, of lift, and of drag."""
    density, viscosity = fluid.density, fluid.viscosity
    axes = columns_of(fluid.semiaxes)
    factor, blunt, slender, turning, kutta, magnus, *virtual = columns_of(fluid.coefficients)
    w, u = v.angular, v.linear
    momentum = Vec3(*(density * k * x for k, x in zip(virtual[:3], jax.tree.leaves(u), strict=True)))
    spin = Vec3(*(density * k * x for k, x in zip(virtual[3:], jax.tree.leaves(w), strict=True)))
    moment, force = momentum.cross(u) + spin.cross(w), momentum.cross(w)

    a, b, c = axes
    largest, smallest = jnp.maximum(jnp.maximum(a, b), c), jnp.minimum(jnp.minimum(a, b), c)
    middle = a + b + c - largest - smallest
    speed = length_of(u)
    area, normal = _projection(axes, u, speed)
    force = force + w.cross(u) * (magnus * density * (4 / 3 * jnp.pi) * a * b * c)
    force = force + normal.cross(u).cross(u) * (kutta * density * area)
    diameter = 2 / 3 * (a + b + c)
    drag = viscosity * 3 * jnp.pi * diameter
    drag = drag + density * speed * (area * blunt + slender * (jnp.pi * largest * middle - area))
    force = force - u * drag

    most = 8 / 15 * jnp.pi * middle * largest**4
    own = [8 / 15 * jnp.pi * d * jnp.maximum(e, f) ** 4 for d, e, f in ((a, b, c), (b, c, a), (c, a, b))]
    resisting = (x * (turning * k + slender * (most - k)) for x, k in zip(jax.tree.leaves(w), own, strict=True))
    drag = viscosity * jnp.pi * diameter**3 + density * length_of(Vec3(*resisting))
    moment = moment - w * drag
    return Force(moment * factor, force * factor)


def _projection(axes: list, u: Vec3, speed) -> tuple[Any, Vec3]:
    """Return the areas of ellipsoids seen along their velocities, and the normals of these areas' edges, as long as the
    cosines of their angles with the velocities."""
    a, b, c = axes
    p, q, r = b * c, c * a, a * b
    moving = speed > 0
    # The direction decides; at rest any will do, because forces vanish.
    along = u * jnp.where(moving, 1 / jnp.where(moving, speed, 1), 0)
    along = Vec3(jnp.where(moving, along.x, 1), along.y, along.z)
    normal = Vec3(p * p * along.x, q * q * along.y, r * r * along.z)
    square, numerator = normal.squared_norm(), normal.dot(along)
    return jnp.pi * jnp.sqrt(square / numerator), normal * (numerator / square)
