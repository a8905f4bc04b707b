"""Typed configurations, as `jaxdyn.cli` has them."""

from jaxdyn.cli._config import parse_arguments, read_config

__all__ = ["parse_arguments", "read_config"]
