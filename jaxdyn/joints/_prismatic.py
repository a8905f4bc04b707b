"""The prismatic joint, whose coordinate is the shift along its axis."""

from jaxdyn.joints._screw import Screw

PRISMATIC = Screw("prismatic", units=("m",), rotates=(False,), translates=(True,))
