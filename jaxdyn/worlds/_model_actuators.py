"""The actuators of a world that is made of a model, from their descriptions."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxdyn._errors import ModelError, ShapeError, look_up
from jaxdyn.model import Actuator, Model, Topology
from jaxdyn.worlds._actuator_blocks import Path, Paths, stacked_paths
from jaxdyn.worlds._actuators import Actuators
from jaxdyn.worlds._parts import Places, bounded, stacked


def actuators_of(model: Model, given: Sequence[Actuator]) -> Actuators:
    """Return the actuators of a model. The limits of joints (`Model.effort_limit`) hold for the sum of the forces of
    those on each joint, as `actuatorfrcrange` of MuJoCo.

    **Raises** `UnknownNameError` for a joint or link; `ModelError` for a name given twice, what is no block on a path,
    and a joint that mimics others or has several coordinates but is not a ball or free joint; `ShapeError` for a gear
    or a range that does not fit.
    """
    names = require_different([each.title for each in given], "actuator")
    stateful = [i for i, each in enumerate(given) if each.dynamics_type != "none"]
    paths = [[getattr(each, f"{x}_path") for each in given] for x in ("control", "force")]
    terms = [each.terms for each in given]
    times = [0.0 if each.time_constant is None else each.time_constant for each in given]
    targets = _targets(model, given)
    effort = model.effort_limit
    ranges = {
        f"{name}_range": bounded(stacked([_range(each, f"{name}_range") for each in given], (2,)))
        for name in ("control", "force", "activation")
    }
    own = Actuators.without(
        names=names,
        **targets,
        circular=_circular(given, targets["turning"]),
        gains=("affine",) * len(given),
        biases=("affine",) * len(given),
        dynamics=tuple(each.dynamics_type for each in given),
        states=tuple(stateful.index(i) if i in stateful else -1 for i in range(len(given))),
        early=(False,) * len(given),
        active=(True,) * len(given),
        gear=stacked([_six(model, each) for each in given], (6,)),
        gain=stacked([_padded(gain, 9) for gain, _ in terms], (9,)),
        bias=stacked([_padded(bias, 9) for _, bias in terms], (9,)),
        time=stacked([_padded((x,), 3) for x in times], (3,)),
        limits=(bool(given) and (isinstance(effort, Tracer) or bool(np.isfinite(effort).any())), False),
        **ranges,
    )
    return with_paths(own, *paths)


def with_paths(own: Actuators, control: Sequence[Path], force: Sequence[Path]) -> Actuators:
    """Return actuators with blocks on the ways of their controls and forces. **Raises** as `stacked_paths`."""
    control_path = stacked_paths(own.names, control, own.dynamic, "control_path")
    first = own.dynamic + sum(path.remembered for path in control_path)
    force_path = stacked_paths(own.names, force, first, "force_path")
    return dataclasses.replace(own, control_path=control_path, force_path=force_path)


def with_named_paths(parts: Any, keys: Any, control: Paths, force: Paths) -> tuple[Any, Any]:
    """Return the parts of a world and its keyframes with blocks on the ways of actuators: see
    `World.with_actuator_paths`."""
    own, paths = parts.actuators, []
    for given in (control, force):
        for name in given:
            look_up(name, own.names, "actuator")
        paths.append([tuple(given.get(name, ())) for name in own.names])
    actuators = with_paths(own, *paths)
    dynamic = keys.activation[..., : own.dynamic]
    remembered = actuators.at_rest(dynamic.dtype)[..., None, own.dynamic :]
    batch = jnp.broadcast_shapes(dynamic.shape[:-1], remembered.shape[:-1])
    both = (jnp.broadcast_to(x, (*batch, x.shape[-1])) for x in (dynamic, remembered))
    keys = keys._replace(activation=jnp.concatenate([*both], axis=-1))
    return dataclasses.replace(parts, actuators=actuators), keys


def require_different(names: Sequence[str], kind: str) -> tuple[str, ...]:
    """Return names. **Raises** `ModelError` where two are equal."""
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ModelError(f"several have the same name of {kind}: {', '.join(map(repr, twice))}; give each its `name`")
    return tuple(names)


def joint_start(model: Model, joint: str, what: str) -> tuple[int, int, int]:
    """Return the number of a joint, and its first coordinate and degree of freedom in the tree of all joints."""
    topology = model.topology
    number = topology.joint(joint)
    if number in topology.leaders:
        leader = topology.joint_names[topology.leaders[number]]
        raise ModelError(f"{what}: joint {joint!r} mimics {leader!r}; use {leader!r}")
    tree = topology.spanning
    return number, tree.q_starts[number], tree.v_starts[number]


def _targets(model: Model, given: Sequence[Actuator]) -> dict[str, Any]:
    """Return the fields of `Actuators` that say on what each acts."""
    scalars, joined, turning, pushing, places = [], [], [], [], []
    for i, each in enumerate(given):
        if each.joint is None:
            assert each.link is not None
            pushing.append(i)
            places.append((each.link, each.placement))
            continue
        for k, joint in enumerate(each.joints):
            number, q, v = joint_start(model, joint, f"actuator {each.title!r}")
            kind = model.topology.joint_types[number]
            if kind in ("ball", "free") and isinstance(each.joint, str):
                free = kind == "free"
                turning.append((i, q + 3 * free, v + 3 * free, False, free))
            elif _nv(model.topology, joint) != 1:
                advice = "make it of joints with one axis each"
                raise ModelError(f"actuator {each.title!r}: its joint {joint!r} is {kind}; {advice}")
            elif len(each.joints) == 1:
                scalars.append((i, q, v))
            else:
                joined.append((i, q, v, k))
    return {
        "axes_of_joints": tuple(scalars),
        "joined": tuple(joined),
        "turning": tuple(turning),
        "pushing": tuple(pushing),
        "sites": Places.on(model, places),
        "referred": tuple((k, -1) for k in range(len(places))),
    }


def _nv(topology: Topology, joint: str) -> int:
    tree, number = topology.spanning, topology.joint(joint)
    return tree.v_starts[number + 1] - tree.v_starts[number]


def _six(model: Model, each: Actuator) -> Any:
    """Return the gear as six numbers `[*batch, 6]`."""
    count = 6 if each.joint is None else sum(_nv(model.topology, joint) for joint in each.joints)
    gear = each.gear if isinstance(each.gear, Tracer) else np.asarray(each.gear, float)
    numbers = [gear] if not gear.ndim else [gear[..., k] for k in range(gear.shape[-1])]
    if len(numbers) != count or count > 6:
        on = f"link {each.link!r} has" if each.joint is None else f"joint {' and '.join(map(repr, each.joints))} has"
        on = on.replace("joint", "joints").replace(" has", " have") if len(each.joints) > 1 else on
        most = "; six is the most" * (count > 6)
        raise ShapeError(f"actuator {each.title!r} has a gear of {len(numbers)} numbers, but its {on} {count}{most}")
    return _padded(numbers, 6)


def _range(each: Actuator, name: str) -> Any:
    bounds = getattr(each, name)
    bounds = (-np.inf, np.inf) if bounds is None else bounds
    if len(bounds) != 2:
        raise ShapeError(f"actuator {each.title!r}: {name} is {bounds!r}; a lower and an upper limit are needed")
    if not any(isinstance(x, Tracer) for x in bounds) and (np.asarray(bounds[0]) > np.asarray(bounds[1])).any():
        raise ModelError(f"actuator {each.title!r}: {name} is {bounds!r}; the lower limit comes first")
    return _padded(bounds, 2)


def _padded(numbers: Sequence[Any], count: int) -> Any:
    """Return numbers `[*batch]` as an array `[*batch, count]`, with zeros behind them."""
    traced = any(isinstance(x, Tracer) for x in numbers)
    lib: Any = jnp if traced else np
    return lib.stack(lib.broadcast_arrays(*map(lib.asarray, (*numbers, *(0.0,) * (count - len(numbers))))), axis=-1)


def _circular(given: Sequence[Actuator], turning: Sequence[tuple]) -> tuple[tuple[int, int], ...]:
    """Return the servos of ball joints, which go the shorter way round (`Actuators.circular`)."""
    balls = [i for i, *_, free in turning if not free]
    return tuple((i, 0) for i in balls if given[i].kind in ("position", "intvelocity"))
