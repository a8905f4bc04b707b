"""A process that measures cases of `benchmark_gpu` one after the other, so that one that takes too long can be ended.

It reads cases from standard input, a JSON object a line, and answers each with one line.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments import _benchmark_models as models
from experiments import benchmark_contact, benchmark_scenes
from experiments._benchmark_hlo import count_kernels
from experiments._benchmark_jax import LIBRARIES, Jaxdyn, operation
from experiments._timing import time_compilation, wall_time
from jaxdyn import State, native
from jaxdyn.simulate import RolloutOptions

# XLA's defaults, and loops.
_LOOPS = {"xla_gpu_enable_command_buffer": "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,DYNAMIC_SLICE_FUSION,WHILE"}
CONTROL_PERIOD = 0.02
"""s. The period of the controls of `control` and `control_gradient`, a usual one of policies for legged robots."""
_COMPARED, _SAMPLED = 64, (1, 10, 100, 1000)
"""The states whose motions are compared, and the steps after which they are."""


class Run(NamedTuple):
    """A function to compile, its arguments, and the number of evaluations in a call."""

    function: Callable
    arguments: list[Any]
    evaluations: int


def find_device(kind: str) -> Any:
    """Return the first device of a kind. **Raises** `UnsupportedError` with the existing devices if there is none."""
    try:
        return jax.devices(kind)[0]
    except RuntimeError as error:
        devices = ", ".join(str(d) for d in jax.devices())
        raise models.UnsupportedError(
            f"no {kind.upper()} that JAX can use (it has: {devices}): {' '.join(str(error).split())[:300]}. This "
            "benchmark needs an NVIDIA GPU and a JAX for it, for instance pip install 'jax[cuda13]'; --device cpu "
            "runs the script without one"
        ) from None


def attempt(case: dict, config: dict) -> dict:
    """Return the measurement of a case, or a record with the reason for its absence."""
    code = case["code"]
    try:
        with native.disabled() if code in ("xla", "xla_loops") else contextlib.nullcontext():
            if case["operation"] == "motion":
                return compare_motions(case, config)
            if code == "warp":
                return measure_warp(case, config)
            return measure(run_of(case, config), code, config)
    except (models.UnsupportedError, ImportError) as reason:
        return {"status": "unsupported", "reason": str(reason)}
    except Exception as error:
        return {"status": "failed", "reason": " ".join(f"{type(error).__name__}: {error}".split())[:500]}


def run_of(case: dict, config: dict) -> Run:
    if case["robot"] in benchmark_scenes.SCENES:
        return run_of_scene(case, config["steps"])
    tree, name, batch = models.load_tree(case["robot"]), case["operation"], case["batch"]
    library = LIBRARIES.get(case["code"], Jaxdyn)(tree, "float32")
    function, letters = operation(library, name, batch, config["steps"])
    states = models.rollout_states if name == "rollout" else models.states
    arrays: dict[str, Any] = dict(zip("qvta", library.states(states(tree, batch)), strict=True))
    arrays = {k: jnp.asarray(x, library.dtype) for k, x in arrays.items()}
    if "m" in letters:
        arrays["m"] = library.parameters()[0]
    return Run(function, [arrays[x] for x in letters], batch * (config["steps"] if name == "rollout" else 1))


@functools.lru_cache(1)
def start_of(name: str, batch: int) -> benchmark_scenes.Start:
    return benchmark_scenes.started(benchmark_scenes.SCENES[name](), benchmark_scenes.Config(name).settling, batch)


def run_of_scene(case: dict, steps: int) -> Run:
    """Return the run of one of `SCENE_OPERATIONS`: a step of a roll-out of `steps` steps, its gradient by the state and
    the control, and the same of periods of control."""
    start, name, batch = start_of(case["robot"], case["batch"]), case["operation"], case["batch"]
    substeps = round(CONTROL_PERIOD / float(start.scene.timestep)) if name.startswith("control") else 1
    count = 1 if name.endswith("gradient") else steps
    if case["code"] == "mjx":
        advance, v = _advance_mjx(case["robot"], start, count * substeps), start.v
    else:
        advance, v = _advance(start.scene, count, substeps), start.scene.from_qvel(start.q, start.v)
    control = jnp.broadcast_to(start.control, (batch, *start.control.shape))

    def loss(q, v, control):
        return sum(jnp.sum(x**2) for x in advance(q, v, control))

    function = jax.grad(loss, (0, 1, 2)) if name.endswith("gradient") else advance
    return Run(function, [start.q, v, control], batch * count)


def _advance(scene: Any, count: int, substeps: int) -> Callable:
    def advance(q, v, control):
        state = scene.state(q, v)
        if count == substeps == 1:
            end = scene.step(state, control)
        else:
            controls, last = control[..., None, :], RolloutOptions(save_every=count)
            controls = jnp.broadcast_to(controls, (*controls.shape[:-2], count, controls.shape[-1]))
            end = scene.rollout(state, controls, substeps=substeps, options=last).final
        return end.q, end.v

    return advance


def _advance_mjx(robot: str, start: benchmark_scenes.Start, steps: int) -> Callable:
    _require_scene_of_mujoco(robot)
    step = benchmark_contact.mjx_step(benchmark_scenes.peers_model(start.model))
    return jax.vmap(lambda q, v, control: step(q, v, steps, control))


def _require_scene_of_mujoco(robot: str) -> None:
    if robot == "quadruped_compliant":
        raise models.UnsupportedError("MuJoCo does not have this law of contact")


def measure(run: Run, code: str, config: dict) -> dict:
    """Compile and run a program, count its kernels, and compare its time with the floors."""
    function, arguments, evaluations = run
    program, trace_s, compile_s, temporary, inputs, outputs = time_compilation(
        function, arguments, time.perf_counter, _LOOPS if code == "xla_loops" else None
    )
    out: dict[str, Any] = {"status": "ok", "compile_s": trace_s + compile_s}
    traffic = None
    if temporary is not None and inputs is not None and outputs is not None:
        out["temporary_bytes"] = temporary
        traffic = inputs + outputs
        needed = (traffic + out["temporary_bytes"]) / 2**30
        if needed > config["memory"]:
            raise MemoryError(f"it would take {needed:.1f} GiB, and the limit is {config['memory']:g}")
    kernels = count_kernels(program.as_text() or "")
    out |= {"kernels": kernels.instructions, "launches": kernels.launches, "unknown_loops": kernels.unknown_loops}
    # The driver compiles kernels at the first call.
    began = time.perf_counter()
    first = jax.block_until_ready(program(*arguments))
    out["first_call_s"] = time.perf_counter() - began
    seconds = wall_time(lambda: program(*arguments), config["seconds"], config["repeats"])
    again = program(*arguments)
    out |= {
        "evaluations": evaluations,
        "evaluations_per_s": evaluations / seconds,
        "seconds": seconds,
        "finite": all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves(first)),
        "repeats": all(map(_same_bits, jax.tree.leaves(first), jax.tree.leaves(again))),
    }
    cost = program.cost_analysis()
    cost = (cost[0] if cost else {}) if isinstance(cost, list) else cost or {}
    # The compiler counts the operands and results of every fusion as traffic, whether cached or not.
    flops, moved = cost.get("flops"), cost.get("bytes accessed")
    if flops and flops > 0:
        out |= {"flops": flops, "times_operations_floor": seconds / (flops / (config["peak"] * 1e12))}
    if moved and moved > 0:
        out |= {"bytes": moved, "times_bandwidth_floor": seconds / (moved / (config["bandwidth"] * 1e9))}
    if traffic:
        out["times_arguments_and_results"] = seconds / (traffic / (config["bandwidth"] * 1e9))
    return out


def _same_bits(a: jax.Array, b: jax.Array) -> bool:
    return np.asarray(a).tobytes() == np.asarray(b).tobytes()


def compare_motions(case: dict, config: dict) -> dict:
    """Return the largest differences of the configurations after some steps: of this device in single precision, and of
    the processor in single precision, from the processor in double precision.

    Motions with contacts are chaotic, so differences grow with the steps on every device.
    """
    start = start_of(case["robot"], min(case["batch"], _COMPARED))
    beginning = (start.scene, start.q, start.scene.from_qvel(start.q, start.v), start.control)
    host = jax.devices("cpu")[0]
    samples = [n for n in _SAMPLED if n <= config["steps"]]
    here = _motion(beginning, samples)
    beginning = jax.device_put(beginning, host)
    with jax.default_device(host):
        single = _motion(beginning, samples)
        with jax.enable_x64(True):
            double = _motion(jax.tree.map(_double, beginning), samples)
    out = {"status": "ok", "steps": samples}
    for name, motion in (("here", here), ("processor", single)):
        out[name] = [float(np.abs(a - b).max()) for a, b in zip(motion, double, strict=True)]
    return out


def _double(x: Any) -> Any:
    floating = isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jnp.floating)
    return jnp.asarray(np.asarray(x), jnp.float64) if floating else x


def _motion(beginning: tuple, samples: list[int]) -> list[np.ndarray]:
    scene, q, v, control = beginning

    @jax.jit
    def rolled(q, v):
        controls = jnp.broadcast_to(control, (samples[-1], *control.shape))
        q = scene.rollout(State(q, v), controls).q
        return q[..., jnp.asarray(samples), :]

    found = np.asarray(rolled(q, v), np.float64)
    return [found[:, i] for i in range(len(samples))]


def measure_warp(case: dict, config: dict) -> dict:
    """Time steps of MuJoCo Warp, which the device repeats as one graph; its first call compiles its kernels, unless an
    earlier process has left them in its cache."""
    _require_scene_of_mujoco(case["robot"])
    if case["operation"] != "step":
        raise models.UnsupportedError("MuJoCo Warp has steps only")
    wp, mjw = importlib.import_module("warp"), importlib.import_module("mujoco_warp")
    mujoco, start, batch = importlib.import_module("mujoco"), start_of(case["robot"], case["batch"]), case["batch"]
    model, steps = benchmark_scenes.peers_model(start.model), config["steps"]
    wp.config.quiet = True
    began = time.perf_counter()
    with wp.ScopedDevice("cuda:0" if config["device"] == "gpu" else "cpu"):
        there = mjw.put_model(model)
        data = mjw.make_data(model, nworld=batch, **_capacities(mujoco, model, start))
        control = np.broadcast_to(np.asarray(start.control), (batch, model.nu))
        begin = [wp.array(np.ascontiguousarray(x), dtype=wp.float32) for x in (start.q, start.v, control)]
        mjw.step(there, data)
        graph = None
        if config["device"] == "gpu":
            with wp.ScopedCapture() as capture:
                mjw.step(there, data)
            graph = capture.graph

        def run() -> None:
            for array, x in zip((data.qpos, data.qvel, data.ctrl), begin, strict=True):
                wp.copy(array, x)
            data.qacc_warmstart.zero_()
            for _ in range(steps):
                wp.capture_launch(graph) if graph is not None else mjw.step(there, data)
            wp.synchronize()

        run()
        first = time.perf_counter() - began
        found = data.qpos.numpy()
        seconds = wall_time(run, config["seconds"], config["repeats"])
        run()
        again = data.qpos.numpy()
    return {
        "status": "ok",
        "compile_s": 0.0,
        "first_call_s": first,
        "evaluations": batch * steps,
        "evaluations_per_s": batch * steps / seconds,
        "seconds": seconds,
        "finite": bool(np.isfinite(found).all()),
        "repeats": found.tobytes() == again.tobytes(),
    }


def _capacities(mujoco: Any, model: Any, start: benchmark_scenes.Start) -> dict[str, int]:
    """Return twice the largest numbers of contacts and of rows of constraints at the start, and its defaults at least,
    because it leaves out what there is no room for."""
    contacts, rows, data = 48, 64, mujoco.MjData(model)
    for q in np.asarray(start.q[:128]):
        data.qpos = q
        mujoco.mj_forward(model, data)
        contacts, rows = max(contacts, 2 * data.ncon), max(rows, 2 * data.nefc)
    return {"nconmax": contacts, "njmax": rows}


def main() -> None:
    config = json.loads(sys.argv[1])
    # Libraries print, so the answers have a separate channel.
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    try:
        device = find_device(config["device"])
    except models.UnsupportedError as error:
        print(json.dumps({"status": "no device", "reason": str(error)}), file=channel)
        return
    print(json.dumps({"status": "ok", "device": f"{device.device_kind} ({device.platform})"}), file=channel)
    with jax.default_device(device):
        for line in sys.stdin:
            print(json.dumps(attempt(json.loads(line), config)), file=channel)


if __name__ == "__main__":
    main()
