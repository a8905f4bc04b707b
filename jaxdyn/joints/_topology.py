"""The static structure of a model: names, parents, joint types, and the index maps that follow from them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from jaxdyn._errors import look_up
from jaxdyn.joints._joint_types import JOINT_TYPES, joint_nq, joint_nv
from jaxdyn.joints._loops import LOOP_ROWS, Coupling, Loop
from jaxdyn.joints._primitive import Primitive
from jaxdyn.tree import Tree


@dataclasses.dataclass(frozen=True, eq=False)
class Topology:
    """The structure that two models must share to run the same compiled program. Hashable; holds no physical quantity.

    Bodies are in topological order, and joint `i` moves body `i`; parent -1 is the world. A frame is fixed in a body or
    in the world; the first `nb` frames are the bodies' own. The inertia of the link `attached_links[k]` was merged into
    body `attached_bodies[k]`, in which it is fixed. `mimics` has pairs of joints: the first follows the second and has
    no coordinates of its own. `loops` and `couplings` are constraints beside the tree, whose equations stand in this
    order: those of each loop, then one for each coupling. `unknown_inertias` names bodies and attached links whose
    inertia nobody gave: such a model has kinematics, but no dynamics.

    The maps of nodes and degrees of freedom hold for the tree in which all joints are independent: recursions run on
    `spanning` alone.
    """

    body_names: tuple[str, ...]
    joint_names: tuple[str, ...]
    joint_types: tuple[str, ...]
    parents: tuple[int, ...]
    frame_names: tuple[str, ...]
    frame_bodies: tuple[int, ...]
    attached_links: tuple[str, ...] = ()
    attached_bodies: tuple[int, ...] = ()
    mimics: tuple[tuple[int, int], ...] = ()
    unknown_inertias: tuple[str, ...] = ()
    loops: tuple[Loop, ...] = ()
    couplings: tuple[Coupling, ...] = ()

    def __hash__(self) -> int:
        # Hashed and compared at every call of a compiled function.
        return self._hash

    def __eq__(self, value) -> bool:
        if not isinstance(value, Topology):
            return NotImplemented
        return self is value or (self._hash == value._hash and self._fields == value._fields)

    @functools.cached_property
    def _fields(self) -> tuple:
        return tuple(getattr(self, f.name) for f in dataclasses.fields(self))

    @functools.cached_property
    def _hash(self) -> int:
        return hash(self._fields)

    @functools.cached_property
    def missing_inertias(self) -> tuple[str, ...]:
        """The links that move and whose inertia nobody gave."""
        fixed = {link for link, body in zip(self.attached_links, self.attached_bodies, strict=True) if body < 0}
        return tuple(link for link in self.unknown_inertias if link not in fixed)

    @property
    def nb(self) -> int:
        """The number of bodies."""
        return len(self.parents)

    @functools.cached_property
    def leaders(self) -> dict[int, int]:
        """For each joint that mimics another, the joint that it follows."""
        return dict(self.mimics)

    @functools.cached_property
    def spanning(self) -> Topology:
        """The same tree with every joint independent."""
        return dataclasses.replace(self, mimics=()) if self.mimics else self

    @property
    def has_loops(self) -> bool:
        """Whether constraints beside the tree hold it."""
        return bool(self.loops or self.couplings)

    @functools.cached_property
    def loop_starts(self) -> tuple[int, ...]:
        """The first equation of every loop, then that of the first coupling."""
        return tuple(np.cumsum([0] + [LOOP_ROWS[loop.kind] for loop in self.loops]).tolist())

    @property
    def nc(self) -> int:
        """The number of equations of loops and couplings."""
        return self.loop_starts[-1] + len(self.couplings)

    @functools.cached_property
    def body_roots(self) -> tuple[int, ...]:
        """The first body of the tree of each body."""
        roots: list[int] = []
        for body, parent in enumerate(self.parents):
            roots.append(body if parent < 0 else roots[parent])
        return tuple(roots)

    @functools.cached_property
    def q_starts(self) -> tuple[int, ...]:
        """The first index in `q` of every joint, then `nq`."""
        return self._starts(joint_nq)

    @functools.cached_property
    def v_starts(self) -> tuple[int, ...]:
        """The first index in `v` of every joint, then `nv`."""
        return self._starts(joint_nv)

    def _starts(self, size: Callable[[str], int]) -> tuple[int, ...]:
        sizes = [0 if i in self.leaders else size(t) for i, t in enumerate(self.joint_types)]
        return tuple(np.cumsum([0] + sizes).tolist())

    @property
    def nq(self) -> int:
        """The length of a configuration."""
        return self.q_starts[-1]

    @property
    def nv(self) -> int:
        """The length of a velocity."""
        return self.v_starts[-1]

    @functools.cached_property
    def row_joints(self) -> dict[str, np.ndarray]:
        """The joint of each row of a model's arrays, for each kind of row that belongs to joints (`Leaf.rows`)."""
        joints = np.arange(self.nb)
        of_dof = np.repeat(joints, np.diff(self.spanning.v_starts))
        owners = {"joint": joints, "axis": of_dof[self.axis_dofs], "pitch": of_dof[self.helical_dofs]}
        return owners | {s: np.repeat(joints, np.diff(x)) for s, x in (("q", self.q_starts), ("v", self.v_starts))}

    def rows(self, kind: str, joints: Sequence[int]) -> np.ndarray:
        """The rows of one kind (`Leaf.rows`) that belong to joints, in the order of the joints."""
        return np.concatenate([np.zeros(0, int), *(np.flatnonzero(self.row_joints[kind] == j) for j in joints)])

    def links_of(self, body: int) -> list[int]:
        """The numbers of the links that were merged into a body (-1: that are fixed in the world)."""
        return [k for k, b in enumerate(self.attached_bodies) if b == body]

    def extended(self, frames: Mapping[str, int], links: Mapping[str, int]) -> Topology:
        """The same tree with further frames and merged links, each with its body."""
        return dataclasses.replace(
            self,
            frame_names=(*self.frame_names, *frames),
            frame_bodies=(*self.frame_bodies, *frames.values()),
            attached_links=(*self.attached_links, *links),
            attached_bodies=(*self.attached_bodies, *links.values()),
        )

    def body(self, name: str) -> int:
        """The number of a body. **Raises** `UnknownNameError`."""
        return look_up(name, self.body_names, "body")

    def joint(self, name: str) -> int:
        """The number of a joint. **Raises** `UnknownNameError`."""
        return look_up(name, self.joint_names, "joint")

    def frame(self, name: str) -> int:
        """The number of a frame. **Raises** `UnknownNameError`."""
        return look_up(name, self.frame_names, "frame")

    @functools.cached_property
    def blocks(self) -> tuple[tuple[Primitive, int, int], ...]:
        """The primitive joints that have coordinates, with their first indices in `q` and in `v`."""
        joints = [x for i, t in enumerate(self.joint_types) if i not in self.leaders for x in JOINT_TYPES[t]]
        q = np.cumsum([0] + [joint.nq for joint in joints]).tolist()
        v = np.cumsum([0] + [joint.nv for joint in joints]).tolist()
        return tuple(zip(joints, q, v, strict=False))

    @functools.cached_property
    def joint_classes(self) -> tuple[tuple[Primitive, dict[str, np.ndarray]], ...]:
        """For each class of primitive joints: one of them, and the first indices of all in `q` and in `v`."""
        members: dict[type, list[tuple[Primitive, int, int]]] = {}
        for block in self.blocks:
            members.setdefault(type(block[0]), []).append(block)
        columns = [tuple(zip(*blocks, strict=True)) for blocks in members.values()]
        return tuple((joints[0], {"q": np.array(q), "v": np.array(v)}) for joints, q, v in columns)

    @functools.cached_property
    def coordinate_units(self) -> np.ndarray:
        """`[nq]`: the unit of each coordinate, `rad`, `m`, or `1` for elements of quaternions."""
        return np.array([unit for joint, _, _ in self.blocks for unit in joint.units])

    @functools.cached_property
    def coordinate_names(self) -> tuple[str, ...]:
        """The name of each coordinate `[nq]`: the joint's, with a number where it has several."""
        return self._numbered(self.q_starts)

    @functools.cached_property
    def dof_names(self) -> tuple[str, ...]:
        """The same of each degree of freedom `[nv]`."""
        return self._numbered(self.v_starts)

    def _numbered(self, starts: tuple[int, ...]) -> tuple[str, ...]:
        counts = zip(self.joint_names, np.diff(starts).tolist(), strict=True)
        return tuple(name if n == 1 else f"{name}[{k}]" for name, n in counts for k in range(n))

    @functools.cached_property
    def dof_units(self) -> np.ndarray:
        """`[nv]`: the unit of the motion in each degree of freedom, `rad` or `m`."""
        turns = [rotates for joint, _, _ in self.blocks for rotates in joint.rotates]
        return np.where(np.array(turns), "rad", "m")

    @functools.cached_property
    def scalar_coordinates(self) -> tuple[np.ndarray, np.ndarray]:
        """The indices in `q` and in `v` of joints whose configuration is a number."""
        pairs = [(q, v) for joint, q, v in self.blocks if joint.nq == 1]
        return np.array([q for q, _ in pairs], int), np.array([v for _, v in pairs], int)

    @functools.cached_property
    def quaternion_starts(self) -> np.ndarray:
        """The index in `q` of the first element of every quaternion."""
        return np.array([q + j.quaternion for j, q, _ in self.blocks if j.quaternion is not None], int)

    @functools.cached_property
    def quaternion_dofs(self) -> np.ndarray:
        """The degrees of freedom of joints with a quaternion."""
        dofs = [v + k for j, _, v in self.blocks if j.quaternion is not None for k in range(j.nv)]
        return np.array(dofs, int)

    # Nodes: one for each primitive motion.

    @functools.cached_property
    def node_joints(self) -> tuple[Primitive, ...]:
        """The primitive joint of each node."""
        return tuple(joint for t in self.joint_types for joint in JOINT_TYPES[t])

    @functools.cached_property
    def body_nodes(self) -> np.ndarray:
        """`[nb]`: the node that carries each body, the last of its joint."""
        return np.cumsum([len(JOINT_TYPES[t]) for t in self.joint_types], dtype=int) - 1

    @functools.cached_property
    def joint_nodes(self) -> np.ndarray:
        """`[nb]`: the first node of each joint, which carries its placement."""
        return np.append(0, self.body_nodes[:-1] + 1)

    @functools.cached_property
    def nodes(self) -> Tree:
        """The tree of primitive motions."""
        return _tree_of_chains(self.parents, self.joint_nodes, self.body_nodes)

    @functools.cached_property
    def node_q(self) -> np.ndarray:
        """`[nodes + 1]`: the first index in `q` of every node, then `nq`."""
        return np.cumsum([0] + [joint.nq for joint in self.node_joints])

    @functools.cached_property
    def node_v(self) -> np.ndarray:
        """`[nodes + 1]`: the first index in `v` of every node, then `nv`."""
        return np.cumsum([0] + [joint.nv for joint in self.node_joints])

    # Degrees of freedom: a node with several is a chain of as many, of which the last carries the body. All recursions
    # run over this tree, with one row for each degree of freedom.

    @functools.cached_property
    def node_of_dof(self) -> np.ndarray:
        """`[nv]`: the node that each dof belongs to."""
        return np.repeat(np.arange(self.nodes.size), np.diff(self.node_v))

    @functools.cached_property
    def first_dofs(self) -> np.ndarray:
        """`[nodes]`: the first dof of each node, which carries its whole displacement."""
        return self.node_v[:-1]

    @functools.cached_property
    def last_dofs(self) -> np.ndarray:
        """`[nodes]`: the last dof of each node."""
        return self.node_v[1:] - 1

    @functools.cached_property
    def dofs(self) -> Tree:
        """The tree of degrees of freedom."""
        return _tree_of_chains(self.nodes.parents, self.first_dofs, self.last_dofs)

    @functools.cached_property
    def body_dofs(self) -> np.ndarray:
        """`[nb]`: the dof that carries each body, the last of its joint."""
        return self.last_dofs[self.body_nodes]

    @functools.cached_property
    def body_of_dof(self) -> np.ndarray:
        """`[nv]`: the body that a dof carries, -1 for the massless ones inside a joint."""
        out = np.full(self.nv, -1)
        out[self.body_dofs] = np.arange(self.nb)
        return out

    @functools.cached_property
    def placed_body_of_dof(self) -> np.ndarray:
        """`[nv]`: the body whose joint placement stands before a dof, -1 where there is none."""
        out = np.full(self.nv, -1)
        out[self.first_dofs[self.joint_nodes]] = np.arange(self.nb)
        return out

    @functools.cached_property
    def is_root_joint(self) -> np.ndarray:
        """`[nv]`: whether a dof belongs to the joint that holds its tree in the world."""
        return np.array(self.parents, dtype=int)[self.row_joints["v"]] < 0

    @functools.cached_property
    def mover(self) -> np.ndarray:
        """`[nv]`: the last dof of a dof's node, with which its column of the motion subspace moves."""
        return self.last_dofs[self.node_of_dof]

    @functools.cached_property
    def dof_before_joint(self) -> np.ndarray:
        """`[nv]`: the last dof of the parent of a dof's node, -1 for the world."""
        parents = np.array(self.nodes.parents, dtype=int)
        return np.where(parents >= 0, self.last_dofs[parents], -1)[self.node_of_dof]

    @functools.cached_property
    def reference_dof(self) -> np.ndarray:
        """The dof whose origin a dof's tree is referred to: `[1]` for one tree, else `[nv]`. It belongs to the node
        with the least sum of squared distances, in joints, to the others of its tree."""
        ancestors = self.nodes.ancestors
        # The lowest common ancestor of two nodes is at the depth that their paths share.
        depth = ancestors.sum(axis=1)
        shared = ancestors.astype(int) @ ancestors.T.astype(int)
        distance = depth[:, None] + depth[None, :] - 2 * shared
        same_tree = shared > 0
        spread = np.where(same_tree, distance**2, 0).sum(axis=1)
        middle = np.where(same_tree, spread, spread.max(initial=0) + 1).argmin(axis=1)
        return self.last_dofs[middle[:1] if len(set(middle)) == 1 else middle[self.node_of_dof]]

    @functools.cached_property
    def dof_ancestors(self) -> np.ndarray:
        """`[nv, nv]`: whether dof `j` moves the node of dof `i`."""
        return self.nodes.ancestors[np.ix_(self.node_of_dof, self.node_of_dof)]

    @functools.cached_property
    def moves_body(self) -> np.ndarray:
        """`[nb, nv]`: whether a dof moves a body."""
        return self.nodes.ancestors[np.ix_(self.body_nodes, self.node_of_dof)]

    @functools.cached_property
    def axis_dofs(self) -> np.ndarray:
        """The dofs that move about or along an axis of their own, in the order of `Model.joint_axis`."""
        return np.flatnonzero([self.node_joints[node].has_axis for node in self.node_of_dof])

    @functools.cached_property
    def helical_dofs(self) -> np.ndarray:
        """The dofs that have a pitch, in the order of `Model.joint_pitch`."""
        return np.flatnonzero([self.node_joints[node].has_pitch for node in self.node_of_dof])

    @functools.cached_property
    def rotating_dofs(self) -> np.ndarray:
        """`[nv]`: whether a dof turns its body."""
        return np.array([rotates for joint in self.node_joints for rotates in joint.rotates], bool)

    @functools.cached_property
    def translating_dofs(self) -> np.ndarray:
        """`[nv]`: whether a dof shifts its body by its coordinate."""
        return np.array([translates for joint in self.node_joints for translates in joint.translates], bool)


def _tree_of_chains(parents: tuple[int, ...], first: np.ndarray, last: np.ndarray) -> Tree:
    """The tree in which the chain `first[i], ..., last[i]` takes the place of each node `i`."""
    out: list[int] = []
    for start, end, parent in zip(first.tolist(), last.tolist(), parents, strict=True):
        out += [-1 if parent < 0 else int(last[parent]), *range(start, end)]
    return Tree(tuple(out))
