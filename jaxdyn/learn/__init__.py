"""Learning: environments, tasks, and policies that are trained by gradients through the simulation."""

from jaxdyn.learn import tasks
from jaxdyn.learn._adapters import as_brax, as_gymnasium, as_torch
from jaxdyn.learn._algorithms import AHAC, APG, SHAC, AbstractAlgorithm
from jaxdyn.learn._array_files import load_policy, save_policy
from jaxdyn.learn._environment import AbstractEnvironment, AbstractTask, Environment, EnvironmentState, Transition
from jaxdyn.learn._episodes import Episodes
from jaxdyn.learn._evaluation import Episode, evaluate, play
from jaxdyn.learn._gradient_growth import GradientGrowth, gradient_growth
from jaxdyn.learn._judged import PolicyJudgment, judge
from jaxdyn.learn._networks import Policy
from jaxdyn.learn._randomization import randomized, randomly_scaled
from jaxdyn.learn._registry import environment, environments
from jaxdyn.learn._return_gradient import ReturnGradient, return_gradient
from jaxdyn.learn._training import Training, train
from jaxdyn.learn._training_files import plot_training

__all__ = [
    "AHAC",
    "APG",
    "SHAC",
    "AbstractAlgorithm",
    "AbstractEnvironment",
    "AbstractTask",
    "Environment",
    "EnvironmentState",
    "Episode",
    "Episodes",
    "GradientGrowth",
    "Policy",
    "PolicyJudgment",
    "ReturnGradient",
    "Training",
    "Transition",
    "as_brax",
    "as_gymnasium",
    "as_torch",
    "environment",
    "environments",
    "evaluate",
    "gradient_growth",
    "judge",
    "load_policy",
    "play",
    "plot_training",
    "randomized",
    "randomly_scaled",
    "return_gradient",
    "save_policy",
    "tasks",
    "train",
]
