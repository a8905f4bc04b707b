# %% [markdown]
"""Identify a double pendulum from its chaotic motion.

Short roll-outs follow the recording where one long roll-out departs from it.

    python docs/examples/double_pendulum_from_chaos.py

The recordings are simulated with noise; `python -m experiments.identify_double_pendulum` uses recordings of a real one.
"""

# %%
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

import jaxdyn
from jaxdyn import State, sysid

jax.config.update("jax_enable_x64", True)  # fits need double precision

rate, noise = 200.0, 0.002  # Hz, rad
drawing = jaxdyn.samples.double_pendulum()  # infinitely thin rods, which are not physically possible
truth = dataclasses.replace(drawing, inertial_parameters=sysid.nearest_physical(drawing.inertial_parameters))
truth = truth.with_joint_friction(damping=0.02, friction=0.03, friction_velocity=0.1)


def simulate_recording(seed: int, duration: float) -> sysid.Recording:
    """A motion over the top, again and again, under known torques. Without torques it would determine only ratios."""
    rng = np.random.default_rng(seed)
    t = np.arange(0.0, duration, 1 / rate)
    tau = np.stack([2.5 * np.sin(3.1 * t + seed), 1.0 * np.sin(4.7 * t)], axis=1)
    start = State(jnp.array([2.8, 0.5 + 0.2 * seed]), jnp.zeros(2))
    motion = jaxdyn.rollout(truth, start, 0.5 * (tau[:-1] + tau[1:]), 1 / rate, integrator="rk4")
    q = np.asarray(motion.q) + noise * rng.normal(size=motion.q.shape)
    v = np.asarray(motion.v) + 0.02 * rng.normal(size=motion.v.shape)
    return sysid.Recording(t, q, v, tau=tau)


train, test = simulate_recording(0, 4.0), simulate_recording(1, 3.0)

# %%
# At the start of the fit every inertia is 25 % too large, and friction is half of the true value.
wrong = dataclasses.replace(
    truth,
    inertial_parameters=1.25 * truth.inertial_parameters,
    damping=0.5 * truth.damping,
    friction=0.5 * truth.friction,
)
free = sysid.Parametrization(wrong, sysid.LogCholesky(), sysid.Positive("damping"), sysid.Positive("friction"))
print("compiling and fitting roll-outs ...", flush=True)
fit = sysid.fit_rollouts(
    free,
    train,
    segment=0.2,
    position_noise=noise,
    velocity_noise=0.02,
    options=sysid.RolloutFitOptions(matching=1.0, prior_weight=1e-3, max_iterations=80),
)
print(f"{fit.message} after {fit.iterations} steps; {free.size} free parameters")

# %%
# Roll-outs of half a second from measured states of a motion that was not used in the fit.
medians = {}
for name, robot in (("wrong", wrong), ("identified", fit.robot), ("true", truth)):
    errors = sysid.rollout_errors(robot, test, 0.5, every=0.05)
    medians[name] = float(np.median(errors.rmse()))
    print(f"{name:11} median error of roll-outs after 0.5 s: {medians[name]:.4f} rad")

value, lower, upper = fit.interval(lambda robot: robot.damping)
for joint, true, x, low, high in zip(truth.joint_names, truth.damping, value, lower, upper, strict=True):
    print(f"viscous friction of {joint}: {x:.4f} ({low:.4f} ... {high:.4f}), true {true:.4f} N m s/rad")
