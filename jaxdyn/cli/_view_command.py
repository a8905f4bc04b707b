"""`jaxdyn view`: show a robot in the browser."""

from __future__ import annotations

import dataclasses
import math
import sys
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from jaxdyn._errors import DataError, RobotFileError, ShapeError, require_positive, require_suffix
from jaxdyn.cli._application import double_precision
from jaxdyn.cli._config import parse_options
from jaxdyn.cli._progress import announce
from jaxdyn.cli._robot_file import Flag, RobotFile
from jaxdyn.io import LeftOutWarning
from jaxdyn.simulate import RolloutOptions, State, Trajectory, rollout
from jaxdyn.sysid import Recording, load_npz
from jaxdyn.worlds import World

if TYPE_CHECKING:
    from jaxdyn.viz import Viewer

HELP = """Show a robot or a world in the browser, with sliders for its joints.

Shows the meshes of the robot; without meshes, ellipsoids of its inertias, frames and joint axes. Of an MJCF file, or of
a world that save_world has written, it shows all geoms, tendons and mocap bodies. Plays a recorded trajectory, also
beside another one, or what happens in a simulation. Needs the extra viz: pip install 'jaxdyn[viz]'."""
EXAMPLES = """
  jaxdyn view robot.urdf
  jaxdyn view robot.urdf --package-dirs ~/ros/src
  jaxdyn view robot.urdf --motion measured.npz --compare simulated.npz
  jaxdyn view robot.urdf --html robot.html
  jaxdyn view robot.urdf --png robot.png --collisions
  jaxdyn view robot.urdf --contacts
  jaxdyn view scene.xml --simulate 3
  jaxdyn view scene.xml --simulate 3 --keyframe home --video fall.gif
  jaxdyn view robot.urdf --motion measured.npz --png moment.png --time 1.5
  jaxdyn view robot.urdf --motion measured.npz --video measured.mp4"""

_TIMESTEP = 1e-3
"""The time step of simulations of a URDF file, s."""
_SAMPLES_PER_SECOND = 60
"""More samples of a simulation than a screen shows would only take memory."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ViewOptions(RobotFile):
    motion: str = ""
    """NumPy archive of times t and configurations q to play."""
    compare: str = ""
    """Archive of another motion at the same times, which a second robot plays."""
    simulate: float | None = None
    """Play what happens in this many seconds, s: in the world of an MJCF file, without controls or with those of
    --keyframe; for a URDF file without torques and contacts."""
    keyframe: str = ""
    """MJCF: the keyframe in which the robot stands, and at which a simulation begins."""
    html: str = ""
    """Write the page into this file instead of serving it; the file works without a server."""
    png: str = ""
    """Draw a picture of the robot into this file instead, at a moment of the motion if there is one; a screen is not
    needed."""
    time: float | None = None
    """The moment of the picture, s after the start of the motion, where it begins by default."""
    video: str = ""
    """Film the motion into this file instead: .mp4, .webm, .gif or .webp; a screen is not needed."""
    collisions: Flag = False
    """Show the collision geometry, too."""
    contacts: Flag = False
    """Show the contact shapes that load_contact_shapes makes of the collision geometry, on a plane, or on the surface
    that an MJCF file has."""
    skip_missing: Flag = False
    """Leave out meshes whose files are missing."""
    host: str = "127.0.0.1"
    """Address at which the page is served; 0.0.0.0 makes it visible to other machines."""
    port: int = 8080
    """Port of the page; if it is taken, the next free one."""

    @property
    def moves(self) -> bool:
        """Whether there is a motion to play."""
        return bool(self.motion) or self.simulate is not None

    @property
    def simulates_world(self) -> bool:
        """Whether the world of the file is needed, and not only to be drawn."""
        return self.kind != "URDF" and (self.simulate is not None or bool(self.keyframe))


def main(arguments: Sequence[str]) -> None:
    """Run the command with its arguments."""
    options = parse_options(ViewOptions, arguments, "jaxdyn view", HELP, EXAMPLES)
    _require_matching(options)
    from jaxdyn.viz import Viewer, save_png

    if options.simulate is not None:
        double_precision()
    loading: dict[str, Any] = {"skip_missing": options.skip_missing, "package_dirs": options.package_dirs}
    if options.free_base:
        loading["free_base"] = True
    if options.contacts:
        loading["contacts"] = True
    motion, second = _motion("motion", options.motion), _motion("compare", options.compare)
    if motion is not None and second is not None and not np.array_equal(motion.t, second.t):
        raise DataError(f"{options.compare}: its times t are not those of {options.motion}; resample one of them")
    shown = _shown(options)
    if options.keyframe:
        loading["q"] = _world(options, shown).state(keyframe=options.keyframe)
    if options.png and not options.moves and not options.collisions:
        save_png(options.png, shown, **loading)
        print(f"wrote {options.png}")
        return
    with Viewer(shown, host=options.host, port=options.port, **loading) as viewer:
        if motion is not None:
            try:
                viewer.play(motion.t, motion.q, compare=None if second is None else second.q)
            except (DataError, ShapeError) as error:
                error.add_note(f"(qs is the array q of {options.motion}, compare that of {options.compare or 'none'})")
                raise
        if options.simulate is not None:
            viewer.play(_simulated(options, options.simulate, shown, viewer))
        if options.collisions:
            viewer.show_layer("collisions")
        if _write(viewer, options):
            return
        print(f"open {viewer.url} in a browser (Ctrl-C ends it)", flush=True)
        viewer.wait()


def _require_matching(options: ViewOptions) -> None:
    """Raise `DataError` for options that contradict each other, before any work."""
    from jaxdyn.viz import PAGES, PICTURES, film_path

    if options.compare and not options.motion:
        raise DataError("--compare is shown beside --motion, which is missing")
    files = [f"--{name}" for name in ("html", "png", "video") if getattr(options, name)]
    if len(files) > 1:
        raise DataError(f"{' and '.join(files)} are different results; give one at a time")
    if options.motion and options.simulate is not None:
        raise DataError("--motion and --simulate are different motions; give one at a time")
    if options.simulate is not None:
        require_positive(options.simulate, "simulate", error=DataError)
    if options.time is not None and not (options.png and options.moves):
        raise DataError("--time is the moment of a --motion in the picture --png; give both")
    if options.video and not options.moves:
        raise DataError("--video is a film of --motion, which is missing; --simulate makes one")
    if options.video:
        film_path(options.video)
    for name, suffixes in (("png", PICTURES), ("html", PAGES)):
        if getattr(options, name):
            require_suffix(getattr(options, name), suffixes, f"--{name}")
    options.require_matching_options()


def _shown(options: ViewOptions) -> Any:
    """Return the world of the file, or the file itself where it makes none."""
    if options.contacts and not options.simulates_world:
        return options.path
    with warnings.catch_warnings():
        # Sensors do not matter for a picture.
        warnings.simplefilter("ignore", LeftOutWarning)
        world = options.load_world()
    if isinstance(world, RobotFileError):
        if options.simulates_world:
            raise world
        print(f"shown without tendons and motions of mocap bodies: {world}", file=sys.stderr)
        return options.path
    return options.path if world is None else world


def _world(options: ViewOptions, shown: Any) -> World:
    if not isinstance(shown, World):
        raise DataError(f"{options.path}: keyframes are those of MJCF files; leave --keyframe out for URDF files")
    return shown


def _simulated(options: ViewOptions, seconds: float, shown: Any, viewer: Viewer) -> Trajectory:
    """Return what happens in these seconds, with at most about 60 samples in a second."""
    announce("compiling and simulating")
    world = shown if isinstance(shown, World) else None
    dt = _TIMESTEP if world is None else float(world.timestep)
    every = max(1, round(1 / (_SAMPLES_PER_SECOND * dt)))
    steps, saved = every * max(1, math.ceil(seconds / (every * dt))), RolloutOptions(save_every=every)
    if world is None:
        model = viewer.model
        return rollout(model, State(jnp.asarray(viewer.q)), np.zeros((steps, model.nv)), dt, options=saved)
    name = options.keyframe or None
    control = np.zeros(world.nu) if name is None else np.asarray(world.keyframes[name].control)
    return world.rollout(world.state(keyframe=name), np.tile(control, (steps, 1)), options=saved)


def _write(viewer: Viewer, options: ViewOptions) -> bool:
    """Write the page, picture or film that the options want. Returns whether they want one."""
    if options.html:
        viewer.save_html(options.html)
    if options.png:
        viewer.save_png(options.png, time=(options.time or 0.0) if options.moves else None)
    if options.video:
        announce("drawing the pictures of the film")
        viewer.save_video(options.video)
    path = options.html or options.png or options.video
    if path:
        print(f"wrote {path}")
    return bool(path)


def _motion(option: str, path: str) -> Recording | None:
    """Return the motion in an archive, or None where none is given. **Raises** `DataError`."""
    if not path:
        return None
    try:
        return load_npz(path, tau=None)
    except DataError as error:
        error.add_note(
            f"(--{option} takes a NumPy archive of times t [n] and configurations q [n, nq], as "
            'numpy.savez("motion.npz", t=t, q=q) writes it)'
        )
        raise
