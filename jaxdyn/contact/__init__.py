"""Contacts: the law, shapes, and the equations of a step."""

from jaxdyn.contact._contacts import ShapeContacts
from jaxdyn.contact._file_shapes import ContactShapes, load_contact_shapes
from jaxdyn.contact._law import ContactLaw
from jaxdyn.contact._mujoco_law import MujocoLaw
from jaxdyn.contact._pairs import ContactPair, ContactShape, Member, chosen_pairs
from jaxdyn.contact._step import (
    ContactForces,
    contact_accelerations,
    contact_wrenches,
    end_of_step,
    forces_of_step,
    moved_straight,
    stop_torques,
    straight_motion,
    turning_rate,
    with_vector,
)

__all__ = [
    "ContactForces",
    "ContactLaw",
    "ContactPair",
    "ContactShape",
    "ContactShapes",
    "MujocoLaw",
    "load_contact_shapes",
]
