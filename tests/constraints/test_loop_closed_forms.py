"""Mechanisms with closed loops whose motion or forces are known in closed form; all to 1e-10."""

import dataclasses
import functools

import numpy as np
import pytest

import jaxdyn
from jaxdyn import BodyInertia, Joint, ModelBuilder, Status
from tests.loop_robots import close_four_bar, four_bar

HINGE = (0.0, -1.0, 0.0)
"""The axis about which positive angles turn x toward z."""


def equal(x, expected):
    np.testing.assert_allclose(x, expected, rtol=0, atol=1e-10)


def rod(length: float, mass: float = 1.0) -> BodyInertia:
    return BodyInertia.rod(mass, (0, 0, 0), (length, 0, 0))


def test_four_bar_of_freudenstein():
    """`K1 cos psi - K2 cos theta + K3 = cos(theta - psi)` for the angles of crank and rocker (Freudenstein, Approximate
    synthesis of four-bar linkages, 1955), and its derivative, at assembled configurations."""
    model, rng = four_bar(), np.random.default_rng(0)
    exact = np.stack([close_four_bar(theta) for theta in rng.uniform(-np.pi, np.pi, 50)])
    found = jaxdyn.project_configuration(model, exact + 0.1 * rng.normal(size=exact.shape))
    assert (found.status == Status.CONVERGED).all()
    v = np.asarray(jaxdyn.project_velocity(model, found.q, rng.normal(size=exact.shape)))
    theta, psi = np.asarray(found.q)[:, 0], np.asarray(found.q)[:, 2]
    a, b, c, d = 0.4, 1.0, 0.7, 0.9
    K1, K2, K3 = d / a, d / c, (a * a - b * b + c * c + d * d) / (2 * a * c)
    equal(K1 * np.cos(psi) - K2 * np.cos(theta) + K3, np.cos(theta - psi))
    rate = -K1 * np.sin(psi) * v[:, 2] + K2 * np.sin(theta) * v[:, 0]
    equal(rate, -np.sin(theta - psi) * (v[:, 0] - v[:, 2]))
    assert np.abs(v[:, 0]).max() > 0.5


def test_slider_crank():
    """The place and the velocity of the slider, and the torque of the crank that balances a force on it."""
    r, l = 0.3, 0.8
    builder = ModelBuilder().add_body("crank", "world", Joint(axis=HINGE, name="crank"), inertia=rod(r))
    builder.add_body("bar", "crank", Joint(axis=HINGE), (r, 0, 0), rod(l))
    slider = Joint("prismatic", axis=(1, 0, 0), name="slider")
    builder.add_body("slider", "world", slider, inertia=BodyInertia.box(2.0, (0.1, 0.1, 0.1)))
    model = builder.add_loop("pin", "connect", "bar", "slider", (l, 0, 0)).build(gravity=(0, 0, 0))
    rng = np.random.default_rng(0)
    theta, force = rng.uniform(-np.pi, np.pi, 20), rng.normal(size=20)
    # Crank, bar and slider; the bar's angle is relative to the crank.
    guess = np.stack([theta, -np.arcsin(r / l * np.sin(theta)) - theta, r * np.cos(theta) + l], axis=-1)
    found = jaxdyn.project_configuration(model, guess + 0.05 * rng.normal(size=guess.shape))
    assert (found.status == Status.CONVERGED).all()
    theta, _, x = np.asarray(found.q).T
    root = np.sqrt(l * l - (r * np.sin(theta)) ** 2)
    equal(x, r * np.cos(theta) + root)
    slope = -r * np.sin(theta) * (1 + r * np.cos(theta) / root)
    v = np.asarray(jaxdyn.project_velocity(model, found.q, rng.normal(size=guess.shape)))
    equal(v[:, 2], slope * v[:, 0])
    assert np.abs(v[:, 0]).max() > 0.3
    tau = np.stack([-force * slope, 0 * force, force], axis=-1)
    equal(jaxdyn.aba(model, found.q, 0 * v, tau), 0)


def test_parallelogram_swings_as_a_simple_pendulum():
    """Two equal cranks and a bar that stays level: `(2 m/3 + M) l theta'' = -(m + M) g sin theta`, for cranks of the
    mass m and a bar of the mass M."""
    m, M, l, d, g = 0.7, 1.9, 0.6, 0.8, 9.81
    crank, builder = BodyInertia.rod(m, (0, 0, 0), (0, 0, -l)), ModelBuilder()
    builder.add_body("left", "world", Joint(axis=HINGE), inertia=crank)
    builder.add_body("bar", "left", Joint(axis=HINGE), (0, 0, -l), rod(d, M))
    builder.add_body("right", "world", Joint(axis=HINGE), (d, 0, 0), crank)
    model = builder.add_loop("pin", "connect", "bar", "right", (d, 0, 0), (0, 0, -l)).build(gravity=(0, 0, -g))
    rng = np.random.default_rng(0)
    theta, rate = rng.uniform(0.2, 1.4, 20), rng.normal(size=20)
    directions = np.array([1, -1, 1])
    a = jaxdyn.aba(model, theta[:, None] * directions, rate[:, None] * directions, np.zeros((20, 3)))
    equal(a, (-(m + M) * g * np.sin(theta) / ((2 * m / 3 + M) * l))[:, None] * directions)


@functools.cache
def peaucellier() -> tuple[jaxdyn.Model, np.ndarray, float]:
    """Peaucellier's linkage with its crank held at an angle, the configuration in which it is level, and the place of
    the line that the pen draws.

    Two long arms from the origin to the sides of a rhombus, whose near corner a crank carries along a circle through
    the origin. The far corner, the pen, is the inverse of the near one, so it draws a straight line.
    """
    arm, side, crank = 1.0, 0.4, 0.35
    builder = ModelBuilder().add_body("crank", "world", Joint(axis=HINGE, name="crank"), (crank, 0, 0), rod(crank))
    for name in ("upper", "lower"):
        builder.add_body(f"{name}_arm", "world", Joint(axis=HINGE, name=f"{name}_arm"), inertia=rod(arm))
        for end in ("near", "far"):
            joint = Joint(axis=HINGE, name=f"{name}_{end}")
            builder.add_body(f"{name}_{end}", f"{name}_arm", joint, (arm, 0, 0), rod(side))
        builder.add_loop(f"{name}_pin", "connect", f"{name}_near", "crank", (side, 0, 0), (crank, 0, 0))
    builder.add_frame("pen", "upper_far", (side, 0, 0))
    builder.add_loop("pen", "connect", "pen", "lower_far", None, (side, 0, 0))
    builder.add_coupling("drive", "crank", None, (0.0,))
    # With the crank level, its end is at 2 crank; the triangles of arm, side and this distance.
    near = 2 * crank
    inner = np.arccos((arm**2 + near**2 - side**2) / (2 * arm * near))
    outer = np.arccos((arm**2 + side**2 - near**2) / (2 * arm * side))
    far = (arm**2 - side**2) / near
    beyond = np.arccos((arm**2 + side**2 - far**2) / (2 * arm * side))
    angles = np.array([inner, np.pi + outer, np.pi + beyond])
    return builder.build(), np.concatenate([[0.0], angles, -angles]), far


@pytest.mark.slow
def test_pen_of_peaucellier_stays_on_its_line():
    """While the crank turns to and fro: `x = (arm^2 - side^2) / (2 crank)`, at the height that the inversion gives."""
    model, q, line = peaucellier()
    assert np.abs(jaxdyn.constraint_error(model, q)).max() < 1e-12
    heights = []
    for angle in np.concatenate([np.arange(0, 0.85, 0.1), np.arange(0.75, -0.85, -0.1)]):
        driven = dataclasses.replace(model, coupling_coefficients=np.array([[angle, 0, 0, 0, 0]]))
        found = jaxdyn.project_configuration(driven, q)
        assert found.status == Status.CONVERGED
        q = np.asarray(found.q)
        pen = np.asarray(jaxdyn.frame_pose(model, q, "pen").translation)
        # The end of the crank is seen at half its angle from the origin.
        equal(pen, [line, 0, line * np.tan(angle / 2)])
        heights.append(pen[2])
    assert max(heights) - min(heights) > 0.5


@pytest.mark.slow
def test_legs_of_a_stewart_platform():
    """Their lengths are the distances of their joints, their rates and the forces that hold a wrench are those of the
    Jacobian of these distances (Merlet, Parallel Robots, 2006, sections 3.1 and 5.2)."""
    model = dataclasses.replace(jaxdyn.samples.stewart_platform(), gravity=np.zeros(3))
    model = model.with_joint_friction(damping=0.0)
    rng, n = np.random.default_rng(0), 10
    guess = model.integrate(np.tile(model.neutral(), (n, 1)), 0.1 * rng.normal(size=(n, model.nv)))
    found = jaxdyn.project_configuration(model, guess)
    assert (found.status == Status.CONVERGED).all()
    q = found.q
    platform = jaxdyn.frame_pose(model, q, "platform")
    base = np.stack([np.asarray(jaxdyn.frame_pose(model, q[0], f"tube{k}").translation) for k in range(1, 7)])
    plate = np.asarray(platform.rotation) @ np.asarray(model.loop_placement2)[:, :3].T
    plate = np.swapaxes(plate, -1, -2)
    legs = np.asarray(platform.translation)[:, None] + plate - base
    length = np.linalg.norm(legs, axis=-1)
    index = np.array([model.q_index(f"leg{k}").start for k in range(1, 7)])
    home = np.linalg.norm(np.asarray(model.loop_placement2)[:, :3] + np.array([0, 0, 2.0]) - base, axis=-1)
    equal(np.asarray(q)[:, index], length - home)

    unit = legs / length[..., None]
    J = np.concatenate([unit, np.cross(plate, unit)], axis=-1)
    rows = np.array([model.v_index(f"leg{k}").start for k in range(1, 7)])
    v = np.asarray(jaxdyn.project_velocity(model, q, rng.normal(size=(n, model.nv))))
    twist = np.asarray(jaxdyn.frame_velocity(model, q, v, "platform"))
    equal(v[:, rows], np.einsum("bij,bj->bi", J, twist))

    wrench = rng.normal(size=(n, 6))
    force = np.linalg.solve(np.swapaxes(J, -1, -2), -wrench[..., None])[..., 0]
    tau, f_ext = np.zeros((n, model.nv)), np.zeros((n, model.nb, 6))
    tau[:, rows], f_ext[:, model.topology.body("platform")] = force, wrench
    equal(jaxdyn.aba(model, q, 0 * v, tau, f_ext), 0)
    # The legs push the plate along their axes: the wrench of the ball joints, whose forces act on the plate.
    balls = np.asarray(jaxdyn.constraint_forces(model, q, 0 * v, tau, f_ext)).reshape(n, 6, 3)
    equal(np.linalg.norm(balls, axis=-1), np.abs(force))
