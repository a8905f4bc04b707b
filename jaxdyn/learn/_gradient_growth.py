"""How the gradient of a return grows along a roll-out, and through what.

The gradient of a return sums products of the Jacobians of steps, one for each pair of an action and a later reward. In
stiff or chaotic motions these products grow without bound. Sources: Metz et al., Gradients are not all you need, 2021;
Suh et al., Do differentiable simulators give better policy gradients?, ICML 2022; Georgiev et al., Adaptive horizon
actor-critic for policy learning in contact-rich differentiable simulation, ICML 2024.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdyn import _printing as printing
from jaxdyn._errors import ModelError, ShapeError, require_positive_integer
from jaxdyn._types import Array, Float
from jaxdyn.learn._environment import AbstractEnvironment, Environment
from jaxdyn.learn._networks import RunningNormalization
from jaxdyn.learn._randomization import is_randomized
from jaxdyn.simulate import State
from jaxdyn.worlds import World, cause_names, changes_by_cause

# Changes of Gymnasium's half cheetah and ant, moved by random networks, grew so much in 9 and 11 steps. Between 4 and 8
# steps their gradients became noisier than differences of returns (docs/concepts/first-order-gradients.md).
_LIMIT = 100.0


class GradientGrowth(eqx.Module):
    """How small changes and gradients grow over the steps of roll-outs of several worlds: see `gradient_growth`."""

    growth: Float[Array, "steps worlds"]
    """The root mean square, over directions of a change of the start, of the factor by which the change has grown after
    each step: the Frobenius norm of the product of the Jacobians of the steps over that of the identity. Changes are in
    m, rad, m/s, rad/s and the units of activations."""
    gradient: Float[Array, "steps worlds"] | None
    """The norm of the gradient of the sum of the rewards up to each step, by the parameters of the policy or by the
    actions; None without rewards."""
    noise: Float[Array, "steps"] | None
    """The standard error of the mean of these gradients over the worlds, over the norm of the mean: where it is above
    1, the mean over these worlds says little about the direction, and infinite where it tells nothing. None without
    rewards, and for one world."""
    step: Float[Array, "worlds"]
    """The step of each world in which the changes grow most, from 1 on."""
    steepest: Float[Array, "worlds"] | None
    """The largest factor by which the changes grow in one time step of the world during that step; None if causes are
    not looked for."""
    through: Float[Array, "worlds causes"] | None
    """How much of the change of the velocity after that time step passes through each cause, over the size of the
    change of the state before it; the contributions of all causes add up as vectors."""
    causes: tuple[str, ...] = eqx.field(static=True)
    """The causes: constraints and actuators by their names, and the rest."""

    def horizon(self, limit: float = _LIMIT) -> int:
        """Return the largest number of steps after which changes have grown, as the root mean square over the worlds,
        to at most `limit` times their size at the start, and have so after all steps before."""
        above = np.flatnonzero(~(_root_mean_square(self.growth) <= limit))
        return int(above[0]) if len(above) else len(self.growth)

    def clip(self, steps: int) -> float:
        """Return the median over the worlds of the norm of the gradient of the return of so many steps: half of the
        worlds are below it, and what exceeds it many times is the share of few. **Raises** `ModelError` without
        rewards, and for steps that were not made."""
        if self.gradient is None:
            raise ModelError("the roll-outs of a world have no rewards; give gradient_growth an environment")
        if not 1 <= steps <= len(self.gradient):
            raise ModelError(f"clip: steps is {steps}, but the roll-outs have 1 to {len(self.gradient)}")
        return float(np.median(np.asarray(self.gradient)[steps - 1]))

    def main_causes(self) -> dict[str, int]:
        """Return the names of the causes through which most of the change of the velocity passes in the steepest time
        step of a world, and the number of worlds in which this is so, the most frequent first. **Raises** `ModelError`
        if causes were not looked for."""
        if self.through is None:
            raise ModelError("causes were not looked for; call gradient_growth with causes=True")
        largest = np.argmax(np.nan_to_num(np.asarray(self.through)), axis=-1)
        return dict(Counter(self.causes[k] for k in largest.tolist()).most_common())

    def printed(self) -> printing.Facts:
        """The facts that `print` shows."""
        steps, worlds = self.growth.shape
        size = _root_mean_square(self.growth)
        marks = sorted({*(2**k for k in range(int(np.log2(steps)) + 1)), steps})
        first = f"changes grow {size[-1]:.3g} times in {steps} steps of {worlds} worlds; "
        first += f"at most {_LIMIT:g} times up to step {self.horizon()}"
        facts = {"after step": _aligned(marks), "growth": _aligned(size[k - 1] for k in marks)}
        facts["largest"] = _aligned(np.asarray(self.growth).max(axis=1)[k - 1] for k in marks)
        if self.gradient is not None:
            g = np.asarray(self.gradient)
            facts["gradient, median"] = _aligned(np.median(g[k - 1]) for k in marks)
            facts["gradient, largest"] = _aligned(g[k - 1].max() for k in marks)
        if self.noise is not None:
            facts["noise of mean"] = _aligned(np.asarray(self.noise)[k - 1] for k in marks)
        if self.through is not None and self.steepest is not None:
            world = int(np.argmax(np.nan_to_num(np.asarray(self.steepest))))
            steepest = f"{float(self.steepest[world]):.3g} times in one time step"
            facts["steepest"] = f"{steepest} of step {int(self.step[world])} of world {world}"
            for name, count in list(self.main_causes().items())[:3]:
                most = np.asarray(self.through)[:, self.causes.index(name)].max()
                facts[f"through {name}"] = f"most of the change in {count} of {worlds} worlds, up to {most:.3g} times"
        return first, facts

    __repr__, __str__, _repr_html_ = printing.one_line, printing.text, printing.table


def _root_mean_square(x: Any) -> np.ndarray:
    # In double precision: squares of large numbers overflow in single precision.
    return np.sqrt((np.asarray(x, float) ** 2).mean(axis=-1))


def _aligned(numbers: Any) -> str:
    return " ".join(f"{x:>8.3g}" for x in numbers)


def gradient_growth(
    env: Any,
    policy: Any,
    states: Any,
    steps: int,
    *,
    probes: int = 8,
    causes: bool = True,
    key: Array | None = None,
) -> GradientGrowth:
    """Return how the gradient of a return grows along roll-outs, where it grows most, and through which contacts,
    limits or actuators.

    It pushes random directions forward through the roll-outs (`jax.jvp`), so that no Jacobian is made and no memory
    grows with their length; norms are estimates from these directions, with a relative standard error of about
    `1/sqrt(2 probes)`. If the state has no more numbers than that, all directions are taken, and `growth` is exact.

    **Arguments**

    - `env`: an `Environment`, or `Episodes` of one, whose gradients end where an episode does; or a `World`, which has
      no rewards.
    - `policy`: a function of an observation that returns an action, such as an `equinox.Module`, by whose arrays the
      gradient is taken; or the actions (of a world the controls) `[steps, nu]` of all worlds.
    - `states`: where the roll-outs start, with one batch axis: of `jax.vmap(env.reset)(keys)`, or a world's states.
    - `steps`: of the environment, or of the world.
    - `probes`: the number of random directions, of the start and of the policy each.
    - `causes`: whether to look for causes, a second program to compile, about as long as the first.
    - `key`: of the random directions; the same ones by default.

    **Raises** `ShapeError` for states without a batch axis and actions that do not fit, `ModelError` for other
    arguments that do not fit.
    """
    require_positive_integer(steps, "gradient_growth: steps")
    require_positive_integer(probes, "gradient_growth: probes")
    policy = jnp.asarray(policy) if isinstance(policy, np.ndarray) else policy
    motion = _motion_of(env, policy, steps)
    if isinstance(env, World):
        states = env.start_of(states, {})
    elif is_randomized(states):
        raise ModelError(
            "gradient_growth: each of the states has a world of its own; take env.unwrapped and its states"
        )
    data = motion.data(states)
    if data.q.ndim != 2:
        raise ShapeError(f"states have q of shape {data.q.shape}, but one batch axis is needed: [worlds, nq]")
    key = jax.random.key(0) if key is None else key
    found = _grown(motion, policy, states, steps, probes, key)
    steepest, through = _causes(motion, policy, found) if causes else (None, None)
    names = cause_names(motion.world) if causes else ()
    return GradientGrowth(found.growth, found.gradient, found.noise, found.step + 1, steepest, through, names)


# The motion of one world.


class _Motion(NamedTuple):
    """The motion that is rolled out, as functions of one world."""

    env: AbstractEnvironment | World

    @property
    def base(self) -> Environment | None:
        """The environment, without episodes; None for a world."""
        return None if isinstance(self.env, World) else self.env.unwrapped

    @property
    def world(self) -> World:
        env = self.env
        return env if isinstance(env, World) else env.unwrapped.world

    def data(self, state: Any) -> State:
        return state if self.base is None else state.data

    def moved(self, state: Any, change: Any) -> Any:
        """Return a state after a change of its coordinates `[2 nv + na]`."""
        moved = _displaced(self.world, self.data(state), change)
        if self.base is None:
            return moved
        return state.replace(data=moved, obs=self.base.task.observe(self.world, moved, state.info))

    def action(self, policy: Any, state: Any, step: Any) -> Any:
        """Return the action of a policy, or of an array of actions."""
        return policy[step] if eqx.is_array(policy) else policy(state.obs)

    def control(self, state: Any, action: Any) -> Any:
        """Return the control of the world."""
        return action if self.base is None else self.base.task.control(self.world, self.data(state), action)

    @property
    def substeps(self) -> int:
        return 1 if self.base is None else self.base.n_substeps

    def step(self, state: Any, action: Any) -> tuple[Any, Any]:
        """Return the state after a step, and the reward."""
        if self.base is None:
            return self.env.step(state, action), jnp.zeros((), state.q.dtype)
        state = self.env.step(state, action)
        return state, state.reward


def _motion_of(env: Any, policy: Any, steps: int) -> _Motion:
    if not isinstance(env, AbstractEnvironment | World):
        raise ModelError(f"env is a {type(env).__name__}; an Environment, Episodes, or a World is needed")
    motion = _Motion(env)
    if eqx.is_array(policy):
        if policy.shape != (steps, motion.world.nu):
            raise ShapeError(f"actions have shape {policy.shape}, but [steps, nu] = [{steps}, {motion.world.nu}]")
    elif motion.base is None:
        raise ModelError("a World has no observations: give its controls [steps, nu], or an Environment and a policy")
    elif not isinstance(policy, Callable):
        raise ModelError(f"policy is a {type(policy).__name__}; a function of an observation, or actions are needed")
    return motion


def _displaced(world: World, data: State, change: Any) -> State:
    q, v, activation = jnp.split(change, np.array([1, 2]) * world.model.nv)
    return dataclasses.replace(
        data, q=world.model.integrate(data.q, q), v=data.v + v, activation=data.activation + activation
    )


def _coordinates(world: World, data: State) -> Any:
    """Return zeros `[2 nv + na]`, with the derivatives of the coordinates of a state."""
    fixed = lax.stop_gradient(data)
    return jnp.concatenate(
        [world.model.difference(fixed.q, data.q), data.v - fixed.v, data.activation - fixed.activation]
    )


# The diagnosis.


class _Directions(NamedTuple):
    """Directions of a change of the start `[n, 2 nv + na]`, followed by those of the policy."""

    start: Any
    policy: Any
    of_start: int


class _Grown(NamedTuple):
    """The results of the roll-outs."""

    growth: Any
    gradient: Any
    noise: Any
    step: Any
    """The step of each world in which changes grow most."""
    before: Any
    """The state before it, and its changes `[worlds, n, 2 nv + na]`."""
    changes: Any


@eqx.filter_jit
def _grown(motion: _Motion, policy: Any, states: Any, steps: int, probes: int, key: Any) -> _Grown:
    world, worlds = motion.world, motion.data(states).q.shape[0]
    arrays, rest = _trained(policy)
    directions = _directions(motion, arrays, probes, key, motion.data(states).q.dtype)

    def rolled(change: Any, arrays: Any, state: Any):
        policy = eqx.combine(arrays, rest)

        def one(state, k):
            action = motion.action(policy, state, k)
            after, reward = motion.step(state, action)
            return after, (_coordinates(world, motion.data(after)), reward, state)

        return lax.scan(one, motion.moved(state, change), jnp.arange(steps))[1]

    zero = jnp.zeros_like(directions.start[0])

    def along(start: Any, change: Any, state: Any):
        """Return the changes after each step and of each reward along a direction, and the states before the steps."""
        primal, tangent = eqx.filter_jvp(lambda x, arrays: rolled(x, arrays, state), (zero, arrays), (start, change))
        return tangent[0], tangent[1], primal[2]

    each = jax.vmap(jax.vmap(along, (None, None, 0), (1, 1, 1)), (0, 0, None), (0, 0, None))
    changes, rewards, before = each(directions.start, directions.policy, states)
    n = directions.of_start
    scale = jnp.sqrt(jnp.mean(directions.start[:n] ** 2))
    size = jnp.sqrt(jnp.mean(changes[:n] ** 2, axis=(0, 3))) / scale
    # The state before each step, with its changes, in the step in which these grow most.
    first = jnp.broadcast_to(directions.start[:n, None, None], changes[:n, :1].shape)
    old = jnp.concatenate([first, changes[:n, :-1]], axis=1)
    ratio = size / jnp.concatenate([jnp.ones_like(size[:1]), size[:-1]])
    step = jnp.argmax(jnp.where(jnp.isfinite(ratio), ratio, 0), axis=0)
    take = jnp.arange(worlds)
    before = jax.tree.map(lambda x: x[step, take], before)
    gradient, noise = (None, None) if motion.base is None else _gradients(jnp.cumsum(rewards[n:], axis=1))
    return _Grown(size, gradient, noise, step, before, jnp.swapaxes(old[:, step, take], 0, 1))


@eqx.filter_jit
def _causes(motion: _Motion, policy: Any, found: _Grown) -> tuple[Any, Any]:
    each = jax.vmap(functools.partial(_cause, motion, policy))
    return each(found.before, found.step, found.changes)


def _trained(policy: Any) -> tuple[Any, Any]:
    """Return the arrays of a policy by which its gradient is taken, and all else."""
    # The normalization of observations follows what was seen; it is not trained.
    return eqx.partition(policy, eqx.is_inexact_array, is_leaf=lambda x: isinstance(x, RunningNormalization))


def _directions(motion: _Motion, arrays: Any, probes: int, key: Any, dtype: Any) -> _Directions:
    start, own = jax.random.split(key)
    n = 2 * motion.world.model.nv + motion.world.na
    first = jnp.eye(n, dtype=dtype) if n <= probes else jax.random.normal(start, (probes, n), dtype)
    leaves, structure = jax.tree.flatten(arrays)
    keys = jax.random.split(own, max(len(leaves), 1))
    drawn = [jax.random.normal(k, (probes, *x.shape), x.dtype) for k, x in zip(keys, leaves, strict=False)]
    many = 0 if motion.base is None else probes
    padded = [jnp.concatenate([jnp.zeros((len(first), *x.shape[1:]), x.dtype), x[:many]]) for x in drawn]
    starts = jnp.concatenate([first, jnp.zeros((many, n), dtype)])
    return _Directions(starts, jax.tree.unflatten(structure, padded), len(first))


def _gradients(slopes: Any) -> tuple[Any, Any]:
    """Return the norms of the gradients of the worlds `[steps, worlds]`, and the noise of their mean `[steps]`, from
    their slopes along Gaussian directions `[probes, steps, worlds]`: the mean square of a slope is that of the
    gradient."""
    worlds = slopes.shape[-1]
    norm = jnp.sqrt(jnp.mean(slopes**2, axis=0))
    if worlds == 1:
        return norm, None
    error = jnp.var(slopes, axis=-1, ddof=1).mean(axis=0) / worlds
    # The square of a mean with errors is larger by their variance.
    mean = jnp.mean(jnp.mean(slopes, axis=-1) ** 2, axis=0) - error
    return norm, jnp.where(mean > 0, jnp.sqrt(error / jnp.where(mean > 0, mean, 1)), jnp.inf)


def _cause(motion: _Motion, policy: Any, state: Any, step: Any, changes: Any) -> tuple[Any, Any]:
    """Return the largest growth of the changes `[n, 2 nv + na]` of a state in one time step of a step, and through what
    the velocities change in that time step, `[causes]`."""
    world = motion.world

    def begun(change: Any):
        moved = motion.moved(state, change)
        return motion.data(moved), motion.control(moved, motion.action(policy, moved, step))

    def stepped(change: Any):
        data, control = begun(change)

        def one(x: State, _: None):
            return world.step(x, control), (x, _coordinates(world, x))

        end, (before, inside) = lax.scan(one, data, length=motion.substeps)
        return before, inside, _coordinates(world, end), control

    zero = jnp.zeros_like(changes[0])

    def along(change: Any):
        primal, tangent = jax.jvp(stepped, (zero,), (change,))
        return primal, tangent

    (data, _, _, control), (d_data, inside, end, d_control) = jax.vmap(along, out_axes=(None, 0))(changes)
    size = jnp.sqrt(jnp.mean(jnp.concatenate([inside, end[:, None]], 1) ** 2, axis=(0, 2)))
    ratio = size[1:] / size[:-1]
    k = jnp.argmax(jnp.where(jnp.isfinite(ratio), ratio, 0))
    at, d_at = jax.tree.map(lambda x: x[k], data), jax.tree.map(lambda x: x[:, k], d_data)
    passed = changes_by_cause(world, at, control, d_at, d_control)
    through = jnp.sqrt(jnp.mean(jnp.sum(passed**2, axis=-1), axis=0)) / (size[k] * jnp.sqrt(zero.shape[0] * 1.0))
    return ratio[k], through
