"""Contacts: the law, the convex problem of a step, and its solution."""

from jaxdyn.contact._contacts import Contacts, ContactShape
from jaxdyn.contact._law import ContactLaw
from jaxdyn.contact._options import ContactOptions
from jaxdyn.contact._step import (
    ContactForces,
    ContactReport,
    contact_accelerations,
    contact_forces,
    contact_step,
    require_contact,
    straight_motion,
    with_vector,
)

__all__ = [
    "ContactForces",
    "ContactLaw",
    "ContactOptions",
    "ContactReport",
    "ContactShape",
    "Contacts",
    "contact_forces",
]
