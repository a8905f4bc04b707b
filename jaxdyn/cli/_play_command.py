"""`jaxdyn play`: show what a trained policy does."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import jax
import tyro

from jaxdyn._errors import require_positive
from jaxdyn.cli._config import parse_options
from jaxdyn.cli._progress import announce
from jaxdyn.cli._result_files import read_json
from jaxdyn.cli._robot_file import Flag
from jaxdyn.cli._train_command import ENVIRONMENT

HELP = """Show what a trained policy does in an episode, in the browser or as a film.

DIR is a folder of `jaxdyn train`; the policy is that of its best evaluation. Needs the extras learn and viz:
pip install 'jaxdyn[learn,viz]'."""
EXAMPLES = """
  jaxdyn play results/ant-shac-0
  jaxdyn play results/ant-shac-0 --film ant.mp4 --seconds 5"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlayOptions:
    folder: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="DIR")]
    """A folder that jaxdyn train has written."""
    last: Flag = False
    """Show the policy after the last update instead of that of the best evaluation."""
    film: str = ""
    """Film the episode into this file instead: .mp4, .webm, .gif or .webp; a screen is not needed."""
    seconds: float = 10.0
    """The longest time to show, s. The episode ends earlier where its task ends it."""
    seed: int = 0
    """Seed of the start."""
    host: str = "127.0.0.1"
    """Address at which the page is served."""
    port: int = 8080
    """Port of the page; if it is taken, the next free one."""


def main(arguments: Sequence[str]) -> None:
    """Run the command with its arguments."""
    options = parse_options(PlayOptions, arguments, "jaxdyn play", HELP, EXAMPLES)
    require_positive(options.seconds, "seconds")
    from jaxdyn import learn
    from jaxdyn.viz import Viewer, film_path, save_video

    if options.film:
        film_path(options.film)
    folder = Path(options.folder)
    policy = learn.load_policy(folder / ("policy.npz" if options.last else "best.npz"))
    env = learn.environment(read_json(folder / ENVIRONMENT, lambda x: x["environment"]))
    announce("compiling and simulating")
    length = max(1, round(options.seconds / float(env.dt)))
    states, returned = learn.play(env, policy, jax.random.key(options.seed), length=length)
    print(f"{float(states.time[-1] - states.time[0]):.2f} s, return {returned:.1f}")
    if options.film:
        announce("drawing the pictures of the film")
        save_video(options.film, env.world, states, follow=env.world.model.body_names[0])
        print(f"wrote {options.film}")
        return
    with Viewer(env.world, host=options.host, port=options.port) as viewer:
        viewer.play(states)
        print(f"open {viewer.url} in a browser (Ctrl-C ends it)", flush=True)
        viewer.wait()
