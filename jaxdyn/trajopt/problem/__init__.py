"""Optimal control problems: dynamics, costs and constraints."""
