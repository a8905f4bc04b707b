"""A browser shows the page of an identification with all its plots and tables."""

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest

import jaxdyn
from jaxdyn import DataError, rnea
from jaxdyn.sysid import (
    InverseDynamicsFit,
    Recording,
    bootstrap,
    fit_inverse_dynamics,
    ordinary_least_squares,
    quality_table,
    write_report,
)

BROWSER = next((x for x in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if x), None)
# This script writes the sizes of the page's elements and its errors into the page once it is loaded.
PROBE = """<script>
const problems = []; window.onerror = (message) => problems.push(message);
window.onload = () => {
  const box = (x) => x.getBoundingClientRect();
  const seen = {
    title: document.title,
    images: [...document.images].map((x) => [x.naturalWidth, x.naturalHeight, box(x).width]),
    tables: [...document.querySelectorAll('table')].map((x) => [x.rows.length, box(x).width, box(x).height]),
    headings: [...document.querySelectorAll('h2')].map((x) => x.innerText),
    width: document.documentElement.scrollWidth, problems,
  };
  const out = document.createElement('pre'); out.id = 'seen'; out.textContent = JSON.stringify(seen);
  document.body.appendChild(out);
};
</script>"""


@pytest.fixture(scope="module")
def fitted():
    prior = jaxdyn.samples.chain(2)
    truth = prior.with_joint_friction(damping=0.2, friction=0.1, friction_velocity=0.05)

    def record(seed: int) -> Recording:
        t = np.arange(400) / 100
        w, phase = np.array([1.0, 2.7, 4.4]), np.random.default_rng(seed).uniform(0, 6, (3, 2))
        angle = w[:, None] * t[:, None, None] + phase
        q, v, a = (
            x.sum(axis=1) for x in (np.sin(angle), w[:, None] * np.cos(angle), -(w[:, None] ** 2) * np.sin(angle))
        )
        tau = np.asarray(rnea(truth, *(jnp.asarray(x) for x in (q, v, a))))
        noise = 0.02 * np.random.default_rng(seed + 1).standard_normal(tau.shape)
        return Recording(t, q, v, a, tau + noise, name=f"run <{seed}>")

    train, test = [record(0), record(5)], record(9)
    fits = {
        "before": InverseDynamicsFit.unfitted(prior),
        "least squares": ordinary_least_squares(prior, train, friction_velocity=0.05),
        "physical fit": fit_inverse_dynamics(prior, train, friction_velocity=0.05),
    }
    return fits, train, test


def test_the_page_is_whole_and_alone(fitted, tmp_path):
    fits, train, test = fitted
    path = tmp_path / "report.html"
    drawn = bootstrap(fits["physical fit"], train, draws=50, blocks=8)
    write_report(path, fits, train, test, title="A & B", notes=["Two runs <here>."], bootstrap=drawn)
    page = path.read_text()
    assert "<title>A &amp; B</title>" in page
    assert "Two runs &lt;here&gt;." in page
    assert "run &lt;9&gt;" in page
    # The page fetches nothing.
    assert set(re.findall(r"(?:src|href)='([^']{0,21})", page)) == {"data:image/png;base64"}
    assert "<script" not in page
    error = fits["physical fit"].evaluate(test).rms_error
    for x in error:
        assert f"<td>{x:.4f}</td>" in page
    for name in fits["physical fit"].names:
        assert f"<td>{name}</td>" in page
    assert page.count("<th>lower, 8 blocks</th>") == 2
    for base in (None, fits["physical fit"].base_parameters()):
        for x in drawn.intervals(fits["physical fit"], base).lower:
            assert f"<td>{x:.5g}</td>" in page
    write_report(path, {"least squares": fits["least squares"]}, train)
    assert "determines combinations only" in path.read_text()


def test_a_mass_that_is_rounding_has_no_center(fitted, tmp_path):
    """Least squares gives a link whose mass no torque depends on about 1e-12 kg."""
    fits, train, _ = fitted
    model = fits["physical fit"].model
    light = model.inertial_parameters.at[0].set(jnp.array([1e-13, 10.0, 4.0, 0, 1, 0, 1, 0, 0, 1]))
    wrong = InverseDynamicsFit.unfitted(dataclasses.replace(model, inertial_parameters=light))
    write_report(tmp_path / "report.html", {"wrong": wrong} | fits, train)
    row = f"<td>{model.body_names[0]}</td><td>wrong</td><td>0.0000</td><td></td><td></td><td class=bad>NO</td>"
    assert row in (tmp_path / "report.html").read_text()


def test_without_matplotlib_the_page_says_so(fitted, tmp_path, monkeypatch):
    fits, train, test = fitted
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    write_report(tmp_path / "report.html", fits, train, test)
    page = (tmp_path / "report.html").read_text()
    assert "No plots: matplotlib is not installed" in page
    assert "<img" not in page


def test_the_table_of_the_terminal(fitted):
    fits, _, test = fitted
    lines = quality_table(fits, test, "held out").splitlines()
    assert lines[0] == "held out"
    assert lines[1].split("  ")[0] == "joint"
    assert [line.split()[0] for line in lines[2:]] == ["joint0", "joint1", "all"]
    assert float(lines[-1].split()[-1]) == pytest.approx(fits["physical fit"].evaluate(test).total_rms, abs=1e-4)


def test_mistakes_are_named(fitted, tmp_path):
    fits, train, _ = fitted
    with pytest.raises(DataError, match="at least one fit"):
        write_report(tmp_path / "report.html", {}, train)
    unfitted = InverseDynamicsFit.unfitted(jaxdyn.samples.chain(3))
    with pytest.raises(DataError, match="about one robot"):
        write_report(tmp_path / "report.html", {"x": unfitted} | fits, train)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(BROWSER is None, reason="no browser (chromium, chromium-browser, google-chrome) is installed")
def test_a_browser_shows_plots_and_tables(fitted, tmp_path):
    pytest.importorskip("matplotlib")
    fits, train, test = fitted
    path = tmp_path / "report.html"
    write_report(path, fits, train, test, title="Two joints")
    probed = tmp_path / "probed.html"
    probed.write_text(path.read_text().replace("</head>", PROBE + "</head>"))
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    options += ["--disable-component-update", "--disable-sync", f"--user-data-dir={tmp_path / 'profile'}"]
    shot = os.environ.get("JAXDYN_SCREENSHOT", str(tmp_path / "report.png"))
    look = [str(BROWSER), *options, "--window-size=1200,5200", f"--screenshot={shot}", path.as_uri()]
    read = [str(BROWSER), *options, "--window-size=1200,900", "--virtual-time-budget=10000", "--dump-dom"]
    subprocess.run(look, check=True, capture_output=True, timeout=240)
    with open(shot, "rb") as file:
        assert file.read(4) == b"\x89PNG"
    dom = subprocess.run([*read, probed.as_uri()], check=True, capture_output=True, text=True, timeout=240).stdout
    match = re.search(r'<pre id="seen">(.*?)</pre>', dom, re.DOTALL)
    assert match, dom[-500:]
    seen = json.loads(match[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
    assert seen["problems"] == []
    assert seen["title"] == "Two joints"
    assert len(seen["images"]) == 2
    for width, height, shown in seen["images"]:
        assert width > 900
        assert height > 300
        assert shown > 600
    # The tables of errors (train, held-out), links, parameters and combinations have a head, rows and a visible size.
    assert len(seen["tables"]) == 5
    rows = [x[0] for x in seen["tables"]]
    assert rows[:4] == [4, 4, 7, 1 + len(fits["physical fit"].names)]
    assert rows[4] == 1 + fits["physical fit"].base_parameters().rank
    assert all(width > 150 and height > 50 for _, width, height in seen["tables"])
    assert seen["headings"] == ["Torque errors", "Plots", "Links", "Parameters of physical fit", "Identifiability"]
    assert seen["width"] <= 1200
