"""Fits to recorded torques."""
