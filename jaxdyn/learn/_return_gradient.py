"""Which physical parameter of a world the return of a policy depends on most."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdyn import _printing as printing
from jaxdyn._errors import ModelError, require_positive_integer
from jaxdyn._types import Array, Float
from jaxdyn.learn._environment import AbstractEnvironment, EnvironmentState
from jaxdyn.learn._randomization import is_randomized
from jaxdyn.sysid import AllScales, Parametrization

_PERCENT = 0.01


class ReturnGradient(eqx.Module):
    """How much the return of a policy changes with each physical parameter of a world: see `return_gradient`."""

    names: tuple[str, ...] = eqx.field(static=True)
    """The names of the parameters, those of the `Parametrization`."""
    value: Float[Array, ""]
    """The mean return."""
    change: Float[Array, "n"]
    """The change of the mean return for a change of 1 % of each parameter: 0.01 of the derivative by its logarithm."""
    error: Float[Array, "n"]
    """The standard error of `change` over the starts; NaN for one start."""
    order: tuple[int, ...] = eqx.field(static=True)
    """The numbers of the parameters, that with the largest change first."""
    differences: Float[Array, "checked"]
    """The same change of the first parameters of `order`, by central differences over 1 % in both directions."""

    def printed(self) -> printing.Facts:
        """The facts that `print` shows."""
        facts = {}
        for place, k in enumerate(self.order):
            said = f"{float(self.change[k]):+.3g} +- {float(self.error[k]):.1g} for 1 %"
            checked = len(self.differences) > place
            facts[self.names[k]] = said + (f"; {float(self.differences[place]):+.3g} by differences" if checked else "")
        return f"return {float(self.value):.6g}, {len(self.names)} parameters", facts

    __repr__, __str__, _repr_html_ = printing.one_line, printing.text, printing.table


def return_gradient(
    env: AbstractEnvironment,
    policy: Any,
    states: EnvironmentState,
    steps: int,
    *,
    parameters: Parametrization | None = None,
    checked: int = 3,
) -> ReturnGradient:
    """Return the gradient of a policy's return by every physical parameter of the environment's world, by their names.

    The return is the mean over `states` of the sums of the rewards of `steps` steps. Gradients of long or stiff motions
    may be too large to be of use (`gradient_growth`), so those of the parameters with the largest ones stand beside
    central differences: where these differ by more than the `error`, the gradient does not predict a change of 1 %.

    **Arguments**

    - `env`: an `Environment`, or one with wrappers. `policy`: a function of an observation that returns an action.
    - `states`: where the roll-outs start, with one batch axis, of `jax.vmap(env.reset)(keys)`.
    - `parameters`: a `jaxdyn.sysid.Parametrization` of `env.world`, whose free numbers are logarithms of factors; by
      default that with `AllScales()`, a factor for every mass, damping, friction and gain other than zero.
    - `checked`: for how many parameters the differences are taken.

    **Raises** `ModelError` for a parametrization of another world, and for states of a randomized environment.
    """
    require_positive_integer(steps, "return_gradient: steps")
    if is_randomized(states):
        raise ModelError(
            "return_gradient: each of the states has a world of its own; take env.unwrapped and its states"
        )
    world = env.unwrapped.world
    if parameters is None:
        parameters = Parametrization(world, AllScales())
    if jax.tree.structure(parameters.reference) != jax.tree.structure(world):
        raise ModelError("parameters are those of another world than the environment's; make them of env.world")
    value, change, error = _gradient(env, policy, states, steps, parameters)
    order = tuple(np.argsort(-np.abs(np.nan_to_num(np.asarray(change)))).tolist())
    differences = _differences(env, policy, states, steps, parameters, np.array(order[:checked], int))
    return ReturnGradient(parameters.names, value, change, error, order, differences)


def return_of(env: Any, policy: Any, state: EnvironmentState, steps: int) -> Float[Array, ""]:
    """Return the sum of the rewards of a roll-out of one environment. Its reverse pass keeps the states between steps
    and computes what is inside of a step again."""

    @jax.checkpoint
    def one(state: EnvironmentState, _: None):
        state = env.step(state, policy(state.obs))
        return state, state.reward

    return lax.scan(one, state, length=steps)[1].sum()


def _with_parameters(env: Any, parameters: Parametrization, free: Any) -> Any:
    return eqx.tree_at(lambda env: env.unwrapped.world, env, parameters.model(free))


@eqx.filter_jit
def _gradient(env: Any, policy: Any, states: Any, steps: int, parameters: Parametrization) -> tuple[Any, Any, Any]:
    """Return the mean return, and the change for 1 % of each parameter with its standard error."""

    def value(free: Any, state: Any):
        return return_of(_with_parameters(env, parameters, free), policy, state, steps)

    values, slopes = jax.vmap(jax.value_and_grad(value), (None, 0))(parameters.zeros(), states)
    count = len(values)
    spread = jnp.std(slopes, axis=0, ddof=1) if count > 1 else jnp.full_like(slopes[0], jnp.nan)
    return values.mean(), _PERCENT * slopes.mean(axis=0), _PERCENT * spread / count**0.5


@eqx.filter_jit
def _differences(env: Any, policy: Any, states: Any, steps: int, parameters: Parametrization, which: Any) -> Any:
    """Return the changes of the mean return by central differences over 1 % of some parameters."""
    one_percent = _PERCENT * jnp.eye(parameters.size, dtype=parameters.zeros().dtype)[which]

    def value(free: Any, state: Any):
        return return_of(_with_parameters(env, parameters, free), policy, state, steps)

    def mean(free: Any):
        return jax.vmap(value, (None, 0))(free, states).mean()

    return (jax.vmap(mean)(one_percent) - jax.vmap(mean)(-one_percent)) / 2
