"""Array types and axis names used in the signatures of the library, and the converters of fields to arrays.

`nq`: length of a configuration, `nv`: of a velocity, `nb`: number of bodies, `*batch`: leading batch axes, which
broadcast among the arguments of a call.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Real

from jaxdyn._errors import require_numbers

type ArrayLike = jax.Array | np.ndarray | float | Sequence
"""Numbers, as functions that build models accept them."""

# Arguments: JAX or NumPy arrays. Results are spelled out as `Float[Array, ...]`.
type Configuration = Float[Array | np.ndarray, "*#batch nq"]
"""Configurations: rad and m, and unit quaternions for ball and free joints."""
type Velocity = Float[Array | np.ndarray, "*#batch nv"]
"""Velocities and accelerations of the degrees of freedom."""
type Torque = Float[Array | np.ndarray, "*#batch nv"]
"""Generalized forces on the degrees of freedom."""
type Wrenches = Float[Array | np.ndarray, "*#batch nb 6"]
"""Wrenches `[force, moment]` on the bodies, N and N m."""
type Numbers = Float[Array | np.ndarray, "*#batch n"]
"""Numbers of any count."""

__all__ = ["Array", "ArrayLike", "Bool", "Configuration", "Float", "Numbers", "Real", "Torque", "Velocity", "Wrenches"]


def float_leaf(x: ArrayLike, what: str = "the argument") -> Array:
    """`x` as an array of floating-point numbers, so that it has derivatives. **Raises** `ShapeError`, about `what`, for
    what is not an array of real numbers."""
    require_numbers(x, what)
    if not any(isinstance(part, jax.Array) for part in jax.tree.leaves(x)):
        # `jnp.asarray` would compile a program for each shape, only to copy the numbers.
        numbers = np.asarray(x)
        return jax.device_put(numbers if jnp.issubdtype(numbers.dtype, jnp.floating) else numbers.astype(float))
    x = jnp.asarray(x)
    # The cast also makes a weakly typed number one like any other, so that another in its place does not recompile.
    return x.astype(x.dtype if jnp.issubdtype(x.dtype, jnp.floating) else jnp.result_type(float))


def leaf_of(what: str, *, optional: bool = False) -> Callable[[Any], Any]:
    """Return `float_leaf` for a field with this name in messages; where it is `optional`, None stays None."""

    def convert(x: Any) -> Any:
        return None if optional and x is None else float_leaf(x, what)

    return convert
