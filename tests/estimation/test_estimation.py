"""Kalman filters and smoothers on manifolds: exact on linear systems, and consistent on others."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.spatial.transform import Rotation

import jaxdyn
from jaxdyn import estimation, samples, trajopt
from jaxdyn.spatial import SE3

SAMPLES = 12


def covariance(rng, n: int) -> np.ndarray:
    M = rng.normal(size=(n, n))
    return M @ M.T + 0.1 * np.eye(n)


class Linear:
    """A linear system with noise of states and controls, its readings with gaps, and the exact posterior."""

    def __init__(self, n=4, m=2, p=3):
        rng = np.random.default_rng(0)
        A, B = 0.4 * rng.normal(size=(n, n)) + 0.5 * np.eye(n), rng.normal(size=(n, m))
        C = rng.normal(size=(p, n))
        Q, Qu, self.R, self.P0 = (covariance(rng, k) for k in (n, m, p, n))
        dynamics = trajopt.DiscreteDynamics(lambda x, u, t, p: p[0] @ x + p[1] @ u, n, m, (A, B))
        reading = trajopt.FunctionResidual(lambda x, u, t, p: p @ x, C, of_state=True)
        self.model = estimation.StateSpaceModel(
            dynamics, reading, process_noise=Q, control_noise=Qu, measurement_noise=self.R
        )
        self.us, self.x0 = rng.normal(size=(SAMPLES - 1, m)), rng.normal(size=n)
        self.seen = rng.random((SAMPLES, p)) > 0.3
        self.ys = np.where(self.seen, rng.normal(size=(SAMPLES, p)), np.nan)
        # The joint Gaussian of all states.
        mean, variances = [self.x0], [self.P0]
        for u in self.us:
            mean.append(A @ mean[-1] + B @ u)
            variances.append(A @ variances[-1] @ A.T + Q + B @ Qu @ B.T)
        self.mean, self.C = np.concatenate(mean), C
        powers = [np.linalg.matrix_power(A, k) for k in range(SAMPLES)]
        rows = [
            [powers[i - j] @ variances[j] if i >= j else (powers[j - i] @ variances[i]).T for j in range(SAMPLES)]
            for i in range(SAMPLES)
        ]
        self.prior = np.block(rows)

    def posterior(self, last: int):
        """The means and the covariances of all states by the readings up to `last`, and their log likelihood."""
        seen = self.seen & (np.arange(SAMPLES)[:, None] <= last)
        rows = seen.ravel()
        H = np.kron(np.eye(SAMPLES), self.C)[rows]
        S = H @ self.prior @ H.T + np.kron(np.eye(SAMPLES), self.R)[np.ix_(rows, rows)]
        K, e = self.prior @ H.T @ np.linalg.inv(S), self.ys.ravel()[rows] - H @ self.mean
        cov, n = self.prior - K @ H @ self.prior, len(self.x0)
        blocks = np.array([cov[k : k + n, k : k + n] for k in range(0, len(cov), n)])
        density = stats.multivariate_normal(np.zeros(len(e)), S).logpdf(e)
        return (self.mean + K @ e).reshape(SAMPLES, n), blocks, density


@pytest.fixture(scope="module")
def linear():
    system = Linear()
    system.filtered = estimation.filter(system.model, system.us, system.ys, system.x0, system.P0, observed=system.seen)
    return system


def test_a_linear_system_is_filtered_exactly_with_gaps(linear):
    found = linear.filtered
    for k in range(SAMPLES):
        means, covariances, _ = linear.posterior(k)
        np.testing.assert_allclose(found.means[k], means[k], atol=1e-10)
        np.testing.assert_allclose(found.covariances[k], covariances[k], atol=1e-10)
    np.testing.assert_allclose(found.log_likelihood, linear.posterior(SAMPLES)[2], rtol=1e-10)
    np.testing.assert_array_equal(found.observed, linear.seen)
    assert (np.asarray(found.innovations)[~linear.seen] == 0).all()


def test_a_linear_system_is_smoothed_exactly(linear):
    found = estimation.smooth(linear.model, linear.us, linear.filtered)
    means, covariances, _ = linear.posterior(SAMPLES)
    np.testing.assert_allclose(found.means, means, atol=1e-10)
    np.testing.assert_allclose(found.covariances, covariances, atol=1e-10)


def test_single_steps_are_those_of_the_filter(linear):
    found = linear.filtered
    x, P = estimation.predict(linear.model, found.means[0], found.covariances[0], linear.us[0], 0)
    step = estimation.update(linear.model, x, P, linear.ys[1], linear.us[1], 1, observed=linear.seen[1])
    np.testing.assert_allclose(step.mean, found.means[1], atol=1e-12)
    np.testing.assert_allclose(step.covariance, found.covariances[1], atol=1e-12)
    np.testing.assert_allclose(step.log_likelihood, found.log_likelihoods[1], atol=1e-12)


def test_a_smoother_takes_singular_covariances():
    """A state that nothing disturbs and that is known exactly at the start stays known."""
    dynamics = trajopt.DiscreteDynamics(lambda x, u, t, p: jnp.array([x[0] + 0.1 * x[1], x[1]]), 2, 1)
    model = estimation.StateSpaceModel(
        dynamics, trajopt.StateResidual(), process_noise=0.0, measurement_noise=[0.04, 0.04]
    )
    ys = np.random.default_rng(0).normal(size=(6, 2))
    found = estimation.filter(model, np.zeros((6, 1)), ys, np.zeros(2), [0.0, 0.5])
    smoothed = estimation.smooth(model, np.zeros((6, 1)), found)
    # The only unknown is the initial velocity: least squares.
    H = np.stack([0.1 * np.arange(6), np.ones(6)], 1)
    information = 1 / 0.5 + (H * H).sum() / 0.04
    velocity = (H * ys).sum() / 0.04 / information
    np.testing.assert_allclose(smoothed.means, H * velocity, atol=1e-9)
    np.testing.assert_allclose(smoothed.covariances[0], np.diag([0.0, 1 / information]), atol=1e-12)


# Consistency: errors in units of their covariances.


def band(degrees: int) -> tuple[float, float]:
    """The 95 % band of a sum of squares of that many normal numbers."""
    low, high = stats.chi2.interval(0.95, degrees)
    return float(low), float(high)


def simulated(model, x0, P0, us, runs: int, seed: int):
    """Starts, true states and readings of many runs with the noise of the model."""
    d, rng = model.dynamics, np.random.default_rng(seed)

    def noise(C, n, *shape):
        return rng.normal(size=(*shape, n)) * np.sqrt(np.broadcast_to(0.0 if C is None else C, n))

    w = noise(model.process_noise, d.ndx, runs, len(us))
    c = noise(model.control_noise, d.nu, runs, len(us))
    r = noise(model.measurement_noise, model.m, runs, len(us))
    starts = noise(P0, d.ndx, runs)

    def one(start, w, c):
        def advance(x, stage):
            w, c, u, k = stage
            return d.integrate(d.step(x, u + c, k), w), (x, model.measure(x, u, k))

        first = d.integrate(jnp.asarray(x0), start)
        return jax.lax.scan(advance, first, (w, c, jnp.asarray(us), jnp.arange(len(us))))[1]

    xs, ys = jax.jit(jax.vmap(one))(starts, w, c)
    return xs, ys, r


def require_consistent(model, found, xs, samples=(5, -1)) -> None:
    """Errors of the estimates at some samples, and all innovations, are in their 95 % bands over all runs."""
    errors = np.asarray(jax.jit(jax.vmap(lambda f, x: f.normalized_errors(model, x)))(found, xs))
    for k in samples:
        low, high = band(len(errors) * model.dynamics.ndx)
        assert low < errors[:, k].sum() < high
    innovations = np.asarray(jax.jit(jax.vmap(lambda f: f.normalized_innovations))(found))
    low, high = band(int(np.asarray(found.observed).sum()))
    assert low < innovations.sum() < high


def test_a_double_pendulum_with_encoders_is_estimated_consistently():
    robot = samples.chain(2)
    model = estimation.StateSpaceModel(
        trajopt.ModelDynamics(robot, 0.02),
        estimation.JointMeasurement(robot.joint_names),
        process_noise=[1e-8, 1e-8, 4e-4, 4e-4],
        measurement_noise=1e-4,
    )
    x0, P0 = np.array([1.0, -0.5, 0.3, 0.2]), np.array([0.01, 0.01, 0.04, 0.04])
    us = 0.1 * np.random.default_rng(1).normal(size=(40, 2))
    xs, ys, r = simulated(model, x0, P0, us, 50, seed=2)
    found = jax.jit(jax.vmap(lambda y: estimation.filter(model, us, y, x0, P0)))(ys + r)
    require_consistent(model, found, xs)
    smoothed = jax.jit(jax.vmap(lambda f: estimation.smooth(model, us, f)))(found)
    errors = np.asarray(jax.jit(jax.vmap(lambda f, x: f.normalized_errors(model, x)))(smoothed, xs))
    low, high = band(len(errors) * 4)
    assert low < errors[:, 5].sum() < high
    assert float(jnp.abs(smoothed.means - xs)[:, 5].mean()) < 0.8 * float(jnp.abs(found.means - xs)[:, 5].mean())


def floating_body(dtype=None):
    """A free body with an IMU that is turned and away from its origin."""
    inertia = jaxdyn.BodyInertia(1.0, (0, 0, 0), (1, 1, 1))
    builder = jaxdyn.ModelBuilder().add_body("base", joint=jaxdyn.Joint("free", name="root"), inertia=inertia)
    placement = SE3.from_rpy((0.3, -0.5, 0.9), (0.3, -0.2, 0.1)).to_vector()
    model = builder.add_frame("imu", "base", placement).build()
    return model if dtype is None else model.astype(dtype)


def imu_problem(dtype=None):
    """A turning body whose IMU is read in each step and whose pose in each tenth."""
    dynamics = estimation.InertialDynamics(floating_body(dtype), 0.01, imu="imu")
    noise = dynamics.noise(gyroscope=5e-3, accelerometer=2e-2, gyroscope_bias=5e-3, accelerometer_bias=2e-2)
    pose = trajopt.FramePoseResidual("imu", SE3.identity())
    model = estimation.StateSpaceModel(dynamics, pose, **noise, measurement_noise=[4e-4] * 3 + [1e-4] * 3)
    t = np.arange(60)[:, None]
    us = dynamics.controls(2 * np.cos(0.05 * t + np.arange(3)), np.array([0, 0, 9.81]) + np.sin(0.1 * t + np.arange(3)))
    x0 = dynamics.join(np.r_[0.1, 0.2, 0.3, 1.0, 0, 0, 0], np.zeros(6))
    P0 = np.r_[[1e-2] * 3, [4e-2] * 3, [1e-2] * 3, [1e-2] * 3, [1e-3] * 3, [4e-2] * 3]
    return model, us, x0, P0, np.arange(60) % 10 == 0


def test_a_turning_base_with_an_imu_away_from_its_origin_stays_in_place():
    """The base turns about a vertical axis through its origin: the IMU goes around, and shows its rate, the centripetal
    acceleration, and gravity, plus biases."""
    robot = floating_body()
    dynamics = estimation.InertialDynamics(robot, 0.01, imu="imu")
    R, arm = np.asarray(SE3.from_rpy((0.3, -0.5, 0.9)).rotation), np.array([0.3, -0.2, 0.1])
    rate, biases = 2.0, np.array([[0.1, 0.2, 0.3], [-0.4, 0.5, 0.6]])
    force = np.array([0, 0, 9.81]) - rate**2 * np.array([*arm[:2], 0])
    u = dynamics.controls(R.T @ [0, 0, rate] + biases[0], R.T @ force + biases[1])
    start = dynamics.join(np.r_[1.0, 2.0, 3.0, 1.0, 0, 0, 0], np.r_[np.zeros(5), rate], *biases)
    end = jax.jit(lambda x: jax.lax.fori_loop(0, 100, lambda k, x: dynamics.step(x, u, k), x))(start)
    # Forces that turn with the base are sums of chords, whose lengths differ by the square of the angle of a step.
    np.testing.assert_allclose(end[:3], [1, 2, 3], atol=1e-4)
    np.testing.assert_allclose(end[3:7], [np.cos(1.0), 0, 0, np.sin(1.0)], atol=1e-12)
    np.testing.assert_allclose(end[7:13], np.r_[np.zeros(5), rate], atol=1e-4)
    np.testing.assert_array_equal(end[13:], biases.ravel())
    densities = {"gyroscope": 0.1, "accelerometer": 0.2, "gyroscope_bias": 0.3, "accelerometer_bias": 0.4}
    noise = dynamics.noise(**densities)
    # White noise averaged over a step of 0.01 s, and random walks over it.
    np.testing.assert_allclose(noise["control_noise"], [1.0] * 3 + [4.0] * 3)
    np.testing.assert_allclose(noise["process_noise"], [0.0] * 12 + [9e-4] * 3 + [16e-4] * 3)


@pytest.mark.slow
def test_a_body_with_an_imu_is_estimated_consistently():
    model, us, x0, P0, seen = imu_problem()
    xs, ys, r = simulated(model, x0, P0, us, 100, seed=5)
    ys = jax.vmap(jax.vmap(lambda y, r: (SE3.from_vector(y) @ SE3.exp(r)).to_vector()))(ys, r)
    ys = jnp.where(seen[:, None], ys, jnp.nan)
    found = jax.jit(jax.vmap(lambda y: estimation.filter(model, us, y, x0, P0, observed=seen)))(ys)
    require_consistent(model, found, xs, samples=(10, -1))


def trot(robot, feet, samples: int, dt: float):
    """A quadruped that trots and turns: its states by inverse kinematics, what an IMU reads, and which feet stand."""
    t = np.arange(samples) * dt

    def base(t):
        position = np.stack([0.15 * t, 0.02 * np.sin(4 * t), 0.25 + 0.01 * np.sin(6 * t)], axis=-1)
        angles = np.stack([0.1 * np.sin(3 * t), 0.08 * np.sin(4 * t), 0.2 * np.sin(2 * t)], axis=-1)
        return position, Rotation.from_euler("xyz", angles)

    def places(q):
        return jnp.concatenate([jnp.asarray(jaxdyn.frame_pose(robot, q, foot).translation) for foot in feet])

    h, start = 1e-4, np.r_[0, 0, 0.25, 1, 0, 0, 0, [0, 0.8, -1.6] * 2, [0, -0.8, 1.6] * 2]
    targets = np.tile(np.asarray(places(jnp.asarray(start))).reshape(4, 3), (samples, 1, 1))
    stands = np.ones((samples, 4), bool)
    for leg, late in enumerate((0, 1, 1, 0)):
        cycle, phase = np.divmod(t - 0.1 - 0.25 * late, 0.5)
        z, begun = np.clip(phase / 0.25, 0, 1), cycle >= 0
        # A step of 0.15 m/s, whose rate is smooth; no foot moves while it stands.
        targets[:, leg, 0] += np.where(begun, 0.075 * (cycle + z**3 * (10 - 15 * z + 6 * z * z)), 0)
        targets[:, leg, 2] += np.where(begun, 0.48 * (z * (1 - z)) ** 2, 0)
        stands[:, leg] = ~(begun & (phase < 0.25))
    (position, turn), ((below, one), (above, two)) = base(t), (base(t - h), base(t + h))
    middle, (p0, R0), (p1, R1) = t + dt / 2, base(t + dt / 2 - h), base(t + dt / 2 + h)
    force = base(middle)[1].inv().apply((p0 - 2 * base(middle)[0] + p1) / h**2 - np.asarray(robot.gravity))
    poses = np.concatenate([position, turn.as_quat(scalar_first=True)], axis=1)

    def legs(pose, target):
        def newton(q, _):
            miss, slope = (
                places(jnp.concatenate([pose, q])) - target,
                jax.jacfwd(lambda q: places(jnp.concatenate([pose, q])))(q),
            )
            return q - jnp.linalg.solve(slope, miss), None

        return jax.lax.scan(newton, jnp.asarray(start[7:]), length=10)[0]

    joints = np.asarray(jax.jit(jax.vmap(legs))(poses, targets.reshape(samples, 12)))
    rates = turn.inv().apply((above - below) / (2 * h)), (one.inv() * two).as_rotvec() / (2 * h)
    q, v = np.concatenate([poses, joints], 1), np.concatenate([*rates, np.gradient(joints, dt, axis=0)], 1)
    return q, v, (R0.inv() * R1).as_rotvec() / (2 * h), force, stands


@pytest.mark.slow
def test_a_trotting_quadruped_is_estimated_from_imu_encoders_and_standing_feet():
    """Errors of tilt, velocity and biases are not larger than their covariances say, and small."""
    robot, dt, runs, count = samples.quadruped(), 0.005, 30, 200
    feet = [f"{leg}_FOOT" for leg in ("FL", "FR", "HL", "HR")]
    q, v, rate, force, stands = trot(robot, feet, count, dt)
    dynamics = estimation.InertialDynamics(robot, dt)
    densities = {"gyroscope": 2e-3, "accelerometer": 2e-2, "gyroscope_bias": 1e-3, "accelerometer_bias": 1e-2}
    model = estimation.StateSpaceModel(
        dynamics,
        [
            estimation.JointMeasurement(robot.joint_names[1:], of="both"),
            *(trajopt.Selected(trajopt.FrameVelocityResidual(f, reference="local"), (0, 1, 2)) for f in feet),
        ],
        **dynamics.noise(**densities, joint_acceleration=40.0),
        measurement_noise=[np.r_[[4e-6] * 12, [2.5e-3] * 12], *[4e-4] * 4],
    )
    rng = np.random.default_rng(1)

    def noise(*shape):
        return rng.normal(size=(runs, *shape))

    walks = [0.02 * noise(1, 3) + 1e-3 * np.sqrt(dt) * np.cumsum(noise(count, 3), axis=1),
             0.2 * noise(1, 3) + 1e-2 * np.sqrt(dt) * np.cumsum(noise(count, 3), axis=1)]  # fmt: skip
    us = dynamics.controls(rate + walks[0] + 2e-3 / np.sqrt(dt) * noise(count, 3),
                           force + walks[1] + 2e-2 / np.sqrt(dt) * noise(count, 3))  # fmt: skip
    encoders = np.concatenate([q[:, 7:] + 2e-3 * noise(count, 12), v[:, 6:] + 5e-2 * noise(count, 12)], axis=-1)
    P0 = np.r_[[1e-4] * 3, [2.5e-3] * 2, 1e-4, [1e-4] * 12, [1e-2] * 6, [4e-2] * 12, [4e-4] * 3, [4e-2] * 3]
    xs = dynamics.join(q, v, *walks)
    start = noise(42) * np.sqrt(P0) * (np.arange(42) < 36)
    x0 = jax.vmap(dynamics.integrate)(xs[:, 0].at[:, -6:].set(0), start)
    seen = np.concatenate([np.ones((count, 1), bool), stands], axis=1)

    def run(us, encoders, x0, xs):
        found = estimation.filter(model, us, [encoders, *[None] * 4], x0, P0, observed=seen)
        return jax.vmap(dynamics.difference)(found.means, xs), found.covariances

    errors, covariances = (np.asarray(a)[:, -1] for a in jax.jit(jax.vmap(run))(us, encoders, x0, xs))
    for chosen in ([3, 4], [18, 19, 20], [36, 37, 38], [39, 40, 41]):
        e, P = errors[:, chosen], covariances[:, chosen][:, :, chosen]
        assert np.einsum("ni,nij,nj->", e, np.linalg.inv(P), e) < band(e.size)[1]
    # Before the feet tell, the velocity has errors of 0.1 m/s.
    assert np.sqrt((errors[:, 18:21] ** 2).mean()) < 0.01
    assert np.sqrt((errors[:, 3:5] ** 2).mean()) < 0.025


# Readings on manifolds.


def tumbling():
    """A model with joints of all kinds that turn, a state of it, and another one nearby."""
    robot = samples.random_tree(jax.random.key(1), 4, ("free", "ball", "continuous", "revolute"))
    kinds = robot.topology.joint_types
    assert {"ball", "continuous"} <= set(kinds)
    dynamics = trajopt.ModelDynamics(robot, 0.01)
    rng = np.random.default_rng(0)
    x0 = dynamics.integrate(dynamics.neutral(), jnp.asarray(rng.normal(size=dynamics.ndx)))
    return dynamics, x0, dynamics.integrate(x0, jnp.asarray(0.5 * rng.normal(size=dynamics.ndx)))


def require_linear(model, x0, x1, u) -> None:
    """The reading at a state has no innovation there, and the slope of the innovation from another state is that of
    differences."""
    d = model.dynamics

    @jax.jit
    def compute(x0, x1):
        y = model.measure(x1, u, 0)
        step = 1e-6 * jnp.eye(d.ndx)
        ends = jax.vmap(lambda dx: model.linearize(d.integrate(x0, dx), u, 0, y)[0])(jnp.concatenate([step, -step]))
        return model.linearize(x1, u, 0, y)[0], *model.linearize(x0, u, 0, y), ends

    none, e, H, ends = compute(x0, x1)
    np.testing.assert_allclose(none, 0, atol=1e-12)
    assert np.abs(e).max() > 0.1
    np.testing.assert_allclose(H, (ends[d.ndx :] - ends[: d.ndx]).T / 2e-6, atol=1e-7)


def test_readings_of_rotations_are_on_their_manifolds():
    dynamics, x0, x1 = tumbling()
    robot = dynamics.model
    frame = robot.topology.frame_names[-1]
    pose = trajopt.FramePoseResidual(frame, SE3.from_rpy((0.3, 0.2, 0.1), (0.1, 0.2, 0.3)))
    start = robot.topology.q_starts[robot.topology.joint_types.index("free")]
    turned = trajopt.FunctionResidual(
        lambda x, u, t, p: jnp.concatenate([x[-1:], 2 * x[start + 3 : start + 7], x[-2:]]), of_state=True
    )
    quaternion = estimation.ResidualMeasurement(turned, quaternions=[1])
    several = [
        pose,
        trajopt.Selected(pose, (3, 5)),
        trajopt.StateResidual(),
        estimation.JointMeasurement(robot.joint_names, of="both"),
        quaternion,
    ]
    model = estimation.StateSpaceModel(dynamics, several, process_noise=1.0, measurement_noise=1.0)
    sizes = {"reading": (7, 7, dynamics.nx, dynamics.nx, 7), "noise": (6, 2, dynamics.ndx, dynamics.ndx, 6)}
    assert (model.reading_sizes, model.noise_sizes) == tuple(sizes.values())
    require_linear(model, x0, x1, jnp.zeros(dynamics.nu))
    # The noise of a quaternion is along the axes of the body, as the displacement of a free joint is.
    turn = quaternion.innovation(dynamics, x0, jnp.zeros(dynamics.nu), 0, quaternion.predict(dynamics, x1, None, 0))
    dof = robot.topology.v_starts[robot.topology.joint_types.index("free")]
    np.testing.assert_allclose(turn[1:4], dynamics.difference(x0, x1)[dof + 3 : dof + 6], atol=1e-12)


def test_whole_turns_of_angles_do_not_matter():
    robot = samples.random_tree(jax.random.key(0), 1, ("continuous",))
    dynamics = trajopt.ModelDynamics(robot, 0.01)
    angle = trajopt.FunctionResidual(lambda x, u, t, p: x[:1], of_state=True)
    for measurement in (
        estimation.JointMeasurement(robot.joint_names),
        estimation.ResidualMeasurement(angle, angles=[0]),
    ):
        model = estimation.StateSpaceModel(dynamics, measurement, process_noise=0.0, measurement_noise=0.1)
        e, _ = model.linearize(jnp.array([3.0, 0.0]), jnp.zeros(1), 0, jnp.array([-3.0 + 4 * np.pi]))
        np.testing.assert_allclose(e, [2 * np.pi - 6.0], atol=1e-12)


def test_sensors_of_a_world_are_measurements():
    robot = floating_body()
    kinds = ("gyro", "accelerometer", "framequat", "framepos")
    sensors = [jaxdyn.Sensor(kind, link="imu", name=kind) for kind in kinds]
    world = jaxdyn.World(robot, sensors=sensors)
    dynamics = trajopt.WorldDynamics(world)
    measurement = estimation.SensorMeasurement(["framequat", "gyro", "framepos"])
    model = estimation.StateSpaceModel(dynamics, measurement, process_noise=1.0, measurement_noise=1.0)
    assert (model.ny, model.m) == (10, 9)
    rng = np.random.default_rng(0)
    x0 = dynamics.integrate(dynamics.neutral(), jnp.asarray(rng.normal(size=12)))
    x1 = dynamics.integrate(x0, jnp.asarray(0.5 * rng.normal(size=12)))
    require_linear(model, x0, x1, jnp.zeros(0))
    state = dynamics.split(x1)
    values = world.sensors(world.state(state.q, state.v))
    np.testing.assert_allclose(measurement.stack(values), model.measure(x1, jnp.zeros(0), 0), atol=1e-12)
    with pytest.raises(jaxdyn.UnknownNameError, match="gyros"):
        estimation.StateSpaceModel(
            dynamics, estimation.SensorMeasurement(["gyros"]), process_noise=1.0, measurement_noise=1.0
        )


def test_iterated_updates_end_at_the_most_likely_state_with_its_covariance():
    """With many iterations the gradient of the posterior vanishes, and the covariance is the inverse of the information
    in the tangent space of the new mean, which differs from that of the old one."""
    dynamics, x0, x1 = tumbling()
    frame = dynamics.model.topology.frame_names[-1]
    measurements = [
        trajopt.FramePoseResidual(frame, SE3.identity()),
        trajopt.CenterOfMassResidual(np.zeros(3)),
        estimation.JointMeasurement(dynamics.model.joint_names, of="velocity"),
    ]
    model = estimation.StateSpaceModel(dynamics, measurements, process_noise=0.0, measurement_noise=0.01)
    P, u = 0.1 * covariance(np.random.default_rng(2), dynamics.ndx) / dynamics.ndx, jnp.zeros(dynamics.nu)

    @jax.jit
    def compute(x0, x1):
        y = model.measure(x1, u, 0)
        found = estimation.update(model, x0, P, y, u, iterations=30)
        change = dynamics.difference(x0, found.mean), dynamics.difference_jacobian(x0, found.mean)
        return found, *model.linearize(found.mean, u, 0, y), *change

    found, e, H, d, D = (jax.tree.map(np.asarray, x) for x in compute(x0, x1))
    np.testing.assert_allclose(H.T @ e / 0.01, D.T @ np.linalg.solve(P, d), rtol=1e-6, atol=1e-6)
    information = H.T @ H / 0.01 + D.T @ np.linalg.solve(P, D)
    np.testing.assert_allclose(found.covariance, np.linalg.inv(information), rtol=1e-7, atol=1e-10)
    assert np.abs(D - np.eye(len(D))).max() > 0.05


# Derivatives, precision, and mistakes.


def test_the_likelihood_has_derivatives_by_noise_masses_and_the_prior():
    us = 0.1 * np.random.default_rng(1).normal(size=(8, 1))
    ys = 0.1 * np.random.default_rng(2).normal(size=(8, 2))
    seen = np.arange(16).reshape(8, 2) % 5 > 0
    ys = np.where(seen, ys, np.nan)

    def swing(x, u, t, mass):
        return jnp.array([x[1], u[0] / mass - 9.81 * jnp.sin(x[0])])

    def likelihood(p):
        model = estimation.StateSpaceModel(
            trajopt.ContinuousDynamics(swing, 2, 1, 1 + p[0], dt=0.05, integrator="rk2"),
            trajopt.FunctionResidual(lambda x, u, t, p: jnp.array([jnp.sin(x[0]), x[1] ** 2]), of_state=True),
            process_noise=jnp.exp(p[1]) * np.diag([0, 1e-3]),
            measurement_noise=jnp.exp(p[2]) * np.array([1e-3, 2e-3]),
        )
        # A variance of zero, where a square root would have no derivative.
        P0 = jnp.exp(p[3]) * np.array([0, 1e-2])
        found = estimation.filter(model, us, ys, np.array([0.1, 0.2]) + p[4], P0, observed=seen, iterations=2)
        return found.log_likelihood + 0.1 * estimation.smooth(model, us, found).means[0].sum()

    p, step = jnp.zeros(5), 1e-5 * jnp.eye(5)
    forward, reverse = jax.jit(jax.jacfwd(likelihood))(p), jax.jit(jax.jacrev(likelihood))(p)
    ends = jax.jit(jax.vmap(likelihood))(jnp.concatenate([step, -step]))
    differences = (ends[:5] - ends[5:]) / 2e-5
    np.testing.assert_allclose(forward, reverse, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(forward, differences, rtol=1e-5, atol=1e-6)
    assert (np.abs(forward) > 1e-4).all()


def test_covariances_stay_positive_in_single_precision():
    """From an unknown start to readings that are a million times as exact, and on for many samples."""
    found = {}
    for dtype in (np.float32, np.float64):
        robot = samples.chain(2).astype(dtype)
        model = estimation.StateSpaceModel(
            trajopt.ModelDynamics(robot, 0.02),
            estimation.JointMeasurement(robot.joint_names),
            process_noise=np.array([0, 0, 1e-6, 1e-6], dtype),
            measurement_noise=dtype(1e-8),
        )
        us, ys = np.zeros((300, 2), dtype), np.zeros((300, 2), dtype)
        found[dtype] = estimation.filter(model, us, ys, np.zeros(4, dtype), dtype(1e2))
    single = found[np.float32]
    assert {a.dtype for a in jax.tree.leaves(single)} == {np.dtype(np.float32), np.dtype(bool)}
    P = np.asarray(single.covariances)
    np.testing.assert_array_equal(P, P.swapaxes(1, 2))
    assert np.linalg.eigvalsh(P.astype(float)).min() > 0
    # The first samples go through covariances from 1e2 to 1e-8.
    np.testing.assert_allclose(P[5:], found[np.float64].covariances[5:], rtol=2e-2, atol=1e-11)


def test_mistakes_are_named(linear):
    model, us, ys = linear.model, linear.us, np.where(linear.seen, linear.ys, 0.0)
    x0, P0 = linear.x0, linear.P0

    def fails(error, match, function, *args, **kwargs):
        with pytest.raises(error, match=match):
            function(*args, **kwargs)

    fails(jaxdyn.ShapeError, "the readings have shape", estimation.filter, model, us, ys[:, :2], x0, P0)
    fails(jaxdyn.ShapeError, "us has shape", estimation.filter, model, us[:5], ys, x0, P0)
    fails(jaxdyn.ShapeError, "us", estimation.filter, model, None, ys, x0, P0)
    fails(jaxdyn.ShapeError, "the mean has shape", estimation.filter, model, us, ys, x0[:3], P0)
    fails(jaxdyn.ShapeError, "the covariance of the mean", estimation.filter, model, us, ys, x0, P0[:3])
    fails(jaxdyn.ShapeError, "observed has shape", estimation.filter, model, us, ys, x0, P0, observed=np.ones((12, 2)))
    fails(jaxdyn.DataError, "reading 0 is not finite", estimation.filter, model, us, linear.ys * np.nan, x0, P0)
    fails(jaxdyn.ModelError, "is not symmetric", estimation.filter, model, us, ys, x0, np.triu(P0))
    fails(jaxdyn.ModelError, "no covariance", estimation.filter, model, us, ys, x0, -1.0)
    fails(jaxdyn.ModelError, "iterations", estimation.filter, model, us, ys, x0, P0, iterations=0)
    make, d, h = estimation.StateSpaceModel, model.dynamics, model.measurements[0]
    fails(jaxdyn.ShapeError, "process_noise has shape", make, d, h, process_noise=np.ones(3), measurement_noise=1.0)
    fails(jaxdyn.ShapeError, "measurement_noise has shape", make, d, h, process_noise=1.0, measurement_noise=[1.0, 1.0])
    fails(jaxdyn.ShapeError, "2 covariances", make, d, [h], process_noise=1.0, measurement_noise=[1.0, 1.0])
    fails(jaxdyn.ModelError, "positive variances", make, d, h, process_noise=1.0, measurement_noise=0.0)
    fails(jaxdyn.ModelError, "process_noise, control_noise", make, d, h, measurement_noise=1.0)
    fails(jaxdyn.ShapeError, r"measurements\[1\]` is an int", make, d, [h, 3], process_noise=1.0, measurement_noise=1.0)
    joints = estimation.JointMeasurement(["a"])
    fails(jaxdyn.ModelError, "a robot", make, d, joints, process_noise=1.0, measurement_noise=1.0)
    fails(jaxdyn.ModelError, "WorldDynamics", make, d, estimation.SensorMeasurement(["a"]),
          process_noise=1.0, measurement_noise=1.0)  # fmt: skip
    fails(jaxdyn.ModelError, "base that moves freely", estimation.InertialDynamics, samples.chain(2), 0.01)
    swapped = trajopt.Selected(trajopt.StateResidual(), (1, 0))
    fails(jaxdyn.ModelError, "must rise", estimation.ResidualMeasurement, swapped)
    fails(jaxdyn.ModelError, "leave out its target", estimation.ResidualMeasurement, trajopt.StateResidual(x0))


# Moving horizons.


def test_the_most_likely_trajectory_of_a_linear_system_is_that_of_the_smoother(linear):
    given = linear.model, linear.us, linear.ys, linear.x0, linear.P0
    problem = estimation.smoothing_problem(*given, observed=linear.seen)
    solution = trajopt.ddp(problem)
    assert solution.success
    np.testing.assert_allclose(solution.xs, linear.posterior(SAMPLES)[0], atol=1e-8)


def test_a_moving_horizon_of_a_linear_system_is_the_filter(linear):
    """The arrival cost is exact: windows shorter than the recording lose nothing."""
    estimator = estimation.MovingHorizon(linear.model, 4)
    window = estimator.start(linear.x0, linear.P0)
    for k in range(7):
        u = linear.us[k - 1] if k else None
        x, window, solution = estimator.step(window, linear.ys[k], u, observed=linear.seen[k])
        assert solution.success
        np.testing.assert_allclose(x, linear.filtered.means[k], atol=1e-8)
    means = linear.posterior(6)[0]
    np.testing.assert_allclose(solution.xs, means[3:7], atol=1e-8)


def test_the_derivatives_of_steps_with_noise_are_those_of_the_manifold():
    """Noise of the control and a large displacement of the state, which turns the body."""
    model, us, x0, *_ = imu_problem()
    model = estimation.StateSpaceModel(
        model.dynamics, model.measurements, process_noise=0.1, control_noise=model.control_noise, measurement_noise=1.0
    )
    ys = np.tile(np.r_[np.zeros(3), 1.0, np.zeros(3)], (3, 1))
    dynamics = estimation.smoothing_problem(model, us[:3], ys, x0, 1.0).dynamics
    w = jnp.asarray(np.random.default_rng(0).normal(size=dynamics.nu))
    after = dynamics.step(x0, w, 1)
    own = jax.jit(lambda *a: dynamics.linearize(*a))(x0, w, 1, after)
    general = jax.jit(lambda *a: trajopt.AbstractDynamics.linearize(dynamics, *a))(x0, w, 1, after)
    for found, expected in zip(own, general, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-10)
    turned = dynamics.difference(model.dynamics.step(x0, us[1], 1), after)
    assert np.abs(turned[3:6]).max() > 0.1


@pytest.mark.slow
def test_the_most_likely_trajectory_of_a_turning_body_is_near_that_of_the_smoother():
    model, us, x0, P0, seen = imu_problem()
    _, ys, r = simulated(model, x0, P0, us, 1, seed=6)
    ys = jax.vmap(lambda y, r: (SE3.from_vector(y) @ SE3.exp(r)).to_vector())(ys[0], r[0])
    given = model, us[:21], ys[:21], x0, P0
    solution = trajopt.ddp(estimation.smoothing_problem(*given, observed=seen[:21]))
    assert solution.success
    smoothed = estimation.smooth(model, us[:21], estimation.filter(*given, observed=seen[:21], iterations=5))
    errors = np.abs(jax.vmap(model.dynamics.difference)(solution.xs, smoothed.means))
    deviations = np.sqrt(np.diagonal(smoothed.covariances, axis1=1, axis2=2))
    # The smoother linearizes once along the filter's means.
    assert (errors / deviations).max() < 0.1


def test_constraints_hold_in_windows(linear):
    """The first component of all states, also of the initial one, and the noise are bounded."""
    given = linear.model, linear.us, linear.ys, linear.x0, linear.P0
    means = linear.posterior(SAMPLES)[0]
    highest = float(np.sort(means[:, 0])[-3])
    limit = trajopt.Constraint(trajopt.FunctionResidual(lambda x, u, t, p: x[:1], of_state=True), -np.inf, highest)
    problem = estimation.smoothing_problem(
        *given,
        observed=linear.seen,
        stage_constraints=[limit],
        terminal_constraints=[limit],
        noise_lower=-0.3,
        noise_upper=0.3,
    )
    solution = trajopt.ddp(problem)
    assert solution.success
    assert solution.xs[:, 0].max() < highest + 1e-6
    assert np.abs(solution.us).max() <= 0.3
    free = trajopt.ddp(estimation.smoothing_problem(*given, observed=linear.seen))
    assert np.abs(free.us).max() > 0.3
    assert solution.cost > free.cost
