"""The interface of every friction law."""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

type Values = jax.Array | np.ndarray | float


class AbstractFriction(eqx.Module):
    """A friction law: a torque that opposes the velocity `v` of a joint, with the sign of `v`.

    The equations of motion subtract it from the actuator's torque: `M a + ... = tau - torque(v)`. All methods work
    element by element and broadcast, so that `v` and the parameters can be `[*batch, nv]`, `[nv, *batch]` or single
    numbers. Where everything is NumPy's, so is the result, in the precision of the arguments.
    """

    @property
    @abc.abstractmethod
    def coefficients(self) -> tuple[Any, ...]:
        """The parameters in which the torque is linear, in the order of `columns`."""

    @abc.abstractmethod
    def columns(self, v: Values) -> tuple[Any, ...]:
        """The derivative of the torque with respect to each of `coefficients`, in the shape of a torque."""

    @abc.abstractmethod
    def slope(self, v: Values) -> Any:
        """The derivative of the torque with respect to `v`, N m s/rad or N s/m."""

    @abc.abstractmethod
    def secant(self, v: Values) -> Any:
        """The torque divided by `v`, N m s/rad or N s/m; finite at `v = 0`, with finite derivatives there."""

    def torque(self, v: Values) -> Any:
        """The torque that opposes `v`, N m or N: the sum of `coefficients` times `columns`."""
        return sum(c * x for c, x in zip(self.coefficients, self.columns(v), strict=True))


def array_module(*arrays: Values) -> Any:
    """`numpy` if no array is JAX's, else `jax.numpy`."""
    return jnp if any(isinstance(x, jax.Array) for x in arrays) else np
