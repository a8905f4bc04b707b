"""Environments for PyTorch: tensors in and out, and derivatives of first order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from jaxdyn._errors import ShapeError
from jaxdyn._extras import import_extra
from jaxdyn.learn._compiled_environment import compiled_with
from jaxdyn.learn._environment import AbstractEnvironment, EnvironmentState

_torch = import_extra("torch", "differentiate steps by PyTorch", "torch")


class TorchEnvironment:
    """A batch of environments whose states are `EnvironmentState`s of tensors, with an axis of environments in front.

    `step` and `rollout` are differentiable once, with respect to all tensors of floating-point numbers. Tensors and
    arrays of JAX share their memory (DLPack), so the tensors of a state must not be changed in place; where that would
    spoil a derivative, PyTorch refuses it. Random keys are tensors of integers.
    """

    def __init__(self, env: AbstractEnvironment):
        self.env = env
        self.action_size, self.observation_size = env.action_size, env.observation_size
        start = jax.eval_shape(env.reset, jax.random.key(0))
        self._reset = compiled_with(env, lambda env, keys: _without_keys(jax.vmap(env.reset)(keys)))

        def step(env, state, action):
            return _without_keys(jax.vmap(env.step)(_with_keys(start, state), action))

        def rollout(env, state, actions):
            def advance(state, action):
                state = step(env, state, action)
                return state, (state.obs, state.reward, state.done)

            state, seen = jax.lax.scan(advance, state, actions)
            return state, *seen

        self._step, self._rollout = _Differentiable(env, step), _Differentiable(env, rollout)

    def reset(self, num_envs: int, seed: int = 0) -> EnvironmentState:
        """Return starts of episodes, drawn with a seed."""
        return _to_torch(self._reset(jax.random.split(jax.random.key(seed), num_envs)))

    def step(self, state: EnvironmentState, action: Any) -> EnvironmentState:
        """Return what follows actions `[n, nu]`. **Raises** `ShapeError` for other shapes and types of tensors."""
        self._require(state, action, ())
        return self._step(state, action)

    def rollout(self, state: EnvironmentState, actions: Any) -> tuple[EnvironmentState, Any, Any, Any]:
        """Return the state after actions `[steps, n, nu]`, and observations, rewards and ends `[steps, n, ...]` after
        each of them. Errors as for `step`."""
        self._require(state, actions, actions.shape[:1])
        return self._rollout(state, actions)

    def _require(self, state: EnvironmentState, actions: Any, steps: tuple[int, ...]) -> None:
        shape, reward = (*steps, *state.reward.shape, self.action_size), state.reward
        if tuple(actions.shape) != shape:
            raise ShapeError(f"actions have shape {list(actions.shape)}, but {list(shape)} is needed")
        if actions.dtype != reward.dtype:
            raise ShapeError(
                f"actions are {actions.dtype}, but the state is {reward.dtype}: actions.to(state.reward.dtype)"
            )


class _Differentiable:
    """A function of pytrees of tensors that JAX computes and differentiates."""

    def __init__(self, env: AbstractEnvironment, function: Callable[..., Any]):
        self.value = compiled_with(env, function)
        self.value_and_pullback = compiled_with(env, lambda env, *x: _value_and_pullback(env, function, *x))
        self.pull = jax.jit(lambda pullback, cotangent: pullback(cotangent)[0])

    def __call__(self, *arguments: Any) -> Any:
        leaves, tree = jax.tree.flatten(arguments)
        if not (_torch.is_grad_enabled() and any(x.requires_grad for x in leaves)):
            return _to_torch(self.value(*_to_jax(arguments)))
        results: list[Any] = []
        tensors = _Call.apply(self, tree, results, *leaves)
        return results[0].unflatten(tensors)


def _value_and_pullback(env: Any, function: Callable[..., Any], *arguments: Any) -> Any:
    floats, others = eqx.partition(arguments, eqx.is_inexact_array)

    def of_floats(floats):
        return eqx.partition(function(env, *eqx.combine(floats, others)), eqx.is_inexact_array)

    value, pullback, rest = jax.vjp(of_floats, floats, has_aux=True)
    return value, rest, pullback


class _Call(_torch.autograd.Function):
    """One call of a function, for the derivative of which PyTorch keeps what JAX has computed."""

    @staticmethod
    def forward(ctx: Any, function: _Differentiable, tree: Any, results: list[Any], *leaves: Any) -> Any:
        value, rest, ctx.pullback = function.value_and_pullback(*_to_jax(tree.unflatten(leaves)))
        ctx.function, ctx.tree = function, jax.tree.structure(value)
        whole, structure = jax.tree.flatten(_to_torch(eqx.combine(value, rest)))
        results.append(structure)
        ctx.floats = [x.is_floating_point() for x in leaves], [x.is_floating_point() for x in whole]
        ctx.mark_non_differentiable(*(x for x in whole if not x.is_floating_point()))
        # The pullback reads the same memory: PyTorch raises where a tensor that it keeps has been changed.
        ctx.save_for_backward(*leaves, *whole)
        return tuple(whole)

    @staticmethod
    @_torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Any) -> Any:
        _ = ctx.saved_tensors
        inputs, outputs = ctx.floats
        chosen = [g for g, is_float in zip(gradients, outputs, strict=True) if is_float]
        cotangent = ctx.tree.unflatten(_to_jax(chosen))
        found = iter(jax.tree.leaves(_to_torch(ctx.function.pull(ctx.pullback, cotangent))))
        return None, None, None, *(next(found) if is_float else None for is_float in inputs)


def _to_jax(tree: Any) -> Any:
    return jax.tree.map(lambda x: jnp.from_dlpack(x.detach().contiguous()), tree)


def _to_torch(tree: Any) -> Any:
    return jax.tree.map(_torch.from_dlpack, jax.block_until_ready(tree))


def _is_key(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def _without_keys(tree: Any) -> Any:
    """Return a pytree with the data of random keys in their place."""
    return jax.tree.map(lambda x: jax.random.key_data(x) if _is_key(x) else x, tree)


def _with_keys(like: Any, tree: Any) -> Any:
    """Return a pytree with random keys where `like` has them."""
    # All keys come from that of `reset`, which is of the default kind.
    return jax.tree.map(lambda x, y: jax.random.wrap_key_data(y) if _is_key(x) else y, like, tree)
