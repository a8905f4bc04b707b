"""How actuators of a world act on it: their lengths, and the derivatives of these by the velocities.

MuJoCo's documentation, chapter Computation, section "Transmission"; `engine_core_smooth.c` of MuJoCo 4.0
(`mj_transmission`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn.algorithms.recursions import Robot
from jaxdyn.spatial import Quaternion, Vec3
from jaxdyn.tree import take_rows
from jaxdyn.worlds._parts import Instant, PartRows, Places, point_rows, sums
from jaxdyn.worlds._tendons import TendonRows


class ContactNormals(NamedTuple):
    """Contacts that may pull bodies to each other, `[n, *batch]`."""

    bodies: tuple[Any, Any]
    """MuJoCo's numbers of both bodies: NumPy arrays `[n]`, or where they depend on the state, rows."""
    jacobian: Any
    """The derivatives of the velocities at which the bodies part along the normals by the velocities of the degrees of
    freedom, `[n, nv, *batch]`."""
    there: Any
    """One for contacts within margin and gap, else zero."""


class Transmission(NamedTuple):
    """The lengths of actuators and their rates, `[nu, *batch]`."""

    length: Any
    velocity: Any
    moment: Any
    """The derivatives of the lengths by the velocities, `[n, nv, *batch]`, of those in `Actuators.coupled`."""


def transmission(
    robot: Robot,
    actuators: PartRows,
    at: Instant,
    tendons: TendonRows | None,
    normals: Sequence[ContactNormals] = (),
) -> Transmission:
    """Return the lengths and velocities of the actuators at a state. Those that pull bodies to what these touch have no
    length, and without `normals` nothing to pull."""
    count = len(actuators.names)
    length = jnp.zeros((count, *robot.batch), robot.dtype)
    velocity = length
    if actuators.axes_of_joints:
        numbers, coordinates, dofs = np.array(actuators.axes_of_joints).T
        gear = take_rows(actuators.gear[:, 0], numbers)
        length = length + sums(gear * take_rows(at.q, coordinates), numbers, count)
        velocity = velocity + sums(gear * take_rows(at.v, dofs), numbers, count)
    lengths, moments = [], []
    if actuators.joined:
        _add(_joining(robot, actuators, at), lengths, moments)
    if actuators.turning:
        _add(_turning(robot, actuators, at), lengths, moments)
    if actuators.pulling:
        assert tendons is not None
        numbers, which = np.array(actuators.pulling).T
        gear = take_rows(actuators.gear[:, 0], numbers)
        _add(
            (gear * take_rows(tendons.length, which), gear[:, None] * take_rows(tendons.jacobian, which)),
            lengths,
            moments,
        )
    if actuators.pushing:
        _add(_pushing(robot, actuators, at), lengths, moments)
    if actuators.cranks:
        _add(_cranking(robot, actuators, at), lengths, moments)
    if actuators.adhering:
        _add(_adhering(robot, actuators, normals), lengths, moments)
    if not moments:
        return Transmission(length, velocity, None)
    moment = jnp.concatenate([robot.broadcast(x) for x in moments])
    own = jnp.concatenate([robot.broadcast(x) for x in lengths])
    numbers = actuators.coupled
    length = length + sums(own, numbers, count)
    velocity = velocity + sums((moment * at.v[None]).sum(axis=1), numbers, count)
    return Transmission(length, velocity, moment)


def _add(found: tuple, lengths: list, moments: list) -> None:
    lengths.append(found[0])
    moments.append(found[1])


def _joining(robot: Robot, actuators: PartRows, at: Instant) -> tuple[Any, Any]:
    """Return the lengths and moments of actuators on several slides and hinges."""
    numbers, coordinates, dofs, which = np.array(actuators.joined).T
    _, owners = np.unique(numbers, return_inverse=True)
    count = int(owners.max()) + 1
    gear = take_rows(actuators.gear.reshape(-1, *actuators.gear.shape[2:]), 6 * numbers + which)
    moment = sums(robot.broadcast(gear), owners * robot.nv + dofs, count * robot.nv)
    return sums(gear * take_rows(at.q, coordinates), owners, count), moment.reshape(count, robot.nv, *robot.batch)


def _turning(robot: Robot, actuators: PartRows, at: Instant) -> tuple[Any, Any]:
    """Return the lengths and moments of actuators on ball and free joints. MuJoCo has no length for those on free
    joints."""
    numbers, coordinates, dofs, in_parent, free = np.array(actuators.turning).T
    gear = take_rows(actuators.gear, numbers)
    turn = Quaternion(*(take_rows(at.q, coordinates + k) for k in range(4))).normalized()
    linear, axis = (Vec3(*(gear[:, k + i] for i in range(3))) for k in (0, 3))
    is_free, parent = (robot.constant(x.astype(float)) for x in (free, in_parent))
    # A ball joint has the gear of its rotation in the first numbers, a free joint in the last.
    axis = axis * is_free + linear * (1 - is_free)
    R = turn.to_rotation()
    axis = R.apply_transpose(axis) * parent + axis * (1 - parent)
    linear = R.apply_transpose(linear) * is_free
    length = turn.log().dot(axis) * (1 - is_free)
    rows = []
    for k, (first, is_f) in enumerate(zip(dofs, free, strict=True)):
        row = [jnp.zeros_like(length[k])] * robot.nv
        for i, x in enumerate((axis.x, axis.y, axis.z)):
            row[first + i] = x[k]
        for i, x in enumerate((linear.x, linear.y, linear.z)):
            if is_f:
                row[first - 3 + i] = x[k]
        rows.append(jnp.stack(jnp.broadcast_arrays(*row)))
    return length, jnp.stack(rows)


def _pushing(robot: Robot, actuators: PartRows, at: Instant) -> tuple[Any, Any]:
    """Return the lengths and moments of actuators on sites: gears are in axes of the site, or of its reference site."""
    first, second = np.array(actuators.referred).T
    gear = take_rows(actuators.gear, np.array(actuators.pushing))
    linear, angular = (Vec3(*(gear[:, k + i] for i in range(3))) for k in (0, 3))
    sites = Places.located(actuators.sites, at)
    site, reference = sites.take(first), sites.take(np.maximum(second, 0))
    has = robot.constant(np.where(second >= 0, 1.0, 0.0))
    moving = point_rows(robot, at, sites)
    rows = take_rows(moving, first)
    if (second >= 0).any():
        # What moves both sites does not count.
        moves = _moved(robot, sites.dofs)
        common = robot.constant(np.where((second >= 0)[:, None], moves[first] & moves[second], False).astype(float))
        rows = (rows - take_rows(moving, second)) * (1 - common)
    a, b = site.pose.rotation, reference.pose.rotation
    R = jax.tree.map(lambda x, y: x * (1 - has) + y * has, a, b)
    force, moment = (jax.tree.map(lambda x: x[:, None], R.apply(x)) for x in (linear, angular))
    shift = b.apply_transpose(site.pose.translation - reference.pose.translation)
    turn = Quaternion.from_rotation(b.T.compose(a)).log() if (second >= 0).any() else Vec3.zero()
    length = (shift.dot(linear) + turn.dot(angular)) * has
    return length, rows.linear.dot(force) + rows.angular.dot(moment)


def _cranking(robot: Robot, actuators: PartRows, at: Instant) -> tuple[Any, Any]:
    """Return the lengths and moments of actuators on slider-cranks: a rod of fixed length holds a site, and its other
    end slides along the z axis of a second site. The length is where on that axis it is."""
    numbers, crank, slider = np.array(actuators.cranks).T
    gear, rod = take_rows((actuators.gear[:, 0], actuators.rod), numbers)
    sites = Places.located(actuators.sites, at)
    moving = point_rows(robot, at, sites)
    one, other = sites.take(crank), sites.take(slider)
    axis, shift = other.pose.rotation.z, one.pose.translation - other.pose.translation
    along = shift.dot(axis)
    square = along * along + rod * rod - shift.squared_norm()
    reaches = square > 0
    root = jnp.sqrt(jnp.where(reaches, square, 1))
    inverse = jnp.where(reaches, 1 / root, 0)
    length = along - jnp.where(reaches, root, 0)
    # The length's derivatives by the shift and the axis; MuJoCo's where the rod is too short.
    by_shift, by_axis = axis * (1 - along * inverse) + shift * inverse, shift * (1 - along * inverse)
    by_shift, by_axis, axis = (jax.tree.map(lambda x: x[:, None], x) for x in (by_shift, by_axis, axis))
    turning = take_rows(moving.angular, slider).cross(axis)
    shifting = take_rows(moving.linear, crank) - take_rows(moving.linear, slider)
    return gear * length, gear[:, None] * (by_axis.dot(turning) + by_shift.dot(shifting))


def _adhering(robot: Robot, actuators: PartRows, normals: Sequence[ContactNormals]) -> tuple[Any, Any]:
    """Return the lengths and moments of actuators that pull bodies to what these touch: the mean of the normals of a
    body's contacts, towards each other."""
    own = [body for _, body in actuators.adhering]
    moments = jnp.zeros((len(own), robot.nv, *robot.batch), robot.dtype)
    count = jnp.zeros((len(own), *robot.batch), robot.dtype)
    for contacts in normals:
        # Axes: the actuators, the contacts, the batch.
        of_body = [jnp.stack([jnp.where(x == body, 1.0, 0.0) for body in own]) for x in contacts.bodies]
        share = jnp.maximum(*(x.reshape((*x.shape, *[1] * (robot.rank + 2 - x.ndim))) for x in of_body))
        share = share.astype(robot.dtype) * contacts.there[None]
        moments = moments - (share[:, :, None] * contacts.jacobian[None]).sum(axis=1)
        count = count + share.sum(axis=1)
    return jnp.zeros_like(count), moments / jnp.maximum(count, 1.0)[:, None]


def _moved(robot: Robot, dofs: np.ndarray) -> np.ndarray:
    """Return, `[n, nv]`, whether a degree of freedom moves the frames behind others; none moves the world, -1."""
    return np.where((dofs >= 0)[:, None], robot.topology.dof_ancestors[np.maximum(dofs, 0)], False)
