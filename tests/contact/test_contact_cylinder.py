"""A cylinder rolls, stands and tips over as closed forms say."""

import functools

import jax
import numpy as np
import pytest

from jaxdyn import BodyInertia, ContactLaw, ContactShape, Cylinder, Joint, ModelBuilder, Plane, State, World
from jaxdyn.simulate import RolloutOptions, Trajectory
from jaxdyn.spatial import quaternion_to_rotation
from tests.contact.test_contact_physics import energies, moved, random_tosses

pytestmark = pytest.mark.slow

RADIUS, HALF, G, DT, STEPS = 0.1, 0.2, 9.81, 1e-3, 1000
TIPPING = np.arctan(RADIUS / HALF)
"""The slope on which the center of mass is above the rim."""
SLOPES = {"rolls": 0.3, "stands": 0.0, "stays": 0.97 * TIPPING, "tips": 1.03 * TIPPING}


@functools.cache
def motions() -> dict[str, Trajectory]:
    """From rest on slopes down along x: a cylinder on its side, with its axis along y, and three on their ends."""
    builder = ModelBuilder()
    across = (3 * RADIUS**2 + 4 * HALF**2) / 12
    inertia = BodyInertia(1.0, (0, 0, 0), np.diag([across, across, RADIUS**2 / 2]))
    model = builder.add_body("can", joint=Joint("free"), inertia=inertia).build()
    law = ContactLaw(stiffness=1e5, dissipation=1.0, friction=1.5, stiction_velocity=1e-4)
    a = np.array(list(SLOPES.values()))
    normals = np.stack([np.sin(a), 0 * a, np.cos(a)], axis=1)
    world = World(model, [ContactShape("can", Cylinder(RADIUS, HALF))], Plane(normals), law=law, timestep=DT)
    on_side = np.arange(4) == 0
    # The depth at which two places, or three, carry the weight.
    depth = G * np.cos(a) / (1e5 * np.where(on_side, 2, 3))
    height = np.where(on_side, RADIUS, HALF) - depth
    tilted = np.stack([np.cos(a / 2), 0 * a, np.sin(a / 2), 0 * a], axis=1)
    tilted[0] = np.sqrt(0.5) * np.array([1, 1, 0, 0])
    start = State(np.concatenate([height[:, None] * normals, tilted], axis=1), np.zeros((4, 6)))
    options = RolloutOptions(check=True)
    out = world.rollout(start, steps=STEPS, options=options)
    return {name: jax.tree.map(lambda x, k=k: x[k], out) for k, name in enumerate(SLOPES)}


def down(name: str) -> np.ndarray:
    """How far the cylinder came down its slope, m, and the cosine between its axis and the slope's normal."""
    a, q = SLOPES[name], np.asarray(motions()[name].q)
    x, y = q[:, 4], q[:, 5]
    z_axis = np.stack([2 * (x * q[:, 6] + q[:, 3] * y), 2 * (y * q[:, 6] - q[:, 3] * x), 1 - 2 * (x * x + y * y)])
    return np.array([q[:, 0] * np.cos(a) - q[:, 2] * np.sin(a), np.array([np.sin(a), 0, np.cos(a)]) @ z_axis])


def test_a_rolling_cylinder_has_two_thirds_of_the_slope_of_gravity():
    t = DT * np.arange(STEPS + 1)
    along, cosine = down("rolls")
    rate = np.diff(along) / DT
    acceleration = 2 / 3 * G * np.sin(SLOPES["rolls"])
    np.testing.assert_allclose(rate, acceleration * t[1:], atol=2e-3 * rate[-1])
    np.testing.assert_allclose(cosine, 0, atol=1e-6)


def test_a_cylinder_stands_on_its_end():
    motion = motions()["stands"]
    np.testing.assert_allclose(motion.q, np.tile(motion.q[0], (STEPS + 1, 1)), atol=1e-9)
    np.testing.assert_allclose(motion.v, 0, atol=1e-9)


def test_a_cylinder_tips_over_its_rim_where_its_center_is_above_it():
    along, cosine = down("stays")
    # At first it sinks in on the lower side of its end.
    assert cosine.min() > np.cos(0.01)
    assert cosine[-1] > np.cos(2e-3)
    assert abs(along[-1]) < 1e-3
    assert down("tips")[1][-1] < np.cos(1.5)


def test_energy_rises_only_by_how_the_deepest_place_moves_within_a_step():
    """Which is of second order in the step, and less than what a toss loses."""
    radius = 0.06
    half = np.sqrt(0.75) * radius
    inertia = BodyInertia(1.0, (0, 0, 0), np.eye(3) * radius**2 / 2)
    model = ModelBuilder().add_body("can", joint=Joint("free"), inertia=inertia).build()
    q, v, law = random_tosses(np.random.default_rng(2), 100)

    def gaps(q):
        upward = np.asarray(quaternion_to_rotation(q[..., 3:]))[..., 2, :]
        across = radius * np.sqrt((upward[..., :2] ** 2).sum(-1))
        ends = [q[..., 2] + side * half * upward[..., 2] for side in (-1, 1)]
        return np.stack([end + part * across for part in (-1, 0.5, 0.5) for end in ends], axis=-1)

    q[:, 2] -= np.minimum(0.0, gaps(q).min(axis=-1))
    world = World(model, [ContactShape("can", Cylinder(radius, half))], law=law)
    np.testing.assert_allclose(world.contact_forces(State(q, v), of_step=False).gap, gaps(q), atol=1e-12)
    rises = []
    for dt, steps in ((1e-3, 300), (5e-4, 600)):
        motion = moved(world, q, v, dt, steps)
        assert motion.contact.converged.all()
        stored = energies(model, motion, np.asarray(law.stiffness), gaps(np.asarray(motion.q)))
        rises.append(np.diff(stored, axis=1).max())
        assert (np.diff(stored, axis=1) > 1e-9).mean() < 2e-3
        assert (stored[:, -1] < stored[:, 0]).all()
    assert rises[0] < 6e-4 < 1e-3 * stored[:, 0].mean()
    assert rises[1] < 0.3 * rises[0]
