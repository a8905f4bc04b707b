"""Learning: environments, tasks, and policies that are trained by gradients through the simulation."""

from jaxdyn.learn import tasks as tasks
from jaxdyn.learn._environment import AbstractEnvironment as AbstractEnvironment
from jaxdyn.learn._environment import AbstractTask as AbstractTask
from jaxdyn.learn._environment import Environment as Environment
from jaxdyn.learn._environment import EnvironmentState as EnvironmentState
from jaxdyn.learn._environment import Transition as Transition
from jaxdyn.learn._episodes import Episodes as Episodes
from jaxdyn.learn._randomization import randomized as randomized
from jaxdyn.learn._randomization import randomly_scaled as randomly_scaled
from jaxdyn.learn._registry import environment as environment
from jaxdyn.learn._registry import environments as environments
