# %% [markdown]
"""A cartpole swings up, first in a plan by differential dynamic programming, then under model predictive control.

The controller follows the plan on a plant whose pole and cart are 30 % heavier than in the controller's model.

    python docs/examples/swing_up.py
"""

# %%
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

import jaxdyn
from jaxdyn import trajopt

jax.config.update("jax_enable_x64", True)

dt, horizon = 0.04, 50
model = jaxdyn.samples.cartpole()  # q = position and angle, the pole upright at 0
motor = np.array([[1.0], [0.0]])  # the motor pushes the cart only


def off_upright(x, u, t, params):
    """Position, the angle counted without turns, and velocities."""
    return jnp.array([x[0], jnp.sin(x[1]), 1 - jnp.cos(x[1]), x[2], x[3]])


off = trajopt.FunctionResidual(off_upright, of_state=True)
hanging = np.array([0.0, np.pi, 0.0, 0.0])
problem = trajopt.Problem(
    trajopt.ModelDynamics(model, dt, actuation=motor),
    hanging,
    horizon,
    stage_costs=[
        trajopt.QuadraticCost(off, dt * np.array([2.0, 4.0, 4.0, 0.1, 0.1])),
        trajopt.QuadraticCost(trajopt.ControlResidual(), 0.01 * dt),
    ],
    terminal_costs=[trajopt.QuadraticCost(off, np.array([10.0, 50.0, 50.0, 5.0, 5.0]))],
    control_lower=-10.0,
    control_upper=10.0,
)

# %%
print("compiling the solver, and solving ...", flush=True)
plan = trajopt.ddp(problem, us=0.01 * np.ones((horizon, 1)))
print(f"plan: {plan.message} after {int(plan.iterations)} iterations, cost {float(plan.cost):.4f}")
print(f"it ends at {np.asarray(plan.xs[-1]).round(3)}, forces up to {float(jnp.abs(plan.us).max()):.1f} N")

# %%
# The plant is a heavier robot, simulated with finer steps.
heavier = dataclasses.replace(model, inertial_parameters=1.3 * model.inertial_parameters)
true = trajopt.ModelDynamics(heavier, dt, actuation=motor, substeps=4)
step = jax.jit(lambda x, u: true.step(x, u, 0))

# %%
# The plan alone does not work on the plant.
x = hanging
for u in np.asarray(plan.us):
    x = np.asarray(step(x, u))
open_loop = abs(np.arctan2(np.sin(x[1]), np.cos(x[1])))
print(f"the plan on the heavier plant, without feedback, ends {np.degrees(open_loop):.0f} degrees off upright")

# %%
mpc = trajopt.MPC(problem, trajopt.DDPOptions(max_iterations=8))
print("compiling the controller, and closing the loop ...", flush=True)
run = trajopt.closed_loop(mpc, lambda x, u: np.asarray(step(x, u)), hanging, 150, plan=mpc.start(hanging, us=plan.us))
angle = np.abs(np.arctan2(np.sin(run.xs[:, 1]), np.cos(run.xs[:, 1])))
print(f"MPC: {run.message}")
print(
    f"in the last second at most {np.degrees(angle[-25:].max()):.1f} degrees and {abs(run.xs[-25:, 0]).max():.2f} m off"
)
p50, p99 = 1e3 * run.latency.p50, 1e3 * run.latency.p99
print(f"latency {p50:.1f} ms (median), {p99:.1f} ms (99 %), of a period of {1e3 * dt:.0f} ms")
