"""Spatial motions and forces (Featherstone, Rigid Body Dynamics Algorithms, 2008, chapter 2) by named parts."""

from __future__ import annotations

from jaxdyn.spatial._components import LinearComponents, pytree
from jaxdyn.spatial._vectors import Vec3


@pytree
class Motion(LinearComponents):
    """A spatial motion vector: angular part, and linear part at the point of reference."""

    angular: Vec3
    linear: Vec3

    @staticmethod
    def zero() -> Motion:
        """No motion."""
        return Motion(Vec3.zero(), Vec3.zero())

    def dot(self, force: Force):
        """The power (or work) of a force on this motion."""
        return self.angular.dot(force.moment) + self.linear.dot(force.force)

    def cross(self, other: Motion) -> Motion:
        """`v x m` (2008, eq. 2.31)."""
        w, v = self.angular, self.linear
        return Motion(w.cross(other.angular), w.cross(other.linear) + v.cross(other.angular))

    def cross_force(self, force: Force) -> Force:
        """`v x* f` (2008, eq. 2.32)."""
        w, v = self.angular, self.linear
        return Force(w.cross(force.moment) + v.cross(force.force), w.cross(force.force))

    def at(self, point: Vec3) -> Motion:
        """The same motion referred to `point`, given from the present point of reference."""
        return Motion(self.angular, self.linear + self.angular.cross(point))


@pytree
class Force(LinearComponents):
    """A spatial force vector: moment about the point of reference, and force."""

    moment: Vec3
    force: Vec3

    @staticmethod
    def zero() -> Force:
        """No force."""
        return Force(Vec3.zero(), Vec3.zero())

    def moved_from(self, point: Vec3) -> Force:
        """A force whose moment is about `point`, referred to the present point of reference."""
        return Force(self.moment + point.cross(self.force), self.force)
