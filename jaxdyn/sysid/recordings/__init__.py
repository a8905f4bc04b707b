"""Recorded motions: files, data sets, preparation, and checks."""

from jaxdyn.sysid.recordings import _array_checks as array_checks
from jaxdyn.sysid.recordings import _signals as signals
from jaxdyn.sysid.recordings import _transmissions as transmissions
from jaxdyn.sysid.recordings._bag_files import load_bag
from jaxdyn.sysid.recordings._datasets import Dataset, dataset, dataset_names, fetch_dataset
from jaxdyn.sysid.recordings._explained_torques import unchecked_torques
from jaxdyn.sysid.recordings._findings import Finding, RecordingWarning
from jaxdyn.sysid.recordings._lerobot_files import load_lerobot
from jaxdyn.sysid.recordings._plausibility import check_recording, require_plausible
from jaxdyn.sysid.recordings._recording import Recording
from jaxdyn.sysid.recordings._recording_files import load_csv, load_npz
from jaxdyn.sysid.recordings._several_recordings import Recordings, as_recordings
