"""Learning: environments, tasks, and policies that are trained by gradients through the simulation."""

from jaxdyn.learn import tasks as tasks
from jaxdyn.learn._adapters import as_brax as as_brax
from jaxdyn.learn._adapters import as_gymnasium as as_gymnasium
from jaxdyn.learn._adapters import as_torch as as_torch
from jaxdyn.learn._environment import AbstractTask as AbstractTask
from jaxdyn.learn._environment import Environment as Environment
from jaxdyn.learn._environment import EnvironmentState as EnvironmentState
from jaxdyn.learn._environment import Episodes as Episodes
from jaxdyn.learn._environment import Transition as Transition
from jaxdyn.learn._judged import PolicyJudgment as PolicyJudgment
from jaxdyn.learn._judged import judge as judge
from jaxdyn.learn._registry import environment as environment
from jaxdyn.learn._registry import environments as environments
