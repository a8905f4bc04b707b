"""The revolute joint, whose coordinate is the angle about its axis."""

from jaxdyn.joints._screw import Screw

REVOLUTE = Screw("revolute", units=("rad",), rotates=(True,), translates=(False,))
