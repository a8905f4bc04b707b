"""Crocoddyl's examples of gaits: the numbers of their problems, and how its solver does on them.

Runs by itself in a Python with Crocoddyl and example-robot-data, and imports nothing of this library:

    python _crocoddyl_gaits.py ROBOT GAIT MAX_ITERATIONS ROUNDS
"""

import json
import sys
import time
from typing import Any

import numpy as np

FEET = {
    "anymal": ("LF_FOOT", "RF_FOOT", "LH_FOOT", "RH_FOOT"),
    "hyq": ("lf_foot", "rf_foot", "lh_foot", "rh_foot"),
    "talos_legs": ("right_sole_link", "left_sole_link"),
}
STEP = {"timeStep": 1e-2, "stepKnots": 25}
GAITS = {
    "walking": ("createWalkingProblem", {"stepLength": 0.25, "stepHeight": 0.15, "supportKnots": 2, **STEP}),
    "trotting": ("createTrottingProblem", {"stepLength": 0.15, "stepHeight": 0.1, "supportKnots": 2, **STEP}),
    "pacing": ("createPacingProblem", {"stepLength": 0.15, "stepHeight": 0.1, "supportKnots": 5, **STEP}),
    "bounding": ("createBoundingProblem", {"stepLength": 0.15, "stepHeight": 0.1, "supportKnots": 5, **STEP}),
    "jumping": (
        "createJumpingProblem",
        {"jumpHeight": 0.15, "jumpLength": [0.0, 0.3, 0.0], "timeStep": 1e-2, "groundKnots": 10, "flyingKnots": 20},
    ),
}
BIPED_WALKING = {"stepLength": 0.6, "stepHeight": 0.1, "timeStep": 0.03, "stepKnots": 15, "supportKnots": 4}
"""The numbers of the examples `quadrupedal_gaits_fwddyn.py` and `bipedal_gaits_fwddyn.py` of Crocoddyl 3.2.1."""


def problem_of(robot, name: str, gait: str):
    """Return the shooting problem of a gait, and its first state."""
    from crocoddyl.utils.biped import SimpleBipedGaitProblem  # pyright: ignore[reportMissingImports]
    from crocoddyl.utils.quadruped import SimpleQuadrupedalGaitProblem  # pyright: ignore[reportMissingImports]

    biped = name == "talos_legs"
    maker = (SimpleBipedGaitProblem if biped else SimpleQuadrupedalGaitProblem)(robot.model, *FEET[name])
    x0 = np.asarray(maker.rmodel.defaultState)
    create, numbers = GAITS[gait]
    numbers = BIPED_WALKING if biped and gait == "walking" else numbers
    return getattr(maker, create)(x0, **numbers), x0


def bodies_of(model) -> list:
    """Return the joints behind the free base, and the body of each: axes, places, and inertias about their origins."""
    out = []
    for i in range(1, model.njoints):
        joint, inertia = model.joints[i], model.inertias[i]
        body = {
            "name": model.names[i],
            "parent": model.parents[i] - 2,
            "placement": model.jointPlacements[i].homogeneous.tolist(),
            "mass": inertia.mass,
            "center": inertia.lever.tolist(),
            "moments": inertia.inertia.tolist(),
        }
        if i > 1:
            data = joint.createData()
            joint.calc(data, np.zeros(model.nq))
            body["armature"] = float(model.armature[model.idx_vs[i]])
            body["axis"] = np.asarray(data.S).ravel()[3:].tolist()
        out.append(body)
    return out


def costs_of(action) -> list:
    """Return the costs of an action: name, weight, frame, target, weights and bounds of the activation."""
    rows = []
    terms = action.costs if hasattr(action, "impulses") else action.differential.costs
    for name, item in terms.costs.todict().items():
        residual, activation = item.cost.residual, item.cost.activation
        row = {"name": name.rsplit("_", 1)[-1], "weight": item.weight}
        if hasattr(residual, "id"):
            row["frame"] = action.state.pinocchio.frames[residual.id].name
        reference: Any = getattr(residual, "reference", None)
        if hasattr(reference, "A"):
            row["A"], row["lower"], row["upper"] = (x.tolist() for x in (reference.A, reference.lb, reference.ub))
        elif hasattr(reference, "homogeneous"):
            row["target"] = reference.homogeneous.tolist()
        elif reference is not None:
            row["target"] = np.asarray(reference).tolist()
        if hasattr(activation, "weights"):
            row["weights"] = np.asarray(activation.weights).tolist()
        if hasattr(activation, "bounds") and "A" not in row:
            row["lower"], row["upper"] = (np.asarray(x).tolist() for x in (activation.bounds.lb, activation.bounds.ub))
        rows.append(row)
    return rows


def stage_of(action) -> dict:
    """Return the length of a stage, its contacts and its costs."""
    if hasattr(action, "impulses"):
        return {"dt": 0.0, "holds": list(action.impulses.impulses.todict()), "costs": costs_of(action)}
    contacts = action.differential.contacts.contacts.todict()
    gains = [np.asarray(item.contact.gains).tolist() for item in contacts.values()]
    return {"dt": action.dt, "holds": list(contacts), "gains": gains, "costs": costs_of(action)}


def foot_of(model, name: str) -> dict:
    """Return the name of a frame, the number of its body, and its place in it."""
    frame = model.frames[model.getFrameId(name)]
    return {"name": name, "body": frame.parentJoint - 1, "placement": frame.placement.homogeneous.tolist()}


def main(name: str, gait: str, iterations: int, rounds: int) -> None:
    """Print the problem and the results of `rounds` solves as one line of JSON."""
    import crocoddyl  # pyright: ignore[reportMissingImports]
    import example_robot_data  # pyright: ignore[reportMissingImports]

    robot = example_robot_data.load(name)
    problem, x0 = problem_of(robot, name, gait)
    problem.nthreads = 1
    xs, us = [x0] * (problem.T + 1), list(problem.quasiStatic([x0] * problem.T))
    out = {
        "bodies": bodies_of(robot.model),
        "joints": list(robot.model.names)[2:],
        "feet": [foot_of(robot.model, foot) for foot in FEET[name]],
        "x0": x0.tolist(),
        "stages": [stage_of(action) for action in [*problem.runningModels, problem.terminalModel]],
        "guess": [np.asarray(u).tolist() for u in us],
        "guess_cost": problem.calc(xs, us),
        "first_step": np.asarray(problem.runningDatas[0].xnext).tolist(),
        "rounds": [],
    }
    for _ in range(rounds):
        solver = crocoddyl.SolverFDDP(problem)
        began = time.process_time()
        solved = solver.solve(xs, us, iterations, False)
        seconds = time.process_time() - began
        count = min(solver.iter + 1, iterations)
        out["rounds"].append({"seconds": seconds, "iterations": count, "cost": solver.cost, "solved": bool(solved)})
    out["xs"] = [np.asarray(x).tolist() for x in solver.xs]
    out["us"] = [np.asarray(u).tolist() for u in solver.us]
    print(json.dumps(out))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
