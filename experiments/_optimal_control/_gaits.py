"""Crocoddyl's examples of gaits as problems of this library, from the numbers that `_crocoddyl_gaits.py` prints."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn import BodyInertia, DataError, Joint, Model, ModelBuilder
from jaxdyn.spatial import SE3
from jaxdyn.trajopt import (
    AbstractCost,
    CenterOfMassResidual,
    ContactForceResidual,
    ControlResidual,
    FramePoseResidual,
    FramePositionResidual,
    FrictionConeResidual,
    PhasedDynamics,
    Problem,
    QuadraticCost,
    SoftConstraintCost,
    StateResidual,
    TimeVarying,
)

WORKER = Path(__file__).parent.parent / "_crocoddyl_gaits.py"


class Gait(NamedTuple):
    """A problem, the controls from which solvers start, and what Crocoddyl has of it."""

    problem: Problem
    us: np.ndarray
    peer: dict[str, Any]


def gait_of(python: str, robot: str, gait: str, iterations: int, rounds: int) -> Gait:
    """Solve a gait by Crocoddyl in another Python, and transcribe it. **Raises** `DataError` where that fails."""
    command = [python, str(WORKER), robot, gait, str(iterations), str(rounds)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise DataError(f"crocoddyl = {python!r} cannot be run: {error}") from error
    if done.returncode:
        raise DataError(f"{' '.join(command)} failed: {done.stderr.strip()[-400:]}")
    return transcribed(json.loads(done.stdout.splitlines()[-1]))


def transcribed(peer: dict[str, Any]) -> Gait:
    """Return the problem whose numbers Crocoddyl printed."""
    model = model_of(peer)
    stages, end = peer["stages"][:-1], peer["stages"][-1]
    biped = any(cost["name"] == "wrenchCone" for stage in stages for cost in stage["costs"])
    feet = [foot["name"] for foot in peer["feet"]]
    holds = np.array([[any(name.startswith(foot + "_") for name in s["holds"]) for foot in feet] for s in stages])
    (gains,) = {tuple(g) for s in stages for g in s.get("gains", [])}
    dynamics = PhasedDynamics(
        model, [s["dt"] for s in stages], dict.fromkeys(feet, "surface" if biped else "point"), holds, gains=gains
    )
    terms = _Terms(model, peer, [s["dt"] or 1.0 for s in stages])
    # Only states cost at the end. Crocoddyl counts it as a whole, not by a time step.
    problem = Problem(
        dynamics,
        state_of(model, peer, np.array(peer["x0"])),
        len(stages),
        stage_costs=[TimeVarying(cost) for cost in terms.costs(stages)],
        terminal_costs=[jax.tree.map(lambda a: a[0], cost) for cost in _Terms(model, peer, [1.0]).costs([end], True)],
    )
    us = np.array([u or [0.0] * len(peer["joints"]) for u in peer["guess"]])
    return Gait(problem, us[:, order(model, peer)], peer)


def model_of(peer: dict[str, Any]) -> Model:
    """Return the robot that Pinocchio has."""
    builder = ModelBuilder()
    names = [body["name"] + "_body" for body in peer["bodies"]]
    for i, body in enumerate(peer["bodies"]):
        joint = Joint("free", name=body["name"])
        if i:
            joint = Joint(axis=body["axis"], name=body["name"], armature=body["armature"])
        parent = names[body["parent"] + 1] if i else "world"
        inertia = BodyInertia(body["mass"], body["center"], body["moments"])
        builder.add_body(names[i], parent, joint, placement_of(body), inertia)
    for foot in peer["feet"]:
        builder.add_frame(foot["name"], names[foot["body"]], placement_of(foot))
    return builder.build(gravity=(0, 0, -9.81))


def placement_of(part: dict[str, Any]) -> SE3:
    """Return the place of a body or a frame."""
    T = np.array(part["placement"])
    return SE3(T[:3, :3], T[:3, 3])


def order(model: Model, peer: dict[str, Any]) -> list[int]:
    """Return the numbers among the peer's joints of the model's."""
    return [peer["joints"].index(name) for name in model.joint_names[1:]]


def state_of(model: Model, peer: dict[str, Any], x: np.ndarray) -> np.ndarray:
    """Return states `[..., nx]` of Pinocchio, with quaternions `x y z w`, as this library's."""
    joints = np.array(order(model, peer))
    return x[..., np.concatenate([[0, 1, 2, 6, 3, 4, 5], 7 + joints, model.nq + np.arange(6), model.nq + 6 + joints])]


class _Terms:
    """The costs of stages, each as arrays by stage."""

    def __init__(self, model: Model, peer: dict[str, Any], units: list[float]):
        self.model, self.peer, self.units = model, peer, np.array(units)

    def costs(self, stages: list[dict], terminal: bool = False) -> list[AbstractCost]:
        """Return every cost that a stage has, with a weight of zero where others have it."""
        # One residual has the friction cones of all feet.
        names = {
            (c["name"], None if c["name"] == "frictionCone" else c.get("frame")) for s in stages for c in s["costs"]
        }
        of_control = ("ctrlReg", "frictionCone", "wrenchCone")
        chosen = sorted((x for x in names if not (terminal and x[0] in of_control)), key=str)
        return [self._cost(stages, *x) for x in chosen]

    def _cost(self, stages: list[dict], name: str, frame: str | None) -> AbstractCost:
        rows = [[c for c in s["costs"] if c["name"] == name and frame in (None, c.get("frame"))] for s in stages]
        some: dict[str, Any] = next(r[0] for r in rows if r)
        weights = self.units * np.array([r[0]["weight"] if r else 0.0 for r in rows])
        targets = np.array([(r[0] if r else some).get("target", 0.0) for r in rows])
        if name == "comTrack":
            return jax.vmap(lambda p, w: QuadraticCost(CenterOfMassResidual(p), w))(targets, weights)
        if name == "footTrack" and targets.ndim == 2:
            return jax.vmap(lambda p, w: QuadraticCost(FramePositionResidual(str(frame), p), w))(targets, weights)
        if name == "footTrack":
            return jax.vmap(lambda T, w: QuadraticCost(FramePoseResidual(str(frame), SE3(T[:3, :3], T[:3, 3])), w))(
                jnp.asarray(targets), weights
            )
        if name == "stateReg":
            joints = np.array(order(self.model, self.peer))
            places = np.concatenate([np.arange(6), 6 + joints])
            places = np.concatenate([places, self.model.nv + places])
            each = np.array([(r[0] if r else some)["weights"] for r in rows])[:, places]
            targets = state_of(self.model, self.peer, targets)
            return jax.vmap(lambda x, w: QuadraticCost(StateResidual(x), w))(targets, weights[:, None] * each)
        if name == "stateBounds":
            places = order(self.model, self.peer)
            places = np.concatenate([np.arange(6), 6 + np.array(places)])
            places = np.concatenate([places, self.model.nv + places])
            low, high = (
                np.broadcast_to(np.array(some[k])[places], (len(rows), len(places))) for k in ("lower", "upper")
            )
            neutral = state_of(self.model, self.peer, targets)
            return jax.vmap(lambda x, a, b, w: SoftConstraintCost(StateResidual(x), a, b, weight=w))(
                neutral, low, high, weights
            )
        if name == "ctrlReg":
            # Controls of impacts have no effect: a cost of their squares makes them zero.
            return jax.vmap(lambda w: QuadraticCost(ControlResidual(), w))(np.where(weights > 0, weights, 1.0))
        if name == "frictionCone":
            mu = np.full(len(rows), -some["A"][0][2])
            return jax.vmap(lambda mu, w: SoftConstraintCost(FrictionConeResidual(mu), lower=0.0, weight=w))(
                mu, weights
            )
        A, low, high = (np.array(some[k]) for k in ("A", "lower", "upper"))
        A = np.pad(A, ((0, 0), (0, 6 - A.shape[1])))
        each, lows, highs = (np.broadcast_to(x, (len(rows), *x.shape)) for x in (A, low, high))
        return jax.vmap(
            lambda A, a, b, w: SoftConstraintCost(ContactForceResidual(str(frame), matrix=A), a, b, weight=w)
        )(each, lows, highs, weights)
