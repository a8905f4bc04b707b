"""Randomization: worlds with other numbers, drawn by keys, and batches of environments with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxdyn._errors import ModelError, look_up, require_kind
from jaxdyn._types import Array
from jaxdyn.learn._environment import AbstractEnvironment, Environment
from jaxdyn.sysid.parameters import leaves, world_arrays
from jaxdyn.worlds import World

type Ranges = Mapping[str, tuple[float, float]]
"""The least and the greatest factor for numbers of a world, by their names (`randomly_scaled`)."""
type _Groups = list[tuple[tuple[int, int], ...]]
"""Entries that have one factor: leaves and places in them."""


def randomly_scaled(world: World, ranges: Ranges, key: Array) -> World:
    """Return the world with numbers multiplied by factors that are drawn uniformly from ranges, such as
    `{"body.mass": (0.8, 1.2), "geom.friction": (0.5, 1.25), "actuator.kp": (0.9, 1.1)}`.

    Each element of a kind has its own factor. The names are

    - `"body.mass"`: the mass and all moments of a moving body, with the links that are fixed to it;
    - `"geom.friction"`, `"geom.torsion"`, `"geom.rolling"`, `"geom.solref"`, `"geom.solimp"`, `"geom.size"`;
    - `"joint."`, `"actuator."` and `"tendon."` with the attributes of `sysid.Positive`, such as `"joint.damping"`;
    - or any array of the world by its path, such as `"model.gravity"` and `"parts.actuators.gear"`, with a factor for
      each of its rows.

    Constants that follow from the inertias change with them (`World.with_model`). The world is not traced, the key may
    be.

    **Raises** `UnknownNameError`; `ModelError` for a range that is not one, and for a world without such numbers.
    """
    require_kind(world, World, "randomly_scaled: `world`")
    names, tree, claims = tuple(ranges), world, set()
    for name, of_name in zip(names, jax.random.split(key, max(len(names), 1)), strict=False):
        lower, upper = _range(name, ranges[name])
        groups = _groups(world, name)
        if not groups:
            raise ModelError(f"randomly_scaled: the world has no numbers {name!r}")
        factors = jax.random.uniform(of_name, (len(groups),), world.model.dtype, lower, upper)
        table = np.array([(leaf, place, k) for k, group in enumerate(groups) for leaf, place in group])
        for leaf in np.unique(table[:, 0]):
            _, places, owners = table[table[:, 0] == leaf].T
            tree = leaves.with_entries(
                tree, int(leaf), places, leaves.entries(tree, int(leaf), places) * factors[owners]
            )
        claims |= {(int(leaf), int(place)) for leaf, place, _ in table}
    return leaves.following(world, tree, frozenset(claims))


def _range(name: str, given: Any) -> tuple[float, float]:
    bounds = np.asarray(given, float)
    if bounds.shape != (2,) or not np.isfinite(bounds).all() or bounds[0] > bounds[1]:
        needed = "a pair of the least and the greatest factor is needed"
        raise ModelError(f"randomly_scaled: the range of {name!r} is {given}; {needed}")
    return float(bounds[0]), float(bounds[1])


def _groups(world: World, name: str) -> _Groups:
    """Return the entries with a name, those with one factor together. **Raises** `UnknownNameError`."""
    kind, _, attribute = name.partition(".")
    kinds = {kind: world_arrays.attributes(world, kind) for kind in ("joint", "actuator", "tendon")}
    kinds |= {"geom": (*world_arrays.LAW, "size"), "body": ("mass",)}
    paths = world_arrays.paths(world)
    if name in paths:
        shape = jax.tree.leaves(world)[paths[name]].shape
        rows = np.arange(int(np.prod(shape))).reshape(shape[0] if shape else 1, -1)
        return [tuple((paths[name], int(i)) for i in row) for row in rows]
    look_up(name, [*(f"{kind}.{x}" for kind, found in kinds.items() for x in found), *paths], "number of a world")
    if kind == "body":
        return _inertias(world)
    if kind != "geom":
        owned = world_arrays.numbers_of(world, kind, attribute) or []
    elif attribute == "size":
        owned = world_arrays.geom_sizes(world, None, "randomly_scaled")
    else:
        owned = world_arrays.contact_numbers(world, attribute, None, "randomly_scaled")
    return [x.entries for x in owned]


def _inertias(world: World) -> _Groups:
    """Return the entries of the inertias of each moving body, with those of the links that are fixed to it."""
    topology, paths = world.model.topology, world_arrays.paths(world)
    groups = []
    for body in range(world.model.nb):
        rows = [("model.inertial_parameters", body)]
        rows += [("model.attached_parameters", i) for i, owner in enumerate(topology.attached_bodies) if owner == body]
        groups.append(tuple((paths[path], 10 * row + k) for path, row in rows for k in range(10)))
    return groups


def randomized(
    env: AbstractEnvironment, randomize: Ranges | Callable[[World, Array], World], keys: Array
) -> tuple[Any, Any]:
    """Return the environment with one world for each key, and the axes of its arrays for `jax.vmap`: 0 for those that
    are randomized, and None for the others, which are shared.

    ```python
    envs, axes = learn.randomized(learn.Episodes(env), {"body.mass": (0.8, 1.2)}, keys)
    states = jax.vmap(lambda env, key: env.reset(key), in_axes=(axes, 0))(envs, more_keys)
    states = jax.vmap(lambda env, state, action: env.step(state, action), in_axes=(axes, 0, 0))(envs, states, actions)
    ```

    `randomize` are ranges of factors, as in `randomly_scaled`, or a function `(world, key)` that returns a world of the
    same structure. New keys compile nothing again.

    **Raises** as `randomly_scaled` does; `ModelError` for a world of another structure.
    """
    require_kind(env, AbstractEnvironment, "randomized: `env`")
    world, ranges = env.unwrapped.world, randomize
    draw = (lambda world, key: randomly_scaled(world, ranges, key)) if isinstance(ranges, Mapping) else ranges
    old, structure = jax.tree.flatten(world)
    drawn: list[bool] = []

    def numbers(key):
        new, of_new = jax.tree.flatten(draw(world, key))
        if of_new != structure or any(np.shape(x) != np.shape(y) for x, y in zip(new, old, strict=True)):
            raise ModelError("randomized: the function returns a world with other parts, or arrays of other shapes")
        drawn[:] = [isinstance(x, Tracer) for x in new]
        return [jnp.asarray(x, y.dtype) for x, y, z in zip(new, old, drawn, strict=True) if z]

    found = iter(jax.jit(jax.vmap(numbers))(keys))
    batched = jax.tree.unflatten(structure, [next(found) if x else y for x, y in zip(drawn, old, strict=True)])
    axes = jax.tree.unflatten(structure, [0 if x else None for x in drawn])
    rest = jax.tree.map(lambda _: None, env)
    return _with_world(env, batched), _with_world(rest, axes)


def _with_world(env: Any, world: Any) -> Any:
    """Return an environment, or its wrappers, with another world."""
    fields = {name: getattr(env, name) for name in env.__dataclass_fields__}
    name = "world" if isinstance(env, Environment) else "env"
    fields[name] = world if isinstance(env, Environment) else _with_world(env.env, world)
    new = object.__new__(type(env))
    for key, value in fields.items():
        # As `equinox` sets the fields of a module when it unflattens one: the world may hold axes in place of arrays.
        object.__setattr__(new, key, value)
    return new
