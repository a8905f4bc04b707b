"""The places where geoms touch, as MuJoCo finds them: pairs that can collide, with a fixed number of candidates."""

from jaxdyn.worlds._collisions._candidates import FAR, Candidates
from jaxdyn.worlds._collisions._height_fields import Grid
from jaxdyn.worlds._collisions._meshes import Hull
from jaxdyn.worlds._collisions._pair_types import (
    candidate_count,
    candidates,
    has_several_contacts,
    is_built,
    may_be_deep,
    shallow_depth,
    shape_of,
    shapes_of_pair,
    what_is_missing,
)
