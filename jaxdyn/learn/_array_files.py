"""Files of pytrees: policies and checkpoints, as NumPy archives with checksums and without pickle."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn._digests import digest_of_arrays
from jaxdyn._durable_files import write_durably
from jaxdyn._errors import DataError
from jaxdyn.learn._networks import Policy

_FACTS, _CHECKSUM = "facts", "sha256"


def write_tree(path: Path, tree: Any, facts: dict[str, Any]) -> None:
    """Write the arrays of a pytree, and facts that JSON can hold. Readers see the old file or the new one."""
    arrays = {name: np.asarray(_plain(x)) for name, x in _named(tree)}
    arrays[_FACTS] = np.array(json.dumps(facts))
    arrays[_CHECKSUM] = np.array(digest_of_arrays(arrays))

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            np.savez(file, **arrays)

    write_durably(path, write)


def read_tree(path: Path, like: Callable[[dict[str, Any]], Any]) -> tuple[Any, dict[str, Any]]:
    """Return the pytree and the facts of a file; `like` returns a pytree of the same structure for the facts.
    **Raises** `DataError` for a file that is damaged, or of something else."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        checksum = str(arrays.pop(_CHECKSUM))
        if checksum != digest_of_arrays(arrays):
            raise ValueError("the checksum is not that of the content")
        facts = json.loads(str(arrays.pop(_FACTS)))
        return _filled(like(facts), arrays), facts
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    # Damaged bytes make `zipfile`, `numpy` and `json` raise nearly anything.
    except Exception as error:
        raise DataError(f"{path}: cannot be read ({type(error).__name__}: {error})") from None


def _filled(like: Any, arrays: dict[str, np.ndarray]) -> Any:
    def stored(name: str, x: Any) -> Any:
        y, plain = arrays[name], _plain(x)
        if y.shape != plain.shape or y.dtype != plain.dtype:
            raise ValueError(f"{name} is {y.dtype}{list(y.shape)}, not {plain.dtype}{list(plain.shape)}")
        return jax.random.wrap_key_data(jnp.asarray(y), impl=jax.random.key_impl(x)) if _is_key(x) else jnp.asarray(y)

    return jax.tree.unflatten(jax.tree.structure(like), [stored(name, x) for name, x in _named(like)])


def _named(tree: Any) -> list[tuple[str, Any]]:
    # Slashes would make folders in an archive.
    return [(jax.tree_util.keystr(p).replace("/", "|"), x) for p, x in jax.tree_util.tree_leaves_with_path(tree)]


def _is_key(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def _plain(x: Any) -> Any:
    return jax.random.key_data(x) if _is_key(x) else x


def save_policy(path: str | os.PathLike, policy: Policy) -> None:
    """Write a policy with its normalization into a NumPy archive (`.npz`), without pickle."""
    write_tree(Path(path), policy, {"sizes": policy.sizes, "dtype": str(policy.log_std.dtype)})


def load_policy(path: str | os.PathLike) -> Policy:
    """Load a policy that `save_policy` has written. **Raises** `DataError` for a file that holds none."""

    def like(facts: dict[str, Any]) -> Policy:
        n, *widths, nu = facts["sizes"]
        return Policy(n, nu, widths=tuple(widths), dtype=facts["dtype"], key=jax.random.key(0))

    return read_tree(Path(path), like)[0]
