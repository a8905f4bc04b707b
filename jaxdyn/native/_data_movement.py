"""Rules of operations that move data: they leave nothing behind in a program."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from jax import lax

from jaxdyn.native._arithmetic import MOST_ROWS, Arithmetic
from jaxdyn.native._arrays import UnsupportedError, common, is_static, objects, static_again


class DataMovement(Arithmetic):
    """The rules of operations that move data, or only change its type."""

    def _copy(self, operation, xs):
        return xs[0]

    _stop_gradient = _copy_p = _name = _reduce_precision = _copy

    def _convert_element_type(self, operation, xs):
        (x,) = xs
        source, target = np.dtype(operation.inputs[0].dtype), np.dtype(operation.params["new_dtype"])
        if is_static(x):
            return x.astype(np.float64 if target.kind == "f" else target)
        if source == target or (source.kind == "f" and target.kind == "f"):
            return x
        # Integers that depend on data are floating-point numbers of the same value.
        if source.kind == "i" and target.kind == "i" and source.itemsize < target.itemsize:
            return x
        if source.kind == "b":
            return static_again(self.select(x, 0.0, 1.0))
        if target.kind == "b":
            return self.elementwise["ne"](x, 0.0)
        if source.kind == "i" and target.kind == "f":
            return x
        if source.kind == "f" and target.kind == "i":
            toward_zero = [self.elementwise[name](x.astype(object)) for name in ("floor", "ceil")]
            return static_again(self.select(self.elementwise["lt"](x, 0.0), *toward_zero))
        raise UnsupportedError(f"a conversion of {source} to {target}")

    def _reshape(self, operation, xs):
        return xs[0].reshape(operation.params["new_sizes"])

    def _squeeze(self, operation, xs):
        return np.squeeze(xs[0], tuple(operation.params["dimensions"]))

    def _expand_dims(self, operation, xs):
        return np.expand_dims(xs[0], tuple(operation.params["dimensions"]))

    def _broadcast_in_dim(self, operation, xs):
        shape = [1] * len(operation.params["shape"])
        for axis, n in zip(operation.params["broadcast_dimensions"], xs[0].shape, strict=True):
            shape[axis] = n
        return np.broadcast_to(xs[0].reshape(shape), operation.params["shape"])

    def _transpose(self, operation, xs):
        return np.transpose(xs[0], operation.params["permutation"])

    def _rev(self, operation, xs):
        return np.flip(xs[0], operation.params["dimensions"])

    def _slice(self, operation, xs):
        p = operation.params
        strides = p["strides"] or (1,) * xs[0].ndim
        window = zip(p["start_indices"], p["limit_indices"], strides, strict=True)
        return static_again(xs[0][tuple(slice(*w) for w in window)])

    def _concatenate(self, operation, xs):
        return np.concatenate(common(xs), operation.params["dimension"])

    def _stack(self, operation, xs):
        return np.stack(common(xs), operation.params["axis"])

    def _split(self, operation, xs):
        ends = np.cumsum(operation.params["sizes"])[:-1]
        return [static_again(x) for x in np.split(xs[0], ends, operation.params["axis"])]

    def _unstack(self, operation, xs):
        return [static_again(x) for x in np.moveaxis(xs[0], operation.params["axis"], 0)]

    def _dynamic_slice(self, operation, xs):
        x, *starts = xs
        sizes = operation.params["slice_sizes"]
        return static_again(x[_window(x, starts, sizes)])

    def _dynamic_update_slice(self, operation, xs):
        x, update, *starts = xs
        x, update = common([x, update])
        x = x.copy()
        x[_window(x, starts, update.shape)] = update
        return x

    def _iota(self, operation, xs):
        p = operation.params
        shape = [1] * len(p["shape"])
        shape[p["dimension"]] = -1
        return np.broadcast_to(np.arange(p["shape"][p["dimension"]], dtype=p["dtype"]).reshape(shape), p["shape"])

    def _gather(self, operation, xs):
        x, index = xs
        p = operation.params
        if not is_static(index):
            return self._chosen(operation, x, index)
        numbers = p["dimension_numbers"]
        places = _places(
            x.shape,
            index,
            numbers.offset_dims,
            numbers.collapsed_slice_dims,
            numbers.start_index_map,
            numbers.operand_batching_dims,
            numbers.start_indices_batching_dims,
            p["slice_sizes"],
            clip=p["mode"] == lax.GatherScatterMode.CLIP,
        )
        fill = p["fill_value"]
        if (places < 0).any() and fill is None:
            fill = math.nan if x.dtype.kind in "fO" else 0
        if is_static(x):
            return np.append(x.ravel(), x.dtype.type(0 if fill is None else fill))[places]
        return static_again(objects([*x.ravel(), fill], (-1,))[places])

    def _chosen(self, operation, x, index):
        """Return slices along one axis whose places depend on data, by choices between all places."""
        numbers, sizes = operation.params["dimension_numbers"], operation.params["slice_sizes"]
        axes = numbers.start_index_map
        places = x.shape[axes[0]] - sizes[axes[0]] + 1 if len(axes) == 1 else MOST_ROWS + 1
        if places > MOST_ROWS or operation.params["mode"] == lax.GatherScatterMode.FILL_OR_DROP:
            raise UnsupportedError("an index that depends on data")
        rank = len(operation.outputs[0].shape)
        at = np.expand_dims(index[..., 0], tuple(i for i in range(rank) if i in numbers.offset_dims))
        out = self._gather(operation, [x, np.zeros(index.shape, int)])
        for k in range(1, places):
            case = self._gather(operation, [x, np.full(index.shape, k)])
            out = self.select(self.elementwise["ge"](at, float(k)), *common([np.asarray(out), np.asarray(case)]))
        return static_again(out)

    def _pad(self, operation, xs):
        x, value = xs
        x, value = common([x, np.asarray(value)])
        out = np.full(operation.outputs[0].shape, value.item(), x.dtype)
        # The elements of `x` that stay, where a negative number takes some away, and where they land.
        kept, landing = [], []
        for n, size, (low, _, between) in zip(x.shape, out.shape, operation.params["padding_config"], strict=True):
            places = low + (between + 1) * np.arange(n)
            inside = (places >= 0) & (places < size)
            kept.append(np.flatnonzero(inside))
            landing.append(places[inside])
        out[np.ix_(*landing)] = x[np.ix_(*kept)]
        return static_again(out)

    def _scatter(self, operation, xs):
        return self.scattered(operation, xs, lambda old, new: new)

    def _scatter_add(self, operation, xs):
        return self.scattered(operation, xs, self.graph.add)

    def scattered(self, operation, xs, combine: Callable):
        x, index, update = xs
        if not is_static(index):
            raise UnsupportedError("an index that depends on data")
        if all(map(is_static, xs)):
            return self.by_jax(operation, xs)
        numbers = operation.params["dimension_numbers"]
        window = iter(update.shape[i] for i in numbers.update_window_dims)
        dropped = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
        landing = _places(
            x.shape,
            index,
            numbers.update_window_dims,
            numbers.inserted_window_dims,
            numbers.scatter_dims_to_operand_dims,
            numbers.operand_batching_dims,
            numbers.scatter_indices_batching_dims,
            tuple(1 if i in dropped else next(window) for i in range(x.ndim)),
            clip=operation.params["mode"] == lax.GatherScatterMode.CLIP,
        ).ravel()
        out, values = x.astype(object).ravel(), update.astype(object).ravel()
        for k, place in enumerate(landing):
            if place >= 0:
                out[place] = combine(out[place], values[k])
        return static_again(out.reshape(x.shape))


def _window(x, starts, sizes) -> tuple[slice, ...]:
    if not all(map(is_static, starts)):
        raise UnsupportedError("an index that depends on data")
    first = [int(np.clip(int(i), 0, d - n)) for i, d, n in zip(starts, x.shape, sizes, strict=True)]
    return tuple(slice(i, i + n) for i, n in zip(first, sizes, strict=True))


def _places(shape, index, offset_axes, collapsed, mapped, batching, index_batching, sizes, *, clip: bool) -> np.ndarray:
    """Return for each element of a gather's result, or of a scatter's update, its place in the flat operand, or -1
    outside of it. The arguments are those of XLA's operation."""
    starts = np.moveaxis(index, -1, 0)
    rank = len(offset_axes) + starts.ndim - 1
    batch_axes = [i for i in range(rank) if i not in offset_axes]
    kept = [i for i in range(len(shape)) if i not in (*collapsed, *batching)]
    length = dict(zip(offset_axes, (sizes[i] for i in kept), strict=True))
    length |= dict(zip(batch_axes, starts.shape[1:], strict=True))
    out_shape = [length[i] for i in range(rank)]

    def along(values, axes):
        """Return an array whose axes are the given ones of the result."""
        expanded = [1] * rank
        for axis, n in zip(axes, np.shape(values), strict=True):
            expanded[axis] = n
        return np.reshape(values, expanded)

    place, inside = np.zeros(out_shape, int), np.ones(out_shape, bool)
    stride = 1
    for axis in reversed(range(len(shape))):
        at = np.zeros([1] * rank, int)
        if axis in mapped:
            start = starts[mapped.index(axis)]
            if clip:
                start = np.clip(start, 0, shape[axis] - sizes[axis])
            inside = inside & along((start >= 0) & (start <= shape[axis] - sizes[axis]), batch_axes)
            at = at + along(start, batch_axes)
        if axis in batching:
            where = index_batching[batching.index(axis)]
            at = at + along(np.arange(shape[axis]), [batch_axes[where]])
        if axis in kept:
            at = at + along(np.arange(sizes[axis]), [offset_axes[kept.index(axis)]])
        place, stride = place + at * stride, stride * shape[axis]
    return np.where(inside, place, -1)
