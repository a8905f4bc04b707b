"""Motion with contact in continuous time: the law's forces in the vector field, and gradients by adaptive solvers that
hold the errors of state and tangent."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import jaxdyn
from jaxdyn import ContactLaw, ContactShape, State, World
from jaxdyn.geometry import Box
from tests.contact.test_contact_gradients import tumbling_cube
from tests.contact.test_contact_pairs import two_balls

HALF = 0.05


def test_accelerations_are_those_of_the_law():
    """A cube slides and turns on an edge; the forces on its corners are computed by hand."""
    model = jaxdyn.samples.cube()
    law = ContactLaw(stiffness=5e3, dissipation=0.7, friction=0.4, stiction_velocity=1e-2)
    world = World(model, [ContactShape("cube", Box((HALF,) * 3))], law=law)
    angle = 0.3
    q = np.array([0.1, 0.2, 0.06, np.cos(angle / 2), np.sin(angle / 2), 0, 0])
    v = np.array([0.3, -0.2, 0.1, 1.0, 2.0, -3.0])
    rate = world.rate(0.0, State(jnp.asarray(q), jnp.asarray(v)))

    R = np.array([[1, 0, 0], [0, np.cos(angle), -np.sin(angle)], [0, np.sin(angle), np.cos(angle)]])
    mass, force, moment = 0.37, np.zeros(3), np.zeros(3)
    for corner in HALF * np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)]):
        depth = -(q[2] + (R @ corner)[2])
        speed = R @ (v[:3] + np.cross(v[3:], corner))
        normal = 5e3 * max(0.0, depth) * max(0.0, 1 - 0.7 * speed[2])
        sliding = speed * [1, 1, 0]
        push = [0, 0, normal] - 0.4 * normal * sliding / np.sqrt(sliding @ sliding + 1e-4)
        force, moment = force + push, moment + np.cross(corner, R.T @ push)
    assert force[2] > 1.0
    linear = R.T @ (force / mass - [0, 0, 9.81]) - np.cross(v[3:], v[:3])
    inertia = float(model.inertial_parameters[0, 4])
    np.testing.assert_allclose(rate.v, [*linear, *(moment / inertia)], rtol=1e-10)
    np.testing.assert_allclose(rate.q[:3], R @ v[:3], rtol=1e-12)


def test_stops_of_joints_push_by_the_state():
    """A free joint has no limits; a pendulum beyond its limit is pushed by the law's stiffness and dissipation."""
    model = jaxdyn.load_urdf(PENDULUM)
    law = ContactLaw(stiffness=50.0, dissipation=0.1)
    q, v = np.array([1.2]), np.array([0.5])
    rates = [World(model, limits=x).rate(0.0, State(q, v)).v for x in (False, law)]
    pushed = jaxdyn.crba(model, q) @ (rates[1] - rates[0])
    np.testing.assert_allclose(pushed, [-50.0 * 0.2 * (1 + 0.1 * 0.5)], rtol=1e-6)


PENDULUM = """<robot name="pendulum"><link name="world"/><link name="rod"><inertial><origin xyz="0 0 -0.5"/>
<mass value="1"/><inertia ixx="0.01" iyy="0.01" izz="0.01" ixy="0" ixz="0" iyz="0"/></inertial></link>
<joint name="hinge" type="revolute"><parent link="world"/><child link="rod"/><axis xyz="0 1 0"/>
<limit lower="-1" upper="1" effort="10" velocity="10"/></joint></robot>"""


def without_clock(world: World):
    """The rate of a world's configuration and velocity: an adaptive solver would count the clock among the errors."""

    def rate(t, state, args):
        found = world.rate(t, state)
        return State(found.q, found.v)

    return rate


def end_and_tangent(field, start, direction, until, tolerance, solver="Tsit5"):
    """Return the state at the end, its derivative in a direction of the start, and the mean step, with those that the
    solver rejects."""
    diffrax = pytest.importorskip("diffrax")

    def both(t, y, args):
        return jax.jvp(lambda x: field(t, x, args), (y[0],), (y[1],))

    controller = diffrax.PIDController(rtol=tolerance, atol=tolerance)
    term, method = diffrax.ODETerm(both), getattr(diffrax, solver)()
    y0 = (start, direction)
    found = diffrax.diffeqsolve(term, method, 0.0, until, 1e-3, y0, stepsize_controller=controller, max_steps=20000)
    state, tangent = jax.tree.map(lambda x: x[-1], found.ys)
    return state, tangent, until / found.stats["num_steps"]


@pytest.mark.slow
def test_gradient_of_a_tumbling_cube_at_practical_steps():
    """The cube of Paulus et al. 2025 with the compliant law: with steps of 1.7 ms on average, the gradient of its place
    after 1 s is within 1 % of differences of a tight solution, where first-order steps of 1 ms are off by a factor."""
    world, start = tumbling_cube(ContactLaw(4e3, 0.2, 1.0, 0.01))

    @functools.partial(jax.jit, static_argnums=(1, 2))
    def solve(speed, tolerance, solver):
        at = jax.jvp(start, (speed,), (jnp.ones(()),))
        state, tangent, step = end_and_tangent(without_clock(world), *at, 1.0, tolerance, solver)
        return state.q[1], tangent.q[1], step

    h = 1e-5
    up, down = (solve(jnp.asarray(-2.0 + x), 1e-10, "Dopri8")[0] for x in (h, -h))
    difference = float(up - down) / (2 * h)
    np.testing.assert_allclose(difference, 0.3091, rtol=2e-3)
    _, gradient, step = solve(jnp.asarray(-2.0), 1e-4, "Tsit5")
    np.testing.assert_allclose(gradient, difference, rtol=0.01)
    assert 1e-3 < step < 5e-3


PUBLISHED = """
<mujoco>
  <option gravity="0 0 -2" timestep="0.005" cone="pyramidal" tolerance="1e-14" iterations="100">
    <flag refsafe="disable" eulerdamp="disable" warmstart="disable"/>
  </option>
  <default><geom solimp="0 0.95 0.001 0.5 2" solref="0.005 1"/></default>
  <worldbody>
    <geom type="plane" contype="0" conaffinity="1" condim="3" size="20 20 0.125"/>
    <body pos="0 0 0.2"><freejoint/><geom type="box" size="0.05 0.05 0.05" density="100" euler="60 0 0"/></body>
  </worldbody>
</mujoco>"""
"""The cube of Paulus et al., experiments/xml/cube.xml of their repository."""


@pytest.mark.slow
def test_gradient_of_the_published_cube_is_that_of_mujoco():
    """With MuJoCo's law: differences of a tight solution of MuJoCo's own accelerations, and the gradient of the world
    with steps of 3 ms on average. Starts that differ by 1e-12 m/s give gradients between 0.545 and 0.573."""
    mujoco = pytest.importorskip("mujoco")
    m = mujoco.MjModel.from_xml_string(PUBLISHED)
    d = mujoco.MjData(m)

    def rate(t, y):
        d.qpos[:], d.qvel[:] = y[:7], y[7:]
        d.qpos[3:] /= np.linalg.norm(d.qpos[3:])
        mujoco.mj_forward(m, d)
        (w, u), omega = (d.qpos[3], d.qpos[4:]), d.qvel[3:]
        return np.concatenate([y[7:10], [-u @ omega / 2], (w * omega + np.cross(u, omega)) / 2, d.qacc])

    def place(speed):
        y0 = np.concatenate([m.qpos0, [0, -0.1, speed, 0, 0, 0]])
        return solve_ivp(rate, (0, 1), y0, method="DOP853", rtol=1e-10, atol=1e-10, max_step=2e-3).y[1, -1]

    h = 1e-4
    difference = (place(-2 + h) - place(-2 - h)) / (2 * h)
    np.testing.assert_allclose(difference, 0.5758, rtol=1e-3)

    def by_steps(dt, h):
        m.opt.timestep, places = dt, []
        for speed in (-2 + h, -2 - h):
            mujoco.mj_resetData(m, d)
            d.qvel[1:3] = -0.1, speed
            for _ in range(round(1 / dt)):
                mujoco.mj_step(m, d)
            places.append(d.qpos[1])
        return (places[0] - places[1]) / (2 * h)

    assert abs(by_steps(1e-3, 1e-2) / difference - 1) > 0.5
    np.testing.assert_allclose(by_steps(1 / 33333, 1e-2), difference, rtol=0.03)

    world = jaxdyn.load_world(PUBLISHED)
    start = world.state(v=[0, -0.1, -2.0, 0, 0, 0])
    direction = eqx.tree_at(lambda s: s.v, jax.tree.map(jnp.zeros_like, start), jnp.zeros(6).at[2].set(1.0))
    state, tangent, step = jax.jit(lambda: end_and_tangent(world.rate, start, direction, 1.0, 1e-4))()
    np.testing.assert_allclose(state.q[1], place(-2.0), rtol=1e-3)
    np.testing.assert_allclose(tangent.q[1], difference, rtol=0.06)
    assert state.time == pytest.approx(1.0)
    assert 1e-3 < step < 5e-3


@pytest.mark.slow
def test_gradients_through_a_collision_of_two_balls_are_those_of_the_closed_form():
    """The collision of `test_contact_pairs.py`, at steps of milliseconds: the second ball ends at `x1 + 2 r + u T - u d
    / 2`, so the speed that brings it to a place is known (Zhong, Han & Brikis 2022)."""
    world, duration = two_balls("slides"), 0.4
    d = np.pi * np.sqrt(1.0 / (2 * 1e3))

    @jax.jit
    def end(x, direction):
        start, tangent = (State(y[:2], jnp.stack([y[2], 0.0 * y[2]])) for y in (x, direction))
        state, tangent, step = end_and_tangent(without_clock(world), start, tangent, duration, 1e-6)
        return state.q[1], tangent.q[1], step

    x = jnp.array([0.0, 0.2, 1.0])
    found = [end(x, e) for e in jnp.eye(3)]
    np.testing.assert_allclose(found[0][0], 0.1 + duration - d / 2, rtol=1e-4)
    np.testing.assert_allclose([g for _, g, _ in found], [1.0, 0.0, duration - d / 2], atol=1e-3)
    assert found[0][2] > 1e-3
    for _ in range(3):
        value, gradient, _ = end(x, jnp.array([0.0, 0, 1]))
        x = x.at[2].add((0.6 - value) / gradient)
    np.testing.assert_allclose(x[2], 0.5 / (duration - d / 2), rtol=1e-4)

    # First-order steps blur the impact.
    for dt, gradient in ((1e-3, 0.81), (5e-3, 0.28)):

        def place(first, dt=dt):
            start = State(jnp.stack([first, 0.2]), jnp.array([1.0, 0.0]))
            return world.with_timestep(dt).rollout(start, steps=round(duration / dt)).q[-1, 1]

        np.testing.assert_allclose(jax.jit(jax.grad(place))(0.0), gradient, atol=0.01)
