"""URDF texts of robots with a few links, into which tests insert elements."""

INERTIAL = '<inertial><mass value="2"/><inertia ixx="1" ixy="0" ixz="0" iyy="1" iyz="0" izz="1"/></inertial>'


def link(name: str, inside: str = INERTIAL) -> str:
    return f'<link name="{name}">{inside}</link>\n'


def joint(name: str, parent: str, child: str, inside: str = "", kind: str = "revolute") -> str:
    return f'<joint name="{name}" type="{kind}"><parent link="{parent}"/><child link="{child}"/>{inside}</joint>\n'


def robot(*elements: str) -> str:
    return f'<robot name="r">\n{"".join(elements)}</robot>'


def arm(inside: str = "", kind: str = "revolute", child_inside: str = INERTIAL) -> str:
    """Return a base and the link 'hand', which the joint 'wrist' moves. The joint stands in line 4."""
    return robot(link("base"), link("hand", child_inside), joint("wrist", "base", "hand", inside, kind))


def inertial(**changes: str) -> str:
    values = dict.fromkeys(("ixx", "iyy", "izz"), "1") | dict.fromkeys(("ixy", "ixz", "iyz"), "0") | {"mass": "2"}
    values |= changes
    mass = values.pop("mass")
    attributes = " ".join(f'{key}="{value}"' for key, value in values.items() if value)
    return f"<inertial><mass {f'value="{mass}"' if mass else ''}/><inertia {attributes}/></inertial>"
