"""Distances between a robot's shapes and obstacles."""

import itertools
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn._errors import ModelError, require_shape
from jaxdyn._types import Array, Float, float_leaf
from jaxdyn.algorithms import frame_jacobian, frame_pose
from jaxdyn.contact import ContactShape
from jaxdyn.geometry import AbstractShape, pair_witness_count, pair_witnesses
from jaxdyn.spatial import IDENTITY_POSE, SE3, Mat3, Pose, Vec3
from jaxdyn.trajopt.problem._residuals import Linear, StateOnlyResidual, jacobian_by_state, robot_state
from jaxdyn.tree import take_rows

WORLD = "world"


class ClearanceResidual(StateOnlyResidual):
    """The distances `[len(shapes) * len(obstacles)]` (m) between the surfaces of every shape and every obstacle, in the
    order of the shapes; negative where they overlap. Smooth except where the nearest point jumps (parallel axes), and
    where axes cross. `Constraint(ClearanceResidual(...), lower=0.02, upper=jnp.inf)` keeps 2 cm."""

    shapes: tuple[AbstractShape, ...]
    """The robot's shapes, and then the obstacles."""
    placements: tuple[Float[Array, "7"], ...]
    """Their poses in their links."""
    links: tuple[str, ...] = eqx.field(static=True)
    count: int = eqx.field(static=True)
    """The number of the robot's shapes."""

    def __init__(self, shapes: Sequence[ContactShape], obstacles: Sequence[ContactShape]):
        """`shapes`: spheres and capsules on links or frames of the robot, such as
        `ContactShape("hand", *Capsule.between(start, end, radius))`. `obstacles`: spheres, capsules and boxes on the
        link `"world"`, or on links of the robot, which must not hit itself; spheres may have cylinders as obstacles.
        Only the links, shapes and placements of each are used.

        **Raises** `ModelError` for none of either and for shapes whose distance is not known; `ShapeError`.
        """
        everything = (*shapes, *obstacles)
        if not shapes or not obstacles:
            raise ModelError("a ClearanceResidual needs at least one shape and one obstacle")
        for number, each in enumerate(everything):
            if not isinstance(each, ContactShape) or not isinstance(each.shape, AbstractShape):
                kind = "shapes" if number < len(shapes) else "obstacles"
                raise ModelError(f"ClearanceResidual: one of its {kind} is no jaxdyn.ContactShape(link, shape)")
        self.links, self.shapes = tuple(x.link for x in everything), tuple(x.shape for x in everything)
        self.placements = tuple(_pose(x) for x in everything)
        self.count = len(shapes)
        for one, two in self._pairs():
            pair_witness_count(*self._kind(one), *self._kind(two), "nearest")

    def __call__(self, dynamics, x, u, k):
        return self._distances(dynamics, x)[0]

    def linearize(self, dynamics, x, u, k):
        distances, normals, points, poses = self._distances(dynamics, x)
        model, q, _ = robot_state(dynamics, self, x)
        jacobians = {link: frame_jacobian(model, q, link) for link in poses}

        def slopes(side: int):
            """The derivatives of `normal @ point` by `q`, for points that are fixed in the links of one side."""
            links = [self.links[pair[side]] for pair in self._pairs()]
            if not jacobians.keys() & set(links):
                return 0.0
            fixed = jnp.zeros((6, model.nv), x.dtype)
            J = jnp.stack([jacobians.get(link, fixed) for link in links])
            origins = jnp.stack([poses[link].translation if link in poses else fixed[:3, 0] for link in links])
            wrenches = jnp.concatenate([normals, jnp.cross(points - origins, normals)], axis=1)
            return (wrenches[:, :, None] * J).sum(axis=1)

        # Moving a nearest point along its surface changes the distance in second order only. So the distance has the
        # derivative that it has for points fixed in their links, and any points of the line through both will do.
        return Linear(distances, jacobian_by_state(dynamics, slopes(1) - slopes(0)), None)

    def _pairs(self) -> list[tuple[int, int]]:
        return list(itertools.product(range(self.count), range(self.count, len(self.shapes))))

    def _kind(self, i: int) -> tuple[type[AbstractShape], int]:
        return type(self.shapes[i]), self.shapes[i].sizes.shape[-1]

    def _distances(self, dynamics, x):
        """The distances, the normals from the shapes to the obstacles, points between both, and the poses of links."""
        model, q, _ = robot_state(dynamics, self, x)
        moving = {link for link in self.links if link != WORLD or WORLD in model.topology.frame_names}
        poses = {link: frame_pose(model, q, link) for link in sorted(moving)}
        fixed = SE3(jnp.eye(3, dtype=x.dtype), jnp.zeros(3, x.dtype))
        links = [poses.get(link, fixed) for link in self.links]
        R, p = (jnp.stack([getattr(link, name) for link in links]) for name in ("rotation", "translation"))
        placements = Pose.from_vector(jnp.stack([a.astype(x.dtype) for a in self.placements]))
        places = Pose(Mat3.from_array(R), Vec3.from_array(p)).compose(placements)
        groups: dict[tuple, list[tuple[int, int]]] = {}
        for pair in self._pairs():
            groups.setdefault(tuple(map(self._kind, pair)), []).append(pair)
        found = []
        for ((kind1, _), (kind2, _)), members in groups.items():
            one, two = (
                (jnp.stack([self.shapes[i].sizes.astype(x.dtype) for i in side]), take_rows(places, np.array(side)))
                for side in zip(*members, strict=True)
            )
            found.append(pair_witnesses(kind1, *one, kind2, *two, "nearest"))
        gap, normal, point, _ = jax.tree.map(lambda *rows: jnp.concatenate(rows), *found)
        pairs = [pair for members in groups.values() for pair in members]
        order = np.array(sorted(range(len(pairs)), key=pairs.__getitem__))
        gap, normal, point = take_rows((gap, normal, point), order)
        return gap, normal.to_array(), point.to_array(), poses


def _pose(shape: ContactShape) -> Array:
    """The placement `[7]` of a shape in its link."""
    what = f"placement of the {type(shape.shape).__name__} on {shape.link!r}"
    placement = IDENTITY_POSE if shape.placement is None else shape.placement
    pose = float_leaf(placement.to_vector() if isinstance(placement, SE3) else placement, what)
    if pose.shape == (3,):
        pose = jnp.concatenate([pose, jnp.asarray(IDENTITY_POSE[3:], pose.dtype)])
    require_shape(pose, (7,), what, "an SE3, position (m) and quaternion w x y z [7], or a position [3]")
    return pose
