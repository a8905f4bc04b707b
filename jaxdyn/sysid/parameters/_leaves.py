"""The leaves of a robot, which is a model or a pytree that has one as its attribute `model`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxdyn._errors import (
    ModelError,
    PhysicalityWarning,
    look_up,
    naming_arguments,
    require_numbers,
    require_shape,
    warn,
)
from jaxdyn._types import ArrayLike
from jaxdyn.model import BodyInertia, Model
from jaxdyn.sysid.parameters._log_cholesky import inertial_parameters_from_pseudo_inertia, is_physical, nearest_physical
from jaxdyn.worlds import World

type Claims = frozenset[tuple[int, int]]
"""Entries of a pytree: the number of a leaf, in the order of `jax.tree.leaves`, and the place in it when flattened."""


def model_of(tree: Any) -> Model:
    """Return the model of a robot. **Raises** `ModelError` for a pytree without one."""
    model = tree if isinstance(tree, Model) else getattr(tree, "model", None)
    if not isinstance(model, Model):
        raise ModelError(
            f"{type(tree).__name__} is not a Model and has no attribute 'model' that is one; a parametrization needs it"
        )
    return model


def with_model(tree: Any, model: Model) -> Any:
    return model if isinstance(tree, Model) else eqx.tree_at(lambda t: t.model, tree, model)


def following(reference: Any, tree: Any, claims: Claims) -> Any:
    """Return a robot made from a reference by changes of the entries `claims`, with what follows from them: constants
    of a world that its file's inertias determine."""
    if not isinstance(tree, World) or not any(leaf_name(tree, i).startswith("model.") for i, _ in claims):
        return tree
    return with_model(tree, reference.model).with_model(tree.model)


def warn_of_held_constants(reference: Any, claims: Claims) -> None:
    """Warn where inertias are free on which drag in a fluid depends, which stays that of the reference."""
    inertias = any("inertial_parameters" in leaf_name(reference, i) for i in {leaf for leaf, _ in claims})
    if inertias and isinstance(reference, World) and reference.parts.passive.fluid is not None:
        warn(
            "inertias are free in a world with a fluid, whose drag acts on boxes that MuJoCo derives from them when it "
            "loads the file: these boxes stay those of the reference",
            PhysicalityWarning,
        )


def number_of(tree: Any, where: str | Callable[[Any], Any], what: str = "leaf") -> int:
    """Return the number of the leaf that is a field of the model, or that a function picks; `ModelError` for none."""
    structure = jax.tree.structure(tree)
    marks = [object() for _ in range(structure.num_leaves)]
    marked = jax.tree.unflatten(structure, marks)
    try:
        picked = getattr(model_of(marked), where) if isinstance(where, str) else where(marked)
    except TypeError:
        picked = None
    for i, mark in enumerate(marks):
        if mark is picked:
            return i
    raise ModelError(
        f"{what}: the function does not pick one array of the robot; give one such as `lambda robot: robot.gravity`, "
        "and choose entries of the array with `at`"
    )


def leaf_name(tree: Any, number: int) -> str:
    path, _ = jax.tree_util.tree_leaves_with_path(tree)[number]
    return jax.tree_util.keystr(path).removeprefix(".")


def entries(tree: Any, number: int, flat: np.ndarray) -> jax.Array:
    return jnp.asarray(jax.tree.leaves(tree)[number]).reshape(-1)[flat]


def known_entries(tree: Any, number: int, flat: np.ndarray) -> np.ndarray | None:
    """Return `entries` in NumPy, or None while tracing."""
    leaf = jax.tree.leaves(tree)[number]
    return None if isinstance(leaf, Tracer) else np.asarray(leaf).reshape(-1)[flat]


def with_entries(tree: Any, number: int, flat: np.ndarray, values: jax.Array) -> Any:
    arrays, structure = jax.tree.flatten(tree)
    old = jnp.asarray(arrays[number])
    arrays[number] = old.reshape(-1).at[flat].set(values.astype(old.dtype)).reshape(old.shape)
    return jax.tree.unflatten(structure, arrays)


def with_pseudo_inertias(tree: Any, bodies: Sequence[int], J: jax.Array) -> Any:
    """Return the robot with the pseudo-inertias `J` `[k, 4, 4]` of bodies."""
    model = model_of(tree)
    parameters = inertial_parameters_from_pseudo_inertia(J).astype(model.inertial_parameters.dtype)
    inertias = model.inertial_parameters.at[np.array(bodies)].set(parameters)
    return with_model(tree, eqx.tree_at(lambda m: m.inertial_parameters, model, inertias))


def chosen_names(names: Sequence[str] | None, known: Sequence[str], kind: str, what: str) -> tuple[int, ...]:
    """Return the indices of names in `known`, all for None. **Raises** `UnknownNameError`, `ModelError`."""
    plural = {"body": "bodies"}.get(kind, f"{kind}s")
    if isinstance(names, str):
        raise ModelError(f"{what}: {plural} is the string {names!r}, but a sequence of names is needed: [{names!r}]")
    names = tuple(known if names is None else names)
    if not names or len(set(names)) < len(names):
        raise ModelError(f"{what}: {plural} is {names}; different names, at least one, are needed")
    return tuple(look_up(name, known, kind) for name in names)


def require_physical(model: Model, bodies: Sequence[int], what: str, advice: str) -> None:
    """Raise `ModelError`, unless tracing, for bodies whose inertial parameters no distribution of mass has."""
    physical = jax.jit(is_physical)(model.inertial_parameters)
    if isinstance(physical, Tracer):
        return
    physical = np.asarray(physical)[np.array(bodies)]
    bad = [model.body_names[i] for i, ok in zip(bodies, physical, strict=True) if not ok]
    if bad:
        raise ModelError(
            f"{what}: no distribution of mass has the inertial parameters of {', '.join(bad)}, so they have no "
            f"coordinates; {advice}"
        )


@naming_arguments
def nearest_physical_model(model: Model) -> tuple[Model, tuple[str, ...]]:
    """The model with the nearest physical inertias (`nearest_physical`), and the names of the bodies that change."""
    inertial = model.inertial_parameters
    physical = np.asarray(is_physical(inertial))
    bad = tuple(name for name, ok in zip(model.body_names, physical, strict=True) if not ok)
    if not bad:
        return model, bad
    inertial = jnp.where(physical[:, None], inertial, nearest_physical(inertial).astype(inertial.dtype))
    return dataclasses.replace(model, inertial_parameters=inertial), bad


def physical_parameters(inertia: BodyInertia | ArrayLike, what: str) -> np.ndarray:
    """Return ten inertial parameters. **Raises** `ShapeError`; `ModelError` where they are not physical."""
    if not isinstance(inertia, BodyInertia):
        require_numbers(inertia, what, "a BodyInertia or ten inertial parameters")
    out = np.asarray(inertia.parameters() if isinstance(inertia, BodyInertia) else inertia, np.float64)
    require_shape(out, (10,), what, "inertial parameters about the origin of the frame")
    if not bool(is_physical(out)):
        raise ModelError(f"{what} is not physical: no distribution of mass has the inertial parameters {out}")
    return out


def inertia_claims(tree: Any, bodies: Sequence[int]) -> Claims:
    number = number_of(tree, "inertial_parameters")
    return frozenset((number, 10 * i + k) for i in bodies for k in range(10))


type Place = tuple[str, int]
"""A leaf of placements of a model, and a row of it."""

LEAVES = ("joint_placement", "loop_placement1", "loop_placement2")


def chosen_places(model: Model, names: Sequence[str] | None = None) -> tuple[Place, ...]:
    """Return the places of joints and loops of these names; all for None. **Raises** `UnknownNameError`."""
    places = list(_labelled(model))
    for name in names or ():
        look_up(name, tuple(dict.fromkeys(x for *_, x, _ in places)), "joint or loop")
    return tuple(place for place, name, _ in places if names is None or name in names)


def place_label(model: Model, place: Place) -> str:
    """Return the name of a place: that of the joint, or of the loop with the number of its frame."""
    return next(label for x, _, label in _labelled(model) if x == place)


def _labelled(model: Model) -> Iterator[tuple[Place, str, str]]:
    """Yield places, the names of their joints or loops, and their own names."""
    joints, *loops = LEAVES
    for i, name in enumerate(model.joint_names):
        yield (joints, i), name, name
    for number, leaf in enumerate(loops, 1):
        for i, loop in enumerate(model.topology.loops):
            yield (leaf, i), loop.name, f"{loop.name}, frame {number}"
