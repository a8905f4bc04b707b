"""Actuators between a policy and the joints."""
