"""The direction in which two convex shapes are farthest apart, whether they overlap or not.

Along a unit vector `n` two shapes are `g(n) = n d - h1(n) - h2(n)` apart, with the offset `d` of their centers and
their support functions `h`. The largest `g` is their distance, or minus the depth of the shallowest way out of each
other, which MuJoCo's general routine looks for with a polytope. Ellipsoids, boxes and cylinders are sums of ellipsoids,
some of them flat: a box is the sum of three lines, a cylinder of a line and a disk. So `g = n d - sum |A n|`, and its
maximum is found by the primal-dual method for sums of norms (Andersen, Christiansen, Conn & Overton, SIAM J. Sci.
Comput. 22, 2000): Newton steps with `sqrt(|A n|^2 + eps^2)` for the norms, where `eps` shrinks, and the places `A c`
with `|c| <= 1` as unknowns beside `n`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxdyn._compile import once
from jaxdyn.geometry._componentwise import SHORTEST, X_AXIS, largest_of, length_and_direction, roundoff, select, sign
from jaxdyn.geometry.pairs._candidates import Placed, complete_frame
from jaxdyn.spatial import Mat3, Vec3

type Summand = tuple[Vec3, ...]
"""An ellipsoid by its semi-axes: one of a line, two of a disk, three of a solid."""
type Shape = tuple[Summand, ...]
"""A shape as a sum of ellipsoids, around its center."""

FIRST, SHRINKS = 0.3, 0.36
"""The first rounding, as a part of the shapes' size, and by what it is multiplied in each step."""
LAST = {True: 1e-11, False: 1e-4}
"""The last rounding for double and for single precision, as a part of the shapes' size. A summand that is seen from its
edge, with its end nearly as far as its middle, loses this part of its size, and places along it far more."""
CONVERGED = {True: 1e-6, False: 1e-2}
"""The change of directions and places at which the steps end. Two more steps follow."""
AT_LAST = 4
"""There are at least so many steps with the last rounding."""
MOST_STEPS = 40
LONGEST = 0.7
"""The longest step, rad."""
LEAST = 0.8
"""The part of the smallest curvature by which steps may count on the overlap, which makes the problem less convex."""
SHORTER = 0.3
"""The part of a step that is tried as well."""
BETTER = 1e-4
"""The gap, as a part of the shapes' size, by which such an axis must be better."""
AGAIN = 1e-2
"""The first rounding from there."""
NEAR, STEPS_NEAR = 1e-3, 24
"""The first rounding near a solution, and the number of steps: 19 until the last rounding, and some with it."""
SMOOTH, STEPS_SMOOTH = 1e-8, 8
"""The rounding whose derivatives solutions near edges of meshes have, and the number of steps from the last one to it.
Equations that are divided by the last rounding amplify errors: an ellipsoid at an edge had derivatives that were off by
0.3 of 40, and that differed between forward and reverse mode."""
SURE = 1e-6
"""The least curvature, as a part of the shapes' size, with which the last steps are taken."""


def ellipsoid_shape(geom: Placed) -> Shape:
    R = geom.pose.rotation
    return (tuple(axis * geom.size(i) for i, axis in enumerate((R.x, R.y, R.z))),)


def capsule_axis(geom: Placed) -> Shape:
    return ((geom.axis * geom.size(1),),)


def box_shape(geom: Placed) -> Shape:
    return tuple((axis,) for axis in ellipsoid_shape(geom)[0])


def cylinder_shape(geom: Placed) -> Shape:
    R, radius = geom.pose.rotation, geom.size(0)
    return ((R.x * radius, R.y * radius), (R.z * geom.size(1),))


class Separation(NamedTuple):
    """Two shapes along the direction in which they are farthest apart."""

    distance: Any
    """Minus the depth where they overlap."""
    normal: Vec3
    """From the first to the second."""
    place1: Vec3
    """The nearest point of the first shape, from its center."""
    place2: Vec3
    """The nearest point of the second shape, from its center."""
    inner: tuple[tuple[tuple[Any, ...], ...], tuple[tuple[Any, ...], ...]]
    """The coordinates of these points in each summand, between -1 and 1 along its semi-axes."""


def separation(offset: Vec3, one: Shape, two: Shape) -> Separation:
    """Return how far apart two shapes are, with the offset of the second one's center.

    Derivatives are those of the maximum. It is the largest one of all for overlaps up to about half the smallest size;
    deeper ones may end in a direction that is the best one of its neighborhood.
    """
    fixed = jax.lax.stop_gradient((offset, one + two))
    problem = _SumOfNorms(*fixed, _size(fixed[1]))
    state = jax.lax.stop_gradient(_searched(problem))
    return _finished(_SumOfNorms(offset, one + two, problem.size), state, len(one), problem.last)


def separation_near(offset: Vec3, one: Shape, two: Shape, normal: Vec3, inner: Sequence[Sequence[Any]]) -> Separation:
    """Return the same next to a direction, with the coordinates of the nearest points in each summand that belong to
    it, those of the second shape with the other sign."""
    fixed = jax.lax.stop_gradient((offset, one + two))
    problem = _SumOfNorms(*fixed, _size(fixed[1]))
    zero = jnp.zeros_like(problem.size + normal.x)
    begin = jax.tree.map(lambda x: x + zero, _Direction(normal, tuple(tuple(x) for x in inner), zero))

    def step(k, state):
        rounding = jnp.maximum(problem.last, NEAR * problem.size * SHRINKS**k)
        return _stepped(problem, state, rounding, True)

    state = jax.lax.fori_loop(0, STEPS_NEAR, step, jax.lax.stop_gradient(begin))
    whole, smooth = _SumOfNorms(offset, one + two, problem.size), jnp.maximum(problem.last, SMOOTH * problem.size)
    found = _finished(whole, state, len(one), problem.last)
    smoothed = jax.lax.fori_loop(0, STEPS_SMOOTH, lambda k, state: _stepped(problem, state, smooth, True), state)
    moving = _finished(whole, smoothed, len(one), smooth)
    return jax.tree.map(lambda a, b: jax.lax.stop_gradient(a - b) + b, found, moving)


def _finished(whole: _SumOfNorms, state: _Direction, count: int, rounding: Any) -> Separation:
    """The result of two more steps, which have the derivatives of the solution, with the number of summands of the
    first shape."""
    state = jax.lax.stop_gradient(state)
    for _ in range(2):
        state = _stepped(whole, state, rounding, False)
    places = [
        _sum(axis * x for axis, x in zip(*pair, strict=True)) for pair in zip(whole.summands, state.inner, strict=True)
    ]
    place1, place2 = _sum(places[:count]), -_sum(places[count:])
    distance = state.normal.dot(whole.offset - place1 + place2)
    return Separation(distance, state.normal, place1, place2, (state.inner[:count], state.inner[count:]))


class _SumOfNorms(NamedTuple):
    """The offset of the centers, all summands of both shapes, and their size."""

    offset: Vec3
    summands: Shape
    size: Any

    @property
    def last(self):
        """The last rounding."""
        return LAST[jnp.result_type(self.size) == jnp.float64] * self.size

    def gap(self, normal: Vec3, rounding: Any = 0.0):
        """How far the rounded shapes are apart along a direction."""
        norms = (_square([normal.dot(axis) for axis in axes]) + rounding * rounding for axes in self.summands)
        return normal.dot(self.offset) - sum(jnp.sqrt(x + SHORTEST * SHORTEST) for x in norms)


class _Direction(NamedTuple):
    """A direction and the places in the summands."""

    normal: Vec3
    inner: tuple[tuple[Any, ...], ...]
    change: Any
    """The largest change of these in the last step."""


def _sum(vectors) -> Any:
    return sum(vectors, Vec3(0.0, 0.0, 0.0))


def _square(components):
    return sum(x * x for x in components)


def _size(summands: Shape):
    """The mean length of the summands."""
    return sum(jnp.sqrt(sum(axis.squared_norm() for axis in axes)) for axes in summands) / len(summands)


def _start(problem: _SumOfNorms) -> Vec3:
    """The normal at the offset of an ellipsoid that is like both shapes together."""
    nothing = jax.tree.map(jnp.zeros_like, problem.offset)
    columns = [Mat3(*axes, *[nothing] * (3 - len(axes))) for axes in problem.summands]
    first, *rest = (c.compose(c.T) for c in columns)
    Q = sum(rest, first)
    first, second, third = Q.y.cross(Q.z), Q.z.cross(Q.x), Q.x.cross(Q.y)
    # In proportion to the inverse times the offset: the matrix is symmetric and its determinant positive.
    offset, scale = problem.offset, 1 / Q.x.dot(first)
    guess = Vec3(first.dot(offset), second.dot(offset), third.dot(offset)) * scale
    return length_and_direction(guess, X_AXIS, SHORTEST)[1]


def _places(problem: _SumOfNorms, normal: Vec3, rounding) -> tuple[tuple[Any, ...], ...]:
    """The places in the rounded summands that are farthest in a direction."""
    out = []
    for axes in problem.summands:
        along = [normal.dot(axis) for axis in axes]
        scale = 1 / jnp.sqrt(_square(along) + rounding * rounding)
        out.append(tuple(x * scale for x in along))
    return tuple(out)


def _searched(problem: _SumOfNorms) -> _Direction:
    """The state after steps with shrinking rounding, once more from the best axis where that is better."""
    start, size = _start(problem), problem.size
    along_axis, axis = _best_axis(problem)
    zero = jnp.zeros_like(size + start.x + problem.offset.x)
    goal = CONVERGED[zero.dtype == jnp.float64]
    # Solids have no edges.
    first = FIRST * size if any(len(axes) < 3 for axes in problem.summands) else problem.last
    state = _Direction(start, _places(problem, start, first), 2 * goal)
    second = AGAIN * size
    again = _Direction(axis, _places(problem, axis, second), 2 * goal), second
    begin, again = jax.tree.map(lambda x: x + zero, ((state, first, zero, zero), again))

    def settled(state, rounding, count):
        return ((rounding <= problem.last * SHRINKS**AT_LAST) & (state.change <= goal)) | (count >= MOST_STEPS)

    def unfinished(carried):
        state, rounding, count, compared = carried
        return ~settled(state, rounding, count) | (compared < 1)

    def step(carried):
        state, rounding, count, compared = carried
        after = _stepped(problem, state, jnp.maximum(rounding, problem.last), True)
        rounding, count = rounding * SHRINKS, count + 1
        compares = settled(after, rounding, count) & (compared < 1)
        restarts = compares & (along_axis > problem.gap(after.normal) + BETTER * size)
        after, rounding = select(restarts, again, (after, rounding))
        following = after, rounding, jnp.where(restarts, 0.0, count), jnp.where(compares, 1.0, compared)
        # What has ended stays as it is, so that no element of a batch depends on the others.
        return select(unfinished(carried), following, carried)

    return jax.lax.while_loop(lambda carried: unfinished(carried).any(), step, begin)[0]


def _stepped(problem: _SumOfNorms, state: _Direction, rounding, searching: bool) -> _Direction:
    """The state after one of Newton's steps: while searching, one that makes the gap larger."""
    frame = once(complete_frame(state.normal))
    rest = problem.offset
    curvature: list[Any] = [0.0, 0.0, 0.0]
    known = []
    for axes, inner in zip(problem.summands, state.inner, strict=True):
        along = [state.normal.dot(axis) for axis in axes]
        inverse = 1 / jnp.sqrt(_square(along) + rounding * rounding)
        places = [x * inverse for x in along]
        rest = rest - _sum(axis * x for axis, x in zip(axes, places, strict=True))
        slopes = [(axis.dot(frame.y), axis.dot(frame.z)) for axis in axes]
        known.append((slopes, places, inverse))
        # The rates of the places, whose own linear equations these are, with the unknown places.
        at, unknown = ([_square_of(x, s, i) for i in (0, 1)] for x, s in ((places, slopes), (inner, slopes)))
        for k, (i, j) in enumerate(((0, 0), (0, 1), (1, 1))):
            whole = sum(s[i] * s[j] for s in slopes)
            curvature[k] = curvature[k] + inverse * (whole - 0.5 * (at[i] * unknown[j] + unknown[i] * at[j]))
    rest, curvature, known = once((rest, curvature, known))
    slope = rest.dot(frame.y), rest.dot(frame.z)
    turn = once(_turn(problem, curvature, slope, state.normal.dot(rest), searching))
    normal = once(_turned(frame, turn))
    if searching:
        shorter = tuple(x * SHORTER for x in turn)
        other = _turned(frame, shorter)
        better = problem.gap(other, rounding) > problem.gap(normal, rounding)
        normal, turn = once(select(better, (other, shorter), (normal, turn)))
    inner = tuple(
        _moved(slopes, places, inverse, own, turn)
        for (slopes, places, inverse), own in zip(known, state.inner, strict=True)
    )
    inner = once(inner)
    changes = jax.tree.leaves((turn, jax.tree.map(jnp.subtract, inner, state.inner)))
    return _Direction(normal, inner, functools.reduce(jnp.maximum, map(jnp.abs, changes)))


def _square_of(places, slopes, i: int):
    return sum(x * s[i] for x, s in zip(places, slopes, strict=True))


def _turn(problem: _SumOfNorms, curvature, slope, gap, searching: bool) -> tuple[Any, Any]:
    """Newton's turn to both directions across; where the maximum is not unique, none unless searching."""
    aa, ab, bb = curvature
    half = 0.5 * (aa - bb)
    smallest = 0.5 * (aa + bb) - jnp.sqrt(half * half + ab * ab + SHORTEST * SHORTEST)
    if searching:
        shift = jnp.maximum(gap, -LEAST * jnp.maximum(smallest, 0)) + SHORTEST
        sure: Any = True
    else:
        shift = gap
        sure = smallest + gap > SURE * problem.size
    aa, bb = aa + shift, bb + shift
    product = aa * bb
    # Curvatures of an edge seen obliquely may be so large that their difference is rounding.
    sure = sure & (product - ab * ab > roundoff(product) * product)
    determinant = jnp.where(sure, product - ab * ab, 1)
    a, b = slope
    turn = jnp.where(sure, (bb * a - ab * b) / determinant, 0), jnp.where(sure, (aa * b - ab * a) / determinant, 0)
    if not searching:
        return turn
    length = jnp.sqrt(_square(turn) + SHORTEST * SHORTEST)
    scale = jnp.minimum(LONGEST / length, 1)
    return turn[0] * scale, turn[1] * scale


def _turned(frame: Mat3, turn) -> Vec3:
    return length_and_direction(frame.x + frame.y * turn[0] + frame.z * turn[1], X_AXIS, SHORTEST)[1]


def _moved(slopes, places, inverse, inner, turn) -> tuple[Any, ...]:
    """The places in a summand after a turn, by the linear equations, and not outside of the summand."""
    rates = [s[0] * turn[0] + s[1] * turn[1] for s in slopes]
    along = sum(x * r for x, r in zip(places, rates, strict=True))
    moved = [x + (r - c * along) * inverse for x, r, c in zip(places, rates, inner, strict=True)]
    square = _square(moved)
    scale = 1 / jnp.sqrt(jnp.where(square > 1, square, 1))
    return tuple(x * scale for x in moved)


def _best_axis(problem: _SumOfNorms) -> tuple[Any, Vec3]:
    """How far the shapes are apart along the best one of their own axes, and this axis."""
    cases = []
    for axes in problem.summands:
        if len(axes) == 2:
            axes = (_sum(axis * axis.dot(problem.offset) for axis in axes),)
        for axis in axes:
            towards = axis * sign(axis.dot(problem.offset))
            direction = length_and_direction(towards, X_AXIS, SHORTEST)[1]
            cases.append((problem.gap(direction), direction))
    return largest_of(cases)
