# %% [markdown]
"""1024 randomized robots on all devices, and a gradient over all of them.

    python docs/examples/randomized_robots.py
    XLA_FLAGS=--xla_force_host_platform_device_count=4 python docs/examples/randomized_robots.py

Each robot is a Solo12 with other masses, friction, rotors and gravity, held in the air by its trunk. The program looks
for the gains of the joints' servos that hold a pose best for all robots.
"""

# %%
import dataclasses
import time

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

import jaxdyn
from jaxdyn import Actuator, State, World, sysid
from jaxdyn.simulate import EffortLimits, RolloutOptions

ROBOTS, STEPS, DT = 1024, 100, 2e-3
print(f"{jax.device_count()} devices: {jax.devices()[0].device_kind}")
mesh = jax.make_mesh((jax.device_count(),), ("batch",))
split = NamedSharding(mesh, PartitionSpec("batch"))

# %%
# Any numbers make a physically possible robot: inertias are given by the logarithms of their Cholesky factors.
nominal = jaxdyn.samples.quadruped()
nominal = nominal.with_locked_joints({nominal.joint_names[0]: [0, 0, 0.5, 1, 0, 0, 0]})
free = sysid.Parametrization(nominal, sysid.LogCholesky())
keys = iter(jax.random.split(jax.random.key(0), 5))
robots = free.model(0.1 * jax.random.normal(next(keys), (ROBOTS, free.size)))
robots = dataclasses.replace(
    robots,
    damping=jax.random.uniform(next(keys), (ROBOTS, nominal.nv), minval=0.0, maxval=0.05),
    armature=nominal.armature + jax.random.uniform(next(keys), (ROBOTS, nominal.nv), minval=0.0, maxval=0.005),
    gravity=nominal.gravity + 0.3 * jax.random.normal(next(keys), (ROBOTS, 3)),
)
robots = jax.tree.map(lambda x: jax.device_put(x, split) if x.shape[:1] == (ROBOTS,) else x, robots)
mass = robots.inertial_parameters[..., 0].sum(axis=-1)
print(f"{ROBOTS} robots; moving mass {mass.min():.2f} ... {mass.max():.2f} kg, nominal {nominal.mass.sum():.2f} kg")

goal = jnp.tile(jnp.array([0.0, 0.8, -1.6]), nominal.nv // 3)  # each leg: hip, thigh, knee
start = State(goal + 0.3 * jax.random.normal(next(keys), (ROBOTS, nominal.nq)), jnp.zeros((ROBOTS, nominal.nv)))


# %%
def cost(gains):
    kp, kv, limits = jnp.exp(gains[0]), jnp.exp(gains[1]), [EffortLimits(2.7, kind="tanh")]
    servos = [Actuator(joint, "position", kp=kp, kv=kv, force_path=limits) for joint in nominal.joint_names]
    world = World(robots, actuators=servos, timestep=DT)
    options = RolloutOptions(save_every=10, sharding=split)
    motion = world.rollout(start, jnp.broadcast_to(goal, (STEPS, nominal.nq)), options=options)
    return jnp.mean((motion.q - goal) ** 2)


# %%
both = jax.jit(jax.value_and_grad(cost))
gains = jnp.log(jnp.array([3.0, 0.1]))
print("compiling the roll-outs of all robots and their gradient ...", flush=True)
began = time.perf_counter()
first, slope = jax.block_until_ready(both(gains))
compiling = time.perf_counter() - began
history = [float(first)]
began = time.perf_counter()
for _ in range(8):
    gains = gains - 0.3 * slope / jnp.linalg.norm(slope)
    value, slope = jax.block_until_ready(both(gains))
    history.append(float(value))
each = (time.perf_counter() - began) / 8
print(f"mean squared error {history[0]:.4f} -> {history[-1]:.4f} rad^2 with kp, kd = {jnp.exp(gains).round(2)}")
print(
    f"{compiling:.1f} s with compilation, then {each:.2f} s for {ROBOTS} roll-outs of {STEPS} steps with their gradient"
)
