"""Time stepping and roll-outs."""

from jaxdyn.simulate._rollout import rollout, step
from jaxdyn.simulate._runge_kutta import rk4_step
from jaxdyn.simulate._semi_implicit_euler import semi_implicit_euler_step
from jaxdyn.simulate._state import State, Trajectory

__all__ = ["State", "Trajectory", "rk4_step", "rollout", "semi_implicit_euler_step", "step"]
