"""Learning: environments, tasks, and policies that are trained by gradients through the simulation."""

from jaxdyn.learn import tasks as tasks
from jaxdyn.learn._array_files import load_policy as load_policy
from jaxdyn.learn._array_files import save_policy as save_policy
from jaxdyn.learn._environment import AbstractEnvironment as AbstractEnvironment
from jaxdyn.learn._environment import AbstractTask as AbstractTask
from jaxdyn.learn._environment import Environment as Environment
from jaxdyn.learn._environment import EnvironmentState as EnvironmentState
from jaxdyn.learn._environment import Transition as Transition
from jaxdyn.learn._gradient_growth import GradientGrowth as GradientGrowth
from jaxdyn.learn._gradient_growth import gradient_growth as gradient_growth
from jaxdyn.learn._networks import Policy as Policy
from jaxdyn.learn._episodes import Episodes as Episodes
from jaxdyn.learn._randomization import randomized as randomized
from jaxdyn.learn._randomization import scaled as scaled
from jaxdyn.learn._registry import environment as environment
from jaxdyn.learn._registry import environments as environments
from jaxdyn.learn._return_gradient import ReturnGradient as ReturnGradient
from jaxdyn.learn._return_gradient import return_gradient as return_gradient
