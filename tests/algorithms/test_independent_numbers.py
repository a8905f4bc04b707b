"""Numbers from independent sources: closed forms, Kane's method, and the tests of other libraries."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdyn
from jaxdyn import SE3, BodyInertia, Joint, ModelBuilder, State

X, Y, Z = np.eye(3)
UNIT = (1.0, 1.0, 1.0)


def hinges(*links, gravity=(0.0, -9.81, 0.0)):
    """A robot of hinged links `(name, parent, axis, position, com)` of mass 1, with the identity as inertia about the
    center of mass."""
    builder = ModelBuilder()
    for name, parent, axis, position, com in links:
        inertia = None if com is None else BodyInertia(1.0, com, UNIT)
        builder.add_body(name, parent, Joint(axis=axis), position, inertia)
    return builder.build(gravity=gravity)


ORIGIN = (0.0, 0.0, 0.0)
CHAIN = [
    ("a", "world", Z, ORIGIN, (1, 0, 0)),
    ("b", "a", Z, (1, 0, 0), (1, 0, 0)),
    ("c", "b", Z, (1, 0, 0), (1, 0, 0)),
]
TREE = [
    ("a", "world", Z, ORIGIN, (1, 0, 0)),
    ("b1", "a", Y, (1, 0, 0), (0, 1, 0)),
    ("c1", "b1", X, (0, 1, 0), (0, 0, 1)),
    ("b2", "a", Y, (-0.5, 0, 0), (0, 1, 0)),
    ("c2", "b2", X, (0, -0.5, 0), (0, 0, 1)),
]


# Source: repository rbdl/rbdl, tests/ (zlib license).
@pytest.mark.parametrize(
    ("links", "q", "expected"),
    [
        (CHAIN[:1], [0.0], [-4.905]),
        (CHAIN[:2], [0.0] * 2, [-5.886, 3.924]),
        (CHAIN, [0.0] * 3, [-6.03692307692308, 3.77307692307692, 1.50923076923077]),
        ([CHAIN[0], ("b", "a", Y, (1, 0, 0), (0, 1, 0))], [0.0] * 2, [-3.924, 0.0]),
        (
            TREE,
            [0.0] * 5,
            [-1.60319066147860, -0.534396887159533, 4.10340466926070, 0.267198443579767, 5.30579766536965],
        ),
        (
            [("a", "world", Z, ORIGIN, None), ("b", "a", Y, ORIGIN, None), ("c", "b", X, ORIGIN, (0, 0.5, 0))],
            [1.0, 0.0, 0.0],
            [3.301932144386186, 0.0, 0.0],
        ),
    ],
    ids=["single", "double", "triple", "double 3D", "tree 3D", "massless intermediate links"],
)
def test_rbdl(links, q, expected):
    model = hinges(*links)
    q = jnp.array(q)
    a = jaxdyn.aba(model, q, 0 * q, 0 * q)
    np.testing.assert_allclose(a, expected, rtol=1e-12, atol=1e-12)


def test_rbdl_spatial_inertia():
    builder = ModelBuilder().add_body("a", joint=Joint(), inertia=BodyInertia(1.0, (1.5, 1, 1), (1.0, 2.0, 3.0)))
    model = builder.build(gravity=(0, -9.81, 0))
    zero = jnp.zeros(1)
    np.testing.assert_allclose(jaxdyn.aba(model, zero, zero, zero), [-2.3544], rtol=1e-12)


@pytest.mark.parametrize(
    ("tau", "expected"), [(0.0, [0, -9.81, 0, 0, 0, 0, 0]), (1.0, [0, -8.81, 0, -1, 0, 0, 2])], ids=["free", "driven"]
)
def test_rbdl_floating_double_pendulum(tau, expected):
    # The torque acts on the child's hinge, the coordinate with index 6.
    builder, parent = ModelBuilder(), "world"
    for i, (kind, axis) in enumerate([("prismatic", a) for a in (X, Y, Z)] + [("revolute", a) for a in (Z, Y, X)]):
        inertia = BodyInertia(1.0, (1, 0, 0), UNIT) if i == 5 else None
        builder.add_body(f"n{i}", parent, Joint(kind, axis=axis), inertia=inertia)
        parent = f"n{i}"
    builder.add_body("tip", parent, Joint(axis=Z), (2, 0, 0), BodyInertia(1.0, (1, 0, 0), UNIT))
    model = builder.build(gravity=(0, -9.81, 0))
    zero = jnp.zeros(7)
    np.testing.assert_allclose(jaxdyn.aba(model, zero, zero, zero.at[6].set(tau)), expected, atol=1e-11)


def test_rbdl_screw_joint():
    """RBDL's screw joint turns about z and moves along x by the same number. Our helical joint moves along its axis, so
    the test ties the coordinates of a planar joint instead."""
    model = ModelBuilder().add_body("a", joint=Joint("planar"), inertia=BodyInertia(1.0, ORIGIN, UNIT)).build()
    q, v = jnp.array([1.0, 0.0, 1.0]), jnp.array([2.0, 0.0, 2.0])
    velocity = jaxdyn.frame_velocity(model, q, v, "a", "local")
    np.testing.assert_allclose(velocity, [2 * np.cos(1), -2 * np.sin(1), 0, 0, 0, 2], atol=1e-14)
    point = jaxdyn.frame_pose(model, q, "a").apply(jnp.array([1.0, 0, 3]))
    np.testing.assert_allclose(point, [1 + np.cos(1), np.sin(1), 3], atol=1e-14)


# Source of the robot and the torques: repository RobotLocomotion/drake, multibody/benchmarks/kuka_iiwa_robot
# (MotionGenesis, Kane's method; BSD-3).
IIWA_TAU = {
    "static": (9.8, 0, 0, [0, -33.894811060487889, -4.854013318704987, -4.4017605336819106, 0.36195772941244092,
                           -0.022757120072752803, 0]),
    "velocity": (0, 1, 0, [0.04395178858986836, 0.29242858921679704, 0.06110073914214664, 0.006218755945226169,
                           -0.004055449362673165, -0.004412867210893092, -0.0004761778579257493]),
    "velocity and acceleration": (0, 1, 1, [0.884818821990258, 3.5752401274488244, 0.5932428160472009,
                                            -0.7111076232215302, -0.03483399084964198, -0.032606732611362516,
                                            0.0008649076642538985]),
    "all": (9.8, 1, 1, [0.88481882199025863, -30.319570933039067, -4.2607705026577856, -5.1128681569034402,
                        0.32712373856279892, -0.055363852684115311, 0.00086490766425389792]),
}  # fmt: skip


# Columns, from the URDF in that folder: position, roll-pitch-yaw in multiples of pi/2, mass, center of mass, principal
# moments.
IIWA = (
    ((0, 0, 0.1575), (0, 0, 0), 5.76, (0, -0.03, 0.12), (0.033, 0.0333, 0.0123)),
    ((0, 0, 0.2025), (1, 0, 2), 6.35, (0.0003, 0.059, 0.042), (0.0305, 0.0304, 0.011)),
    ((0, 0.2045, 0), (1, 0, 2), 3.5, (0, 0.03, 0.13), (0.025, 0.0238, 0.0076)),
    ((0, 0, 0.2155), (1, 0, 0), 3.5, (0, 0.067, 0.034), (0.017, 0.0164, 0.006)),
    ((0, 0.1845, 0), (-1, 2, 0), 3.5, (0.0001, 0.021, 0.076), (0.01, 0.0087, 0.00449)),
    ((0, 0, 0.2155), (1, 0, 0), 1.8, (0, 0.0006, 0.0004), (0.0049, 0.0047, 0.0036)),
    ((0, 0.081, 0), (-1, 2, 0), 1.2, (0, 0, 0.02), (0.001, 0.001, 0.001)),
)


@pytest.mark.parametrize("case", IIWA_TAU)
def test_kuka_iiwa_by_kanes_method(case):
    g, moving, accelerated, expected = IIWA_TAU[case]
    builder, parent = ModelBuilder(), "world"
    for i, (position, quarters, mass, com, moments) in enumerate(IIWA):
        placement = SE3.from_rpy(np.array(quarters) * np.pi / 2, position)
        builder.add_body(f"link{i}", parent, Joint(axis=Z), placement, BodyInertia(mass, com, moments))
        parent = f"link{i}"
    model = builder.build(gravity=(0, 0, -g))
    q = jnp.deg2rad(jnp.array([60.0, 30, 60, 30, 60, 30, 60]))
    v, a = moving * jnp.arange(0.1, 0.75, 0.1), accelerated * jnp.arange(0.7, 0.05, -0.1)
    np.testing.assert_allclose(jaxdyn.rnea(model, q, v, a), expected, rtol=1e-12, atol=2e-14)


@functools.cache
def modern_robotics_arm():
    """The arm of Lynch & Park, Modern Robotics, chapter 8 (NxRLab/ModernRobotics, MIT). The joint frames are on the
    screws' axes and have the world's orientation; the published first screw has norm sqrt(2)."""
    M01 = SE3.from_translation(jnp.array([0, 0, 0.089159]))
    M12 = SE3(jnp.array([[0.0, 0, 1], [0, 1, 0], [-1, 0, 0]]), jnp.array([0.28, 0.13585, 0]))
    M23 = SE3.from_translation(jnp.array([0, -0.1197, 0.395]))
    M34 = SE3.from_translation(jnp.array([0, 0, 0.14225]))
    coms = [M01, M01 @ M12, M01 @ M12 @ M23]
    tip = coms[-1] @ M34
    screws = [((1, 0, 1), (0, 1, 0)), ((0, 1, 0), (-0.089, 0, 0)), ((0, 1, 0), (-0.089, 0, 0.425))]
    inertias = [(0.010267, 0.010267, 0.00666), (0.22689, 0.22689, 0.0151074), (0.0494433, 0.0494433, 0.004095)]
    masses = [3.7, 8.393, 2.275]
    builder, parent, origin = ModelBuilder(), "world", np.zeros(3)
    for i, ((w, v), com, I, m) in enumerate(zip(screws, coms, inertias, masses, strict=True)):
        w, v = np.array(w, float), np.array(v, float)
        # p is the point of the axis nearest to the origin. The pitch is zero: v = -w x p.
        p = np.cross(w, v) / (w @ w)
        assert abs(w @ v) < 1e-12
        R, c = np.asarray(com.rotation), np.asarray(com.translation)
        body = BodyInertia(m, c - p, R @ np.diag(I) @ R.T)
        builder.add_body(f"l{i}", parent, Joint(axis=w), tuple(p - origin), body)
        parent, origin = f"l{i}", p
    placement = SE3(tip.rotation, tip.translation - origin)
    return builder.add_frame("tip", parent, placement).build(gravity=(0, 0, -9.8))


def test_modern_robotics():
    model, scale = modern_robotics_arm(), np.array([np.sqrt(2), 1, 1])
    theta, rate, acceleration = np.array([0.1] * 3), np.array([0.1, 0.2, 0.3]), np.array([2, 1.5, 1])
    q, v, a = (jnp.asarray(scale * x) for x in (theta, rate, acceleration))
    M = scale[:, None] * np.asarray(jaxdyn.crba(model, q)) * scale
    expected = np.array([[22.543338, -0.307146754, -0.00718426391], [0, 1.96850717, 0.432157368], [0, 0, 0.191630858]])
    np.testing.assert_allclose(np.triu(M), expected, rtol=1e-7)
    gravity = jaxdyn.generalized_gravity(model, q)
    np.testing.assert_allclose(scale * gravity, [28.40331262, -37.64094817, -5.4415892], rtol=1e-8)
    velocity = jaxdyn.nonlinear_effects(model, q, v) - gravity
    np.testing.assert_allclose(scale * velocity, [0.26453118, -0.05505157, -0.00689132], rtol=2e-7)
    # The source gives the wrench that the robot exerts as (moment, force) in tip axes.
    tip = scale[:, None] * np.asarray(jaxdyn.frame_jacobian(model, q, "tip", "local")).T @ np.ones(6)
    np.testing.assert_allclose(tip, [1.40954608, 1.85771497, 1.392409], rtol=1e-7)
    total = scale * np.asarray(jaxdyn.rnea(model, q, v, a)) + tip
    np.testing.assert_allclose(total, [74.69616155, -33.06766016, -3.23057314], rtol=1e-8)
    tau = (np.array([0.5, 0.6, 0.7]) - tip) / scale
    forward = np.asarray(jaxdyn.aba(model, q, v, jnp.asarray(tau))) / scale
    np.testing.assert_allclose(forward, [-0.97392907, 25.58466784, -32.91499212], rtol=1e-7)


def test_newton_euler_lecture_2r_arm():
    """The torques equal the closed form of J. Rosen, UCLA MAE 263B, and Craig, Introduction to Robotics, chapter 6."""
    m1, m2, l1, l2, g = 1.3, 0.7, 0.9, 0.6, 9.81
    builder = ModelBuilder().add_body("a", joint=Joint(axis=Z), inertia=BodyInertia(m1, (l1, 0, 0)))
    builder.add_body("b", "a", Joint(axis=Z), (l1, 0, 0), BodyInertia(m2, (l2, 0, 0)))
    model = builder.build(gravity=(0, -g, 0))
    q, v, a = jnp.array([0.4, -1.1]), jnp.array([0.8, 1.7]), jnp.array([-2.0, 0.6])
    (_, q2), (v1, v2), (a1, a2) = np.asarray(q), np.asarray(v), np.asarray(a)
    c1, c2, s2, c12 = np.cos(q[0]), np.cos(q2), np.sin(q2), np.cos(q[0] + q2)
    tau2 = m2 * l1 * l2 * c2 * a1 + m2 * l1 * l2 * s2 * v1**2 + m2 * l2 * g * c12 + m2 * l2**2 * (a1 + a2)
    tau1 = m2 * l2**2 * (a1 + a2) + m2 * l1 * l2 * c2 * (2 * a1 + a2) + (m1 + m2) * l1**2 * a1
    tau1 += -m2 * l1 * l2 * s2 * v2**2 - 2 * m2 * l1 * l2 * s2 * v1 * v2 + m2 * l2 * g * c12 + (m1 + m2) * l1 * g * c1
    np.testing.assert_allclose(jaxdyn.rnea(model, q, v, a), [tau1, tau2], rtol=1e-13)


def test_two_hanging_rods_normal_modes():
    builder = ModelBuilder().add_body("a", joint=Joint(axis=Y), inertia=BodyInertia.rod(1.0, ORIGIN, (0, 0, -1)))
    builder.add_body("b", "a", Joint(axis=Y), (0, 0, -1), BodyInertia.rod(1.0, ORIGIN, (0, 0, -1)))
    model, zero = builder.build(), jnp.zeros(2)
    K = jax.jacfwd(lambda q: jaxdyn.generalized_gravity(model, q))(zero)
    modes = np.sqrt(np.sort(np.linalg.eigvals(np.linalg.solve(jaxdyn.crba(model, zero), K)).real))
    np.testing.assert_allclose(modes, [2.680114012253375, 7.188670870287714], rtol=1e-13)


@functools.cache
def rolled(name: str, duration: float, steps: int):
    if name == "pendulum":
        model, state = jaxdyn.samples.pendulum(), State(jnp.array([2.0]), jnp.zeros(1))
    else:
        builder = ModelBuilder().add_body(
            "body", joint=Joint("free"), inertia=BodyInertia(1.0, ORIGIN, (1.0, 2.0, 3.0))
        )
        model = builder.build(gravity=ORIGIN)
        state = State(model.neutral(), jnp.array([0.0, 0, 0, 1, 0, 0.8]))
    return jaxdyn.rollout(model, state, jnp.zeros((steps, model.nv)), duration / steps, integrator="rk4").final


def test_pendulum_released_from_rest():
    quarter, full = (1.570961602256057, -3.498905163445073), (-1.947590129406683, -1.191089938344319)
    for t, expected in ((0.25, quarter), (1.0, full)):
        final = rolled("pendulum", t, 2000)
        np.testing.assert_allclose([final.q[0], final.v[0]], expected, rtol=1e-9)


@pytest.mark.parametrize("amplitude", [0.1, np.pi / 2, 3.0])
def test_pendulum_period(amplitude):
    period = {0.1: 1.638970889418406, np.pi / 2: 1.933334854373246, 3.0: 4.211543869056686}[amplitude]
    model, state = jaxdyn.samples.pendulum(), State(jnp.array([amplitude]), jnp.zeros(1))
    final = jaxdyn.rollout(model, state, jnp.zeros((2000, 1)), period / 2000, integrator="rk4").final
    np.testing.assert_allclose([final.q[0], final.v[0]], [amplitude, 0.0], atol=1e-8)


def test_pendulum_small_period():
    model, zero = jaxdyn.samples.pendulum(), jnp.zeros(1)
    stiffness = jax.jacfwd(lambda q: jaxdyn.generalized_gravity(model, q))(zero)[0, 0]
    period = 2 * np.pi * np.sqrt(jaxdyn.crba(model, zero)[0, 0] / stiffness)
    assert float(period) == pytest.approx(1.637946585913276, rel=1e-14)


def test_free_body():
    for t, expected in (
        (1.0, (0.7239782145763153, 0.6898228358201044, 0.6938166076567855)),
        (5.0, (-0.9678418423883813, -0.2515594723365903, 0.7867057543702382)),
        (9.360695887026688, (1.0, 0.0, 0.8)),
    ):
        final = rolled("body", t, 2000)
        np.testing.assert_allclose(final.v[3:], expected, rtol=1e-8, atol=1e-8)
