"""Shows algorithms as users call them: the decorator makes a function of a `Robot` one of a `Model`."""

from typing import Any

import griffe


class Algorithms(griffe.Extension):
    """Renames the first parameter of functions that `@algorithm` decorates."""

    def on_function_instance(self, *, func: griffe.Function, **_: Any) -> None:
        if any(str(decorator.value).startswith("algorithm(") for decorator in func.decorators):
            first = func.parameters[0]
            # A name of the library, so that it becomes a link.
            first.name, first.annotation = "model", griffe.ExprName("Model", parent=func.package)
