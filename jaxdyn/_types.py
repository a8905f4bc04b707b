"""Array types and axis names used in the signatures of the library.

`nq`: length of a configuration, `nv`: of a velocity, `nb`: number of bodies, `*batch`: leading batch axes, which
broadcast among the arguments of a call.
"""

from collections.abc import Sequence

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Real

type ArrayLike = jax.Array | np.ndarray | float | Sequence
"""Numbers, as functions that build models accept them."""

# Arguments: JAX or NumPy arrays. Results are spelled out as `Float[Array, ...]`.
type Configuration = Float[Array | np.ndarray, "*#batch nq"]
type Velocity = Float[Array | np.ndarray, "*#batch nv"]
"""Velocities and accelerations of the degrees of freedom."""
type Torque = Float[Array | np.ndarray, "*#batch nv"]
"""Generalized forces on the degrees of freedom."""
type Wrenches = Float[Array | np.ndarray, "*#batch nb 6"]

__all__ = ["Array", "ArrayLike", "Bool", "Configuration", "Float", "Real", "Torque", "Velocity", "Wrenches"]
