"""Differentiable rigid-body dynamics, system identification and trajectory optimization in JAX.

Importing this loads nothing: a name is loaded with its package when it is first used, `jaxdyn.aba` and `from jaxdyn
import aba` alike, and `jaxdyn.sysid`, `jaxdyn.trajopt` and the other packages are there without being imported.
`__init__.pyi` lists the names.
"""

import lazy_loader

__version__ = "0.2.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
