"""Fits to roll-outs."""
