"""Parametrizations of robots by free numbers."""
