"""Whole steps that increase both the infeasibility and the objective, and the way back from them.

Along curved constraints whole steps may do so although the next step would take it back (the effect of Maratos; Nocedal
& Wright, Numerical Optimization, 2006, section 15.4). So a whole step that is not acceptable is taken if the Lagrangian
decreases enough and the infeasibility stays moderate. If none of the next iterates improves upon the one before it, the
search goes back (the watchdog technique, ibid., section 15.5). Without it, the benchmark takes 9 % more iterations.
"""

import jax
import jax.numpy as jnp

from jaxdyn.trajopt.ddp._constrained_state import ConstrainedState, Watch
from jaxdyn.trajopt.ddp._step_search import Point, Trial, improves

WATCHED = 8
"""Number of steps after which the search goes back. Of 25 runs, the benchmark's quadrotor_flight was solved 16 times
with 3 steps, and 25 times with 5, 8 and 10."""


def watched(s: ConstrainedState, start: Point, trial: Trial, after: ConstrainedState, alpha):
    """The state after a step, and the step's length.

    If the steps since the first one that only the Lagrangian accepted have not improved upon its start, the search goes
    back to the state before them with a step of length zero, and there are no such steps until the barrier changes."""
    begins = trial.accepted & trial.by_lagrangian & (s.watch.steps == 0)
    here = Watch(s.at, start.infeasibility, start.objective, s.watch.steps)
    watch = jax.tree.map(lambda a, b: jnp.where(begins, a, b), here, s.watch)
    watching = begins | (watch.steps > 0)
    steps, point = watch.steps + watching, trial.point
    better = improves(point.infeasibility, point.objective, watch.infeasibility, watch.objective)
    ended = watching & trial.accepted & better
    failed = watching & ~ended & ((steps >= WATCHED) | ~trial.accepted)
    after = jax.tree.map(lambda a, b: jnp.where(failed, a, b), after._replace(at=watch.before), after)
    steps = jnp.select([ended, failed], [0, -1], steps)
    return after._replace(watch=watch._replace(steps=steps)), jnp.where(failed, 0.0, alpha)
