"""Go2 in MuJoCo, its controller, and the estimator of its state from an IMU and encoders."""

from __future__ import annotations

import dataclasses
import xml.etree.ElementTree as ET
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from experiments._benchmark_models import model_of
from jaxdyn import ContactShape, DataError, Model, Plane, Sphere, estimation, to_mjcf, trajopt

FEET = ("FL_foot", "FR_foot", "RL_foot", "RR_foot")
RADIUS = 0.022
"""Radius of a foot, m, as in the robot's file."""
LEGS = np.array([0.0, 0.8, -1.6] * 4)
"""The joints of a stance with the feet below the hips, rad."""
HEIGHT = 0.319
"""Height of the base over the ground in this stance, m."""
FRICTION = 0.8
"""Coefficient of friction in MuJoCo."""
TIMESTEP = 1e-3
"""Step of MuJoCo, s."""
FALLEN = 0.15, 0.5
"""Height of the base, m, and cosine of its tilt, below which the robot has fallen."""
PERIOD = 5
"""Number of steps of MuJoCo between updates of the estimate."""
ACCELEROMETER_RANGE = 16 * 9.81
"""m/s^2. A push that changes the velocity in one step of the simulation is beyond it."""


def go2() -> Model:
    """Return the robot with a free base. **Raises** `DataError` where its file is not installed."""
    try:
        return model_of("go2")
    except ValueError as error:
        raise DataError(str(error)) from None


def standing() -> np.ndarray:
    """Return the state of a robot that stands at the origin."""
    return np.concatenate([[0, 0, HEIGHT, 1, 0, 0, 0], LEGS, np.zeros(18)])


class Plant:
    """The robot in MuJoCo, on a plane, with torques within their limits."""

    def __init__(self, model: Model):
        """**Raises** `DataError` where MuJoCo is not installed."""
        try:
            import mujoco
        except ImportError:
            raise DataError("MuJoCo is not installed: pip install 'jaxdyn[mjcf]'") from None
        self.mujoco: Any = mujoco
        shapes = [ContactShape(foot, Sphere(RADIUS)) for foot in FEET]
        root = ET.fromstring(to_mjcf(model, TIMESTEP, actuators=(), shapes=shapes))
        ET.SubElement(root.find("worldbody"), "geom", type="plane", size="0 0 1")  # type: ignore[arg-type]
        for geom in root.iter("geom"):
            geom.set("friction", f"{FRICTION} 0.005 0.0001")
        self.engine = self.mujoco.MjModel.from_xml_string(ET.tostring(root, encoding="unicode"))
        self.data = self.mujoco.MjData(self.engine)
        self.limit = np.asarray(model.effort_limit)[6:]
        self.gravity = np.asarray(model.gravity)
        self.reset()

    def reset(self) -> None:
        """Let the robot stand at the origin."""
        self.mujoco.mj_resetData(self.engine, self.data)
        self.data.qpos[:] = standing()[:19]
        self.mujoco.mj_forward(self.engine, self.data)

    @property
    def rotation(self) -> np.ndarray:
        """The axes of the base as the columns of a matrix."""
        matrix = np.zeros(9)
        self.mujoco.mju_quat2Mat(matrix, self.data.qpos[3:7])
        return matrix.reshape(3, 3)

    @property
    def state(self) -> np.ndarray:
        """The state `[q, v]` in this library's coordinates: the base's velocity is in its own axes."""
        v = self.data.qvel.copy()
        v[:3] = self.rotation.T @ v[:3]
        return np.concatenate([self.data.qpos, v])

    def step(self, torque: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Move on by one step, and return what a gyroscope and an accelerometer at the base would read, its mean."""
        before = self.data.qvel[:3].copy()
        self.data.qfrc_applied[6:] = np.clip(torque, -self.limit, self.limit)
        self.mujoco.mj_step(self.engine, self.data)
        return self.data.qvel[3:6].copy(), self._specific_force((self.data.qvel[:3] - before) / TIMESTEP)

    def push(self, velocity: np.ndarray) -> np.ndarray:
        """Change the velocity of the base, m/s, world axes; return by how much an accelerometer's reading of one step
        changes, which stays within its range."""
        self.data.qvel[:3] += velocity
        return np.clip(self.rotation.T @ velocity / TIMESTEP, -ACCELEROMETER_RANGE, ACCELEROMETER_RANGE)

    def _specific_force(self, acceleration):
        return self.rotation.T @ (acceleration - self.gravity)

    @property
    def fallen(self) -> bool:
        """Whether the robot has fallen."""
        height, tilt = FALLEN
        return bool(self.data.qpos[2] < height or self.rotation[2, 2] < tilt)


class Trot:
    """A schedule of contacts by the number of a stage: diagonal pairs swing in turn, with all feet down between."""

    def __init__(self, swing: int, stance: int, lift: float):
        """The numbers of stages of a swing and between two swings, and the height of a swinging foot, m."""
        self.swing, self.half, self.lift, self.begins = swing, swing + stance, lift, 0

    def rows(self, stages: np.ndarray, moves: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return which feet hold `[stages, 4]`, the heights of feet over the ground, m, and whether these count."""
        holds, heights = np.ones((len(stages), 4), bool), np.zeros((len(stages), 4))
        counts = np.zeros((len(stages), 4), bool)
        pair, place = np.divmod((stages - self.begins) % (2 * self.half), self.half)
        for foot, own in enumerate((0, 1, 1, 0)):
            mine = moves & (pair == own) & (stages >= self.begins)
            holds[:, foot] = ~(mine & (place < self.swing))
            heights[:, foot] = np.where(mine & (place < self.swing), np.sin(np.pi * place / self.swing) ** 2, 0)
            # A foot is on the ground when it lands.
            counts[:, foot] = mine & (place > 0) & (place <= self.swing)
        return holds, self.lift * heights, counts


@dataclasses.dataclass(frozen=True)
class Weights:
    """The weights of the costs of a stage; for squares of rad, m, m/s, rad/s, N m and N."""

    tilt: float = 200.0
    height: float = 2000.0
    velocity: float = 60.0
    turning: float = 10.0
    posture: float = 3.0
    rates: float = 0.005
    torque: float = 3e-4
    foot: float = 1e4
    friction: float = 3.0
    friction_width: float = 10.0
    terminal: float = 5.0


class Controller:
    """The controller of the robot: a model with holding contacts, and one real-time iteration for each control."""

    def __init__(self, model: Model, dt: float, horizon: int, gait: Trot, weights: Weights, friction: float):
        """`friction` is the coefficient within whose cones the forces of contacts should be."""
        self.dt, self.horizon, self.gait, self.weights, w = dt, horizon, gait, weights, weights
        base = model.body_names[0]
        of_state = np.r_[np.zeros(6), [w.posture] * 12, [w.velocity] * 2, [w.turning] * 4, [w.rates] * 12]
        motion = trajopt.StateResidual(standing())
        clearance = trajopt.TerrainClearanceResidual((*FEET, base), Plane())

        def at_height(heights, weight):
            return trajopt.SoftConstraintCost(clearance, heights, heights, weight=weight)

        ground = jnp.array([*[RADIUS] * 4, HEIGHT])
        base_only = jnp.array([0.0, 0.0, 0.0, 0.0, w.height])
        dynamics = trajopt.PhasedDynamics(model, dt, FEET, np.ones((horizon, 4), bool))
        low, high = trajopt.effort_bounds(dynamics)
        problem = trajopt.Problem(
            dynamics,
            standing(),
            horizon,
            stage_costs=[
                trajopt.QuadraticCost(motion, of_state),
                trajopt.TimeVarying(jax.vmap(at_height)(*(jnp.tile(a, (horizon, 1)) for a in (ground, base_only)))),
                trajopt.QuadraticCost(trajopt.UprightResidual(base), w.tilt),
                trajopt.QuadraticCost(trajopt.ControlResidual(), w.torque),
                trajopt.RelaxedBarrierCost(
                    trajopt.FrictionConeResidual(friction), lower=0.0, weight=w.friction, width=w.friction_width
                ),
            ],
            terminal_costs=[
                trajopt.QuadraticCost(motion, w.terminal * of_state),
                at_height(ground, w.terminal * base_only),
                trajopt.QuadraticCost(trajopt.UprightResidual(base), w.terminal * w.tilt),
            ],
            control_lower=low,
            control_upper=high,
        )
        self.mpc = trajopt.MPC(problem, trajopt.DDPOptions(max_iterations=1, hessian="gauss_newton"))
        self.start = self.mpc.start(standing(), xs=np.tile(standing(), (horizon + 1, 1)))
        self.leaves, self.structure = jax.tree.flatten(problem)
        numbers = jax.tree.unflatten(self.structure, range(len(self.leaves)))
        of_state, ground, end = numbers.stage_costs[0], numbers.stage_costs[1].term, numbers.terminal_costs[0]
        places = numbers.dynamics.holds, ground.lower, ground.upper, ground.weight
        self.places = *places, of_state.residual.target, end.residual.target

    def problem_at(self, number: int, x: np.ndarray, command: np.ndarray, moves: bool) -> trajopt.Problem:
        """Return the problem of control `number` near the state `x`, for a commanded velocity (forward, to the left,
        and of yaw; m/s and rad/s), of a robot that trots or stands."""
        holds, heights, counts = self.gait.rows(number + np.arange(self.horizon), moves)
        base = np.full((self.horizon, 1), HEIGHT), np.full((self.horizon, 1), self.weights.height)
        heights = np.concatenate([RADIUS + heights, base[0]], axis=1)
        # The displacement from the target's pose has no cost, but large angles would have no derivative.
        target = np.concatenate([x[:7], LEGS, command[:2], np.zeros(3), command[2:], np.zeros(12)])
        weight = np.concatenate([self.weights.foot * counts, base[1]], axis=1)
        values = holds.astype(float), heights, heights, weight, target, target
        leaves = list(self.leaves)
        for place, value in zip(self.places, values, strict=True):
            leaves[place] = jnp.asarray(value)
        return jax.tree.unflatten(self.structure, leaves)


@dataclasses.dataclass(frozen=True)
class Noise:
    """Noise of the sensors: densities of the IMU, and standard deviations of readings of encoders."""

    gyroscope: float = 2e-3
    """rad/s/sqrt(Hz)."""
    accelerometer: float = 2e-2
    """m/s^2/sqrt(Hz)."""
    encoder: float = 1e-3
    """rad."""
    encoder_rate: float = 5e-2
    """rad/s."""


class Estimator:
    """An extended Kalman filter of the robot's state by its IMU, its encoders, and feet that hold on flat ground."""

    def __init__(self, model: Model, dt: float, noise: Noise):
        self.dynamics = estimation.InertialDynamics(model, dt)
        still = [trajopt.RollingVelocityResidual(foot, RADIUS) for foot in FEET]
        down = [trajopt.Selected(trajopt.FramePositionResidual(foot, np.array([0, 0, RADIUS])), (2,)) for foot in FEET]
        self.model = estimation.StateSpaceModel(
            self.dynamics,
            [estimation.JointMeasurement(model.joint_names[1:], of="both"), *still, *down],
            **self.dynamics.noise(
                gyroscope=noise.gyroscope,
                accelerometer=noise.accelerometer,
                gyroscope_bias=1e-4,
                accelerometer_bias=1e-3,
                joint_acceleration=200.0,
            ),
            measurement_noise=[[noise.encoder**2] * 12 + [noise.encoder_rate**2] * 12, *[0.05**2] * 4, *[0.005**2] * 4],
        )
        self.start()

    def start(self) -> None:
        """Begin at a robot that stands."""
        x = standing()
        self.mean = self.dynamics.join(x[:19], x[19:])
        self.covariance = jnp.diag(jnp.asarray(np.r_[[1e-6] * 18, [1e-4] * 18, [1e-4] * 3, [1e-2] * 3]))

    def update(self, gyroscope, accelerometer, encoders: np.ndarray, holds: np.ndarray) -> np.ndarray:
        """Return the state `[q, v]` by the mean readings of the IMU since the last update, the readings of encoders
        now, and which feet hold."""
        seen = np.r_[True, holds, holds]
        readings = gyroscope, accelerometer, encoders
        self.mean, self.covariance = _advance(self.model, self.mean, self.covariance, readings, seen)
        return np.asarray(self.mean)[:37]


@eqx.filter_jit
def _advance(model: estimation.StateSpaceModel, x, P, readings, seen):
    """Return the mean and the covariance after a step and the readings at its end."""
    gyroscope, accelerometer, encoders = readings
    dynamics: Any = model.dynamics
    control = dynamics.controls(gyroscope, accelerometer)
    x, P = estimation.predict(model, x, P, control)
    found = estimation.update(model, x, P, [encoders, *[None] * 8], control, observed=seen)
    return found.mean, found.covariance


class SensedState:
    """The state that the controller sees."""

    def __init__(self, plant: Plant, estimator: Estimator | None, noise: Noise, seed: int):
        """Without an estimator it is the true state."""
        self.plant, self.estimator, self.noise, self.rng = plant, estimator, noise, np.random.default_rng(seed)
        self.x, self.holds, self.imu = plant.state, np.ones(4, bool), []
        if estimator is not None:
            estimator.start()

    @property
    def errors(self) -> np.ndarray:
        """Differences of the estimates' height, m, base velocities, m/s, and cosine of tilt from the true ones."""
        true = self.plant.state

        def cosine(x):
            return 1 - 2 * (x[4] ** 2 + x[5] ** 2)

        return np.r_[self.x[2] - true[2], self.x[19:22] - true[19:22], cosine(self.x) - cosine(true)]

    def step(self, torque: np.ndarray, push: np.ndarray | None) -> None:
        """Move the plant by one step, and see its state then."""
        plant, noise, normal = self.plant, self.noise, self.rng.normal
        gyroscope, accelerometer = plant.step(torque)
        if push is not None:
            accelerometer = accelerometer + plant.push(push)
        state = plant.state
        if self.estimator is None:
            self.x = state
            return
        deviation = TIMESTEP**-0.5 * np.array([noise.gyroscope, noise.accelerometer])
        self.imu.append(np.r_[gyroscope + deviation[0] * normal(size=3), accelerometer + deviation[1] * normal(size=3)])
        rates = state[25:37] + noise.encoder_rate * normal(size=12)
        encoders = np.r_[state[7:19] + noise.encoder * normal(size=12), rates]
        if len(self.imu) == PERIOD:
            mean = np.mean(self.imu, axis=0)
            self.x, self.imu = self.estimator.update(mean[:3], mean[3:], encoders, self.holds), []
        else:
            # The estimate of the base is that of the last update, and joints are read in each step.
            self.x = np.r_[self.x[:7], encoders[:12], self.x[19:25], encoders[12:]]
