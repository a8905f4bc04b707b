"""The parts of programs: configurations, files, exit codes, comparisons with other libraries, and the jobs that the
commands share with the experiments.

A name is loaded with its module when it is first used, so that a program loads only what it needs.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxdyn.programs._application import (
        DIFFERENT,
        FINE,
        MISTAKE,
        double_precision,
        exit_code,
        print_json,
        require_positive_keys,
        require_seed,
        without_compilation_cache,
    )
    from jaxdyn.programs._comparison import (
        States,
        allowed_errors,
        dynamics,
        gradient_is_finite,
        largest_condition,
        largest_errors,
        random_states,
    )
    from jaxdyn.programs._config import help_text, parse_arguments, parse_command, parse_options, read_config
    from jaxdyn.programs._files import (
        alone_in,
        arrays_by_path,
        begin,
        data_path,
        digest,
        digest_of_arrays,
        read_json,
        read_npz,
        results_folder,
        write_durably,
        write_json,
        write_npz,
    )
    from jaxdyn.programs._fit_files import FitFiles
    from jaxdyn.programs._identification import identify
    from jaxdyn.programs._identification_data import Columns, IdentifyConfig, load_from_zero, nearest_physical_model
    from jaxdyn.programs._motion_optimization import OptimizeConfig, optimize
    from jaxdyn.programs._motion_pictures import animate, draw_trajectory
    from jaxdyn.programs._motion_tasks import (
        HOME,
        TASKS,
        StickFigure,
        motion_task,
        quadrotor_actuation,
        quadrotor_model,
    )
    from jaxdyn.programs._mujoco_reference import mujoco_answers, mujoco_model
    from jaxdyn.programs._pictures import pyplot, save_figure
    from jaxdyn.programs._pinocchio_reference import mimic_leaders, pinocchio_answers, pinocchio_model, pinocchio_times
    from jaxdyn.programs._robots import SAMPLES, load_robot
    from jaxdyn.programs._simulated_recording import SimulatedRecording, Simulation, simulate_recording
    from jaxdyn.programs._timing import Compiled, time_compilation, wall_time

# Where the names above are looked for, in this order: the modules that load little come first.
_SOURCES = (
    *("application", "config", "files", "timing", "pictures", "robots", "comparison", "mujoco_reference"),
    *("pinocchio_reference", "motion_tasks", "motion_pictures", "motion_optimization", "simulated_recording"),
    *("fit_files", "identification_data", "identification"),
)

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        for source in () if name.startswith("_") else _SOURCES:
            value = getattr(importlib.import_module(f"jaxdyn.programs._{source}"), name, None)
            if value is not None:
                globals()[name] = value
                return value
        raise AttributeError(f"module 'jaxdyn.programs' has no attribute {name!r}")
