"""`jaxdyn benchmark`: measure how fast a robot's dynamics run and compile."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp

from jaxdyn import programs, samples
from jaxdyn._errors import DataError, require_positive
from jaxdyn.algorithms import aba, crba, rnea
from jaxdyn.cli._robot_file import File, ModelOptions
from jaxdyn.model import Model
from jaxdyn.simulate import RolloutOptions, State, rollout

HELP = """Measure how fast a robot's dynamics run and compile on this machine.

Measures the wall times of rnea, aba, crba, the gradient of aba with respect to q, v and tau, and a step of a roll-out,
for batches of random states; the times of tracing and compiling, which every new structure or batch size takes once;
and the memory of results and intermediate values. For a URDF file it also times Pinocchio, where that is installed, at
one state a call."""
EXAMPLES = """
  jaxdyn benchmark
  jaxdyn benchmark robot.urdf --free-base
  jaxdyn benchmark robot.urdf --batches 1 4096 65536 --dtype float64
  jaxdyn benchmark robot.urdf --operations aba gradient --json"""
TIMESTEP = 1e-3

Operation = Literal["rnea", "aba", "crba", "gradient", "rollout"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(ModelOptions):
    file: File = ""
    """A URDF or MJCF file; by default a sample robot, an arm of seven joints."""
    batches: tuple[int, ...] = (1, 256, 4096)
    """Numbers of states in a call."""
    operations: tuple[Operation, ...] = get_args(Operation)
    """The operations to time."""
    dtype: Literal["float32", "float64"] = "float32"
    steps: int = 100
    """Steps of a roll-out with semi-implicit Euler."""
    seconds: float = 0.2
    """Approximate length of each of three repeats, s; the median counts."""


def main(arguments: Sequence[str]) -> None:
    """Run the command with its arguments."""
    options = programs.parse_options(Options, arguments, "jaxdyn benchmark", HELP, EXAMPLES)
    for key in ("batches", "operations"):
        if not getattr(options, key):
            raise DataError(f"{key} is empty; at least one is needed")
    for key in ("batches", "steps", "seconds"):
        require_positive(getattr(options, key), key, error=DataError)
    if options.dtype == "float64":
        programs.double_precision()
    # The times of compiling would otherwise be those of reading files.
    programs.without_compilation_cache()
    programs.print_json(lambda: measure(options), options.json)


def measure(options: Options) -> dict[str, Any]:
    """Measure, print each row as soon as it is measured, and return all results."""
    model = options.load() if options.file else samples.arm()
    model = model.astype(options.dtype)
    device = jax.devices()[0]
    out: dict[str, Any] = {
        "robot": options.file or "samples.arm()",
        "nv": model.nv,
        "dtype": options.dtype,
        "device": f"{device.device_kind} ({device.platform})",
        "cores": os.cpu_count(),
        "jax": jax.__version__,
        "rollout_steps": options.steps,
        "rows": [],
        "pinocchio": None,
    }
    print(
        f"{out['robot']}: {model.nv} degrees of freedom, {options.dtype}; {out['device']}, {out['cores']} cores, jax "
        f"{out['jax']}\n\n"
        + f"{'':10}{'batch':>8}{'us each':>12}{'evaluations/s':>15}{'trace, s':>11}{'compile, s':>12}{'memory, MB':>12}"
    )
    for row in rows(model, options):
        out["rows"].append(row)
        print(_line(row), flush=True)
    if "rollout" in options.operations:
        print(f"\nan evaluation of rollout is one of {options.steps} steps of semi-implicit Euler without torques")
    out["pinocchio"] = pinocchio_entry(model, options)
    if isinstance(out["pinocchio"], dict):
        times = ", ".join(f"{name} {us:.3g} us" for name, us in out["pinocchio"]["us"].items())
        print(f"\n{out['pinocchio']['version']}, float64, one state a call, one thread: {times}")
    return out


def rows(model: Model, options: Options) -> Iterator[dict[str, Any]]:
    """Yield the measurement of each operation and batch."""
    for name in options.operations:
        for batch in options.batches:
            states = programs.random_states(model, batch, seed=0)
            q, v, tau = (jnp.asarray(x if batch > 1 else x[0], model.dtype) for x in states)
            arguments, evaluations = [model, q, v, tau], batch * (options.steps if name == "rollout" else 1)
            row: dict[str, Any] = {"operation": name, "batch": batch}
            try:
                program = programs.time_compilation(operation(name, options.steps), arguments, perf_counter)
                run = functools.partial(program.call, *arguments)
                seconds = programs.wall_time(run, options.seconds, repeats=3)
            except jax.errors.JaxRuntimeError as error:
                # Most often memory runs out, and a smaller batch may work.
                yield row | {"failed": str(error).splitlines()[0]}
                continue
            sizes = [x for x in (program.temporary_bytes, program.output_bytes) if x is not None]
            yield row | {
                "us": seconds / evaluations * 1e6,
                "evaluations_per_s": evaluations / seconds,
                "trace_s": program.trace_s,
                "compile_s": program.compile_s,
                "memory_bytes": sum(sizes) if sizes else None,
            }


def operation(name: str, steps: int) -> Callable:
    """Return a function of model, `q`, `v` and `tau`; rnea takes the torques as accelerations."""

    def gradient(model, q, v, tau):
        return jax.grad(lambda q, v, tau: jnp.sum(aba(model, q, v, tau) ** 2), (0, 1, 2))(q, v, tau)

    def roll_out(model, q, v, tau):
        def no_torque(carry: None, state: State, t: Any) -> tuple[None, jax.Array]:
            return carry, jnp.zeros_like(state.v)

        last = RolloutOptions(save_every=steps)
        return rollout(model, State(q, 0 * v), no_torque, TIMESTEP, steps=steps, options=last).final

    functions = {
        "rnea": rnea,
        "aba": aba,
        "crba": lambda model, q, v, tau: crba(model, q),
        "gradient": gradient,
        "rollout": roll_out,
    }
    return functions[name]


def pinocchio_entry(model: Model, options: Options) -> dict[str, Any] | str:
    """Return Pinocchio's version and times in us, or the reason why it was not measured."""
    if not options.file or options.kind != "URDF":
        return "it is measured for URDF files"
    try:
        times = programs.pinocchio_times(model, Path(options.file), options.free_base)
    except ImportError:
        return "not installed"
    except (ValueError, RuntimeError) as error:
        return " ".join(str(error).split())
    return {"version": f"Pinocchio {version('pin')}", "us": times}


def _line(row: dict[str, Any]) -> str:
    start = f"{row['operation']:10}{row['batch']:8}"
    if "failed" in row:
        return f"{start}  {row['failed']}"
    memory = "" if row["memory_bytes"] is None else f"{row['memory_bytes'] / 2**20:.3g}"
    return (
        f"{start}{row['us']:12.3g}{row['evaluations_per_s']:15.3g}{row['trace_s']:11.2f}{row['compile_s']:12.2f}"
        f"{memory:>12}"
    )
