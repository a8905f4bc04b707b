"""Digests of arrays, by which files say whether they are as they were written."""

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np


def digest_of_arrays(arrays: Mapping[str, Any]) -> str:
    """The SHA-256 of arrays with their names."""
    state = hashlib.sha256()
    for name, array in arrays.items():
        x = np.asarray(array)
        state.update(f"{name} {x.dtype.str} {x.shape};".encode())
        state.update(x.tobytes())
    return state.hexdigest()
