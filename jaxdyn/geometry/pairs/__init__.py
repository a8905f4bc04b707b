"""The possible contacts of pairs of shapes, of fixed number: where points move smoothly, or as MuJoCo chooses them."""

from jaxdyn.geometry.pairs._bounds import WIDER, ball_radius, may_touch
from jaxdyn.geometry.pairs._candidates import Candidates
from jaxdyn.geometry.pairs._height_fields import MOST_PRISMS, Grid
from jaxdyn.geometry.pairs._hull_tables import ChosenHulls, Hull, Hulls
from jaxdyn.geometry.pairs._tables import (
    PointChoice,
    ShapeKind,
    candidate_count,
    candidates,
    has_flat_disks,
    has_several_contacts,
    is_built,
    is_searched,
    may_be_deep,
    moves_smoothly,
    pair_witness_count,
    pair_witnesses,
    shallow_depth,
)
