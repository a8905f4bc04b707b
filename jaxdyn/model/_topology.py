"""The static structure of a model: names, parents, joint types, and the index maps that follow from them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Literal, get_args

import numpy as np

from jaxdyn._errors import look_up
from jaxdyn.tree._tree import Tree

type JointType = Literal[
    "revolute", "continuous", "prismatic", "helical", "cylindrical", "universal", "planar", "ball", "free"
]

# A joint is a chain of primitive motions with massless bodies between them; each primitive is one node of the tree.
# R: rotation about an axis, P: translation along it, H: both by a pitch; B: ball, F: free (quaternions).
PRIMITIVES: dict[str, str] = {
    "revolute": "R",
    "continuous": "R",
    "prismatic": "P",
    "helical": "H",
    "cylindrical": "PR",
    "universal": "RR",
    "planar": "PPR",
    "ball": "B",
    "free": "F",
}
assert tuple(PRIMITIVES) == get_args(JointType.__value__)
NQ = {"R": 1, "P": 1, "H": 1, "B": 4, "F": 7}
NV = {"R": 1, "P": 1, "H": 1, "B": 3, "F": 6}


def joint_nq(kind: str) -> int:
    return sum(NQ[p] for p in PRIMITIVES[kind])


def joint_nv(kind: str) -> int:
    return sum(NV[p] for p in PRIMITIVES[kind])


@dataclasses.dataclass(frozen=True, eq=False)
class Topology:
    """What two models must share to run the same compiled program. Hashable; holds no physical quantity.

    Bodies are in topological order, body `i` is moved by joint `i`; parent -1 is the world. A frame is fixed in a body
    (or in the world); the first `nb` frames are the bodies' own. `attached_links[k]`, fixed in body
    `attached_bodies[k]`, is a link whose inertia was merged into that body. `mimics` has pairs of joints: the first of
    each follows the second, and has no coordinates of its own.

    Everything below that is about nodes and degrees of freedom is of the tree in which all joints are independent:
    recursions run on `spanning` alone.
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

    def __hash__(self) -> int:
        # Hashed and compared at every call of a compiled function.
        return self._hash

    def __eq__(self, other) -> bool:
        if self is other:
            return True
        if not isinstance(other, Topology):
            return NotImplemented
        return self._hash == other._hash and self._fields == other._fields

    @functools.cached_property
    def _fields(self) -> tuple:
        return tuple(getattr(self, f.name) for f in dataclasses.fields(self))

    @functools.cached_property
    def _hash(self) -> int:
        return hash(self._fields)

    @property
    def nb(self) -> int:
        """The number of bodies."""
        return len(self.parents)

    @functools.cached_property
    def leaders(self) -> dict[int, int]:
        """By joint that mimics: the joint that it follows."""
        return dict(self.mimics)

    @functools.cached_property
    def spanning(self) -> Topology:
        """The same tree with every joint independent."""
        return dataclasses.replace(self, mimics=()) if self.mimics else self

    @functools.cached_property
    def q_starts(self) -> tuple[int, ...]:
        """First index in `q` of every joint, and `nq` last."""
        return self._starts(joint_nq)

    @functools.cached_property
    def v_starts(self) -> tuple[int, ...]:
        """First index in `v` of every joint, and `nv` last."""
        return self._starts(joint_nv)

    def _starts(self, size: Callable[[str], int]) -> tuple[int, ...]:
        sizes = [0 if i in self.leaders else size(t) for i, t in enumerate(self.joint_types)]
        return tuple(int(n) for n in np.cumsum([0] + sizes))

    @property
    def nq(self) -> int:
        """The length of a configuration."""
        return self.q_starts[-1]

    @property
    def nv(self) -> int:
        """The length of a velocity."""
        return self.v_starts[-1]

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
    def blocks(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The primitive motions that have coordinates: their letters, and their first indices in `q` and in `v`."""
        own = [t for i, t in enumerate(self.joint_types) if i not in self.leaders]
        kinds = [kind for t in own for kind in PRIMITIVES[t]]
        q = np.cumsum([0] + [NQ[k] for k in kinds], dtype=int)[:-1]
        v = np.cumsum([0] + [NV[k] for k in kinds], dtype=int)[:-1]
        return np.array(kinds), q, v

    # Nodes: one for each primitive motion.

    @functools.cached_property
    def node_kinds(self) -> str:
        """One letter a node."""
        return "".join(PRIMITIVES[t] for t in self.joint_types)

    @functools.cached_property
    def body_nodes(self) -> np.ndarray:
        """`[nb]`: the node that carries each body, the last of its joint."""
        return np.cumsum([len(PRIMITIVES[t]) for t in self.joint_types], dtype=int) - 1

    @functools.cached_property
    def joint_nodes(self) -> np.ndarray:
        """`[nb]`: the first node of each joint, which carries its placement."""
        return self.body_nodes + 1 - np.array([len(PRIMITIVES[t]) for t in self.joint_types], dtype=int)

    @functools.cached_property
    def nodes(self) -> Tree:
        """The tree of primitive motions."""
        parents = []
        for body, parent in enumerate(self.parents):
            parents.append(-1 if parent < 0 else int(self.body_nodes[parent]))
            parents.extend(range(int(self.joint_nodes[body]), int(self.body_nodes[body])))
        return Tree(tuple(parents))

    @functools.cached_property
    def node_q(self) -> np.ndarray:
        """`[nodes + 1]`: first index in `q` of every node."""
        return np.cumsum([0] + [NQ[k] for k in self.node_kinds])

    @functools.cached_property
    def node_v(self) -> np.ndarray:
        """`[nodes + 1]`: first index in `v` of every node."""
        return np.cumsum([0] + [NV[k] for k in self.node_kinds])

    # Degrees of freedom: a node with several is a chain of as many, of which the last carries the body. Everything that
    # recurses does so over this tree, one row a degree of freedom.

    @functools.cached_property
    def node_of_dof(self) -> np.ndarray:
        """`[nv]`."""
        return np.repeat(np.arange(self.nodes.size), np.diff(self.node_v))

    @functools.cached_property
    def first_dofs(self) -> np.ndarray:
        """`[nodes]`: the first dof of each node, which carries its whole displacement."""
        return self.node_v[:-1]

    @functools.cached_property
    def last_dofs(self) -> np.ndarray:
        """`[nodes]`"""
        return self.node_v[1:] - 1

    @functools.cached_property
    def dofs(self) -> Tree:
        """The tree of degrees of freedom."""
        parents = []
        for node, parent in enumerate(self.nodes.parents):
            parents.append(-1 if parent < 0 else int(self.last_dofs[parent]))
            parents.extend(range(int(self.first_dofs[node]), int(self.last_dofs[node])))
        return Tree(tuple(parents))

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
        joints = np.repeat(np.arange(self.nb), np.diff(self.v_starts))
        return np.array(self.parents, dtype=int)[joints] < 0

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
        """The dof whose origin a dof's tree is referred to: `[1]` for one tree, else `[nv]`.

        Of the node with the least sum of squared distances, in joints, to the others of its tree.
        """
        ancestors = self.nodes.ancestors
        # The lowest common ancestor of two nodes is at the depth that their paths share.
        depth = ancestors.sum(axis=1)
        shared = ancestors.astype(int) @ ancestors.T.astype(int)
        distance = depth[:, None] + depth[None, :] - 2 * shared
        same_tree = shared > 0
        spread = np.where(same_tree, distance**2, 0).sum(axis=1)
        middle = np.array([min(np.flatnonzero(row), key=lambda i: spread[i]) for row in same_tree], dtype=int)
        if len(set(middle)) == 1:
            return self.last_dofs[middle[:1]]
        return self.last_dofs[middle][self.node_of_dof]

    @functools.cached_property
    def dof_ancestors(self) -> np.ndarray:
        """`[nv, nv]`: whether dof `j` moves what dof `i` moves, every dof of one node moving all of the node."""
        return self.nodes.ancestors[np.ix_(self.node_of_dof, self.node_of_dof)]

    @functools.cached_property
    def moves_body(self) -> np.ndarray:
        """`[nb, nv]`: whether a dof moves a body."""
        return self.nodes.ancestors[np.ix_(self.body_nodes, self.node_of_dof)]

    # Which rows of the parameter tables belong to which node or dof.

    @functools.cached_property
    def axis_dofs(self) -> np.ndarray:
        """The dofs that move about or along an axis of their own, in the order of `Model.joint_axis`."""
        kinds = np.array(list(self.node_kinds))[self.node_of_dof]
        return np.flatnonzero(np.isin(kinds, list("RPH")))

    @functools.cached_property
    def helical_dofs(self) -> np.ndarray:
        """The dofs that have a pitch, in the order of `Model.joint_pitch`."""
        return np.flatnonzero(np.array(list(self.node_kinds))[self.node_of_dof] == "H")
