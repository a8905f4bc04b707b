"""Tasks: what environments reward, one file a family."""

from jaxdyn.learn.tasks._ant import Ant as Ant
from jaxdyn.learn.tasks._ant import ant as ant
from jaxdyn.learn.tasks._cartpole import CartPoleSwingUp as CartPoleSwingUp
from jaxdyn.learn.tasks._cartpole import cartpole_swingup as cartpole_swingup
from jaxdyn.learn.tasks._humanoid import Humanoid as Humanoid
from jaxdyn.learn.tasks._humanoid import humanoid as humanoid
from jaxdyn.learn.tasks._planar_runners import HalfCheetah as HalfCheetah
from jaxdyn.learn.tasks._planar_runners import Hopper as Hopper
from jaxdyn.learn.tasks._planar_runners import Walker as Walker
from jaxdyn.learn.tasks._planar_runners import half_cheetah as half_cheetah
from jaxdyn.learn.tasks._planar_runners import hopper as hopper
from jaxdyn.learn.tasks._planar_runners import walker as walker
from jaxdyn.learn.tasks._quadruped import Quadruped as Quadruped
from jaxdyn.learn.tasks._quadruped import quadruped as quadruped
