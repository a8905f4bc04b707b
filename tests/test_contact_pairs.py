"""Contacts between bodies, and steps with contact of models with loops and joints that mimic others."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import null_space
from scipy.spatial.transform import Rotation

import jaxdyn
from jaxdyn import (
    BodyInertia,
    Box,
    ContactLaw,
    ContactOptions,
    ContactPair,
    Contacts,
    ContactShape,
    Ellipsoid,
    Joint,
    Mimic,
    ModelBuilder,
    ModelError,
    Sphere,
    State,
)
from jaxdyn.contact import contact_accelerations

DT = 1e-3
HALF = 0.03
EXACT = ContactOptions(tolerance=1e-13)


def workbench() -> tuple[jaxdyn.Model, Contacts]:
    """A hand, one of whose fingers mimics the other, a cube between them on a table, and a linkage that touches the ground."""
    builder = ModelBuilder()
    lift = Joint("prismatic", axis=(0, 0, 1), name="lift")
    builder.add_body("hand", joint=lift, inertia=BodyInertia.box(0.7, (0.1, 0.1, 0.1)))
    for side, sign in (("left", 1), ("right", -1)):
        mimic = None if sign > 0 else Mimic("left", 1.0, 0.0)
        joint = Joint("prismatic", axis=(0, -sign, 0), name=side, mimic=mimic, damping=0.1)
        builder.add_body(f"{side}_finger", "hand", joint, (0, 0.07 * sign, 0), BodyInertia.box(0.1, (0.02, 0.02, 0.02)))
    builder.add_body("cube", joint=Joint("free", name="free"), inertia=BodyInertia.box(0.2, (2 * HALF,) * 3))
    axis = (0, 1, 0)
    rods = [BodyInertia.rod(1.0, (0, 0, 0), (length, 0, 0)) for length in (0.4, 1.0, 0.7)]
    builder.add_body("crank", "world", Joint(axis=axis, name="a"), (1, 0, 0), rods[0])
    builder.add_body("coupler", "crank", Joint(axis=axis, name="b"), (0.4, 0, 0), rods[1])
    builder.add_body("rocker", "world", Joint(axis=axis, name="c"), (1.9, 0, 0), rods[2])
    builder.add_frame("table", "world", (0, 0, -0.1)).add_frame("cube_feet", "cube")
    # A rod with balls at its ends: its one equation is never redundant, as two of a pin are that stay redundant only
    # while all axes are parallel.
    model = builder.add_loop("rod", "distance", "coupler", "rocker", (1.0, 0, 0), (0.7, 0, 0), 0.1).build()
    corners = [(x, y, -HALF + 0.002) for x in (-HALF, HALF) for y in (-HALF, HALF)]
    shapes = [
        ContactShape("left_finger", Sphere(0.01), (0, 0, 0)),
        ContactShape("right_finger", Sphere(0.01), (0.005, 0, 0)),
        ContactShape("cube", Box((HALF, HALF, HALF))),
        *(ContactShape("cube_feet", Sphere(0.002), corner) for corner in corners),
        ContactShape("table", Box((0.2, 0.2, 0.1))),
        ContactShape("rocker", Sphere(0.02), (0.7, 0, 0)),
    ]
    law = ContactLaw(stiffness=1e4, dissipation=0.5, friction=0.8, stiction_velocity=1e-2)
    firm = ContactLaw(stiffness=2e4, dissipation=0.2, friction=0.5, stiction_velocity=1e-2)
    pairs = [("left_finger", "cube"), ContactPair("cube", "right_finger", firm), ("table", "cube_feet")]
    return model, Contacts(model, shapes, jaxdyn.Plane((0, 0, 1), -0.657), law, options=EXACT, pairs=pairs)


@functools.cache
def pressed():
    """A step in which the fingers press the cube on the table, and the linkage strikes the ground."""
    model, contacts = workbench()
    random = np.random.default_rng(0)
    q = model.neutral().at[jnp.array([0, 1, 4])].set(jnp.array([0.02, 0.0405, HALF - 1e-3]))
    q = jaxdyn.project_configuration(model, q.at[-3:].set(jnp.array([-0.845, 2.061, 1.993]))).q
    v = jaxdyn.project_velocity(model, q, 0.3 * random.normal(size=model.nv))
    tau = jnp.asarray(random.normal(size=model.nv))
    return model, contacts, q, v, tau, jnp.asarray(DT)


@eqx.filter_jit
def everything(inputs, direction, weights):
    """The accelerations of a step, the forces in it, and the derivatives of a weighted sum of the accelerations:
    forward along a direction of all arrays, and reverse."""

    def weighted(arrays):
        return (weights * contact_accelerations(*eqx.combine(arrays, static))[0]).sum()

    arrays, static = eqx.partition(inputs, eqx.is_inexact_array)
    a, report = contact_accelerations(*inputs)
    return a, report, jax.jvp(weighted, (arrays,), (direction,)), jax.grad(weighted)(arrays)


@functools.cache
def solved():
    """The inputs of a step, a direction and weights, and what `everything` returns."""
    inputs = pressed()
    random = np.random.default_rng(1)
    skipped = ("position_lower", "position_upper", "velocity_limit", "effort_limit", "width")

    def along(path, x):
        if any(getattr(key, "name", None) in skipped for key in path):
            return jnp.zeros_like(x)
        return jnp.asarray(random.normal(size=x.shape) * np.maximum(np.abs(x), 1e-3))

    direction = jax.tree_util.tree_map_with_path(along, eqx.filter(inputs, eqx.is_inexact_array))
    weights = jnp.asarray(random.normal(size=inputs[0].nv))
    return inputs, direction, weights, everything(inputs, direction, weights)


def test_a_step_solves_its_equations():
    """The forces of contact and of the other torques balance what the loops and the mimicking joint leave free."""
    (model, contacts, q, v, tau, dt), _, _, (a, report, *_) = solved()
    assert bool(report.converged)
    rotation = Rotation.from_rotvec(np.asarray(dt * (v + dt * a)[5:8]))
    after = (v + dt * a).at[2:5].set(rotation.inv().apply((v + dt * a)[2:5]))
    found = jaxdyn.contact_forces(model, contacts, q, v, after=after, dt=dt)
    touching = contacts.touching
    pressing = {n for n, force in zip(contacts.names, found.force, strict=True) if jnp.linalg.norm(force) > 1}
    assert pressing == {"left_finger, cube", "cube, right_finger", "table, cube_feet", "rocker"}
    poses = jaxdyn.forward_kinematics(model, q)
    wrenches = np.zeros((model.nb, 6))
    for bodies, sign in ((touching.bodies1, -1.0), (touching.bodies2, 1.0)):
        for body, point, force in zip(bodies, found.point, sign * found.force, strict=True):
            if body >= 0:
                wrenches[body, :3] += force
                wrenches[body, 3:] += np.cross(point - poses.translation[body], force)
    # The linear velocity of the cube is in axes that turn with it.
    own = a.at[2:5].add(-jnp.cross(v[5:8], v[2:5]))
    missing = jaxdyn.rnea(model, q, v, own, wrenches, joint_friction=False) + model.damping * (v + dt * a) - tau
    J = np.asarray(jaxdyn.constraint_jacobian(model, q))
    free = null_space(J)
    assert free.shape[1] == model.nv - 1
    size = float(jnp.abs(jaxdyn.crba(model, q) @ a).max())
    np.testing.assert_allclose(free.T @ missing, 0, atol=1e-10 * size)
    h = 1e-6
    rates = [jaxdyn.constraint_jacobian(model, model.integrate(q, x * v)) @ (v + x * own) for x in (h, -h)]
    np.testing.assert_allclose((rates[0] - rates[1]) / (2 * h), 0, atol=1e-6 * float(jnp.abs(a).max()))


def test_derivatives_by_all_arrays():
    """Forward and reverse mode are equal, and equal to central differences."""
    inputs, direction, weights, (*_, (_, forward), gradient) = solved()
    reverse = sum(jax.tree.leaves(jax.tree.map(lambda x, y: (x * y).sum(), gradient, direction)))
    np.testing.assert_allclose(forward, reverse, rtol=1e-8)
    arrays, static = eqx.partition(inputs, eqx.is_inexact_array)

    def moved(h):
        x = jax.tree.map(lambda x, d: jnp.where(d == 0, x, x + h * d), arrays, direction)
        return everything(eqx.combine(x, static), direction, weights)[2][0]

    np.testing.assert_allclose((moved(1e-7) - moved(-1e-7)) / 2e-7, forward, rtol=1e-5)
