"""The types of joints, each a chain of primitive ones with massless bodies between them."""

from jaxdyn.joints._ball import BALL
from jaxdyn.joints._free import FREE
from jaxdyn.joints._primitive import Primitive
from jaxdyn.joints._screw import CONTINUOUS, HELICAL, PRISMATIC, REVOLUTE

JOINT_TYPES: dict[str, tuple[Primitive, ...]] = {
    "revolute": (REVOLUTE,),
    "continuous": (CONTINUOUS,),
    "prismatic": (PRISMATIC,),
    "helical": (HELICAL,),
    "cylindrical": (PRISMATIC, REVOLUTE),
    "universal": (REVOLUTE, REVOLUTE),
    "planar": (PRISMATIC, PRISMATIC, REVOLUTE),
    "ball": (BALL,),
    "free": (FREE,),
}


def joint_nq(joint_type: str) -> int:
    """Return the number of coordinates of a joint."""
    return sum(joint.nq for joint in JOINT_TYPES[joint_type])


def joint_nv(joint_type: str) -> int:
    """Return the number of degrees of freedom of a joint."""
    return sum(joint.nv for joint in JOINT_TYPES[joint_type])
