"""Roll-outs split their batch over devices and processes. The programs run in subprocesses on devices of the CPU."""

import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Each device has more than one chunk of the batch, and the last chunk is not full.
SETUP = """
import dataclasses
import jax, jax.numpy as jnp, numpy as np
jax.config.update("jax_enable_x64", True)
import jaxdyn
from jax.sharding import NamedSharding, PartitionSpec as P
from jaxdyn import State
from jaxdyn.simulate import RolloutOptions

model = jaxdyn.samples.cartpole()
batch, steps = 8 * 150, 4
rng = np.random.default_rng(0)
q, v, u = rng.normal(size=(batch, 2)), rng.normal(size=(batch, 2)), rng.normal(size=(batch, steps, 2))
wrenches = rng.normal(size=(batch, steps, model.nb, 6))

def policy(noise, state, t):
    return 0.5 * noise, noise - 0.1 * state.v + t

def sense(model, state, t):
    return {"energy": jaxdyn.kinetic_energy(model, state.q, state.v)}
"""
MESH = """
assert jax.device_count() == 8
mesh = jax.make_mesh((8,), ("batch",), axis_types=(jax.sharding.AxisType.Auto,))
split = NamedSharding(mesh, P("batch"))

def communicates(program):
    return [w for w in ("all-gather", "all-to-all", "collective-permute", "all-reduce") if w in program.as_text()]

def same(got, want):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-11, atol=1e-12), got, want)

put = lambda x: jax.device_put(x, split)
"""
ROLLOUTS = """
# One roll-out combines a policy with a state, sensors, checks and external wrenches.
options = dict(steps=steps, policy_state=u[:, 0], sensors=sense, f_ext=wrenches)
want = jaxdyn.rollout(model, State(q, v), policy, 0.01, **options, options=RolloutOptions(check=True, save_every=2))
rest = RolloutOptions(check=True, save_every=2, sharding=split)
got = jaxdyn.rollout(model, State(q, v), policy, 0.01, **options, options=rest)
same(got, want)
for x in (got.q, got.v, got.tau, got.policy_state, got.sensors["energy"]):
    assert x.sharding.is_equivalent_to(NamedSharding(mesh, P("batch")), x.ndim), x.sharding
    assert len({s.index for s in x.addressable_shards}) == 8

# Under jit, split arrays give split results, and the devices exchange nothing.
roll = jax.jit(lambda m, s, u: jaxdyn.rollout(m, s, u, 0.01, options=RolloutOptions(sharding=split)))
program = roll.lower(model, State(put(q), put(v)), put(u)).compile()
assert not communicates(program), communicates(program)
out = program(model, State(put(q), put(v)), put(u))
assert out.q.sharding.is_equivalent_to(split, out.q.ndim)
same((out.q, out.v), (lambda t: (t.q, t.v))(jaxdyn.rollout(model, State(q, v), u, 0.01)))

print("passed")
"""
EXPLICIT = """
# The axes that `jax.make_mesh` makes by default are explicit: inside `jit` they are a part of the types of arrays.
for kinds in ((jax.sharding.AxisType.Explicit,) * 2, (jax.sharding.AxisType.Explicit, jax.sharding.AxisType.Auto)):
    mesh = jax.make_mesh((2, 4), ("a", "b"), axis_types=kinds)
    split = NamedSharding(mesh, P(("a", "b")))
    def loss(m, s, u, sharding=split):
        return jnp.mean(jaxdyn.rollout(m, s, u, 0.01, options=RolloutOptions("sqrt", sharding=sharding)).q ** 2)
    want = jax.jit(jax.value_and_grad(lambda *x: loss(*x, None), (0, 1, 2)))(model, State(q, v), u[:1])
    function = jax.jit(jax.value_and_grad(loss, (0, 1, 2)))
    same(function(model, State(q, v), u[:1]), want)
    with jax.set_mesh(mesh):
        same(function(model, State(q, v), u[:1]), want)
    roll = jax.jit(lambda s: jaxdyn.rollout(model, s, u, 0.01, options=RolloutOptions(sharding=split)).q)
    assert roll(State(q, v)).sharding.is_equivalent_to(split, 3)
print("passed")
"""
REST = """
# In eager mode, arrays that are already split stay split without the option `sharding`.
out = jaxdyn.rollout(model, State(put(q), put(v)), put(u), 0.01)
assert out.q.sharding.is_equivalent_to(split, out.q.ndim)

# A plain call under jit works on each device's part in place, although it is more than one chunk.
forward = jax.jit(lambda *x: jaxdyn.aba(model, *x))
tall = [np.tile(x, (2, 1)) for x in (q, v, u[:, 0])]
program = forward.lower(*map(put, tall)).compile()
assert not communicates(program), communicates(program)
out = program(*map(put, tall))
assert out.sharding.is_equivalent_to(split, 2)
same(out, forward(*map(jnp.asarray, tall)))

# The gradient of the state stays split; the gradients of the model's arrays are sums over the devices.
def loss(damping, s, u, sharding):
    m = dataclasses.replace(model, damping=damping)
    return jnp.sum(jaxdyn.rollout(m, s, u, 0.01, options=RolloutOptions("sqrt", sharding=sharding)).final.q ** 2)

want = jax.jit(jax.grad(loss, (0, 1)), static_argnums=3)(model.damping, State(q, v), u, None)
gradient = jax.jit(jax.grad(loss, (0, 1)), static_argnums=3)
program = gradient.lower(model.damping, State(put(q), put(v)), put(u), split).compile()
assert set(communicates(program)) <= {"all-reduce"}, communicates(program)
got = program(model.damping, State(put(q), put(v)), put(u))
assert got[1].q.sharding.is_equivalent_to(split, 2)
same(got, want)

# The error names the element of the whole batch.
bad = u.copy(); bad[700, 1] = np.nan
try:
    jaxdyn.rollout(model, State(q, v), bad, 0.01, options=RolloutOptions(check=True, sharding=split))
    raise SystemExit("no error")
except jaxdyn.simulate.DivergenceError as error:
    assert "batch element 700" in str(error) and "step 1" in str(error), error

# Two batch axes are split over a mesh of two axes; arrays with a batch axis of length one stay whole.
mesh2 = jax.make_mesh((2, 4), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
q2, v2 = q[:48].reshape(4, 12, 2), v[:12]
split2 = NamedSharding(mesh2, P("a", "b"))
got = jaxdyn.rollout(model, State(q2, v2), u[:4, None], 0.01, options=RolloutOptions(sharding=split2))
assert got.q.sharding.is_equivalent_to(split2, 4)
same(got.q, jaxdyn.rollout(model, State(q2, v2), u[:4, None], 0.01).q)
try:
    jaxdyn.rollout(model, State(q[:12], v[:12]), u[:12], 0.01, options=RolloutOptions(sharding=split))
    raise SystemExit("no error")
except jaxdyn.ShapeError as error:
    assert "12" in str(error) and "8" in str(error)
print("passed")
"""
CONTACTS = """
model = jaxdyn.samples.cube()
world = jaxdyn.World(model, [jaxdyn.ContactShape("cube", jaxdyn.Cylinder(0.05, 0.05))])
q = np.tile([0, 0, 0.049, 1, 0, 0, 0], (16, 1))
q[:, 4] = 0.1 * np.arange(16)
v, tau = rng.normal(size=(16, 6)), np.zeros((16, steps, 6))
want = world.rollout(State(q, v), torques=tau)
rest = RolloutOptions(check=True, sharding=split)
got = world.rollout(State(q, v), torques=tau, options=rest)
same((got.q, got.contact.error > 1e-8), (want.q, want.contact.error > 1e-8))
assert got.contact.error.sharding.is_equivalent_to(split, 2)
# No element waits for those of other devices.
only = RolloutOptions(sharding=split)
roll = jax.jit(lambda s, u: world.rollout(s, torques=u, options=only))
assert not communicates(roll.lower(State(put(q), put(v)), put(tau)).compile())
print("passed")
"""
WORLDS = '''
world = jaxdyn.load_world("""<mujoco><worldbody><geom type="plane" size="1 1 1"/>
<body pos="0 0 0.06"><freejoint/><geom type="capsule" size="0.05 0.1" euler="70 0 0"/></body>
<body pos="1 0 1"><joint name="j" axis="1 0 0"/><geom size="0.1" pos="0 0 0.3"/></body></worldbody>
<actuator><position joint="j" kp="3" timeconst="0.05"/></actuator><sensor><jointpos joint="j"/></sensor></mujoco>""")
start = world.state(v=rng.normal(size=(16, 7)))
u = rng.normal(size=(16, steps, 1))
want = world.rollout(start, u, sensors=True)
got = world.rollout(start, u, sensors=True, options=RolloutOptions(check=True, sharding=split))
same((got.q, got.sensors, got.end, got.contact.iterations), (want.q, want.sensors, want.end, want.contact.iterations))
assert got.q.sharding.is_equivalent_to(split, 3) and got.end.time.sharding.is_equivalent_to(split, 1)
only = RolloutOptions(sharding=split)
roll = jax.jit(lambda s, u: world.rollout(s, u, options=only))
assert not communicates(roll.lower(jax.tree.map(put, start), put(u)).compile())
print("passed")
'''
TWO_PROCESSES = """
import sys
jax.distributed.initialize(sys.argv[1], num_processes=2, process_id=int(sys.argv[2]))
assert jax.process_count() == 2 and jax.device_count() == 4
mesh = jax.make_mesh((4,), ("batch",), axis_types=(jax.sharding.AxisType.Auto,))
split = NamedSharding(mesh, P("batch"))
half = slice(600 * jax.process_index(), 600 * (jax.process_index() + 1))
mine = lambda x: jax.make_array_from_process_local_data(split, x[half])
out = jaxdyn.rollout(model, State(mine(q), mine(v)), mine(u), 0.01, options=RolloutOptions(check=True))
assert out.q.sharding.is_equivalent_to(split, 3)
want = jaxdyn.rollout(model, State(q[half], v[half]), u[half], 0.01)
got = np.concatenate([s.data for s in sorted(out.q.addressable_shards, key=lambda s: s.index[0].start)])
np.testing.assert_allclose(got, want.q, rtol=1e-11, atol=1e-12)
# A loss sums over the elements of all processes, and a roll-out splits arrays that every process has whole.
shared = RolloutOptions(sharding=split)
total = jax.jit(lambda s, u: jnp.sum(jaxdyn.rollout(model, s, u, 0.01, options=shared).final.q ** 2))
everything = float(total(State(mine(q), mine(v)), mine(u)))
same = jaxdyn.rollout(model, State(q, v), u, 0.01, options=RolloutOptions(sharding=split))
assert same.q.sharding.is_equivalent_to(split, 3)
final = jaxdyn.rollout(model, State(q, v), u, 0.01).final.q
np.testing.assert_allclose(everything, float(jnp.sum(final**2)), rtol=1e-11)
print("passed")
"""

BODIES = {"roll-outs": ROLLOUTS, "explicit": EXPLICIT, "rest": REST, "contacts": CONTACTS, "worlds": WORLDS}


def start(body: str, devices: int, *arguments: str) -> subprocess.Popen:
    flags = f"--xla_force_host_platform_device_count={devices} --xla_backend_optimization_level=0"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    program = textwrap.dedent(SETUP) + textwrap.dedent(body)
    if "jax.distributed" in body:
        # `jax.distributed.initialize` must run before any computation.
        first, remainder = body.split("assert", 1)
        program = "import jax\n" + first + textwrap.dedent(SETUP) + "assert" + remainder
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(process: subprocess.Popen) -> str:
    try:
        out, _ = process.communicate(timeout=300)
    finally:
        process.kill()
    return out


@pytest.mark.slow
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_eight_devices_do_what_one_does_and_exchange_nothing(body):
    out = finish(start(MESH + body, 8))
    assert out.strip().endswith("passed"), out[-4000:]


@pytest.mark.slow
def test_two_processes_share_a_batch():
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        address = f"localhost:{probe.getsockname()[1]}"
    both = [start(TWO_PROCESSES, 2, address, str(i)) for i in range(2)]
    for out in [finish(process) for process in both]:
        assert out.strip().endswith("passed"), out[-4000:]
