"""`jaxdyn view`: show a robot in the browser."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxdyn._errors import DataError, ShapeError, require_suffix
from jaxdyn.cli._robot_file import Flag, RobotFile
from jaxdyn.programs import announce, parse_options
from jaxdyn.sysid import Recording, load_npz

if TYPE_CHECKING:
    from jaxdyn.viz import Viewer

HELP = """Show a robot in the browser, with sliders for its joints.

Shows the meshes of the robot; without meshes, ellipsoids of its inertias, frames and joint axes. Plays a recorded
trajectory, also beside another one. Needs the extra viz: pip install 'jaxdyn[viz]'."""
EXAMPLES = """
  jaxdyn view robot.urdf
  jaxdyn view robot.urdf --package-dirs ~/ros/src
  jaxdyn view robot.urdf --motion measured.npz --compare simulated.npz
  jaxdyn view robot.urdf --html robot.html
  jaxdyn view robot.urdf --png robot.png --collisions
  jaxdyn view robot.urdf --contacts
  jaxdyn view robot.urdf --motion measured.npz --png moment.png --time 1.5
  jaxdyn view robot.urdf --motion measured.npz --video measured.mp4"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(RobotFile):
    motion: str = ""
    """NumPy archive of times t and configurations q to play."""
    compare: str = ""
    """Archive of another motion at the same times, which a second robot plays."""
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


def main(arguments: Sequence[str]) -> None:
    """Run the command with its arguments."""
    options = parse_options(Options, arguments, "jaxdyn view", HELP, EXAMPLES)
    from jaxdyn.viz import PAGES, PICTURES, Viewer, film_path, save_png

    if options.compare and not options.motion:
        raise DataError("--compare is shown beside --motion, which is missing")
    files = [f"--{name}" for name in ("html", "png", "video") if getattr(options, name)]
    if len(files) > 1:
        raise DataError(f"{' and '.join(files)} are different results; give one at a time")
    if options.time is not None and not (options.png and options.motion):
        raise DataError("--time is the moment of a --motion in the picture --png; give both")
    if options.video and not options.motion:
        raise DataError("--video is a film of --motion, which is missing")
    if options.video:
        film_path(options.video)
    for name, suffixes in (("png", PICTURES), ("html", PAGES)):
        if getattr(options, name):
            require_suffix(getattr(options, name), suffixes, f"--{name}")
    options.require_matching_options()
    loading: dict[str, Any] = {"skip_missing": options.skip_missing, "package_dirs": options.package_dirs}
    if options.free_base:
        loading["free_base"] = True
    if options.contacts:
        loading["contacts"] = True
    if options.png and not options.motion and not options.collisions:
        save_png(options.png, options.file, **loading)
        print(f"wrote {options.png}")
        return
    motion, second = _motion("motion", options.motion), _motion("compare", options.compare)
    if motion is not None and second is not None and not np.array_equal(motion.t, second.t):
        raise DataError(f"{options.compare}: its times t are not those of {options.motion}; resample one of them")
    with Viewer(options.file, host=options.host, port=options.port, **loading) as viewer:
        if motion is not None:
            try:
                viewer.play(motion.t, motion.q, compare=None if second is None else second.q)
            except (DataError, ShapeError) as error:
                error.add_note(f"(qs is the array q of {options.motion}, compare that of {options.compare or 'none'})")
                raise
        if options.collisions:
            viewer.show_layer("collisions")
        if _write(viewer, options):
            return
        print(f"open {viewer.url} in a browser (Ctrl-C ends it)", flush=True)
        viewer.wait()


def _write(viewer: Viewer, options: Options) -> bool:
    """Write the page, picture or film that the options want. Returns whether they want one."""
    if options.html:
        viewer.save_html(options.html)
    if options.png:
        viewer.save_png(options.png, time=(options.time or 0.0) if options.motion else None)
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
