"""The helical joint, whose coordinate is the angle about its axis; it advances along it by its pitch, m/rad."""

from jaxdyn.joints._screw import Screw

HELICAL = Screw("helical", units=("rad",), rotates=(True,), translates=(False,), has_pitch=True)
