"""Solvers by random samples."""
