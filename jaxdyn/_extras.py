"""Packages that extras of the installation install."""

import importlib
from typing import Any


def import_extra(module: str, purpose: str, extra: str = "viz") -> Any:
    """Return an optional module. **Raises** `ImportError` that says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ImportError(f"{package} is not installed; to {purpose}, pip install 'jaxdyn[{extra}]'") from error
