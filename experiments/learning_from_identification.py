"""Train policies for a robot that was identified from a recording of it, and judge them on that robot in MuJoCo.

    python -m experiments.learning_from_identification [CONFIG] [--key value ...]

An arm with two joints carries a load to points in a vertical plane. Its load, damping and dry friction are others than
those of its file. The robot is MuJoCo's C code: from there come a noisy recording, to which load and friction are
fitted with their uncertainty, and the judgment of all policies. They are trained with the same settings and number of
steps in the world of the file (`file`), in worlds with wide ranges of load and friction (`wide`), and in worlds that
are drawn from what the fit says (`identified`); for comparison also in the world of the robot, which nobody has
(`true`).
"""

from __future__ import annotations

import dataclasses
import importlib
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxdyn
from experiments._benchmark_report import conditions, table
from experiments._main import CONFIGS, experiment
from jaxdyn import cli, learn, sysid

DEFAULT_CONFIG = CONFIGS / "learning_from_identification.toml"

SCENE = """
<mujoco model="arm">
  <option timestep="0.005" integrator="implicitfast"/>
  <default>
    <geom contype="0" conaffinity="0"/>
    <joint axis="0 1 0" damping="{damping}" frictionloss="{friction}"/>
    <motor ctrllimited="true" ctrlrange="-1 1"/>
  </default>
  <worldbody>
    <body name="upper">
      <joint name="shoulder"/>
      <geom type="capsule" fromto="0 0 0 0.5 0 0" size="0.04" mass="1"/>
      <body name="fore" pos="0.5 0 0">
        <joint name="elbow"/>
        <geom type="capsule" fromto="0 0 0 0.4 0 0" size="0.03" mass="0.6"/>
        <body name="hand" pos="0.4 0 0">
          <geom type="sphere" size="0.05" mass="0.1"/>
          <geom type="sphere" size="0.05" mass="{load}"/>
        </body>
      </body>
    </body>
  </worldbody>
  <actuator>
    <motor joint="shoulder" gear="30"/>
    <motor joint="elbow" gear="12"/>
  </actuator>
</mujoco>
"""
FILE = {"load": 0.3, "damping": 0.2, "friction": 0.2}
"""The numbers of the robot's file: kg, N m s and N m."""
TRUE = {"load": 0.9, "damping": 0.4, "friction": 0.6}
"""The numbers of the robot."""
WIDE = {"load": (0.0, 1.5), "damping": (0.25, 4.0), "friction": (0.25, 4.0)}
"""The ranges that are thought possible without a recording: of the load, kg, and factors of damping and friction."""
POSITION_NOISE, VELOCITY_NOISE = 1e-3, 1e-2
"""The standard deviations of the noise of the recording, rad and rad/s."""
LENGTHS = 0.5, 0.4
SAMPLE = 2
"""The time steps from a sample of the recording to the next."""


@dataclasses.dataclass(frozen=True)
class Config(cli.ProgramConfig):
    """Keys of the configuration file."""

    duration: float = 10.0
    """The length of the recording, s."""
    steps: int = 800_000
    """The steps of the environments in each training."""
    seeds: int = 3
    """The number of trainings in each kind of world."""
    starts: int = 100
    """The number of starts from which a policy is judged."""
    episode_length: int = 150
    """The steps of an episode, 0.02 s each."""


class CarryToPoint(learn.AbstractTask):
    """The hand of the arm goes to a point of the plane and stays there."""

    velocity_weight: float = 0.002
    control_weight: float = 0.01

    def start(self, world: jaxdyn.World, key: Any) -> jaxdyn.State:
        """Draw a configuration at rest, with the arm to one side."""
        return world.state(jax.random.uniform(key, (2,), world.start.dtype, -1.0, 1.0))

    def remember(self, world: jaxdyn.World, key: Any) -> dict[str, Any]:
        """Draw a point within reach, on the same side."""
        radius, angle = jax.random.split(key)
        r = jax.random.uniform(radius, (), world.start.dtype, 0.5, 0.8)
        angle = jax.random.uniform(angle, (), world.start.dtype, -1.0, 1.0)
        return {"target": r * jnp.stack([jnp.cos(angle), jnp.sin(angle)])}

    def observe(self, world: jaxdyn.World, state: jaxdyn.State, memory: dict[str, Any]) -> Any:
        """Return angles, velocities, the point, and how far it is from the hand."""
        error = memory["target"] - hand(state.q)
        return jnp.concatenate([jnp.cos(state.q), jnp.sin(state.q), state.v, memory["target"], error])

    def reward(self, world: jaxdyn.World, step: learn.Transition, memory: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Return minus the distance, which is smooth within 1 cm, and costs of velocity and control."""
        square = jnp.sum((memory["target"] - hand(step.after.q)) ** 2)
        cost = self.velocity_weight * jnp.sum(step.after.v**2) + self.control_weight * jnp.sum(step.action**2)
        return -jnp.sqrt(square + 1e-4) - cost, {"distance": jnp.sqrt(square + 1e-12)}


def hand(q: Any) -> Any:
    """Return the position `[2]` of the hand along x and z, m."""
    angles = jnp.cumsum(q)
    return jnp.array(LENGTHS, q.dtype) @ jnp.stack([jnp.cos(angles), -jnp.sin(angles)], axis=1)


def environment(numbers: dict[str, float]) -> learn.Environment:
    """Return the environment of an arm with these numbers."""
    scene = SCENE.format(**numbers)
    task = CarryToPoint()
    return learn.Environment(jaxdyn.load_world(scene).astype(jnp.float32), task, substeps=4, scene=scene)


def recording(config: Config, seed: int = 0) -> sysid.Recording:
    """Return a recording of the robot, simulated by MuJoCo, that swings under sines of torque."""
    mujoco = importlib.import_module("mujoco")
    m = mujoco.MjModel.from_xml_string(SCENE.format(**TRUE))
    d, rng = mujoco.MjData(m), np.random.default_rng(seed)
    dt = SAMPLE * m.opt.timestep
    t = dt * np.arange(round(config.duration / dt))
    frequencies, phases = rng.uniform(0.2, 2.0, (2, 4)), rng.uniform(0, 2 * np.pi, (2, 4))
    control = 0.08 * np.sin(2 * np.pi * t[:, None, None] * frequencies + phases).sum(axis=2)
    d.qpos[:] = [np.pi / 2, 0]
    q, v = np.empty((2, len(t), 2))
    for i, u in enumerate(control):
        q[i], v[i], d.ctrl[:] = d.qpos, d.qvel, u
        mujoco.mj_step(m, d, SAMPLE)
    noise = rng.normal(size=(2, len(t), 2))
    return sysid.Recording(t, q + POSITION_NOISE * noise[0], v + VELOCITY_NOISE * noise[1], control=control)


def load(kilograms: float) -> jaxdyn.BodyInertia:
    """Return the inertia of a load, a ball in the hand."""
    return jaxdyn.BodyInertia.sphere(kilograms, 0.05)


def identified(recorded: sysid.Recording) -> sysid.RolloutFit:
    """Return the fit of load, damping and dry friction, from the numbers of the file."""
    empty = jaxdyn.load_world(SCENE.format(**FILE | {"load": 1e-6}))
    choices = sysid.Payload("hand", load(FILE["load"])), sysid.Positive("damping"), sysid.Positive("frictionloss")
    # Motions in a plane say nothing about some numbers of the load: a weak prior holds these.
    options = sysid.RolloutFitOptions(prior_weight=0.1)
    return sysid.fit_rollouts(
        sysid.Parametrization(empty, *choices),
        recorded,
        segment=0.2,
        position_noise=POSITION_NOISE,
        velocity_noise=VELOCITY_NOISE,
        options=options,
    )


def quantities(fit: sysid.RolloutFit) -> dict[str, list[float]]:
    """Return load, damping and friction: the value and the ends of its 95 % interval."""
    empty, entries = fit.parametrization.reference.model.mass.sum(), fit.intervals()
    value, lower, upper = (float(np.squeeze(x)) for x in fit.interval(lambda world: world.model.mass.sum() - empty))
    rows = zip(entries.names, entries.value.tolist(), entries.lower.tolist(), entries.upper.tolist(), strict=True)
    frictions = {name: bounds for name, *bounds in rows if name.startswith(("damping", "frictionloss"))}
    return {"load": [value, lower, upper], **frictions}


def in_wide_ranges(world: jaxdyn.World, key: Any) -> jaxdyn.World:
    """Draw a world from the `WIDE` ranges."""
    of_load, others = jax.random.split(key)
    factors = {"joint.damping": WIDE["damping"], "joint.frictionloss": WIDE["friction"]}
    # The world has the load of the file.
    more = jax.random.uniform(of_load, (), world.model.dtype, *WIDE["load"]) - FILE["load"]
    parameters = load(1.0).parameters().astype(world.model.dtype)
    world = learn.randomly_scaled(world, factors, others)
    return world.with_model(world.model.with_payload("hand", more * parameters))


def environments(fit: sysid.RolloutFit) -> dict[str, learn.AbstractEnvironment]:
    """Return the environments in which policies are trained."""
    file, true = environment(FILE), environment(TRUE)
    return {
        "file": file,
        "wide": learn.randomized(file, in_wide_ranges),
        "identified": learn.randomized(file, fit),
        "true": true,
    }


def run(config: Config) -> dict[str, Any]:
    """Record, fit, train, judge, print, and write `<results>/<name>/`; returns the content of `summary.json`."""
    cli.require_positive_keys(config, "duration", "steps", "seeds", "starts", "episode_length")
    folder = config.make_folder()
    fit = identified(recording(config))
    found = quantities(fit)
    rows = [[name, *(f"{x:.3g}" for x in bounds)] for name, bounds in found.items()]
    print(fit, *table(["number", "value", "lower", "upper"], rows), sep="\n", flush=True)
    true, records = environment(TRUE), []
    kinds = environments(fit)
    for seed in range(config.seeds):
        for kind, env in kinds.items():
            length = config.episode_length
            training = learn.train(
                env, steps=config.steps, seed=seed, episode_length=length, evaluations=2, progress=False
            )
            judged = learn.judge(training.policy, true, starts=config.starts, steps=length, seed=1)
            print(f"{kind}, seed {seed}\n{judged}", flush=True)
            numbers = {"returns": judged.returns.tolist(), "distances": judged.metrics["distance"].tolist()}
            records.append({"kind": kind, "seed": seed, **numbers})
    print("\n".join(report(records)))
    out = {"config": dataclasses.asdict(config), "conditions": conditions(-1), "identified": found, "runs": records}
    cli.write_json(folder / "summary.json", out, announce=True)
    return out


def report(records: list[dict[str, Any]]) -> list[str]:
    """Return the lines of the table: medians over the starts, of each seed, and the band of all starts."""
    rows = []
    for kind in dict.fromkeys(x["kind"] for x in records):
        runs = [x for x in records if x["kind"] == kind]
        each, everything = [np.median(x["returns"]) for x in runs], np.concatenate([x["returns"] for x in runs])
        low, middle, high = np.percentile(everything, [25, 50, 75])
        distance = 1e3 * np.median(np.concatenate([x["distances"] for x in runs]))
        seeds = ", ".join(f"{x:.1f}" for x in each)
        band = f"{middle:.1f} [{low:.1f}, {high:.1f}]"
        rows.append([kind, seeds, band, f"{everything.mean():.2f}", f"{everything.min():.1f}", f"{distance:.0f}"])
    header = ["worlds", "median return of each seed", "all starts: median [quartiles]", "mean", "worst", "distance, mm"]
    return table(header, rows)


main = experiment("learning_from_identification", Config, run, DEFAULT_CONFIG, __doc__)

if __name__ == "__main__":
    sys.exit(main())
