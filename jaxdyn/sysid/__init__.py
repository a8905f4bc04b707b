"""System identification: recordings, physical parametrizations, and fits to measured torques."""

import inspect as _inspect
import typing as _typing

from jaxdyn.sysid.calibration import *
from jaxdyn.sysid.excitation import *
from jaxdyn.sysid.parameters import *
from jaxdyn.sysid.recordings import *
from jaxdyn.sysid.reports import *
from jaxdyn.sysid.rollouts import *
from jaxdyn.sysid.torques import *

# The names that the packages above offer, without modules and aliases of types.
__all__ = [  # pyright: ignore[reportUnsupportedDunderAll]
    name
    for name, value in list(globals().items())
    if not (name.startswith("_") or _inspect.ismodule(value) or isinstance(value, _typing.TypeAliasType))
]
