"""Files of pictures, and films: pictures of a trajectory, one after the other."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from jaxdyn._durable_files import write_durably
from jaxdyn._errors import require_positive, require_suffix
from jaxdyn._extras import import_extra
from jaxdyn._waits import saying
from jaxdyn.viz._clips import Clip, force_surfaces
from jaxdyn.viz._drawing import Drawing, frame_poses
from jaxdyn.viz._ray_images import draw_robots

PICTURES = (".png", ".jpg", ".jpeg", ".webp")
"""The endings of the files of pictures."""
_BY_FFMPEG, _BY_PILLOW = (".mp4", ".webm"), (".gif", ".webp")


def write_image(path: str | os.PathLike, image: np.ndarray) -> None:
    """Write a picture `[height, width, 3]`, 0 to 255, into a file."""
    from PIL import Image

    write_durably(Path(path), lambda temporary: Image.fromarray(image).save(temporary, optimize=True))


def film_path(path: str | os.PathLike) -> Path:
    """Return the path of a film to be written. **Raises** `DataError` for formats that are not written, or without its
    folder; `ImportError` for packages that are missing."""
    out = require_suffix(path, (*_BY_FFMPEG, *_BY_PILLOW), "the film")
    import_extra("imageio", "write films")
    if out.suffix.lower() in _BY_FFMPEG:
        import_extra("imageio_ffmpeg", f"write {out.suffix} (.gif and .webp need no other package)", extra="video")
    return out


def images_of(
    drawing: Drawing,
    clip: Clip,
    frames_per_second: float,
    speed: float,
    path_of: str | None,
    size: tuple[int, int],
    *,
    follow: str | None = None,
    dark: bool = False,
) -> Iterator[np.ndarray]:
    """Yield the pictures `[height, width, 3]` of a film. The camera stands still and sees all of the trajectory, or
    moves horizontally with the frame `follow`."""
    require_positive(frames_per_second, "frames_per_second (1/s)")
    require_positive(speed, "speed")
    drawn = [x for x in (clip.poses, clip.compared) if x is not None]
    way = np.zeros((len(clip.t), 3))
    if follow is not None:
        way[:, :2] = frame_poses(drawing.model, follow, clip.poses)[:, :2]
    shift = np.concatenate([way, np.zeros((len(way), 4))], axis=-1)[:, None]
    low, high = drawing.bounds(np.concatenate([(x - shift)[:: max(1, len(x) // 50)] for x in drawn]))
    paths = [] if path_of is None else [drawing.path(path_of, x, compared=k > 0) for k, x in enumerate(drawn)]
    count = max(2, round(float(clip.t[-1] - clip.t[0]) / speed * frames_per_second) + 1)
    for seconds in np.linspace(0.0, clip.t[-1] - clip.t[0], count):
        k = clip.sample_at(float(seconds))
        more = [*paths, *force_surfaces(drawing, clip.forces, k)]
        yield draw_robots(drawing, [x[k] for x in drawn], size, (low + way[k], high + way[k]), more, dark=dark)


def write_film(path: Path, images: Iterable[np.ndarray], frames_per_second: float) -> None:
    """Write pictures into a file, whose path `film_path` has accepted."""
    imageio: Any = import_extra("imageio.v2", "write films")
    if path.suffix.lower() in _BY_FFMPEG:
        # Without macro blocks of 16 pixels, pictures keep their size; encoders need even numbers.
        options: dict[str, Any] = {"fps": frames_per_second, "macro_block_size": 2, "ffmpeg_log_level": "error"}
    else:
        options = {"duration": 1000.0 / frames_per_second, "loop": 0}

    def write(temporary: Path) -> None:
        with imageio.get_writer(temporary, **options) as film:
            for image in images:
                film.append_data(image)

    with saying(f"drawing the film {path.name}"):
        write_durably(path, write)
