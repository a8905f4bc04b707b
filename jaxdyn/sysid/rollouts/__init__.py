"""Identification from roll-outs."""

from jaxdyn.sysid.rollouts._fleet_fit import FleetFit, fit_fleet
from jaxdyn.sysid.rollouts._loss_fit import LossStep, fit_losses
from jaxdyn.sysid.rollouts._loss_minimum import LossMinimum, loss_minimum
from jaxdyn.sysid.rollouts._named_rollouts import identify_rollouts
from jaxdyn.sysid.rollouts._rollout_errors import RolloutErrors, RolloutJudgment, judge_rollouts, rollout_errors
from jaxdyn.sysid.rollouts._rollout_fit import fit_rollouts
from jaxdyn.sysid.rollouts._rollout_options import RolloutFitOptions, RolloutStep
from jaxdyn.sysid.rollouts._rollout_result import Quantities, RolloutBootstrap, RolloutFit
from jaxdyn.sysid.rollouts._shooting import ShootingState
