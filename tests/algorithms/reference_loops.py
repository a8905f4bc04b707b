"""Two classical formulations in NumPy, body by body, written from their equations as oracles for the tests.

`Featherstone`: the recursions in body axes (Rigid Body Dynamics Algorithms, 2008: tables 5.1, 6.2 and 7.1, section 2.8
for the transforms), spatial vectors with the angular part first. `bae_haug`: forward dynamics in the notation of Bae &
Haug (A recursive formulation for constrained mechanical system dynamics, part I, Mechanics of Structures and Machines
1987), where the state of a body is the velocity of its mass center and its angular velocity, in world axes.

Both treat a model as a tree of nodes, one for each primitive joint: revolute, prismatic, helical, ball or free. A joint
that combines several of these is a chain of nodes with massless bodies between them. Both leave out joint friction and
springs.
"""

import dataclasses

import numpy as np

PRIMITIVES = {
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
NQ = {"R": 1, "P": 1, "H": 1, "B": 4, "F": 7}
NV = {"R": 1, "P": 1, "H": 1, "B": 3, "F": 6}


def skew(a):
    return np.array([[0, -a[2], a[1]], [a[2], 0, -a[0]], [-a[1], a[0], 0]])


def rotation(quaternion):
    """The rotation matrix of a quaternion `w x y z`."""
    w, *u = np.asarray(quaternion) / np.linalg.norm(quaternion)
    u = np.array(u)
    return np.eye(3) + 2 * w * skew(u) + 2 * skew(u) @ skew(u)


def turn(axis, angle):
    """The rotation matrix of a turn about an axis (Rodrigues' formula)."""
    return np.eye(3) + np.sin(angle) * skew(axis) + (1 - np.cos(angle)) * skew(axis) @ skew(axis)


@dataclasses.dataclass
class Node:
    kind: str
    parent: int
    R0: np.ndarray
    p0: np.ndarray
    axis: np.ndarray
    """Unit vector of the axis; zero for kinds without an axis."""
    pitch: float
    q: slice
    v: slice
    body: int
    """The body that the node carries, or -1."""
    mass: float
    center: np.ndarray
    inertia: np.ndarray
    """Rotational inertia about the center of mass."""
    armature: np.ndarray

    def pose(self, q):
        """The rotation and the origin of the node in its parent."""
        x = q[self.q]
        if self.kind == "F":
            R, p = rotation(x[3:]), x[:3]
        elif self.kind == "B":
            R, p = rotation(x), np.zeros(3)
        else:
            R = np.eye(3) if self.kind == "P" else turn(self.axis, x[0])
            p = self.axis * x[0] * {"R": 0.0, "P": 1.0, "H": self.pitch}[self.kind]
        return self.R0 @ R, self.p0 + self.R0 @ p

    def columns(self):
        """Angular and linear velocities of the node relative to its parent, in its own axes, `[3, k]` each."""
        zero, eye = np.zeros((3, 3)), np.eye(3)
        if self.kind == "F":
            return np.hstack([zero, eye]), np.hstack([eye, zero])
        if self.kind == "B":
            return eye, zero
        angular = np.zeros(3) if self.kind == "P" else self.axis
        linear = self.axis * {"R": 0.0, "P": 1.0, "H": self.pitch}[self.kind]
        return angular[:, None], linear[:, None]


def nodes_of(model) -> list[Node]:
    topology = model.topology
    assert not topology.mimics
    axes, pitches = list(np.asarray(model.joint_axis, float)), list(np.asarray(model.joint_pitch, float))
    out, last, at_q, at_v = [], {-1: -1}, 0, 0
    for body, (kind, parent) in enumerate(zip(topology.joint_types, topology.parents, strict=True)):
        placement = np.asarray(model.joint_placement[body], float)
        R0, p0, before = rotation(placement[3:]), placement[:3], last[parent]
        for k, letter in enumerate(PRIMITIVES[kind]):
            carries = k == len(PRIMITIVES[kind]) - 1
            m, hx, hy, hz, xx, xy, yy, xz, yz, zz = np.asarray(model.inertial_parameters[body], float) * carries
            c = np.array([hx, hy, hz]) / m if m else np.zeros(3)
            about_origin = np.array([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]])
            axis = axes.pop(0) if letter in "RPH" else np.zeros(3)
            of_q, of_v = slice(at_q, at_q + NQ[letter]), slice(at_v, at_v + NV[letter])
            out.append(
                Node(
                    letter,
                    before,
                    R0,
                    p0,
                    axis / np.linalg.norm(axis) if letter in "RPH" else axis,
                    pitches.pop(0) if letter == "H" else 0.0,
                    of_q,
                    of_v,
                    body if carries else -1,
                    m,
                    c,
                    about_origin + m * skew(c) @ skew(c),
                    np.asarray(model.armature[of_v], float),
                )
            )
            before, R0, p0 = len(out) - 1, np.eye(3), np.zeros(3)
            at_q, at_v = of_q.stop, of_v.stop
        last[body] = len(out) - 1
    return out


# Featherstone


def cross_motion(v):
    """`v x` (eq. 2.31)."""
    return np.block([[skew(v[:3]), np.zeros((3, 3))], [skew(v[3:]), skew(v[:3])]])


def cross_force(v):
    """`v x*` (eq. 2.32)."""
    return -cross_motion(v).T


class Featherstone:
    """The recursions at one configuration."""

    def __init__(self, model, q):
        self.nodes = nodes_of(model)
        self.nv = model.nv
        self.gravity = np.concatenate([np.zeros(3), np.asarray(model.gravity, float)])
        self.X, self.S, self.I, self.world = [], [], [], []
        for node in self.nodes:
            R, p = node.pose(np.asarray(q, float))
            # Transform of motions from the parent's axes to the node's axes: [[E, 0], [-E [p x], E]].
            self.X.append(np.block([[R.T, np.zeros((3, 3))], [-R.T @ skew(p), R.T]]))
            self.S.append(np.vstack(node.columns()))
            h, m = skew(node.mass * node.center), node.mass
            about_origin = node.inertia - h @ skew(node.center)
            self.I.append(np.block([[about_origin, h], [h.T, m * np.eye(3)]]))
            R0, p0 = self.world[node.parent] if node.parent >= 0 else (np.eye(3), np.zeros(3))
            self.world.append((R0 @ R, p0 + R0 @ p))

    def _velocities(self, v):
        out = []
        for i, node in enumerate(self.nodes):
            before = self.X[i] @ out[node.parent] if node.parent >= 0 else np.zeros(6)
            out.append(before + self.S[i] @ v[node.v])
        return out

    def _external(self, i, f_ext):
        """The wrench on node `i`, from wrenches `[nb, 6]` in the library's convention."""
        body = self.nodes[i].body
        if f_ext is None or body < 0:
            return np.zeros(6)
        R = self.world[i][0]
        return np.concatenate([R.T @ f_ext[body, 3:], R.T @ f_ext[body, :3]])

    def rnea(self, v, a, f_ext=None):
        """Inverse dynamics by table 5.1."""
        V, A, f = self._velocities(v), [], []
        for i, node in enumerate(self.nodes):
            before = A[node.parent] if node.parent >= 0 else -self.gravity
            A.append(self.X[i] @ before + self.S[i] @ a[node.v] + cross_motion(V[i]) @ self.S[i] @ v[node.v])
            f.append(self.I[i] @ A[i] + cross_force(V[i]) @ self.I[i] @ V[i] - self._external(i, f_ext))
        tau = np.zeros(self.nv)
        for i in reversed(range(len(self.nodes))):
            node = self.nodes[i]
            tau[node.v] = self.S[i].T @ f[i] + node.armature * a[node.v]
            if node.parent >= 0:
                f[node.parent] = f[node.parent] + self.X[i].T @ f[i]
        return tau

    def crba(self):
        """The mass matrix by table 6.2."""
        composite, M = [x.copy() for x in self.I], np.zeros((self.nv, self.nv))
        for i in reversed(range(len(self.nodes))):
            node = self.nodes[i]
            if node.parent >= 0:
                composite[node.parent] += self.X[i].T @ composite[i] @ self.X[i]
            F = composite[i] @ self.S[i]
            M[node.v, node.v] = self.S[i].T @ F + np.diag(node.armature)
            j = i
            while self.nodes[j].parent >= 0:
                F, j = self.X[j].T @ F, self.nodes[j].parent
                M[node.v, self.nodes[j].v] = F.T @ self.S[j]
                M[self.nodes[j].v, node.v] = M[node.v, self.nodes[j].v].T
        return M

    def aba(self, v, tau, f_ext=None):
        """Forward dynamics by table 7.1: the accelerations, and `I^A` and `p^A` of all nodes."""
        V = self._velocities(v)
        IA = [x.copy() for x in self.I]
        pA = [cross_force(V[i]) @ self.I[i] @ V[i] - self._external(i, f_ext) for i in range(len(self.nodes))]
        c = [cross_motion(V[i]) @ self.S[i] @ v[n.v] for i, n in enumerate(self.nodes)]
        U, D, u = ([None] * len(self.nodes) for _ in range(3))
        for i in reversed(range(len(self.nodes))):
            node = self.nodes[i]
            U[i] = IA[i] @ self.S[i]
            D[i] = self.S[i].T @ U[i] + np.diag(node.armature)
            u[i] = tau[node.v] - self.S[i].T @ pA[i]
            if node.parent >= 0:
                Ia = IA[i] - U[i] @ np.linalg.solve(D[i], U[i].T)
                pa = pA[i] + Ia @ c[i] + U[i] @ np.linalg.solve(D[i], u[i])
                IA[node.parent] += self.X[i].T @ Ia @ self.X[i]
                pA[node.parent] = pA[node.parent] + self.X[i].T @ pa
        A, qdd = [], np.zeros(self.nv)
        for i, node in enumerate(self.nodes):
            before = self.X[i] @ (A[node.parent] if node.parent >= 0 else -self.gravity) + c[i]
            qdd[node.v] = np.linalg.solve(D[i], u[i] - U[i].T @ before)
            A.append(before + self.S[i] @ qdd[node.v])
        return qdd, IA, pA

    def bodies(self, values):
        """The values of the nodes that carry bodies, in the bodies' order, with the library's order of linear and
        angular parts."""
        out = [None] * sum(n.body >= 0 for n in self.nodes)
        swap = [3, 4, 5, 0, 1, 2]
        for node, x in zip(self.nodes, values, strict=True):
            if node.body >= 0:
                out[node.body] = x[swap] if x.ndim == 1 else x[np.ix_(swap, swap)]
        return np.array(out)


# Bae and Haug


def bae_haug(model, q, v, tau, f_ext=None, base=None):
    """Accelerations `[nv]`. With `Y = [r', omega]` of the mass center `r`:

        Y_i = B_i Y_j + b_i z'_i,    dY_i/dt = B_i dY_j/dt + b_i z''_i + d_i,    d_i = B'_i Y_j + b'_i z'_i
        M_j <- M_j + B^T (M - M b D^-1 b^T M) B,    D = b^T M b
        Q_j <- Q_j + B^T (Q - M d - M b D^-1 (b^T (Q - M d) + drive))

    and `dY/dt = M^-1 Q` at a free base. If `base [6]` is not `None`, the base moves with these accelerations instead.
    """
    q, v, tau = (np.asarray(x, float) for x in (q, v, tau))
    nodes, gravity = nodes_of(model), np.asarray(model.gravity, float)
    zero, eye = np.zeros((3, 3)), np.eye(3)
    R, o, r, Y, B, b, d, M, Q = ([] for _ in range(9))
    for i, node in enumerate(nodes):
        j = node.parent
        turned, shifted = node.pose(q)
        R_j, o_j, r_j, Y_j = (R[j], o[j], r[j], Y[j]) if j >= 0 else (eye, np.zeros(3), np.zeros(3), np.zeros(6))
        R.append(R_j @ turned)
        o.append(o_j + R_j @ shifted)
        r.append(o[i] + R[i] @ node.center)
        t = r[i] - o[i]
        u, s = (R[i] @ x for x in node.columns())
        B.append(np.block([[eye, skew(r_j) - skew(r[i])], [zero, eye]]))
        b.append(np.vstack([s - skew(t) @ u, u]))
        Y.append(B[i] @ Y_j + b[i] @ v[node.v])
        # u, s and t turn with the body.
        W = skew(Y[i][3:])
        b_dot = np.vstack([W @ s - skew(t) @ W @ u - skew(W @ t) @ u, W @ u])
        B_dot = np.block([[zero, skew(Y_j[:3]) - skew(Y[i][:3])], [zero, zero]])
        d.append(B_dot @ Y_j + b_dot @ v[node.v])
        J = R[i] @ node.inertia @ R[i].T
        M.append(np.block([[node.mass * eye, zero], [zero, J]]))
        f, n = np.zeros(3), np.zeros(3)
        if f_ext is not None and node.body >= 0:
            f = np.asarray(f_ext[node.body, :3], float)
            n = np.asarray(f_ext[node.body, 3:], float) - np.cross(t, f)
        Q.append(np.concatenate([node.mass * gravity + f, n - W @ J @ Y[i][3:]]))
    D = [None] * len(nodes)
    for i in reversed(range(len(nodes))):
        node = nodes[i]
        if node.kind == "F":
            assert not node.armature.any()
            continue
        D[i] = b[i].T @ M[i] @ b[i] + np.diag(node.armature)
        if node.parent >= 0:
            force = Q[i] - M[i] @ d[i]
            Mb = M[i] @ b[i]
            M[node.parent] += B[i].T @ (M[i] - Mb @ np.linalg.solve(D[i], Mb.T)) @ B[i]
            Q[node.parent] += B[i].T @ (force - Mb @ np.linalg.solve(D[i], b[i].T @ force + tau[node.v]))
    rates, out = [], np.zeros(model.nv)
    for i, node in enumerate(nodes):
        if node.kind == "F":
            if base is None:
                # The drive is a wrench in the axes of the base about its origin, and b is square.
                rates.append(np.linalg.solve(M[i], Q[i] + np.linalg.solve(b[i].T, tau[node.v])))
            else:
                rates.append(b[i] @ base + d[i])
            out[node.v] = np.linalg.solve(b[i], rates[i] - d[i])
            continue
        before = B[i] @ (rates[node.parent] if node.parent >= 0 else np.zeros(6)) + d[i]
        out[node.v] = np.linalg.solve(D[i], tau[node.v] + b[i].T @ (Q[i] - M[i] @ before))
        rates.append(before + b[i] @ out[node.v])
    return out
