"""Fit the law of contact to tosses of a real cube by the gradient of whole roll-outs, and test it on other tosses.

    python -m experiments.fit_cube_tosses [CONFIG] [--key value ...]

The recordings are those of Pfrommer, Halm & Posa, ContactNets, CoRL 2020: an acrylic cube that was tossed onto a table,
seen by motion capture. A roll-out starts at the first sample of a toss and is never corrected. Its errors are the means
over all samples of the distance between the centers, in widths of the cube, and of the angle between the orientations.
The loss is the mean over the training tosses of the root of the sum of both errors, each over its scale: a toss that
ends on another face is far off whatever the numbers are, and the root lets it count less.

Errors are judged twice. Roll-outs from the recorded state of the first sample are those of the published evaluations
(Acosta, Yang & Posa, Validating robotics simulators on real-world impacts, RA-L 2022, and its program). The recorded
velocities are differences to the sample before, so they are those of half a sample earlier, which is corrected by what
gravity does in that time, and noisy. Roll-outs from the flight have at the first sample the state that is closest to
all samples before the cube comes near the table (`_flights.py`), and none later.

Each corner has two balls, one of them smaller, which acts where the corner is pressed: with it a corner is the stiffer,
the harder it is pressed. Both have one coefficient of friction, and each has a stiction velocity.

The lengths of the recordings are short by a factor, which the flights of the training tosses tell: in them a body falls
with less than 9.81 m/s^2. The fit takes that acceleration, and finds the width of the cube in the same lengths.

The fit is that of `sysid.fit_losses`, in stages: first over the beginning of each toss and then over more of it. Its
intervals assume that the tosses are independent of each other, and nothing about the samples of one toss.

The fit does not see the test tosses. Beside the fit stands MuJoCo, with the best of a grid of its settings on training
tosses, and with the setting of the grid that is best on the test tosses themselves.
"""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import sys
import time
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from experiments._cube_tosses import Tosses, first, load
from experiments._flights import free_fall, state
from experiments._main import CONFIGS, experiment
from experiments._resuming import require_seed
from jaxdyn import ContactLaw, ContactShape, DataError, State, World, cli, samples, sysid
from jaxdyn.geometry import Plane, Sphere
from jaxdyn.spatial import quaternion_to_rotation, transform_inertial_parameters

DEFAULT_CONFIG = CONFIGS / "fit_cube_tosses.toml"
LAW = ("stiffness", "dissipation", "friction", "stiction_velocity")
PRESSED = ("pressed_stiffness", "pressed_dissipation", "friction", "pressed_stiction_velocity")
"""The numbers of the laws of the two balls; they share the friction."""
LOGARITHMIC = tuple(
    dict.fromkeys((*LAW, *PRESSED, "pressed_depth", "half_width", "corner_radius", "inertia", "gravity"))
)
"""The unknowns that are positive; a step of the optimizer multiplies them."""
STEP = {"height": 1e-3, "center": 1e-3, "half_width": 0.01, "corner_radius": 0.5, "inertia": 0.1, "gravity": 0.01}
"""The change of each unknown in a unit step of the optimizer: in m for height and center, in the logarithm for the
others. The unknowns that are not here have 1."""
UNKNOWNS = (*LOGARITHMIC, "height", "center")
MASS = 0.37
"""The mass of the cube, kg, as published. Roll-outs tell the ratios of stiffness and inertia to it."""
WIDTH = 2 * samples.CUBE_HALF_WIDTH
"""The unit of position errors, m."""
FLIGHT = ", from the flight"
"""Ends the names of errors of roll-outs whose start is that of the flight."""


@dataclasses.dataclass(frozen=True)
class Config(cli.ProgramConfig):
    """Keys of the configuration file."""

    recordings: str
    """A NumPy archive with `samples` of each toss, and for all samples in a row `position`, `quaternion`,
    `linear_velocity` (world axes), `angular_velocity` (body axes); absolute or below $JAXDYN_DATA."""
    rate: float
    """Samples per second."""
    training: int
    """Number of tosses that are fitted."""
    testing: int
    """Number of other tosses, which judge the fit."""
    stages: tuple[int, ...]
    """Samples of each toss that count in each stage of the fit, from its first one; 0 for all."""
    judged: tuple[int, ...]
    """Samples over which the errors are means; 0 for all. One table for each."""
    substeps: int
    """Time steps of a sample."""
    velocity_age: float
    """Samples by which the recorded velocities lag behind the positions."""
    clearance: float
    """Height above 0 of the lowest corner of a cube with `half_width` down to which a toss is in flight, m."""
    free: tuple[str, ...]
    """The unknowns, of all numbers from `stiffness` to `center`."""
    stiffness: float
    """Start of the fit, N/m, as the following."""
    dissipation: float
    """s/m"""
    friction: float
    stiction_velocity: float
    """m/s"""
    pressed_depth: float
    """Depth from which on the pressed law acts besides, m."""
    pressed_stiffness: float
    pressed_dissipation: float
    pressed_stiction_velocity: float
    height: float
    """Height of the plane, m."""
    half_width: float
    """Half the width of the cube, m."""
    corner_radius: float
    """Radius of the rounded corners, which are what touches, m."""
    inertia: float
    """Moment of inertia of the cube about its center of mass, kg m^2."""
    center: tuple[float, float, float]
    """Center of mass from the middle of the cube, in its axes, m."""
    gravity: float
    """Acceleration of free fall, in the lengths of the recordings, m/s^2; 0 for that of the flights."""
    position_scale: float
    """Position error that counts 1 in the loss, widths."""
    rotation_scale: float
    """Rotation error that counts 1 in the loss, degrees."""
    iterations: int
    """Steps of the optimizer in each stage."""
    batch: int
    """Tosses of which each step takes the gradient."""
    learning_rate: float
    """Learning rate at the start of the first stage; it falls along a cosine to a twentieth."""
    intervals: bool = True
    """Whether to take the last step, which finds the intervals of the numbers."""
    bootstrap: int = 2000
    """Draws of the bootstrap of the mean errors."""
    mujoco: bool = True
    """Whether to measure MuJoCo beside the fit."""
    seed: int = 0
    """Seed of the division into training and test tosses, and of the bootstrap."""
    plot: bool = True
    """Whether to draw errors.png."""


def run(config: Config) -> dict[str, Any]:
    """Fit, test, print, and write `<results>/<name>/`; returns the content of `summary.json`."""
    check(config)
    training, testing = load(config)
    flights = {}
    if config.gravity == 0:
        fall, covariance = free_fall(training.flight)
        errors = np.sqrt(np.diagonal(covariance)).tolist()
        flights = {"center": fall[:3].tolist(), "gravity": float(fall[3]), "standard_errors": errors}
        config = dataclasses.replace(config, gravity=float(fall[3]))
    folder = config.make_folder()
    with cli.alone_in(folder):
        began = time.process_time()
        x, ends, moved = fit(config, training)
        seconds = time.process_time() - began
        tested = {}
        for name, found in (("start", numbers(config, {})), ("fitted", x)):
            tested[name] = errors_of(config, found, testing, testing.start)
            tested[name + FLIGHT] = errors_of(config, found, testing, flown(found, testing))
        out: dict[str, Any] = {
            "config": dataclasses.asdict(config),
            "seconds": seconds,
            "flights": flights,
            "numbers": {name: np.asarray(value).tolist() for name, value in x.items()},
            "intervals": ends,
            "moved": moved,
            "training_errors": summary(config, errors_of(config, x, training, training.start)),
        }
        if config.mujoco:
            tested |= mujoco_errors(config, x, training, testing)
        out["test_errors"] = {name: summary(config, errors) for name, errors in tested.items()}
        show(config, out)
        cli.write_json(folder / "summary.json", out, announce=True)
        if config.plot:
            draw(folder / "errors.png", tested)
    return out


def check(config: Config) -> None:
    """Raise `DataError` for settings without a meaning."""
    cli.require_positive_keys(config, "rate", "training", "testing", "substeps", "iterations", "learning_rate", "batch")
    positive = set(LOGARITHMIC) - ({"gravity"} if config.gravity == 0 else set())
    cli.require_positive_keys(config, "position_scale", "rotation_scale", "bootstrap", *sorted(positive))
    if config.batch > config.training:
        raise DataError(f"batch is {config.batch}, more than the {config.training} training tosses")
    require_seed(config.seed)
    unknown = set(config.free) - set(UNKNOWNS)
    if unknown or not config.free:
        raise DataError(f"free is {list(config.free)}; one or more of {', '.join(UNKNOWNS)} are needed")
    for name in ("stages", "judged"):
        counts = getattr(config, name)
        if not counts or any(n < 0 or n == 1 for n in counts):
            raise DataError(f"{name} is {list(counts)}; numbers of samples from 2 on are needed, or 0 for all")


def scene(config: Config, x: dict[str, Any]) -> World:
    """Return the cube, whose rounded corners touch the table, with these numbers."""
    model = samples.cube()
    about_center = MASS * jnp.eye(10)[0] + x["inertia"] * jnp.zeros(10).at[jnp.array([4, 6, 9])].set(1.0)
    inertia = transform_inertial_parameters(about_center, jnp.concatenate([x["center"], jnp.array([1.0, 0, 0, 0])]))
    down = -x["gravity"] * jnp.array([0.0, 0.0, 1.0])
    arrays = inertia[None].astype(model.dtype), down.astype(model.dtype)
    model = eqx.tree_at(lambda m: (m.inertial_parameters, m.gravity), model, arrays)
    corner, radius = x["half_width"] - x["corner_radius"], x["corner_radius"]
    places = [corner * jnp.array(sign) for sign in itertools.product((-1.0, 1.0), repeat=3)]
    shapes = []
    for names, size in ((LAW, radius), (PRESSED, radius - x["pressed_depth"])):
        law = ContactLaw(*(x[name] for name in names))
        shapes += [ContactShape("cube", Sphere(size), place, law) for place in places]
    table = Plane((0.0, 0.0, 1.0), x["height"])
    return World(model, shapes, table, timestep=1 / (config.rate * config.substeps))


def flown(x: dict[str, Any], tosses: Tosses) -> State:
    """Return the states at the first samples by the flights, of a cube with these numbers."""
    return state(tosses.flight, x["center"], x["gravity"])


def tossed(config: Config, x: dict[str, Any], tosses: Tosses, start: State) -> tuple[Any, Any]:
    """Return the errors of position, in widths, and of rotation, degrees, at all samples, `[n, samples]` each."""
    motion = scene(config, x).rollout(start, steps=tosses.position.shape[1] - 1, substeps=config.substeps)
    tiny = 1e-12  # so that the errors of the first sample, which are zero, have derivatives
    apart = jnp.sqrt(((motion.q[..., :3] - tosses.position) ** 2).sum(-1) + tiny)
    # The chord between the quaternions, of which one may be the negative of the other.
    q, p = motion.q[..., 3:], tosses.quaternion
    q = q * jnp.where((q * p).sum(-1, keepdims=True) < 0, -1, 1)
    half = jnp.sqrt(((q - p) ** 2).sum(-1) + tiny) / 2
    angle = 4 * jnp.arcsin(jnp.minimum(half, 1.0))
    return apart / WIDTH, angle * (180 / np.pi)


_errors = eqx.filter_jit(tossed)


def means(errors: Any, tosses: Tosses) -> Any:
    """Return the means of errors `[n, samples]` over the samples that count, `[n]`."""
    return (errors * tosses.counts).sum(-1) / tosses.counts.sum(-1)


def errors_of(config: Config, x: dict[str, Any], tosses: Tosses, start: State) -> np.ndarray:
    """Return the mean errors of `tossed` over the samples of `config.judged`, `[judged, n, 2]`."""
    return judged(config, tosses, *(np.asarray(e) for e in _errors(config, x, tosses, start)))


def judged(config: Config, tosses: Tosses, position: np.ndarray, rotation: np.ndarray) -> np.ndarray:
    """Return the means of errors `[n, samples]` over the samples of `config.judged`, `[judged, n, 2]`."""
    parts = [(k, first(tosses, k)) for k in config.judged]
    return np.stack([np.stack([means(e[:, : k or None], t) for e in (position, rotation)], -1) for k, t in parts])


def losses(config: Config, position, rotation):
    """Return the loss of tosses with these mean errors."""
    return (position / config.position_scale + rotation / config.rotation_scale) ** 0.5


def numbers(config: Config, steps: dict[str, Any]) -> dict[str, Any]:
    """Return the numbers of a scene after a displacement from the start of the fit."""
    x = {name: jnp.asarray(getattr(config, name), float) for name in UNKNOWNS}
    for name, step in steps.items():
        moved = STEP.get(name, 1.0) * step
        x[name] = x[name] * jnp.exp(moved) if name in LOGARITHMIC else x[name] + moved
    return x


def toss_losses(config: Config, steps: dict[str, Any], tosses: Tosses) -> Any:
    """Return the loss of each toss, `[n]`, after a displacement from the start of the fit."""
    errors = tossed(config, numbers(config, steps), tosses, tosses.start)
    return losses(config, *(means(e, tosses) for e in errors))


def fit(config: Config, tosses: Tosses) -> tuple[dict[str, Any], dict[str, Any], float]:
    """Return the numbers with the lowest loss over the training tosses, the 95 % intervals of the free ones, and how
    far the last step went, in standard errors."""
    free = {name: jnp.zeros_like(x) for name, x in numbers(config, {}).items() if name in config.free}
    start, unravel = ravel_pytree(free)
    tosses = first(tosses, 0 if 0 in config.stages else max(config.stages))
    # Samples that do not count, instead of fewer, so that all stages share one program.
    counted = (np.arange(tosses.counts.shape[1]) < (n or np.inf) for n in config.stages)
    stages = [tosses._replace(counts=tosses.counts * x) for x in counted]
    options = {"batch": config.batch, "iterations": config.iterations, "learning_rate": config.learning_rate}
    with cli.ProgressBar(desc="fit", unit=" steps", total=len(stages) * config.iterations) as bar:
        found = sysid.fit_losses(
            lambda x, tosses: toss_losses(config, unravel(x), tosses), start, stages, **options,
            intervals=config.intervals, seed=config.seed, report=lambda step: bar.update(),
        )  # fmt: skip
    table = found.intervals([str(k) for k in range(len(start))])
    x, lower, upper = (numbers(config, unravel(jnp.asarray(e))) for e in (found.free, table.lower, table.upper))
    known = unravel(jnp.asarray(np.isfinite(found.standard_errors), float))
    ends = {name: np.stack([lower[name], upper[name]]).tolist() for name in free if np.all(np.asarray(known[name]))}
    return x, ends, found.moved


def _draws(config: Config, table: np.ndarray) -> np.ndarray:
    """Return the means `[k, draws]` over draws of the columns of a table `[k, n]`."""
    n = table.shape[1]
    weights = np.random.default_rng(config.seed).multinomial(n, np.full(n, 1 / n), config.bootstrap)
    return table @ weights.T / n


def summary(config: Config, errors: np.ndarray) -> dict[str, Any]:
    """Return the mean errors over the tosses, with the 95 % intervals of the bootstrap, and the medians, by the samples
    over which they are judged."""

    def one(errors: np.ndarray) -> dict[str, Any]:
        intervals = np.percentile(_draws(config, errors.T), [2.5, 97.5], axis=1).T
        return {
            name: {"mean": float(x.mean()), "interval": interval.tolist(), "median": float(np.median(x))}
            for name, x, interval in zip(("widths", "degrees"), errors.T, intervals, strict=True)
        }

    return {_horizon(samples): one(e) for samples, e in zip(config.judged, errors, strict=True)}


def _horizon(samples: int) -> str:
    return f"first {samples} samples" if samples else "all samples"


# MuJoCo's settings: the time constant and the damping ratio of solref (s, 1), the friction, the ratio of the impedances
# of friction and normal force. The rest is its default; friction and impratio matter for the elliptic cone.
GRID = tuple(itertools.product((0.005, 0.01, 0.02), (0.5, 1.0, 1.5), (0.15, 0.18, 0.21), (1.0, 10.0)))
DEFAULT = (0.02, 1.0, 0.18, 1.0)
_XML = """<mujoco><option timestep="{dt}" cone="elliptic" integrator="implicitfast" impratio="{ratio}"
gravity="0 0 -{gravity}"/><worldbody>
<geom type="plane" size="5 5 1" pos="0 0 {height}" friction="{friction} 0 0" solref="{time} {damping}" priority="1"/>
<body><freejoint/><inertial pos="{center}" mass="{mass}" diaginertia="{inertia} {inertia} {inertia}"/>
{geoms}</body></worldbody></mujoco>"""


def mujoco_errors(config: Config, x: dict[str, Any], training: Tosses, testing: Tosses) -> dict[str, np.ndarray]:
    """Return the errors on the test tosses of MuJoCo: its default; its settings that are best on training tosses, with
    the published cube and with the one of the fit; and, to see what it could reach, the setting that is best on the
    test tosses, with the published cube."""
    fewer = jax.tree.map(lambda a: a[:50], training)
    # The published cube rests at the height of the plane, which needs no fit.
    h = config.half_width
    height = float(np.median(training.position[:, -1, 2])) - h
    cube: dict[str, Any] = {"center": np.zeros(3), "inertia": config.inertia, "height": height}
    cube["gravity"] = config.gravity
    corner, radius = float(x["half_width"] - x["corner_radius"]), float(x["corner_radius"])
    ball = '<geom type="sphere" size="{}" pos="{} {} {}"/>'
    corners = "".join(ball.format(radius, *sign) for sign in itertools.product((-corner, corner), repeat=3))
    cubes = {"": (cube, f'<geom type="box" size="{h} {h} {h}"/>'), ", fitted cube": (x, corners)}

    def best(cube: dict[str, Any], geoms: str, tosses: Tosses, start: State) -> tuple[float, ...]:
        found = [_mujoco(config, s, _geometry(cube, geoms), tosses, start) for s in GRID]
        return GRID[int(np.argmin([losses(config, *e[-1].T).mean() for e in found]))]

    settings: dict[str, tuple[str, tuple[float, ...]]] = {f"MuJoCo, default {DEFAULT}": ("", DEFAULT)}
    for name, (cube, geoms) in cubes.items():
        setting = best(cube, geoms, fewer, flown(cube, fewer))
        settings[f"MuJoCo{name}, best on training {setting}"] = name, setting
    out = {}
    for ending in ("", FLIGHT):
        starts = {name: flown(c, testing) if ending else testing.start for name, (c, _) in cubes.items()}
        setting = best(*cubes[""], testing, starts[""])
        for title, (name, chosen) in (settings | {f"MuJoCo, best on test {setting}": ("", setting)}).items():
            out[title + ending] = _mujoco(config, chosen, _geometry(*cubes[name]), testing, starts[name])
    return out


def _geometry(x: dict[str, Any], geoms: str) -> dict[str, Any]:
    """Return the parts of the XML that describe the cube, the height of the plane, and free fall."""
    center = " ".join(map(str, np.asarray(x["center"])))
    return {"center": center, "geoms": geoms} | {name: float(x[name]) for name in ("inertia", "height", "gravity")}


def _mujoco(
    config: Config, setting: tuple[float, ...], geometry: dict[str, Any], tosses: Tosses, start: State
) -> np.ndarray:
    mujoco: Any = importlib.import_module("mujoco")

    dt = 1 / config.rate / config.substeps
    named = dict(zip(("time", "damping", "friction", "ratio"), setting, strict=True))
    model = mujoco.MjModel.from_xml_string(_XML.format(dt=dt, mass=MASS, **named, **geometry))
    data = mujoco.MjData(model)
    q, v = np.asarray(start.q), np.asarray(start.v)
    rotations = np.asarray(quaternion_to_rotation(q[:, 3:]))
    out = np.zeros((len(q), tosses.position.shape[1], 7))
    for i in range(len(q)):
        mujoco.mj_resetData(model, data)
        data.qpos[:], data.qvel[:3], data.qvel[3:] = q[i], rotations[i] @ v[i, :3], v[i, 3:]
        for k in range(tosses.counts[i].sum()):
            out[i, k] = data.qpos
            mujoco.mj_step(model, data, config.substeps)
    apart = np.linalg.norm(out[..., :3] - tosses.position, axis=-1) / WIDTH
    angle = 2 * np.arccos(np.minimum(1.0, np.abs((out[..., 3:] * tosses.quaternion).sum(-1))))
    return judged(config, tosses, apart, np.degrees(angle))


def show(config: Config, out: dict[str, Any]) -> None:
    """Print the numbers and the errors."""
    stages = ", ".join(map(_horizon, config.stages))
    print(f"\nfit to {config.training} tosses ({stages}; {config.iterations} steps each)", end="")
    print(f" in {out['seconds']:.0f} s of processor time with compilation")
    if fall := out["flights"]:
        *center, gravity = (f"({a:.3f} +- {b:.3f})" for a, b in _with_errors(fall))
        print(f"  by the flights alone: center {', '.join(center)} mm, free fall {gravity} m/s^2")
    for name in config.free:
        values = (out["numbers"][name], *out["intervals"].get(name, ()))
        value, *bounds = (", ".join(f"{v:.4g}" for v in np.ravel(x)) for x in values)
        print(f"  {name:28}{value}{f' ({" ... ".join(bounds)})' if bounds else ''}")
    if out["intervals"]:
        moved = f"the last step was {out['moved']:.1f} standard errors"
        print(f"  95 % intervals, if tosses are independent of each other; {moved}")
    for horizon in map(_horizon, config.judged):
        print(f"mean errors of roll-outs, {horizon}, {config.testing} other tosses (95 % intervals)")
        for name, each in out["test_errors"].items():
            position, rotation = (each[horizon][unit] for unit in ("widths", "degrees"))
            print(f"  {name:80}{_shown(position, 'widths', 3)}{_shown(rotation, 'degrees', 1)}")


def _with_errors(fall: dict[str, Any]) -> list[tuple[float, float]]:
    """The center of mass, in mm, and free fall, each with its standard error."""
    scale = (1e3, 1e3, 1e3, 1.0)
    values = zip(scale, (*fall["center"], fall["gravity"]), fall["standard_errors"], strict=True)
    return [(s * a, s * b) for s, a, b in values]


def _shown(x: dict[str, Any], unit: str, digits: int) -> str:
    bounds = " ... ".join(f"{b:.{digits}f}" for b in x["interval"])
    return f"{x['mean']:8.{digits}f} {unit} ({bounds})"


def draw(path, tested: dict[str, np.ndarray]) -> None:
    """Draw how the errors over the last of `config.judged` are distributed over the test tosses."""
    plt = cli.pyplot()
    if plt is None:
        return
    fig, axes = plt.subplots(2, 2, figsize=(11, 9), sharex="col")
    for row, (ending, start) in zip(axes, (("", "as recorded"), (FLIGHT, "by the flight")), strict=True):
        for k, (axis, unit) in enumerate(zip(row, ("position error, widths", "rotation error, degrees"), strict=True)):
            for name, (*_, errors) in tested.items():
                if name.endswith(FLIGHT) == bool(ending):
                    axis.plot(np.sort(errors[:, k]), np.linspace(0, 1, len(errors)), label=name.removesuffix(ending))
            axis.set(xlabel=unit, ylabel=f"part of the test tosses, start {start}", xscale="log")
        row[1].legend(fontsize=7, loc="lower right")
    fig.tight_layout()
    cli.save_figure(path, fig, dpi=110)


main = experiment("fit_cube_tosses", Config, run, DEFAULT_CONFIG, __doc__, x64=False)

if __name__ == "__main__":
    sys.exit(main())
