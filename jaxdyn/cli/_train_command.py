"""`jaxdyn train`: train a policy by gradients through the simulation."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from jaxdyn._errors import DataError, look_up
from jaxdyn.cli._config import parse_options
from jaxdyn.cli._progress import announce
from jaxdyn.cli._result_files import write_json
from jaxdyn.cli._robot_file import Flag

HELP = """Train a policy by gradients through the simulation.

Writes into OUT: log.jsonl, a line an evaluation; policy.npz and best.npz, the policy after the last update and that of
the best evaluation, which jaxdyn.learn.load_policy reads and `jaxdyn play OUT` shows; curve.png; and a checkpoint, from
which an interrupted training continues by --resume. Needs the extra learn: pip install 'jaxdyn[learn]'."""
EXAMPLES = """
  jaxdyn train cartpole_swingup
  jaxdyn train ant --algorithm ahac --steps 4000000 --seed 1 --out results/ant-1
  jaxdyn train ant --out results/ant-1 --resume
  jaxdyn train hopper --settings policy_lambda=0.9 actors=128"""
ENVIRONMENT = "environment.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainOptions:
    env: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="ENVIRONMENT")]
    """The name of an environment: cartpole_swingup, hopper, half_cheetah, walker, ant, ..."""
    algorithm: Literal["shac", "ahac", "apg"] = "shac"
    steps: int = 2_000_000
    """Steps of all environments together."""
    seed: int = 0
    out: str = ""
    """The folder of the results; by default results/ENVIRONMENT-ALGORITHM-SEED."""
    resume: Flag = False
    """Continue a training that was begun in OUT, if there is one, with the options of its beginning."""
    settings: tuple[str, ...] = ()
    """Settings of the algorithm, such as policy_lambda=0.9: the fields of jaxdyn.learn.SHAC."""
    evaluations: int = 20
    """How often the policy is evaluated."""


def main(arguments: Sequence[str]) -> None:
    """Run the command with its arguments."""
    options = parse_options(TrainOptions, arguments, "jaxdyn train", HELP, EXAMPLES)
    from jaxdyn import learn

    env = learn.environment(options.env)
    algorithm = {"shac": learn.SHAC, "ahac": learn.AHAC, "apg": learn.APG}[options.algorithm]
    chosen = algorithm(**_settings(options.settings, [f.name for f in dataclasses.fields(algorithm)]))
    folder = Path(options.out or f"results/{options.env}-{options.algorithm}-{options.seed}")
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / ENVIRONMENT, {"environment": options.env})
    announce(f"training {options.env} in {folder}; the first update is compiled, which takes up to a minute")
    done = learn.train(
        env,
        chosen,
        steps=options.steps,
        seed=options.seed,
        folder=folder,
        resume=options.resume,
        evaluations=options.evaluations,
    )
    last, best = done.records[-1], max(done.records, key=lambda record: record["return"])
    print(
        f"{last['steps']} steps in {last['seconds']:.0f} s; return {last['return']:.1f} "
        f"({last['return_min']:.1f} to {last['return_max']:.1f}), {100 * last['falls']:.0f} % of 64 episodes ended "
        f"early; the best evaluation had the return {best['return']:.1f} after {best['steps']} steps\n"
        f"wrote {folder / 'policy.npz'} and best.npz; see it by: jaxdyn play {folder}"
    )


def _settings(texts: Sequence[str], known: list[str]) -> dict[str, Any]:
    """Return the settings in texts `name=value`. **Raises** `DataError`."""
    out = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise DataError(f"--settings {text}: name=value is needed")
        look_up(name, known, "setting")
        try:
            out[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            raise DataError(f"--settings {text}: a number, True, False or a tuple of numbers is needed") from None
    return out
