"""The viewer's page and pages without a server work in a headless browser."""

import io
import json
import re
import types

import jax
import numpy as np
import pytest
from PIL import Image

import jaxdyn
from experiments._page import PATIENCE, Page, page, wait_until
from jaxdyn import DataError, ShapeError
from jaxdyn.viz import Viewer, browser_path, client_of, save_html, save_png, settle
from jaxdyn.viz._drawing import body_poses

in_a_browser = pytest.mark.skipif(browser_path() is None, reason="no Chromium or Chrome on the PATH")
SIZE = (720, 480)
INERTIA = '<mass value="1"/><inertia ixx="0.01" iyy="0.01" izz="0.01" ixy="0" ixz="0" iyz="0"/>'
# The links have pure colors, which distinguish them from everything else on the page.
URDF = f"""<robot name="two">
<link name="base"><visual><geometry><cylinder radius="0.2" length="0.1"/></geometry></visual></link>
<link name="lower"><inertial>{INERTIA}</inertial><visual><origin xyz="0 0 0.5"/>
  <geometry><box size="0.2 0.2 1"/></geometry><material name="red"><color rgba="1 0 0 1"/></material></visual></link>
<link name="upper"><inertial>{INERTIA}</inertial><visual><origin xyz="0 0 0.4"/>
  <geometry><capsule radius="0.1" length="0.6"/></geometry><material name="red"/></visual></link>
<joint name="shoulder" type="revolute"><parent link="base"/><child link="lower"/><axis xyz="0 1 0"/>
  <limit lower="-1.5" upper="1.5" effort="1" velocity="1"/></joint>
<joint name="elbow" type="continuous"><origin xyz="0 0 1"/><parent link="lower"/><child link="upper"/>
  <axis xyz="0 1 0"/></joint></robot>"""


def pixels(viewer: Viewer) -> np.ndarray:
    """Return the picture that the browser draws, without the controls."""
    image = client_of(viewer, PATIENCE).get_render(180, 240, transport_format="png", timeout=PATIENCE)
    alpha = image[..., 3:] / 255.0
    return image[..., :3] * alpha + 255 * (1 - alpha)


def red(image: np.ndarray) -> np.ndarray:
    """Return the mask of the red pixels, which show the links."""
    return (image[..., 0] > 100) & (image[..., 1] < 0.45 * image[..., 0]) & (image[..., 2] < 0.45 * image[..., 0])


def click(shown: Page, label: str) -> None:
    """Click the switch with this label."""
    switch = f"[...document.querySelectorAll('label')].find((x) => x.innerText.trim() === {json.dumps(label)})"
    shown.until(f"{switch} !== undefined")
    shown.evaluate(f"document.getElementById({switch}.htmlFor).click()")


@in_a_browser
def test_the_page_shows_the_robot_and_moves_it(tmp_path):
    with Viewer(URDF) as viewer, page(viewer.url, *SIZE) as shown:
        shown.until("document.querySelectorAll('[role=slider]').length >= 3")
        wait_until(lambda: red(pixels(viewer)).sum() > 100, "the links to be drawn")
        settle(client_of(viewer, PATIENCE))
        first = pixels(viewer)
        Image.fromarray(first.astype(np.uint8)).save(tmp_path / "first.png")
        # Meshes can be switched off and on again.
        click(shown, "Meshes")
        wait_until(lambda: red(pixels(viewer)).sum() == 0, "the links to disappear")
        click(shown, "Meshes")
        wait_until(lambda: red(pixels(viewer)).sum() > 100, "the links to come back")

        # The slider of the first joint is the second slider of the page.
        shown.evaluate("document.querySelectorAll('[role=slider]')[1].scrollIntoView({block: 'center'})")
        where = "document.querySelectorAll('[role=slider]')[1].getBoundingClientRect()"
        x, y = shown.evaluate(f"[{where}.x + {where}.width / 2, {where}.y + {where}.height / 2]")
        assert viewer.q.tolist() == [0, 0]
        shown.drag((x, y), (x + 30, y))
        wait_until(lambda: viewer.q[0] > 0.3, "the slider's value")
        moved = pixels(viewer)
        q = viewer.q
        assert q[1] == 0
        assert float(shown.evaluate("document.querySelectorAll('[role=slider]')[1].ariaValueNow")) == q[0]
        # A turn about y moves the upright links towards +x, which is to the right in the picture.
        assert np.nonzero(red(moved))[1].mean() > np.nonzero(red(first))[1].mean() + 5
        poses = body_poses(viewer.model, q)
        np.testing.assert_allclose([x.position for x in viewer._robot._bodies], poses[:, :3], atol=1e-6)
        np.testing.assert_allclose([x.wxyz for x in viewer._robot._bodies], poses[:, 3:], atol=1e-6)

        # When two motions are compared, the second robot is orange.
        def orange(image: np.ndarray) -> int:
            r, g, b = np.moveaxis(image, -1, 0)
            return int(((r > 200) & (g > 0.4 * r) & (g < 0.85 * r) & (b < 0.75 * r)).sum())

        before = orange(moved)
        t = np.linspace(2.0, 6.0, 41)
        motion = np.stack([0.5 * np.sin(t), 0 * t], axis=1)
        viewer.play(t, motion, compare=-motion)
        wait_until(lambda: viewer._player.time.value > 0.1, "the trajectory to play")
        click(shown, "Play")
        wait_until(lambda: not viewer._player.playing.value, "the trajectory to pause")
        assert orange(pixels(viewer)) > before + 50
        k = round((viewer._player.time.value) / 0.1 - 0.5)
        assert np.abs(motion[max(k - 1, 0) : k + 2] - viewer.q).max(axis=1).min() < 1e-12
        viewer.show([0.0, 0.5])
        assert viewer.q.tolist() == [0.0, 0.5]


@in_a_browser
def test_a_saved_page_plays_without_a_server(tmp_path):
    path = tmp_path / "motion.html"
    t = np.linspace(0, 3, 31)
    save_html(path, URDF, t, np.stack([1.2 * np.sin(2 * t), 0 * t], axis=1), frames_per_second=10)
    text = path.read_text()
    assert not re.search(r"<(?:script|link|img)[^>]+(?:src|href)\s*=\s*[\"']?https?:", text)
    with page(path.as_uri(), *SIZE) as shown:
        places: list[float] = []

        def moves() -> bool:
            where = red(np.asarray(Image.open(io.BytesIO(shown.screenshot())).convert("RGB"), np.float64))
            places.extend([np.nonzero(where)[1].mean()] if where.sum() > 500 else [])
            return len(places) > 1 and max(places) - min(places) > 20

        wait_until(moves, "the links to be drawn, and to move")
        # All resources are in the file.
        sources = shown.evaluate("performance.getEntriesByType('resource').map((x) => x.name)")
        assert all(x.startswith(("data:", "blob:", "file:")) for x in sources), sources


@in_a_browser
def test_an_image_by_the_browser(tmp_path):
    model = jaxdyn.samples.double_pendulum()
    path = tmp_path / "image.png"
    save_png(path, model, [0.5, 0.5], renderer="browser", width=320, height=240)
    image = np.asarray(Image.open(path).convert("RGB"), np.float64)
    assert image.shape == (240, 320, 3)
    # The picture shows blue ellipsoids on white.
    assert ((image[..., 2] > image[..., 0] + 30) & (image[..., 2] > 90)).sum() > 200
    assert (image.min(axis=-1) > 250).mean() > 0.3


def test_ball_and_free_joints_have_handles(tmp_path):
    model = jaxdyn.samples.quadruped()
    q = np.array(model.random_configuration(jax.random.key(0)))
    with Viewer(model, q=q) as viewer:
        (handle,) = viewer._joints.handles.values()
        np.testing.assert_allclose(handle.position, q[:3], atol=1e-6)
        np.testing.assert_allclose(handle.wxyz, q[3:7], atol=1e-6)
        assert len(viewer._joints.sliders) == model.nq - 7
        # This has the effect of dragging the handle.
        handle.position, handle.wxyz = (1.0, 2.0, 3.0), (0.6, 0.8, 0.0, 0.0)
        (dragged,) = handle._impl_aux.update_cb
        dragged(types.SimpleNamespace(target=handle))
        np.testing.assert_allclose(viewer.q, [1, 2, 3, 0.6, 0.8, 0, 0, *q[7:]])
        np.testing.assert_allclose(viewer._robot._bodies[0].position, [1, 2, 3])
        viewer.save_html(tmp_path / "still.html")
        assert handle.visible
        assert viewer.q[0] == 1


def test_what_a_viewer_refuses():
    model = jaxdyn.samples.double_pendulum()
    t, q = np.arange(3.0), np.zeros((3, 2))
    with Viewer(model, port=8190) as viewer, Viewer(model, port=8190) as second:
        assert viewer.url != second.url
        with pytest.raises(ShapeError, match="nq = 2"):
            viewer.show([1.0])
        with pytest.raises(ShapeError, match="nq = 2"):
            viewer.play(t, q[:, :1])
        with pytest.raises(ShapeError, match="compare"):
            viewer.play(t, q, compare=q[:2])
        with pytest.raises(DataError, match="increase"):
            viewer.play(t[::-1], q)
        viewer.show(state := jaxdyn.State(q[0] + 1, q[0]))
        assert (viewer.q == 1).all()
        with pytest.raises(ShapeError, match="`q` is a Model"):
            viewer.show(model)
        with pytest.raises(DataError, match="both t and qs"):
            viewer.play(state)
        assert not viewer._player.playing.value
        viewer.close()
        viewer.close()
    with pytest.raises(DataError, match="both t and qs"):
        save_html("none.html", model, t)
    with pytest.raises(ShapeError, match="nq = 2"):
        Viewer(model, q=[0.0])


def test_a_trajectory_ends_or_begins_again():
    model = jaxdyn.samples.double_pendulum()
    t = np.array([5.0, 5.1, 5.2])
    q = np.array([[0.0, 1.0], [0.1, 1.1], [0.2, 1.2]])
    with Viewer(model) as viewer:
        viewer.play(t, q, loop=False, speed=4.0)
        wait_until(lambda: not viewer._player.playing.value, "the end")
        np.testing.assert_allclose(viewer.q, q[-1])
        assert viewer._player.time.value == pytest.approx(0.2)
        viewer.pause(0.15)
        np.testing.assert_allclose(viewer.q, q[1])
        # Sliders grow for values outside their range.
        viewer.show([9.0, -9.0])
        assert viewer._joints.sliders[0].max == 9.0
        assert viewer._joints.sliders[1].min == -9.0
