"""Motions from which parameters can be identified well."""
