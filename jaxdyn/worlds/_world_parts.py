"""All that a world has besides its tree, and where its functions find numbers that stand in the model."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn._types import Array, Float
from jaxdyn.algorithms.recursions import Robot
from jaxdyn.contact import ShapeContacts
from jaxdyn.spatial import Quaternion, Sym3, Vec3
from jaxdyn.tree import columns_of, take_rows
from jaxdyn.worlds._actuators import Actuators
from jaxdyn.worlds._bodies import Bodies
from jaxdyn.worlds._constraints import Constraints
from jaxdyn.worlds._no_slip import NoSlip
from jaxdyn.worlds._parts import ENDLESS, Part, PartRows
from jaxdyn.worlds._passive import Passive
from jaxdyn.worlds._sensors import Sensors
from jaxdyn.worlds._tendons import Tendons


class WorldParts(Part):
    """All that a world has besides its tree."""

    bodies: Bodies
    constraints: Constraints
    tendons: Tendons
    actuators: Actuators
    passive: Passive
    sensors: Sensors
    timestep: Float[Array, "*batch"]
    """s"""
    integrator: str = eqx.field(static=True)
    """MuJoCo's: `"euler"`, `"implicitfast"`, `"implicit"` or `"rk4"`; or, without its law, one of `jaxdyn.step`."""
    damped: bool = eqx.field(static=True)
    """Whether Euler steps take the damping of joints implicitly."""
    free_bodies: tuple[int, ...] = eqx.field(static=True)
    """The first degrees of freedom of free bodies that carry no joints."""
    no_slip: NoSlip | None = None
    """MuJoCo's sweeps against slip, if the file has them."""
    of_model: bool = eqx.field(static=True, default=False)
    """Whether the world is made of a model, whose arrays are then those of `with_numbers_of_model`."""
    as_mujoco: bool = eqx.field(static=True, default=True)
    """Whether it moves by MuJoCo's law; else as `jaxdyn.step` moves the model."""
    touching: ShapeContacts | None = None
    """The contacts without MuJoCo's law."""
    derived_from: Float[Array, "*batch n"] | None = None
    """The model's numbers from which constants of MuJoCo's law are derived."""

    def leaves_of_model(self) -> tuple[str, ...]:
        """Return the names of the model's arrays that functions of the world read, besides those of the dynamics."""
        return ("position_lower", "position_upper", "effort_limit") if self.of_model else ()

    def on_rows(self, robot: Robot) -> PartRows:
        """Return what functions of rows see of the parts, with the numbers that stand in the model."""
        found = PartRows(self, robot)
        return with_numbers_of_model(found, robot) if self.of_model else found


def with_numbers_of_model(found: PartRows, robot: Robot) -> PartRows:
    """Return the rows of the parts of a world that is made of a model, with the arrays that are the model's own:
    damping, springs, dry friction, limits of positions and efforts, inertias, and placements and axes of joints. Each
    number then stands in one place, where gradients and fits reach it; the parts hold arrays without rows for them."""
    limits, passive, sensors = found.constraints.limits, found.passive, found.sensors

    def bounds() -> Any:
        coordinates, _ = np.array(limits.joints, int).reshape(-1, 2).T
        both = [take_rows(x, coordinates) for x in (robot.position_lower, robot.position_upper)]
        return _table([jnp.clip(x, -ENDLESS, ENDLESS) for x in both])

    def efforts() -> Any:
        effort = jnp.clip(robot.effort_limit, -ENDLESS, ENDLESS)
        return _table([-effort, effort])

    def centers() -> Any:
        center = jax.tree.leaves(_inertias(robot, np.arange(robot.nb))[1])
        # The world comes first; its own frame stands for its center of mass.
        return _placed([jnp.concatenate([0 * x[:1], x]) for x in center])

    def members() -> tuple[Any, Vec3, Sym3]:
        return _inertias(robot, np.array(sensors.body_numbers, int) - 1)

    dofs = np.array(found.constraints.losses.dofs, int)
    limits.elsewhere["range"] = bounds
    found.constraints.losses.elsewhere["loss"] = lambda: take_rows(robot.friction, dofs)
    found.actuators.elsewhere["joint_range"] = efforts
    passive.elsewhere |= {
        "damping": lambda: _linear(robot.damping),
        "stiffness": lambda: _linear(take_rows(robot.stiffness, np.array(passive.spring_dofs))),
        "reference": lambda: take_rows(robot.spring_reference, np.array(passive.springs)),
        # That of a ball joint is alike about all axes.
        "ball_stiffness": lambda: _linear(take_rows(robot.stiffness, np.array(passive.balls)[:, 1])),
        "ball_reference": lambda: _table(
            [take_rows(robot.spring_reference, np.array(passive.balls)[:, 0] + k) for k in range(4)]
        ),
    }
    found.bodies.centers.elsewhere["placement"] = centers
    sensors.bodies.elsewhere["placement"] = lambda: _placed(jax.tree.leaves(members()[1]))
    sensors.elsewhere |= {
        "mass": lambda: members()[0],
        "inertia": lambda: _table(jax.tree.leaves(members()[2])),
    }
    sensors.turns.elsewhere |= {
        "fixed": lambda: _fixed_turns(sensors.turns, robot),
        "axis": lambda: take_rows(robot.joint_axis, np.array(sensors.turns.own, int)[:, 1]),
    }
    return found


def _inertias(robot: Robot, bodies: np.ndarray) -> tuple[Any, Vec3, Sym3]:
    """Return masses, centers of mass in the frames of the bodies, and inertias about these."""
    mass, x, y, z, *about_origin = columns_of(take_rows(robot.inertial_parameters, bodies))
    there = mass > 0
    inverse = jnp.where(there, 1 / jnp.where(there, mass, 1.0), 0.0)
    center = Vec3(x, y, z) * inverse
    offset = Sym3.isotropic(center.squared_norm()) - Sym3.outer(center, center)
    return mass, center, Sym3(*about_origin) - offset * mass


def _fixed_turns(turns: PartRows, robot: Robot) -> Any:
    """Return the fixed rotations before the joints of chains (`Turns`)."""
    joints = np.array(turns.own, int)[:, 0]
    placed = columns_of(take_rows(robot.joint_placement, joints))[3:]
    alone = robot.constant((joints < 0).astype(float))
    own = Quaternion(*columns_of(turns.rows_of_part("fixed")))
    return _table(jax.tree.leaves(Quaternion(placed[0] + alone, *placed[1:]).multiply(own)))


def _table(columns: list) -> Any:
    """Return columns, rows `[n, *batch]`, as a table `[n, k, *batch]`."""
    return jnp.stack(jnp.broadcast_arrays(*columns), axis=1)


def _linear(factors: Any) -> Any:
    """Return the factors of polynomials of first order, those of `Passive`."""
    return _table([factors, factors * 0, factors * 0])


def _placed(origin: list) -> Any:
    """Return poses without rotations."""
    x, y, z = origin
    return _table([x, y, z, x * 0 + 1, x * 0, x * 0, x * 0])
