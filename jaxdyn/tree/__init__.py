"""Rooted trees, how they are walked, and arrays with a row for each node; nothing about robots."""

from jaxdyn.tree._batch_rows import columns_of, matrix_to_leading, packed_rows, rows_of, static_column, to_leading
from jaxdyn.tree._tree import Tree
from jaxdyn.tree._walks import compose_down, scan_down, scan_up, sum_down, sum_up, take_rows
