"""Fits to recorded torques."""

from jaxdyn.sysid.torques import _intervals as intervals
from jaxdyn.sysid.torques import _layout as torque_layout
from jaxdyn.sysid.torques import _torque_model as torque_model
from jaxdyn.sysid.torques._base_parameters import BaseParameters, base_parameters
from jaxdyn.sysid.torques._bootstrap import Bootstrap, bootstrap
from jaxdyn.sysid.torques._choices import Choice
from jaxdyn.sysid.torques._effect_values import JointEffectValues, MotorEffects
from jaxdyn.sysid.torques._effects import JointEffects
from jaxdyn.sysid.torques._fit_result import Evaluation, InverseDynamicsFit
from jaxdyn.sysid.torques._fit_weights import CandidateWeights, CrossValidation
from jaxdyn.sysid.torques._intervals import Intervals
from jaxdyn.sysid.torques._payload import PayloadFit, identify_payload
from jaxdyn.sysid.torques._planned_identification import Identification, Plan, identify, plan_identification
from jaxdyn.sysid.torques._recursive_fit import RecursiveFit, RecursiveState
from jaxdyn.sysid.torques._residual_causes import Cause, horizontal_axes, residual_causes
from jaxdyn.sysid.torques._torque_fit import Step, cross_validate, fit_inverse_dynamics, ordinary_least_squares
