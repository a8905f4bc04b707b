"""Differential dynamic programming."""
