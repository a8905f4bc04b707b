"""The rows of contacts that hold points or surfaces of bodies to the world, with their derivatives in closed form.

Rows are in world axes: for each contact the velocity of the frame's origin, and for a surface the angular velocity. A
small motion `S_k` of a joint that moves the frame changes the spatial velocity `V` and acceleration `A` of its body by

    S_k x V + dS_k,   S_k x A + dS_k x V + ddS_k   for q
    S_k,              S_k x V + dS_k + eS_k        for v

with the vectors of `_sensitivities.py`, and moves the frame's origin.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn.algorithms.recursions._equations_of_motion import Kinematics, Velocities, sum_before_joint
from jaxdyn.algorithms.recursions._robot import Robot
from jaxdyn.algorithms.recursions._sensitivities import Turning, turning_of
from jaxdyn.spatial import Force, Motion, Pose, Vec3
from jaxdyn.tree import columns_of, rows_of, sum_down, take_rows

CONTACT_ROWS = {"point": 3, "surface": 6}
"""The number of rows of each kind of contact: forces, and for a surface moments."""


class ContactFrames(NamedTuple):
    """The frames of contacts at one configuration."""

    bodies: np.ndarray
    """The bodies in which they are fixed, `[n]`."""
    numbers: np.ndarray
    """The rows of the contacts among the six of each frame, linear before angular ones."""
    r: Vec3
    """The origins, from the points of reference of their trees, rows `[n]`."""
    placements: Pose
    """In the bodies, rows `[n]`."""

    @classmethod
    def of(cls, robot: Robot, poses: Pose, contacts: Sequence[tuple[str, str]]) -> ContactFrames:
        """Return the frames of contacts, each given by the name of a frame and its kind."""
        topology = robot.topology
        frames = np.array([topology.frame(name) for name, _ in contacts])
        bodies = np.array([topology.frame_bodies[k] for k in frames])
        table = robot.arrays["frame_placement"][..., frames, :]
        placements = jax.tree.map(lambda x: rows_of(x, robot.rank), Pose.from_vector(table))
        r = take_rows(poses, topology.body_dofs[bodies]).apply(placements.translation)
        numbers = [6 * i + row for i, (_, kind) in enumerate(contacts) for row in range(CONTACT_ROWS[kind])]
        return cls(bodies, np.array(numbers), jax.tree.map(robot.broadcast, r), placements)

    def rows(self, robot: Robot, x: Motion):
        """Return the components of motions of the frames, `[n, ...]`, as the rows of the contacts, `[m, ...]`."""
        parts = [x.linear.x, x.linear.y, x.linear.z, x.angular.x, x.angular.y, x.angular.z]
        table = jnp.stack([robot.broadcast(part) for part in parts], axis=1)
        return take_rows(table.reshape((-1, *table.shape[2:])), self.numbers)

    def jacobian(self, robot: Robot, S: Motion):
        """Return `J` `[m, nv, *batch]`."""
        return self.rows(robot, self._moving(robot, S).at(self._r()))

    def drift(self, robot: Robot, velocity: Motion, acceleration: Motion):
        """Return `Jdot v` `[m, *batch]` from the velocities of the degrees of freedom, and the part of their
        accelerations that is due to velocities."""
        V, A = self._of_bodies(robot, (velocity, acceleration))
        A = A.at(self.r)
        return self.rows(robot, Motion(A.angular, A.linear + V.angular.cross(V.at(self.r).linear)))

    def positions(self, robot: Robot, poses: Pose):
        """Return the positions of the origins in the rows of velocities, `[m, *batch]`, and zero in those of angular
        velocities; `poses` are absolute."""
        p = self._of_bodies(robot, poses).apply(self.placements.translation)
        return self.rows(robot, Motion(p * 0.0, p))

    def lengths(self, robot: Robot):
        """Return 1 for the rows of velocities of origins and 0 for those of angular velocities, `[m, 1, ...]`."""
        return robot.constant((self.numbers % 6 < 3).astype(float))

    def alike(self) -> np.ndarray:
        """Return for each row the numbers of the rows of the same contact and unit, `[m, 4]`, as `Sizes` has them."""
        group = self.numbers // 3
        return np.array([np.resize(np.flatnonzero(group == g), 4) for g in group])

    def forces(self, robot: Robot, impulses) -> tuple[Force, Turning]:
        """Return what forces and moments in the directions of the rows do on the bodies: the forces about the points of
        reference, and how these turn when the bodies move; rows `[nv]`."""
        n = len(self.bodies)
        where = np.full(6 * n, -1)
        where[self.numbers] = np.arange(len(self.numbers))
        table = take_rows(robot.broadcast(impulses), where)
        fx, fy, fz, nx, ny, nz = columns_of(table.reshape((n, 6, *table.shape[1:])))
        wrench = Force(moment=Vec3(nx, ny, nz), force=Vec3(fx, fy, fz))
        carried = np.zeros((robot.nv, n))
        carried[robot.topology.body_dofs[self.bodies], np.arange(n)] = 1
        carried = robot.constant(carried)
        both = wrench.moved_from(self.r), turning_of(wrench, self.r)
        return jax.tree.map(lambda x: (carried * x[None]).sum(axis=1), both)

    def _of_bodies(self, robot: Robot, x: Any) -> Any:
        return take_rows(x, robot.topology.body_dofs[self.bodies])

    def _r(self) -> Vec3:
        return jax.tree.map(lambda x: x[:, None], self.r)

    def _moving(self, robot: Robot, x: Motion) -> Motion:
        """Return motions of the degrees of freedom for each frame that they move, `[n, nv, *batch]`."""
        moves = robot.constant(robot.topology.moves_body[self.bodies].astype(float))
        return jax.tree.map(lambda x: robot.broadcast(x)[None], x) * moves


class ContactRates(NamedTuple):
    """The derivatives of the rows' rates `J z + drift_shares Jdot v`, `[m, nv, *batch]`, with `z` held."""

    by_q: Any
    by_v: Any


def contact_rate_derivatives(
    robot: Robot, frames: ContactFrames, at: Kinematics, moving: Velocities, c: Motion, z, drift_shares
) -> ContactRates:
    """Return the derivatives of `J z + drift_shares Jdot v` by the tangent space of `q` and by `v`; `c` is that of the
    equations of motion."""
    S, (joint, velocity, _) = at.S, moving
    r, own = frames._r(), frames._moving(robot, S)
    origin = own.at(r).linear

    def behind(across: Motion) -> tuple[Motion, Motion]:
        """The sum down the tree of what degrees of freedom add, and that before each one's joint."""
        total = sum_down(robot.tree, across)
        return total, sum_before_joint(robot, total, across)

    def of_frames(x: Motion) -> Motion:
        return jax.tree.map(lambda x: robot.broadcast(x)[:, None], frames._of_bodies(robot, x))

    def turned(x: Motion, own_change: Motion) -> Motion:
        """`S_k x X + dX_k` for what a degree of freedom moves."""
        return own.cross(of_frames(x)) + frames._moving(robot, own_change)

    V_z, before = behind(S * z)
    along = turned(V_z, before.cross(S)).at(r)
    along = Motion(along.angular, along.linear + of_frames(V_z).angular.cross(origin))

    acceleration, a_p = behind(c)
    dS = sum_before_joint(robot, velocity, joint).cross(S)
    ddS = a_p.cross(S) + sum_before_joint(robot, velocity, joint).cross(dS)
    V, A = of_frames(velocity), of_frames(acceleration)
    w, speed = V.angular, V.at(r).linear

    def classical(dA: Motion, dV: Motion, moved: Vec3 | None) -> Motion:
        """The change of `A + w x speed` at the origin, which also moves."""
        dA, dV = dA.at(r), dV.at(r)
        d_speed, linear = dV.linear, dA.linear
        if moved is not None:
            d_speed, linear = d_speed + w.cross(moved), linear + A.angular.cross(moved)
        return Motion(dA.angular, linear + dV.angular.cross(speed) + w.cross(d_speed))

    by_q = turned(acceleration, ddS) + frames._moving(robot, dS).cross(V)
    by_q = classical(by_q, turned(velocity, dS), origin)
    rate = dS + take_rows(velocity, robot.topology.mover).cross(S)
    by_v = classical(turned(velocity, rate), own, None)
    by_q, by_v = frames.rows(robot, by_q), frames.rows(robot, by_v)
    return ContactRates(frames.rows(robot, along) + drift_shares[:, None] * by_q, drift_shares[:, None] * by_v)
