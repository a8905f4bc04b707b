"""Contacts: the law, shapes, and the equations of a step."""

from jaxdyn.contact._contacts import Contacts
from jaxdyn.contact._file_shapes import ContactShapes, load_contact_shapes
from jaxdyn.contact._law import ContactLaw
from jaxdyn.contact._pairs import ContactPair, ContactShape
from jaxdyn.contact._step import (
    ContactForces,
    accelerations_of_contact,
    contact_accelerations,
    contact_forces,
    contact_step,
    contact_wrenches,
    end_of_step,
    require_contact,
    straight_motion,
    with_vector,
)

__all__ = [
    "ContactForces",
    "ContactLaw",
    "ContactPair",
    "ContactShape",
    "ContactShapes",
    "Contacts",
    "contact_forces",
    "load_contact_shapes",
]
