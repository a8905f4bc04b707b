"""Randomization: worlds with other numbers, drawn by keys, and batches of environments with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self, overload

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from jaxdyn._errors import ModelError, look_up, require_kind
from jaxdyn._types import Array, Float
from jaxdyn.learn._environment import AbstractEnvironment, Environment, EnvironmentState
from jaxdyn.sysid import RolloutFit
from jaxdyn.sysid.parameters import Parametrization, leaves, world_arrays
from jaxdyn.worlds import World

type Ranges = Mapping[str, tuple[float, float]]
"""The least and the greatest factor for numbers of a world, by their names (`randomly_scaled`)."""
type Randomization = Ranges | RolloutFit | Callable[[World, Array], World]
"""Ranges of a world's numbers, a fit that has intervals of them, or a function that draws a world."""
type _Group = tuple[tuple[int, int], ...]
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

    Constants that follow from the inertias change with them (`World.with_model`). The world is not traced; the key and
    the ranges may be, and derivatives reach the ranges.

    **Raises** `UnknownNameError`; `ModelError` for a range that is not one, and for a world without such numbers.
    """
    require_kind(world, World, "randomly_scaled: `world`")
    return _Scaled.of(world, ranges)(world, key)


class _Scaled(eqx.Module):
    """Worlds with numbers that are multiplied by factors in ranges."""

    ranges: Float[Array, "names 2"]
    groups: tuple[tuple[_Group, ...], ...] = eqx.field(static=True)
    """The entries of each name."""

    @classmethod
    def of(cls, world: World, ranges: Ranges) -> Self:
        """**Raises** as `randomly_scaled`."""
        bounds = [_range(name, x, world.model.dtype) for name, x in ranges.items()]
        groups = tuple(tuple(_groups(world, name)) for name in ranges)
        for name, found in zip(ranges, groups, strict=True):
            if not found:
                raise ModelError(f"randomly_scaled: the world has no numbers {name!r}")
        return cls(jnp.stack(bounds) if bounds else jnp.zeros((0, 2), world.model.dtype), groups)

    def __call__(self, world: World, key: Array) -> World:
        tree, claims = world, set()
        keys = jax.random.split(key, max(len(self.groups), 1))
        for groups, (lower, upper), of_name in zip(self.groups, self.ranges, keys, strict=False):
            factors = jax.random.uniform(of_name, (len(groups),), world.model.dtype, lower, upper)
            table = np.array([(leaf, place, k) for k, group in enumerate(groups) for leaf, place in group])
            for leaf in np.unique(table[:, 0]):
                _, places, owners = table[table[:, 0] == leaf].T
                scaled = leaves.entries(tree, int(leaf), places) * factors[owners]
                tree = leaves.with_entries(tree, int(leaf), places, scaled)
            claims |= {(int(leaf), int(place)) for leaf, place, _ in table}
        return leaves.following(world, tree, frozenset(claims))


def _range(name: str, given: Any, dtype: Any) -> Array:
    traced = any(isinstance(x, Tracer) for x in jax.tree.leaves(given))
    bounds: Any = jnp.asarray(given, dtype) if traced else np.asarray(given, float)
    if bounds.shape != (2,) or (not traced and (not np.isfinite(bounds).all() or bounds[0] > bounds[1])):
        needed = "a pair of the least and the greatest factor is needed"
        raise ModelError(f"randomly_scaled: the range of {name!r} is {given}; {needed}")
    return jnp.asarray(bounds, dtype)


def _groups(world: World, name: str) -> list[_Group]:
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


def _inertias(world: World) -> list[_Group]:
    """Return the entries of the inertias of each moving body, with those of the links that are fixed to it."""
    topology, paths = world.model.topology, world_arrays.paths(world)
    groups = []
    for body in range(world.model.nb):
        rows = [("model.inertial_parameters", body)]
        rows += [("model.attached_parameters", i) for i, owner in enumerate(topology.attached_bodies) if owner == body]
        groups.append(tuple((paths[path], 10 * row + k) for path, row in rows for k in range(10)))
    return groups


@overload
def randomized(env: AbstractEnvironment, randomize: Randomization, keys: None = None) -> RandomizedEnvironment: ...


@overload
def randomized(env: AbstractEnvironment, randomize: Randomization, keys: Array) -> tuple[Any, Any]: ...


def randomized(
    env: AbstractEnvironment, randomize: Randomization, keys: Array | None = None
) -> AbstractEnvironment | tuple[Any, Any]:
    """Return the environment with worlds whose numbers are drawn at random. `randomize` is one of

    - ranges of factors by names, as in `randomly_scaled`;
    - a fit of the environment's world to recordings, of `sysid.fit_rollouts`. Its free numbers are drawn from the
      normal distribution about `fit.robot` with its covariance, so that a number lies within its 95 % interval of
      `fit.intervals()` in 95 % of the draws, and what the fit knows only together is drawn together. All else is that
      of `fit.robot`;
    - a function `(world, key)` that returns a world of the same structure.

    **Without keys**, the result is an environment that draws a world at each `reset`, and keeps its numbers in
    `info["randomized"]`. `train` takes it as it is; in `Episodes` of it each episode has a world of its own. The
    derivatives of `reset` reach the ranges (`env.draws.ranges`), those of `step` do not reach what is drawn. Its
    `unwrapped` environment has the world without any draw.

    ```python
    training = learn.train(learn.randomized(env, fit))
    ```

    **With keys**, it is an environment with one world for each key, and the axes of its arrays for `jax.vmap`: 0 for
    those that are randomized, and None for the others, which are shared. New keys compile nothing again.

    ```python
    envs, axes = learn.randomized(learn.Episodes(env), {"body.mass": (0.8, 1.2)}, keys)
    states = jax.vmap(lambda env, key: env.reset(key), in_axes=(axes, 0))(envs, more_keys)
    states = jax.vmap(lambda env, state, action: env.step(state, action), in_axes=(axes, 0, 0))(envs, states, actions)
    ```

    **Raises** as `randomly_scaled` does; `ModelError` for a world of another structure, for a fit that leaves numbers
    without any bound, and for an environment that is randomized already.
    """
    require_kind(env, AbstractEnvironment, "randomized: `env`")
    world, draws, drawn = _draws_of(env.unwrapped.world, randomize)
    if keys is None:
        return RandomizedEnvironment(_with_world(env, world), draws, drawn)
    found, (arrays, structure) = iter(_numbers_of_all(draws, drawn, world, keys)), jax.tree.flatten(world)
    batched = [next(found) if yes else x for yes, x in zip(drawn, arrays, strict=True)]
    axes = [0 if yes else None for yes in drawn]
    worlds, of_worlds = (jax.tree.unflatten(structure, x) for x in (batched, axes))
    return _with_world(env, worlds), _with_world(jax.tree.map(lambda _: None, env), of_worlds)


class _FromFit(eqx.Module):
    """Worlds about that of a fit, with its covariance."""

    parametrization: Parametrization
    factor: Float[Array, "size size"]
    """A square root of the covariance of the free numbers."""

    @classmethod
    def of(cls, world: World, fit: RolloutFit) -> Self:
        """Return the draws about the world of a fit, in the precision of another one. **Raises** `ModelError`."""
        if not isinstance(fit.robot, World) or jax.tree.structure(fit.robot) != jax.tree.structure(world):
            raise ModelError("randomized: the fit is one of another robot than the environment's world")
        if not np.isfinite(fit.covariance).all():
            raise ModelError(
                f"randomized: the recordings do not bound {', '.join(fit.undetermined) or 'all free numbers'}; fit "
                "with a prior_weight, or with fewer free numbers"
            )
        dtype = world.model.dtype
        # By eigenvalues, because the covariance of numbers that depend on each other has none above rounding.
        size, directions = np.linalg.eigh(np.asarray(fit.covariance, float))
        factor = jnp.asarray(directions * np.sqrt(np.maximum(size, 0)), dtype)
        return cls(fit.parametrization.about(fit.robot.astype(dtype)), factor)

    def __call__(self, world: World, key: Array) -> World:
        about = self.parametrization.about(world)
        return about.model(self.factor @ jax.random.normal(key, (about.size,), self.factor.dtype))


class _Made(eqx.Module):
    """Worlds that a function draws, as the program that it is for one world: the arrays in it are leaves, and it may be
    called where the world is traced."""

    constants: Any
    """The arrays in the program."""
    program: tuple = eqx.field(static=True)
    example: list[Array]
    """The arrays of one draw. A training with another function, whose numbers may be a part of its program, has others,
    and is told apart from this one by them."""

    @classmethod
    def of(cls, world: World, function: Callable[[World, Array], World]) -> Self:
        key = jax.random.key(0)
        arrays = eqx.filter_closure_convert(lambda key: jax.tree.leaves(function(world, key)), key)
        constants, rest = eqx.partition(arrays, eqx.is_array)
        parts, structure = jax.tree.flatten(rest)
        return cls(constants, (tuple(parts), structure), jax.jit(lambda key: arrays(key))(key))

    def __call__(self, world: World, key: Array) -> World:
        # The program has typed keys.
        typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
        key = key if typed else jax.random.wrap_key_data(key)
        parts, structure = self.program
        arrays = eqx.combine(self.constants, jax.tree.unflatten(structure, parts))
        return jax.tree.unflatten(jax.tree.structure(world), arrays(key))


type _Draws = _Scaled | _FromFit | _Made


def _draws_of(world: World, randomize: Randomization) -> tuple[World, _Draws, tuple[bool, ...]]:
    """Return the world that has the arrays which are the same in all draws, what draws the others, and which these are.
    **Raises** `ModelError`."""
    function: Any
    if isinstance(randomize, RolloutFit):
        draws = function = _FromFit.of(world, randomize)
        world = draws.parametrization.reference
    elif isinstance(randomize, Mapping):
        draws = function = _Scaled.of(world, randomize)
    else:
        draws, function = None, randomize
    arrays, structure = jax.tree.flatten(world)
    new: list[Any] = []
    # The function is traced: tracers depend on the key, and other arrays are the same in all worlds.
    jax.eval_shape(lambda key: new.extend(jax.tree.flatten(function(world, key))), jax.random.key(0))
    found, of_found = new
    if of_found != structure or any(np.shape(x) != np.shape(y) for x, y in zip(found, arrays, strict=True)):
        raise ModelError("randomized: the function returns a world with other parts, or arrays of other shapes")
    drawn = tuple(isinstance(x, Tracer) and x is not y for x, y in zip(found, arrays, strict=True))
    same = [y if yes else jnp.asarray(x, y.dtype) for yes, x, y in zip(drawn, found, arrays, strict=True)]
    draws = _Made.of(world, function) if draws is None else draws
    return jax.tree.unflatten(structure, same), draws, drawn


def _numbers(draws: _Draws, drawn: tuple[bool, ...], world: World, key: Array) -> list[Array]:
    """Return the arrays that are drawn."""
    arrays = zip(drawn, jax.tree.leaves(draws(world, key)), jax.tree.leaves(world), strict=True)
    return [jnp.asarray(x, y.dtype) for yes, x, y in arrays if yes]


@eqx.filter_jit
def _numbers_of_all(draws: _Draws, drawn: tuple[bool, ...], world: World, keys: Array) -> list[Array]:
    return jax.vmap(lambda key: _numbers(draws, drawn, world, key))(keys)


class RandomizedEnvironment(AbstractEnvironment):
    """An environment that draws a world at each reset: see `randomized`."""

    env: AbstractEnvironment
    draws: _Draws
    """Draws worlds; with ranges `draws.ranges` has them, `[names, 2]`."""
    drawn: tuple[bool, ...] = eqx.field(static=True)
    """Which of the world's arrays are drawn."""

    def __init__(self, env: AbstractEnvironment, draws: _Draws, drawn: tuple[bool, ...]):
        if is_randomized(jax.eval_shape(env.reset, jax.random.key(0))):
            raise ModelError("randomized: the environment is randomized already; give all ranges at once")
        self.env, self.draws, self.drawn = env, draws, drawn

    @property
    def unwrapped(self) -> Environment:
        """The environment without wrappers."""
        return self.env.unwrapped

    def reset(self, key: Array) -> EnvironmentState:
        """Return the start of an episode in a world that is drawn."""
        own, key = jax.random.split(key)
        numbers = _numbers(self.draws, self.drawn, self.unwrapped.world, own)
        state = self._with(numbers).reset(key)
        return state.replace(info={**state.info, _NAME: numbers})

    def step(self, state: EnvironmentState, action: Array) -> EnvironmentState:
        """Return what follows an action in the world of the state."""
        # A derivative by all numbers of a world would cost more than that by the state.
        return self._with(lax.stop_gradient(state.info[_NAME])).step(state, action)

    def _with(self, numbers: list[Array]) -> AbstractEnvironment:
        found, (arrays, structure) = iter(numbers), jax.tree.flatten(self.unwrapped.world)
        new = [next(found) if yes else x for yes, x in zip(self.drawn, arrays, strict=True)]
        return _with_world(self.env, jax.tree.unflatten(structure, new))


_NAME = "randomized"
"""The name of the numbers that are drawn in the memory of an environment."""


def is_randomized(state: EnvironmentState) -> bool:
    """Return whether states are those of an environment that draws worlds."""
    return _NAME in state.info


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
