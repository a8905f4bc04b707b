"""Draw the pictures of the README and of docs/gallery.md, docs/pictures.md, docs/parallel-robots.md and
docs/contact.md, with the library itself.

    python -m experiments.draw_pictures [NAME ...] [--folder docs/images]

Needs the extras `viz` and `test` (the robots' files are in the package example-robot-data); pictures of the viewer's
page need Chromium as well.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import distribution
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image

import jaxdyn
from experiments._page import page
from jaxdyn import BodyInertia, Model, State, cli, learn, load_urdf, rnea, rollout
from jaxdyn.viz import Viewer, client_of, plot_trajectory, save_png, save_video, settle

PANDA, TALOS = "panda_description/urdf/panda.urdf", "talos_data/robots/talos_reduced.urdf"
PANDA_Q = np.array([0.3, -0.4, 0.1, -1.9, 0.1, 1.6, 0.8, 0.03])
_CLOSE = """[...document.querySelectorAll('.mantine-Notification-closeButton')].map((x) => x.click())"""


def robot_file(name: str) -> Path:
    """Return the path of a file in the package example-robot-data."""
    folder = distribution("example-robot-data").locate_file("cmeel.prefix/share/example-robot-data/robots")
    return Path(str(folder)) / name


def talos_standing(model: Model) -> np.ndarray:
    """Return a configuration with bent knees, and with the arms a little away from the body."""
    q = np.array(model.neutral())
    bent = {"leg_{}_3_joint": -0.45, "leg_{}_4_joint": 0.9, "leg_{}_5_joint": -0.45, "arm_{}_4_joint": -1.2}
    for joint, angle in bent.items():
        for side in ("left", "right"):
            q[model.q_index(joint.format(side))] = angle
    for side, sign in (("left", 1), ("right", -1)):
        q[model.q_index(f"arm_{side}_1_joint")] = 0.3 * sign
        q[model.q_index(f"arm_{side}_2_joint")] = 0.35 * sign
    return q


def arm() -> Model:
    """Return the Panda with its fingers locked as in `PANDA_Q`; its configuration is then `PANDA_Q[:7]`."""
    return load_urdf(robot_file(PANDA)).with_locked_joints({"panda_finger_joint1": PANDA_Q[7]})


def drop(model: Model, mass: float, dt: float, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Return times `[steps + 1]` and configurations of the arm with friction and a mass (kg) in its hand, under torques
    that would hold the arm without the mass."""
    loaded = model.with_joint_friction(damping=1.0)
    loaded = loaded.with_payload("panda_hand", BodyInertia.sphere(mass, 0.05, (0, 0, 0.1)))
    q, zero = jnp.asarray(PANDA_Q[:7], model.dtype), jnp.zeros(7, model.dtype)
    tau = np.asarray(rnea(model, q, zero, zero))
    motion = rollout(loaded, State(q, zero), np.tile(tau, (steps, 1)), dt, substeps=20)
    return dt * np.arange(steps + 1), np.asarray(motion.q)


def screenshot(viewer: Viewer) -> Image.Image:
    """Return the page of a viewer with its controls, but without the notice of a missing graphics card."""
    with page(viewer.url, 1280, 800) as shown:
        client = client_of(viewer, 120.0)
        shown.until("document.querySelector('canvas') !== null")
        settle(client)
        shown.evaluate(_CLOSE)
        shown.until("document.querySelector('.mantine-Notification-closeButton') === null")
        settle(client)
        picture = Image.open(io.BytesIO(shown.screenshot())).convert("RGB")
        # 256 colors are enough for a page, and halve the file.
        return picture.quantize(256, dither=Image.Dither.NONE)


def viewer_panda(path: Path) -> None:
    """Draw the page with meshes and sliders."""
    with Viewer(robot_file(PANDA), q=PANDA_Q) as viewer:
        screenshot(viewer).save(path, optimize=True)


def viewer_quadruped(path: Path) -> None:
    """Draw the page of a model without a file."""
    with Viewer(jaxdyn.samples.quadruped()) as viewer:
        screenshot(viewer).save(path, optimize=True)


def viewer_compare(path: Path) -> None:
    """Draw the page while it plays two motions."""
    model = arm()
    t, q = drop(model, 3.0, 0.01, 60)
    with Viewer(model, visuals=robot_file(PANDA)) as viewer:
        held = np.tile(PANDA_Q[:7], (len(t), 1))
        viewer.play(t, held, compare=q, names=("held", "with 3 kg more"), path_of="panda_hand")
        viewer.pause(0.45)
        viewer.pull("panda_hand")
        screenshot(viewer).save(path, optimize=True)


def trajectory(path: Path) -> None:
    """Plot the same motion over time."""
    model = arm()
    t, q = drop(model, 3.0, 0.01, 60)
    held = np.tile(PANDA_Q[:7], (len(t), 1))
    joints = ["panda_joint2", "panda_joint4", "panda_joint6"]
    figure = plot_trajectory(model, t, held, compare={"with 3 kg more": (q,)}, joints=joints)
    figure.savefig(path, dpi=110)


def readme(path: Path, *, dark: bool = False) -> None:
    """Draw a robot with its meshes, its inertias, and two motions, side by side."""
    size = 720
    look = {"width": size, "height": size, "dark": dark}
    talos = load_urdf(robot_file(TALOS))
    standing = talos_standing(talos)
    panda = arm()
    fallen = drop(panda, 3.0, 0.01, 60)[1][45]
    with tempfile.TemporaryDirectory() as folder:
        parts = [Path(folder) / f"{k}.png" for k in range(3)]
        save_png(parts[0], talos, standing, visuals=robot_file(TALOS), **look)
        save_png(parts[1], talos, standing, **look)
        save_png(parts[2], panda, PANDA_Q[:7], compare=fallen, visuals=robot_file(PANDA), **look)
        strip = Image.new("RGB", (3 * size, size), "white")
        for k, part in enumerate(parts):
            strip.paste(Image.open(part), (k * size, 0))
    strip.resize((3 * size * 2 // 3, size * 2 // 3), Image.Resampling.LANCZOS).save(path, optimize=True)


def readme_dark(path: Path) -> None:
    """Draw the same on a dark background."""
    readme(path, dark=True)


def trained_half_cheetah(path: Path) -> None:
    """Film a policy, and train it first where `results` has none: as `jaxdyn train half_cheetah --steps 800000`."""
    env, folder = learn.environment("half_cheetah"), Path("results/half_cheetah-shac-0")
    learn.train(env, learn.SHAC(), steps=800_000, folder=folder, resume=True, evaluations=20)
    states, _ = learn.play(env, learn.load_policy(folder / "best.npz"), jax.random.key(0), length=100)
    # The first second is the start.
    states = jax.tree.map(lambda x: x[40:], states)
    options = {"frames_per_second": 25.0, "speed": 0.5, "width": 640, "height": 280}
    save_video(path.with_suffix(".webp"), env.world, states, follow="torso", **options)


def run_page(name: str, folder: Path) -> None:
    """Run the code of a page, which writes its pictures, in a folder."""
    text = (Path(__file__).parents[1] / "docs" / f"{name}.md").read_text(encoding="utf-8")
    program = "\n".join(re.findall(r"^```python\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL))
    with contextlib.chdir(folder):
        exec(compile(program, f"docs/{name}.md", "exec"), {"__name__": name})


def gallery(path: Path) -> None:
    """Draw the pictures of the gallery."""
    run_page("gallery", path.parent)


def parallel_robots(path: Path) -> None:
    """Draw the Delta robot of the page on parallel robots."""
    run_page("parallel-robots", path.parent)


def contact(path: Path) -> None:
    """Draw the pictures of the page on contact."""
    run_page("contact", path.parent)


PICTURES = {
    x.__name__: x
    for x in (
        readme,
        readme_dark,
        gallery,
        parallel_robots,
        contact,
        viewer_panda,
        viewer_quadruped,
        viewer_compare,
        trajectory,
        trained_half_cheetah,
    )
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    choices = f"the pictures to draw, of {', '.join(PICTURES)}; all by default"
    parser.add_argument("names", nargs="*", metavar="NAME", help=choices)
    parser.add_argument("--folder", type=Path, default=Path("docs/images"))
    options = parser.parse_args(arguments)
    unknown = set(options.names) - set(PICTURES)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    options.folder.mkdir(parents=True, exist_ok=True)
    for name in options.names or PICTURES:
        path = options.folder / f"{name}.png"
        cli.announce(f"drawing {path}")
        PICTURES[name](path)
        print(f"wrote {path if path.exists() else f'the pictures of {name} in {options.folder}'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
