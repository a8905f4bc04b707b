"""Rigid-body and articulated-body inertias (Featherstone 2008, sections 2.13 and 7.1) by components."""

from __future__ import annotations

from typing import Any

from jaxdyn.spatial._components import LinearComponents, pytree
from jaxdyn.spatial._motion import Force, Motion
from jaxdyn.spatial._pose import Pose
from jaxdyn.spatial._vectors import Mat3, Sym3, Vec3


@pytree
class Inertia(LinearComponents):
    """A rigid body's spatial inertia about the point of reference, in which the dynamics are linear.

    `mass`; `first_moment`, the mass times the center of mass; `rotational`, the rotational inertia about the
    point of reference (not about the center of mass).
    """

    mass: Any
    first_moment: Vec3
    rotational: Sym3

    @staticmethod
    def from_parameters(parameters) -> Inertia:
        """From `[..., 10]`: `m, mcx, mcy, mcz, Ixx, Ixy, Iyy, Ixz, Iyz, Izz`."""
        return Inertia(parameters[..., 0], Vec3.from_array(parameters[..., 1:]), Sym3.from_array(parameters[..., 4:]))

    def apply(self, motion: Motion) -> Force:
        """`I v`: the momentum of a velocity, or the force of an acceleration."""
        w, v, h = motion.angular, motion.linear, self.first_moment
        return Force(self.rotational.apply(w) + h.cross(v), v * self.mass - h.cross(w))

    def moved(self, pose: Pose) -> Inertia:
        """The inertia given in a frame, about its origin, as seen from the frame in which `pose` places it.

        With `p` the origin and `h` the rotated first moment, the rotational inertia grows by
        `m (p.p 1 - p p^T) + 2 (p.h) 1 - p h^T - h p^T` (the parallel-axis theorem for a first moment that is not 0).
        """
        m, p, R = self.mass, pose.translation, pose.rotation
        h = R.apply(self.first_moment)
        mp = p * m
        shift = Sym3.isotropic(p.dot(mp) + 2 * p.dot(h)) - Sym3.outer(p, mp) - Sym3.outer_pair(p, h)
        return Inertia(m, h + mp, self.rotational.rotated(R) + shift)

    def articulated(self) -> ArticulatedInertia:
        """The 6x6 form `[[I, [h x]], [[h x]^T, m 1]]`."""
        return ArticulatedInertia(self.rotational, Mat3.skew(self.first_moment), Sym3.isotropic(self.mass))


@pytree
class ArticulatedInertia(LinearComponents):
    """A symmetric 6x6 operator from motion to force, `[[angular, coupling], [coupling^T, linear]]`: 21 numbers."""

    angular: Sym3
    coupling: Mat3
    linear: Sym3

    def apply(self, motion: Motion) -> Force:
        """The force that an acceleration takes."""
        w, v = motion.angular, motion.linear
        return Force(
            self.angular.apply(w) + self.coupling.apply(v), self.coupling.apply_transpose(w) + self.linear.apply(v)
        )

    def minus_outer(self, force: Force, scaled: Force) -> ArticulatedInertia:
        """`self - force scaled^T`, where `scaled` is a multiple of `force`."""
        n, f, kn, kf = force.moment, force.force, scaled.moment, scaled.force
        coupling = Mat3(n * kf.x, n * kf.y, n * kf.z)
        return self - ArticulatedInertia(Sym3.outer(n, kn), coupling, Sym3.outer(f, kf))
