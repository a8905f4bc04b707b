"""Identify a real Franka Emika Panda from recorded motion and torques, and test it on data that the fit has not used.

    JAXDYN_DATA=... python docs/examples/identify_panda.py

The recording is by Gaz et al. 2019 (https://github.com/marcocognetti/FrankaEmikaPandaDynModel), in
`$JAXDYN_DATA/panda_exciting/`. `python -m experiments.identify configs/identify_panda.toml` does more with it.
"""

import dataclasses
import os
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import jaxdyn
from jaxdyn import sysid

jax.config.update("jax_enable_x64", True)  # fits need double precision

folder = Path(os.environ.get("JAXDYN_DATA", "")) / "panda_exciting"
if "JAXDYN_DATA" not in os.environ or not folder.is_dir():
    print("skipped: set JAXDYN_DATA to the directory with panda_exciting/ in it")
    sys.exit(0)

# Replace inertias in the drawing that no mass distribution has by the nearest possible ones.
drawing = jaxdyn.load_urdf(folder / "panda_no_gripper.urdf")
possible = sysid.is_physical(drawing.inertial_parameters)
nearest = sysid.nearest_physical(drawing.inertial_parameters)
start = dataclasses.replace(
    drawing, inertial_parameters=jnp.where(possible[:, None], drawing.inertial_parameters, nearest)
)

# Split the recording before filtering it, because filters look ahead.
recording = sysid.load_npz(folder / "first_14s.npz")
recording = dataclasses.replace(recording, t=recording.t - recording.t[0])
train, test = (
    recording.between(begin, end).resampled(200.0).filtered(10.0).differentiated()
    for begin, end in ((0.0, 10.0), (10.0, 14.0))
)
print(f"{len(train)} samples for the fit, {len(test)} held out")

# Friction lags the velocity on this robot, by 40 ms and more.
effects = sysid.JointEffects(friction_velocity=True, friction_delay=True)
fit = sysid.fit_inverse_dynamics(start, train, joint_effects=effects, friction_velocity=0.05, prior_weight=0.1)
squares = sysid.ordinary_least_squares(start, train, friction_velocity=0.05)
print(f"{fit.message}; {fit.iterations} steps")
for name, result in (("drawing", sysid.InverseDynamicsFit.unfitted(start)), ("least squares", squares), ("fit", fit)):
    error = result.evaluate(test)
    possible = np.asarray(result.physical)
    print(f"{name:14} error {error.total_rms:.4f} N m; physically possible links: {possible.sum()} of {len(possible)}")
held_out = fit.evaluate(test).total_rms

base = fit.base_parameters()
print(f"{base.rank} combinations of {len(fit.names)} parameters determine these torques, for instance:")
for line in base.describe()[:3]:
    print("  ", line)
