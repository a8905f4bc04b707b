"""How inverse dynamics changes with the configuration and the velocity: the vectors of which every derivative is made.

In world axes (Singh, Russo & Wensing, Efficient analytical derivatives of rigid-body dynamics using spatial vector
algebra, RA-L 2022; see also Carpentier & Mansard, RSS 2018). A small motion `S_k` of a joint moves everything behind
it. With `v_p`, `a_p` the velocity and acceleration before the joint and `v` the velocity behind it, a body's force
changes, apart from turning with it, by

    dS = v_p x S,   ddS = a_p x S + v_p x dS,   eS = v x S
    for q:   2 B dS + I ddS,                for v:   2 B S + I (dS + eS)

where `2 B x = v x* I x - I (v x x) + x x* (I v)`. Written out, `2 B` maps the angular part `w'` of a motion to the
moment `K w' - n x w'` and the force `-2 p x w'`, with `(n, p) = I v` the momentum and `K` symmetric; its linear part
does not enter. All columns of a joint with several are fixed in the moving body, and turn with each other.
"""

from __future__ import annotations

from typing import NamedTuple

from jaxdyn.algorithms.recursions._equations_of_motion import Moving, Terms, before
from jaxdyn.model import Topology
from jaxdyn.spatial import Force, Inertia, Mat3, Motion, Sym3, Vec3
from jaxdyn.tree._walks import sum_down, take_rows


class Operator(NamedTuple):
    """`2 B`: angular part `x` to the moment `K x - n x x` and the force `-2 p x x`. Sums over bodies are sums of it."""

    K: Sym3
    n: Vec3
    p: Vec3

    def apply(self, x: Vec3) -> Force:
        return Force(self.K.apply(x) - self.n.cross(x), self.p.cross(x) * -2)

    def apply_transpose(self, y: Motion) -> Vec3:
        """The angular part, for the linear one is zero: `y . (2 B x) = apply_transpose(y) . x`."""
        return self.K.apply(y.angular) + self.n.cross(y.angular) + self.p.cross(y.linear) * 2


class Sensitivities(NamedTuple):
    """Rows `[nv, *batch]`, one a degree of freedom."""

    S: Motion
    dS: Motion  # noqa: N815
    ddS: Motion  # noqa: N815
    rate: Motion
    """`dS + eS`"""
    inertia: Inertia
    B: Operator
    """`2 B`"""
    force: Force
    """Of each body: `I a + v x* I v`."""


def sensitivities(topology: Topology, terms: Terms, moving: Moving, a) -> Sensitivities:
    """At the accelerations `a`, rows `[nv, *batch]`."""
    S, inertia, c, p, gravity, _ = terms
    joint, velocity, momentum = moving
    across = S * a + c
    behind = sum_down(topology.dofs, across)
    acceleration = Motion(behind.angular, behind.linear - gravity)
    a_p = before(topology, behind, across)
    a_p = Motion(a_p.angular, a_p.linear - gravity)
    v_p = before(topology, velocity, joint)
    dS = v_p.cross(S)
    ddS = a_p.cross(S) + v_p.cross(dS)
    # The velocity behind the whole joint.
    v = take_rows(velocity, topology.mover)
    force = inertia.apply(acceleration) + p
    return Sensitivities(S, dS, ddS, dS + v.cross(S), inertia, operator(inertia, velocity, momentum), force)


def operator(inertia: Inertia, velocity: Motion, momentum: Force) -> Operator:
    """`2 B` of each body: with `I = (m, h, J)`, `v = (w, u)`, `K = [w x] J - J [w x] - u h^T - h u^T + 2 (u.h) 1`."""
    w, u, h = velocity.angular, velocity.linear, inertia.first_moment
    J = inertia.rotational.to_mat3()
    T = Mat3(w.cross(J.x), w.cross(J.y), w.cross(J.z))
    turning = Sym3(2 * T.x.x, T.x.y + T.y.x, 2 * T.y.y, T.x.z + T.z.x, T.y.z + T.z.y, 2 * T.z.z)
    K = turning - Sym3.outer_pair(u, h) + Sym3.isotropic(2 * u.dot(h))
    return Operator(K, momentum.moment, momentum.force)
