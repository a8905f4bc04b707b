"""Array types and axis names used in the signatures of the library.

`nq`: length of a configuration, `nv`: of a velocity, `nb`: number of bodies, `...`: leading batch axes.
"""

from collections.abc import Sequence

import jax
import numpy as np
from jaxtyping import Array, Float

type ArrayLike = jax.Array | np.ndarray | float | Sequence
"""What functions that build models accept where numbers are meant."""

# What functions take: JAX or NumPy arrays. What they return is spelled out as `Float[Array, ...]`.
type Configuration = Float[Array | np.ndarray, "*batch nq"]
type Velocity = Float[Array | np.ndarray, "*batch nv"]
type Wrenches = Float[Array | np.ndarray, "*batch nb 6"]

__all__ = ["Array", "ArrayLike", "Configuration", "Float", "Velocity", "Wrenches"]
