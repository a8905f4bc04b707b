# %% [markdown]
"""Dynamics of a seven-joint arm, and derivatives with respect to all its parameters.

python docs/examples/dynamics_and_gradients.py
"""

# %%
import dataclasses

import jax
import jax.numpy as jnp

import jaxdyn

jax.config.update("jax_enable_x64", True)  # for the comparison with differences; the library never sets this

model = jaxdyn.samples.arm()  # a Panda without its gripper; or jaxdyn.load_urdf("robot.urdf")
print(model.summary())

# %%
# A batch of states: leading axes are batch axes in every function.
q = model.random_configuration(jax.random.key(0), (256,))
v = jax.random.normal(jax.random.key(1), (256, model.nv))
tau = jnp.zeros((256, model.nv))
a = jaxdyn.aba(model, q, v, tau)
print(f"\nmean acceleration of each joint when it is let go: {jnp.mean(jnp.abs(a), axis=0).round(1)} rad/s^2")

# %%
# Inverse dynamics returns the torques that forward dynamics was given.
residual = jnp.max(jnp.abs(jaxdyn.rnea(model, q, v, a) - tau))
print(f"inverse of forward dynamics: torques of {residual:.1e} N m instead of zero")

# %%
# Which parameters change how fast a motion begins? The gradient with respect to a robot is a robot of derivatives.
state = (q[0], v[0], tau[0])


def squared_acceleration(model):
    return jnp.sum(jaxdyn.aba(model, *state) ** 2)


gradient = jax.grad(squared_acceleration)(model)
print("\nwith respect to the mass of each link, per kg:", gradient.inertial_parameters[:, 0].round(2))
print("with respect to gravity:", gradient.gravity.round(2))
print("with respect to the height of each joint above the one before, per m:", gradient.joint_placement[:, 2].round(1))

# %%
# The same by central differences, for one mass.
link, step = 3, 1e-6
values = []
for sign in (1, -1):
    parameters = model.inertial_parameters.at[link, 0].add(sign * step)
    values.append(squared_acceleration(dataclasses.replace(model, inertial_parameters=parameters)))
difference = (values[0] - values[1]) / (2 * step)
error = abs(difference / gradient.inertial_parameters[link, 0] - 1)
print(
    f"with respect to the mass of {model.body_names[link]}: differences give {difference:.6f}, off by {error:.1e} of it"
)

# %%
# Analytic Jacobians of forward dynamics, for a whole batch at once.
by_q, by_v, by_tau = jaxdyn.aba_derivatives(model, q, v, tau)
inverse = jaxdyn.inverse_mass_matrix(model, q)
difference = jnp.max(jnp.abs(by_tau - inverse))
print(f"\nJacobians {by_q.shape}; with respect to torque it is the inverse mass matrix, to {difference:.1e}")
