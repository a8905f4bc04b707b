"""The values of sensors, by their types. Each function returns the components of its sensors, `[n, *batch]` each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn.algorithms.recursions import Robot
from jaxdyn.rows import rates_of
from jaxdyn.spatial import Motion, Quaternion, Sym3, Vec3
from jaxdyn.tree import columns_of, take_rows
from jaxdyn.worlds._parts import (
    FreeJoints,
    Instant,
    Loads,
    Located,
    PartRows,
    Places,
    accelerations_of,
    length_of,
    sums,
)
from jaxdyn.worlds._rays import ranges
from jaxdyn.worlds._readings import Readings
from jaxdyn.worlds._turns import quaternions
from jaxdyn.worlds._zones import is_inside, is_met

type _Value = Callable[[Robot, PartRows, Instant, Readings, np.ndarray], tuple]


def _components(x: Vec3) -> tuple:
    return x.x, x.y, x.z


def _objects(sensors: PartRows, which: np.ndarray) -> np.ndarray:
    return np.array(sensors.objects, int)[which]


# What the tree has


def _joint(sensors: PartRows, which: np.ndarray, column: int) -> np.ndarray:
    """Return the first coordinate (1) or degree of freedom (2) of the joints that sensors read."""
    return np.array([sensors.joints[i][column] for i in _objects(sensors, which)], int)


def _of_coordinates(robot, sensors, at, readings, which):
    return (take_rows(at.q, _joint(sensors, which, 1)),)


def _of_rates(robot, sensors, at, readings, which):
    return (take_rows(at.v, _joint(sensors, which, 2)),)


def _of_quaternions(robot, sensors, at, readings, which):
    rows = _joint(sensors, which, 1)
    unit = Quaternion(*(take_rows(at.q, rows + k) for k in range(4))).normalized()
    return tuple(jax.tree.leaves(unit))


def _of_turning(robot, sensors, at, readings, which):
    rows = _joint(sensors, which, 2)
    return tuple(take_rows(at.v, rows + k) for k in range(3))


def _time(robot, sensors, at, readings, which):
    return (jnp.broadcast_to(readings.time, (len(which), *robot.batch)),)


def _reading(*path: str) -> _Value:
    """Return the function that reads a row of what `readings` has under these names."""

    def value(robot, sensors, at, readings, which):
        x = readings
        for name in path:
            x = getattr(x, name)
        return (take_rows(x, _objects(sensors, which)),)

    return value


def _of_joint_forces(robot, sensors, at, readings, which):
    return (take_rows(readings.actuated.torque, _joint(sensors, which, 2)),)


def _of_tendon_forces(robot, sensors, at, readings, which):
    count = len(sensors.tendons_limited)
    return (take_rows(sums(readings.actuated.force, np.array(sensors.pulled), count), _objects(sensors, which)),)


# Limits


def _limits_of_joints(robot: Robot, sensors: PartRows, at: Instant, which: np.ndarray) -> tuple[Any, Any]:
    """Return the distances of joints from their limits, and their rates: zero where they are not near."""
    numbers = _objects(sensors, which)
    kinds = np.array([sensors.joints[i][0] for i in numbers])
    q, v = _joint(sensors, which, 1), _joint(sensors, which, 2)
    bounds, margin = take_rows((sensors.joint_range, sensors.joint_margin), numbers)
    lower, upper = columns_of(bounds)
    rows = np.where(kinds == "ball", -1, q)
    below, above = take_rows(at.q, rows) - lower, upper - take_rows(at.q, rows)
    rate = take_rows(at.v, np.where(kinds == "ball", -1, v))
    rate_above = -rate
    if (kinds == "ball").any():
        ball = robot.constant((kinds == "ball").astype(float)) > 0
        parts = [take_rows(at.q, np.where(kinds == "ball", q + k, -1)) for k in range(4)]
        turn = Quaternion(parts[0] + jnp.where(ball, 0.0, 1.0), *parts[1:]).normalized().log()
        angle = length_of(turn)
        speed = turn.dot(Vec3(*(take_rows(at.v, np.where(kinds == "ball", v + k, -1)) for k in range(3))))
        turns = ball & (angle > 0)
        rate_above = jnp.where(ball, jnp.where(turns, -speed / jnp.where(turns, angle, 1), 0), rate_above)
        above = jnp.where(ball, jnp.maximum(lower, upper) - angle, above)
        below = jnp.where(ball, 1 + abs(margin), below)
    limited = np.array(sensors.limited)[numbers]
    return _nearest(robot, limited, (below, rate), (above, rate_above), margin)


def _nearest(robot: Robot, limited: np.ndarray, low: tuple, high: tuple, margin) -> tuple[Any, Any]:
    """Return distance and rate of the first of two limits that is within its margin; zero where none is."""
    there = robot.constant(limited.astype(float)) > 0
    first, second = there & (low[0] < margin), there & (high[0] < margin)
    pairs = ((low[0] - margin, high[0] - margin), (low[1], high[1]))
    distance, rate = (jnp.where(first, a, jnp.where(second, b, 0.0)) for a, b in pairs)
    return distance, rate


def _limits_of_tendons(robot: Robot, sensors: PartRows, readings: Readings, which: np.ndarray) -> tuple[Any, Any]:
    numbers = _objects(sensors, which)
    assert readings.tendons is not None
    length, rate = take_rows((readings.tendons.length, readings.tendons.velocity), numbers)
    bounds, margin = take_rows((sensors.tendon_range, sensors.tendon_margin), numbers)
    lower, upper = columns_of(bounds)
    limited = np.array(sensors.tendons_limited)[numbers]
    return _nearest(robot, limited, (length - lower, rate), (upper - length, -rate), margin)


def _joint_limit(part: int) -> _Value:
    return lambda robot, sensors, at, readings, which: (_limits_of_joints(robot, sensors, at, which)[part],)


def _tendon_limit(part: int) -> _Value:
    return lambda robot, sensors, at, readings, which: (_limits_of_tendons(robot, sensors, readings, which)[part],)


# Frames


def _located(sensors: PartRows, at: Instant, which: np.ndarray) -> tuple[Located, Located, np.ndarray]:
    """Return the frames of sensors, the frames in which they measure, and which have one."""
    frames = Places.located(sensors.frames, at)
    own, reference = (np.array(x, int)[which] for x in (sensors.places, sensors.references))
    return frames.take(own), frames.take(np.maximum(reference, 0)), reference >= 0


def _choose(robot: Robot, has: np.ndarray, there, here):
    """Return `there` for rows that have a frame in which they measure, else `here`."""
    if not has.any():
        return here
    flag = robot.constant(has.astype(float)) > 0
    return jax.tree.map(lambda x, y: jnp.where(flag, x, y), there, here)


def _frame_position(robot, sensors, at, readings, which):
    own, reference, has = _located(sensors, at, which)
    here = own.pose.translation
    there = reference.pose.rotation.apply_transpose(here - reference.pose.translation)
    return _components(_choose(robot, has, there, here))


def _frame_axis(name: str) -> _Value:
    def value(robot, sensors, at, readings, which):
        own, reference, has = _located(sensors, at, which)
        axis = getattr(own.pose.rotation, name)
        return _components(_choose(robot, has, reference.pose.rotation.apply_transpose(axis), axis))

    return value


def _frame_quaternion(robot, sensors, at, readings, which):
    found = quaternions(robot, sensors.turns, at)
    row = {frame: k for k, frame in enumerate(sensors.turned)}
    own, reference = (np.array(x, int)[which] for x in (sensors.places, sensors.references))
    here = take_rows(found, np.array([row[i] for i in own]))
    there = take_rows(found, np.array([row[max(i, 0)] if i >= 0 else 0 for i in reference]))
    return tuple(jax.tree.leaves(_choose(robot, reference >= 0, there.conjugate().multiply(here), here)))


def _frame_velocity(part: str) -> _Value:
    def value(robot, sensors, at, readings, which):
        own, reference, has = _located(sensors, at, which)
        here = own.velocity(at)
        other = reference.velocity(at)
        shift = own.pose.translation - reference.pose.translation
        # The reference turns: what it sees of a point at rest is minus its own turning.
        moving = Motion(here.angular - other.angular, here.linear - other.linear + shift.cross(other.angular))
        there = reference.pose.rotation.apply_transpose(getattr(moving, part))
        return _components(_choose(robot, has, there, getattr(here, part)))

    return value


def _site_velocity(part: str) -> _Value:
    def value(robot, sensors, at, readings, which):
        own, _, _ = _located(sensors, at, which)
        return _components(own.pose.rotation.apply_transpose(getattr(own.velocity(at), part)))

    return value


def _frame_acceleration(part: str, in_site: bool) -> _Value:
    def value(robot, sensors, at, readings, which):
        own, _, _ = _located(sensors, at, which)
        x = getattr(accelerations_of(robot, at, readings.acceleration, own), part)
        return _components(own.pose.rotation.apply_transpose(x) if in_site else x)

    return value


def _magnetometer(robot, sensors, at, readings, which):
    own, _, _ = _located(sensors, at, which)
    field = Vec3(*(sensors.magnetic[i : i + 1] for i in range(3)))
    return _components(own.pose.rotation.apply_transpose(field))


# Subtrees, and forces in bodies


class _Members(NamedTuple):
    """The bodies that belong to sensors, rows `[n, *batch]`."""

    owners: np.ndarray
    """The position of the sensor of each among those asked for."""
    numbers: np.ndarray
    """MuJoCo's number of each."""
    roots: np.ndarray
    """MuJoCo's number of the first body of its tree."""
    place: Located
    mass: Any
    inertia: tuple

    def total(self, x, count: int):
        return sums(x, self.owners, count)

    def momentum(self, turning: Vec3) -> Vec3:
        """Return the rotational inertias times vectors in world axes."""
        R = self.place.pose.rotation
        local = R.apply_transpose(turning)
        if len(self.inertia) == 6:
            return R.apply(Sym3(*self.inertia).apply(local))
        return R.apply(Vec3(*(i * x for i, x in zip(self.inertia, _components(local), strict=True))))


def _members(robot: Robot, sensors: PartRows, at: Instant, which: np.ndarray) -> _Members:
    position = {int(k): i for i, k in enumerate(which)}
    pairs = np.array([(position[k], row) for k, row in sensors.members if k in position], int)
    rows = pairs[:, 1]
    inertia = columns_of(take_rows(sensors.inertia, rows))
    place = Places.located(sensors.bodies, at).take(rows)
    numbers, roots = (np.array(x)[rows] for x in (sensors.body_numbers, sensors.body_roots))
    return _Members(pairs[:, 0], numbers, roots, place, robot.broadcast(take_rows(sensors.mass, rows)), tuple(inertia))


def _center(members: _Members, count: int) -> tuple[Vec3, Any]:
    """Return the centers of mass of subtrees, and one over their masses."""
    inverse = 1 / jnp.maximum(members.total(members.mass, count), 1e-15)
    return members.total(members.place.pose.translation * members.mass, count) * inverse, inverse


def _subtree_center(robot, sensors, at, readings, which):
    return _components(_center(_members(robot, sensors, at, which), len(which))[0])


def _subtree_velocity(robot, sensors, at, readings, which):
    members = _members(robot, sensors, at, which)
    momentum = members.total(members.place.velocity(at).linear * members.mass, len(which))
    return _components(momentum * _center(members, len(which))[1])


def _subtree_momentum(robot, sensors, at, readings, which):
    members, count = _members(robot, sensors, at, which), len(which)
    center, inverse = _center(members, count)
    velocity = members.place.velocity(at)
    mean = members.total(velocity.linear * members.mass, count) * inverse
    center, mean = take_rows((center, mean), members.owners)
    arm, relative = members.place.pose.translation - center, velocity.linear - mean
    spin = members.momentum(velocity.angular) + arm.cross(relative) * members.mass
    return _components(members.total(spin, count))


def _potential_energy(robot, sensors, at, readings, which):
    members = _members(robot, sensors, at, which)
    height = members.place.pose.translation.dot(robot.gravity_vector)
    return (members.total(-members.mass * height, len(which)) + readings.springs,)


def _kinetic_energy(robot, sensors, at, readings, which):
    members = _members(robot, sensors, at, which)
    v = members.place.velocity(at)
    own = members.mass * v.linear.squared_norm() + v.angular.dot(members.momentum(v.angular))
    speed = FreeJoints.of(robot).to_world(at, at.v)
    geared = (sensors.armature * speed * speed).sum(axis=0)
    if readings.along is not None:
        matrix = readings.along.matrix.reshape(robot.nv, robot.nv, *readings.along.matrix.shape[1:])
        geared = geared + (rates_of(matrix, at.v) * at.v).sum(axis=0)
    return (0.5 * (members.total(own, len(which)) + geared),)


def _between_bodies(part: int) -> _Value:
    """Return the force (0) or the moment about the site (1) that a body's parent exerts on it, in axes of the site."""

    def value(robot, sensors, at, readings, which):
        members, count = _members(robot, sensors, at, which), len(which)
        own, _, _ = _located(sensors, at, which)
        acceleration = accelerations_of(robot, at, readings.acceleration, members.place)
        force = acceleration.linear * members.mass
        spin = members.place.velocity(at).angular
        moment = members.momentum(acceleration.angular) + spin.cross(members.momentum(spin))
        for loads in readings.loads:
            force, moment = jax.tree.map(jnp.subtract, (force, moment), _loads_on(members, loads))
        arm = members.place.pose.translation - take_rows(own.pose.translation, members.owners)
        if part == 1 and (members.numbers == 0).any():
            arm = arm - _between_centers(robot, members, count)
        total = members.total((force, moment + arm.cross(force)), count)
        return _components(own.pose.rotation.apply_transpose(total[part]))

    return value


def _loads_on(members: _Members, loads: Loads) -> tuple[Vec3, Vec3]:
    """Return the sums over the loads on members: the force, and the moment about their centers of mass. MuJoCo leaves
    out those on the world, as if nothing held it."""
    bodies = np.asarray(loads.bodies)
    numbers = np.where(members.numbers == 0, -1, members.numbers)
    owners, rows = np.nonzero(numbers[:, None] == bodies)
    point, force, moment = take_rows((loads.point, loads.force, loads.moment), rows)
    arm = point - take_rows(members.place.pose.translation, owners)
    return sums((force, moment + arm.cross(force)), owners, len(numbers))


def _between_centers(robot: Robot, members: _Members, count: int) -> Vec3:
    """Return the centers of mass of the trees of members from those of all members of their sensors. MuJoCo adds up the
    moments of trees about their own centers as if these were one point, which matters for sites of the world alone."""
    pairs = np.column_stack([members.owners, members.roots])
    trees, first, tree = np.unique(pairs, axis=0, return_index=True, return_inverse=True)
    # A tree without mass, such as a mocap body, has its center where its first body has it.
    weight = members.mass + robot.constant(1e-30 * np.isin(np.arange(len(pairs)), first))

    def centers(groups: np.ndarray, number: int) -> Vec3:
        total, moment = sums((weight, members.place.pose.translation * weight), groups, number)
        return take_rows(moment * (1 / total), groups)

    return centers(tree.ravel(), len(trees)) - centers(members.owners, count)


# Volumes of sites


def _touch(robot, sensors, at, readings, which):
    own, _, _ = _located(sensors, at, which)
    rows = np.array(sensors.places, int)[which]
    carriers, zones = np.array(sensors.carriers)[rows], np.array(sensors.zones)[rows]
    out: Any = jnp.zeros((len(which), *robot.batch), robot.dtype)
    for contacts in readings.contacts:
        owners, numbers = contacts.of_bodies(carriers)
        for kind in dict.fromkeys(zones[owners]):
            mine = zones[owners] == kind
            k, n = owners[mine], numbers[mine]
            point, normal, pressure = take_rows((contacts.point, contacts.normal, contacts.pressure), n)
            place, size = take_rows(own.pose, k), take_rows(sensors.zone_sizes, rows[k])
            ends = [robot.constant(x) if isinstance(x, np.ndarray) else x for x in contacts.bodies]
            ends, body = take_rows(ends, n), robot.constant(carriers[k])
            pressure = jnp.where((ends[0] == body) | (ends[1] == body), pressure, 0.0)
            # A sensor of the second body looks against the normal.
            sign = jnp.where(ends[1] == body, -1.0, 1.0)
            local = place.rotation.apply_transpose(point - place.translation)
            ray = place.rotation.apply_transpose(normal) * sign
            met = is_met(str(kind), Vec3(*columns_of(size)), local, ray) & (pressure > 0)
            out = out + sums(jnp.where(met, pressure, 0), k, len(which))
    return (out,)


def _range(robot, sensors, at, readings, which):
    own, _, _ = _located(sensors, at, which)
    rows = np.array(sensors.places, int)[which]
    return (ranges(robot, sensors.targets, at, own, [sensors.carriers[i] for i in rows]),)


def _inside(robot, sensors, at, readings, which):
    own, reference, _ = _located(sensors, at, which)
    rows = np.array(sensors.references, int)[which]
    zones = np.array(sensors.zones)[rows]
    local = reference.pose.rotation.apply_transpose(own.pose.translation - reference.pose.translation)
    size = Vec3(*columns_of(take_rows(sensors.zone_sizes, rows)))
    out: Any = jnp.zeros((len(which), *robot.batch), robot.dtype)
    for kind in dict.fromkeys(zones):
        of_kind = robot.constant((zones == kind).astype(float))
        out = out + jnp.where(is_inside(str(kind), size, local), 1.0, 0.0) * of_kind
    return (out,)


VALUES: dict[str, tuple[tuple[str, ...], _Value]] = {
    "jointpos": ((), _of_coordinates),
    "jointvel": ((), _of_rates),
    "ballquat": ((), _of_quaternions),
    "ballangvel": ((), _of_turning),
    "tendonpos": (("tendons",), _reading("tendons", "length")),
    "tendonvel": (("tendons",), _reading("tendons", "velocity")),
    "actuatorpos": (("actuated",), _reading("actuated", "transmission", "length")),
    "actuatorvel": (("actuated",), _reading("actuated", "transmission", "velocity")),
    "actuatorfrc": (("actuated",), _reading("actuated", "force")),
    "jointactfrc": (("actuated",), _of_joint_forces),
    "tendonactfrc": (("actuated",), _of_tendon_forces),
    "jointlimitpos": ((), _joint_limit(0)),
    "jointlimitvel": ((), _joint_limit(1)),
    "jointlimitfrc": (("joint_limits",), _reading("joint_limits")),
    "tendonlimitpos": (("tendons",), _tendon_limit(0)),
    "tendonlimitvel": (("tendons",), _tendon_limit(1)),
    "tendonlimitfrc": (("tendon_limits",), _reading("tendon_limits")),
    "framepos": ((), _frame_position),
    "framequat": ((), _frame_quaternion),
    "framexaxis": ((), _frame_axis("x")),
    "frameyaxis": ((), _frame_axis("y")),
    "framezaxis": ((), _frame_axis("z")),
    "framelinvel": ((), _frame_velocity("linear")),
    "frameangvel": ((), _frame_velocity("angular")),
    "framelinacc": (("acceleration",), _frame_acceleration("linear", False)),
    "frameangacc": (("acceleration",), _frame_acceleration("angular", False)),
    "accelerometer": (("acceleration",), _frame_acceleration("linear", True)),
    "velocimeter": ((), _site_velocity("linear")),
    "gyro": ((), _site_velocity("angular")),
    "magnetometer": ((), _magnetometer),
    "subtreecom": ((), _subtree_center),
    "subtreelinvel": ((), _subtree_velocity),
    "subtreeangmom": ((), _subtree_momentum),
    "force": (("acceleration", "loads"), _between_bodies(0)),
    "torque": (("acceleration", "loads"), _between_bodies(1)),
    "touch": (("contacts",), _touch),
    "insidesite": ((), _inside),
    "rangefinder": ((), _range),
    "e_potential": (("springs",), _potential_energy),
    "e_kinetic": ((), _kinetic_energy),
    "clock": (("time",), _time),
}
"""For each type of sensors, the names that they read in `Readings`, and the function of their values."""
