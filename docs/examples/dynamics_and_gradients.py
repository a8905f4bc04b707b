"""Dynamics of a seven-joint arm, and derivatives by everything in it.

python docs/examples/dynamics_and_gradients.py
"""

import dataclasses

import jax
import jax.numpy as jnp

import jaxdyn

jax.config.update("jax_enable_x64", True)  # to compare with differences; the library never sets it

model = jaxdyn.samples.arm()  # a Panda without its gripper; or jaxdyn.load_urdf("robot.urdf")
print(model.summary())

# A batch of states: the leading axis is a batch everywhere.
q = model.random_configuration(jax.random.key(0), (256,))
v = jax.random.normal(jax.random.key(1), (256, model.nv))
tau = jnp.zeros((256, model.nv))
a = jaxdyn.aba(model, q, v, tau)
print(f"\nmean acceleration of each joint when it is let go: {jnp.mean(jnp.abs(a), axis=0).round(1)} rad/s^2")

# Identities: forward and inverse dynamics undo each other, and the mass matrix is what torque has to do with it.
residual = jnp.max(jnp.abs(jaxdyn.rnea(model, q, v, a) - tau))
print(f"inverse of forward dynamics: torques of {residual:.1e} N m where there are none")

# What would change how fast a motion begins? The gradient of a number by the whole robot is a robot of derivatives.
state = (q[0], v[0], tau[0])


def speeding_up(model):
    return jnp.sum(jaxdyn.aba(model, *state) ** 2)


gradient = jax.grad(speeding_up)(model)
print("\nby the mass of each link, per kg:", gradient.inertial_parameters[:, 0].round(2))
print("by gravity:", gradient.gravity.round(2))
print("by the height of each joint above the one before, per m:", gradient.joint_placement[:, 2].round(1))

# The same by central differences, for one mass.
link, step = 3, 1e-6
by_one = []
for sign in (1, -1):
    parameters = model.inertial_parameters.at[link, 0].add(sign * step)
    by_one.append(speeding_up(dataclasses.replace(model, inertial_parameters=parameters)))
difference = (by_one[0] - by_one[1]) / (2 * step)
error = abs(difference / gradient.inertial_parameters[link, 0] - 1)
print(f"by the mass of {model.body_names[link]}: differences say {difference:.6f}, off by {error:.1e} of it")

# Analytic Jacobians of forward dynamics, for a whole batch at once.
by_q, by_v, by_tau = jaxdyn.aba_derivatives(model, q, v, tau)
inverse = jaxdyn.inverse_mass_matrix(model, q)
print(f"\nJacobians {by_q.shape}; by torque it is the inverse mass matrix, to {jnp.max(jnp.abs(by_tau - inverse)):.1e}")
