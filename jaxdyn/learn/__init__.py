"""Learning: environments, tasks, and policies that are trained by gradients through the simulation."""

from jaxdyn.learn import tasks as tasks
from jaxdyn.learn._algorithms import AHAC as AHAC
from jaxdyn.learn._algorithms import APG as APG
from jaxdyn.learn._algorithms import SHAC as SHAC
from jaxdyn.learn._algorithms import AbstractAlgorithm as AbstractAlgorithm
from jaxdyn.learn._array_files import load_policy as load_policy
from jaxdyn.learn._array_files import save_policy as save_policy
from jaxdyn.learn._environment import AbstractEnvironment as AbstractEnvironment
from jaxdyn.learn._environment import AbstractTask as AbstractTask
from jaxdyn.learn._environment import Environment as Environment
from jaxdyn.learn._environment import EnvironmentState as EnvironmentState
from jaxdyn.learn._environment import Transition as Transition
from jaxdyn.learn._episodes import Episodes as Episodes
from jaxdyn.learn._evaluation import Episode as Episode
from jaxdyn.learn._evaluation import evaluate as evaluate
from jaxdyn.learn._evaluation import play as play
from jaxdyn.learn._networks import Policy as Policy
from jaxdyn.learn._randomization import randomized as randomized
from jaxdyn.learn._randomization import randomly_scaled as randomly_scaled
from jaxdyn.learn._registry import environment as environment
from jaxdyn.learn._registry import environments as environments
from jaxdyn.learn._training import Training as Training
from jaxdyn.learn._training import train as train
from jaxdyn.learn._training_files import plot_training as plot_training
