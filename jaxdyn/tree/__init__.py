"""Rooted trees, how they are walked, and arrays with a row for each node."""
