# %% [markdown]
"""Identify a real Franka Emika Panda from recorded motion and torques, and test it on data that the fit has not used.

    JAXDYN_DATA=... python docs/examples/identify_panda.py

The recording is by Gaz et al. 2019 (https://github.com/marcocognetti/FrankaEmikaPandaDynModel), in
`$JAXDYN_DATA/panda_exciting/`. `python -m experiments.identify configs/identify_panda.toml` does more with it.
"""

# %%
import dataclasses
import os
import sys
from pathlib import Path

import jax
import numpy as np

import jaxdyn
from jaxdyn import sysid

jax.config.update("jax_enable_x64", True)  # fits need double precision

folder = Path(os.environ.get("JAXDYN_DATA", "")) / "panda_exciting"
if "JAXDYN_DATA" not in os.environ or not folder.is_dir():
    print("skipped: set JAXDYN_DATA to the directory with panda_exciting/ in it")
    sys.exit(0)

start, changed = sysid.nearest_physical_model(jaxdyn.load_urdf(folder / "panda_no_gripper.urdf"))
print(f"links whose inertias in the drawing no mass distribution has: {', '.join(changed) or 'none'}")

# %%
# Split the recording before it is filtered, because filters look ahead.
recording = sysid.load_npz(folder / "first_14s.npz")
recording = dataclasses.replace(recording, t=recording.t - recording.t[0])
train, test = recording.between(0.0, 10.0), recording.between(10.0, 14.0)
print("choosing friction and prior by cross-validation, and fitting ...", flush=True)
found = sysid.identify(start, train, friction_velocity=0.05)
for choice in found.plan.choices:
    taken = "taken" if choice.taken else "not taken"
    print(f"{choice.name}: the mean square on held-out parts changes by {-100 * choice.improvement:.3g} %, {taken}")
print(found)

# %%
assert found.linear is not None  # it is None only where a drive gain is unknown
fit, drawing = found.fit, sysid.InverseDynamicsFit.unfitted(start)
for name, result in (("drawing", drawing), ("least squares", found.linear), ("fit", fit)):
    error = result.evaluate(found.prepare(test))
    possible = np.asarray(result.physical)
    print(f"{name:14} error {error.total_rms:.4f} N m; physically possible links: {possible.sum()} of {len(possible)}")
held_out = found.evaluate(test).total_rms

base = fit.base_parameters()
print(f"{base.rank} combinations of {len(fit.names)} parameters determine these torques, for instance:")
for line in base.describe()[:3]:
    print("  ", line)
