"""Arguments of a wrong kind, such as texts, None, objects, ragged lists and complex numbers, are errors of the library
that name the function and the argument."""

import dataclasses
import functools
import inspect
import itertools
import typing
import warnings
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdyn
from jaxdyn import JaxdynError, ModelError, ShapeError, algorithms, samples, simulate, spatial, sysid, trajopt, viz
from jaxdyn._messages import plain_numbers

MODEL = samples.arm()
N = MODEL.nv
FRAME = MODEL.topology.frame_names[-1]
STATE = simulate.State(0.1 * np.ones(N), 0.1 * np.ones(N))
WRONG = {
    "a text": "abc",
    "None": None,
    "objects": np.array([object()] * N),
    "rows of different lengths": [[1.0, 2.0], [3.0]],
    "a text in a list": [[1.0, "2.0"]],
    "complex numbers": np.ones(N) * (1 + 1j),
    "a mapping": {"a": 1.0},
}


def kinds(function) -> dict[str, list]:
    """The kinds that the annotations allow, by parameter; an algorithm has the parameter `model` for `robot`."""
    hints = typing.get_type_hints(inspect.unwrap(function))
    parameters = inspect.signature(function).parameters
    return {name: parts(hints.get(name, x.annotation)) for name, x in parameters.items()}


def parts(hint) -> list:
    if isinstance(hint, typing.TypeAliasType):
        return [hint] if hint.__name__ == "ArrayLike" else parts(hint.__value__)
    if len(typing.get_args(hint)) > 1 and typing.get_origin(hint) in (typing.Union, type(int | str)):
        return [x for part in typing.get_args(hint) for x in parts(part)]
    return [hint]


def is_array(options: list) -> bool:
    return any(hasattr(x, "dim_str") or getattr(x, "__name__", "") == "ArrayLike" for x in options)


def example(options: list) -> np.ndarray:
    """An array of the shape of an annotation."""
    axes = next(x.dim_str for x in options if hasattr(x, "dim_str")).replace("#", "").split()
    sizes = {"nq": MODEL.nq, "nv": N, "nb": MODEL.nb}
    return 0.1 * np.ones([sizes.get(x) or (int(x) if x.isdigit() else 2) for x in axes if x[0] != "*"])


def algorithm_arguments(function) -> dict:
    """Valid arguments of an algorithm."""
    others = {
        "model": MODEL,
        "frame": FRAME,
        "frames": (FRAME,),
        "direction": (np.ones(N),) * 3,
        "joints": MODEL.joint_names,
        "independent": N,
        "targets": algorithms.FrameTarget(FRAME, np.zeros(3)),
    }
    out = {}
    for name, options in kinds(function).items():
        if inspect.signature(function).parameters[name].default is inspect.Parameter.empty:
            out[name] = others[name] if name in others else example(options)
    return out


def require_named_errors(name: str, function, arguments: dict, of_argument: Callable = lambda: WRONG) -> int:
    """Call a function with each of its arrays, and its model, replaced by wrong kinds, which `of_argument` returns for
    each of them; returns the number."""
    count = 0
    for argument, options in kinds(function).items():
        if not (is_array(options) or (argument == "model" and "model" in arguments)):
            continue
        for what, wrong in of_argument().items():
            if wrong is None and type(None) in options:
                continue
            with pytest.raises(JaxdynError) as caught:
                function(**(arguments | {argument: wrong}))
            text = str(caught.value)
            assert all(word in text for word in (argument, name.split(".")[-1])), (name, argument, what, text)
            count += 1
    return count


# `PhasedDynamics` calls these two, and checks what it gives them.
INTERNAL = {"contact_errors", "contact_step", "contact_step_derivatives"}
ALGORITHMS = {
    name: function
    for name, function in vars(algorithms).items()
    if inspect.isfunction(function) and not name.startswith("_") and any(map(is_array, kinds(function).values()))
    if name not in INTERNAL
}


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_every_algorithm_names_the_argument(every):
    """Every argument gets every wrong kind, or two of the kinds in turn: all algorithms have the same decorator."""
    assert len(ALGORITHMS) > 50
    turns = itertools.cycle(WRONG.items())

    def kinds_of_argument():
        return WRONG if every else dict(itertools.islice(turns, 2))

    counts = [
        require_named_errors(f.__name__, f, algorithm_arguments(f), kinds_of_argument) for f in ALGORITHMS.values()
    ]
    assert min(counts) >= (len(WRONG) if every else 2)


def problem() -> trajopt.Problem:
    dynamics = trajopt.ContinuousDynamics(lambda x, u, t, p: jnp.stack([x[1], u[0]]), 2, 1, dt=0.1)
    return trajopt.Problem(dynamics, jnp.zeros(2), 4, stage_costs=[trajopt.QuadraticCost(trajopt.ControlResidual())])


PROBLEM = problem()
US, XS = np.zeros((4, 1)), np.zeros((5, 2))
POSE = np.array([0.0, 0, 0, 1, 0, 0, 0])
BALL = np.array([1.0, 0, 0, 0, 0.1, 0, 0.1, 0, 0, 0.1])
OTHERS = {
    **{
        f"Model.{name}": (getattr(MODEL, name), dict.fromkeys(arguments, STATE.q))
        for name, arguments in {
            "spanning_configuration": "q",
            "spanning_velocity": "v",
            "integrate": ("q", "dv"),
            "difference": ("q0", "q1"),
            "integrate_jacobians": ("q", "dv"),
            "difference_jacobians": ("q0", "q1"),
            "chart_point": ("q0", "x"),
            "chart_rate": ("q", "x", "v"),
            "checked": "q",
        }.items()
    },
    "step": (simulate.step, {"model": MODEL, "state": STATE, "tau": STATE.v, "dt": 0.01}),
    "step_derivatives": (simulate.step_derivatives, {"model": MODEL, "state": STATE, "tau": STATE.v, "dt": 0.01}),
    "rollout": (simulate.rollout, {"model": MODEL, "state": STATE, "controls": np.zeros((2, N)), "dt": 0.01}),
    "vector_field": (simulate.vector_field, {"model": MODEL}),
    "coordinate_rate": (simulate.coordinate_rate, {"model": MODEL, "q": STATE.q, "v": STATE.v}),
    "pose_array": (spatial.pose_array, {"position": POSE[:3], "quaternion": POSE[3:]}),
    "compose_poses": (spatial.compose_poses, {"outer": POSE, "inner": POSE}),
    "invert_pose": (spatial.invert_pose, {"pose": POSE}),
    "transform_points": (spatial.transform_points, {"pose": POSE, "points": POSE[:3]}),
    "multiply_quaternions": (spatial.multiply_quaternions, {"a": POSE[3:], "b": POSE[3:]}),
    "quaternion_to_rotation": (spatial.quaternion_to_rotation, {"quaternion": POSE[3:]}),
    "rotation_to_quaternion": (spatial.rotation_to_quaternion, {"rotation": np.eye(3)}),
    "rpy_to_quaternion": (spatial.rpy_to_quaternion, {"rpy": POSE[:3]}),
    "quaternion_to_rpy": (spatial.quaternion_to_rpy, {"quaternion": POSE[3:]}),
    "axis_angle_to_quaternion": (spatial.axis_angle_to_quaternion, {"axis": POSE[3:6], "angle": 0.1}),
    "transform_inertial_parameters": (spatial.transform_inertial_parameters, {"parameters": BALL, "pose": POSE}),
    "inertia_matrix": (spatial.inertia_matrix, {"parameters": BALL}),
    "inertia_elements": (spatial.inertia_elements, {"matrix": np.eye(3)}),
    "SE3.from_translation": (spatial.SE3.from_translation, {"translation": POSE[:3]}),
    "SE3.from_rpy": (spatial.SE3.from_rpy, {"rpy": POSE[:3]}),
    "SE3.from_vector": (spatial.SE3.from_vector, {"vector": POSE}),
    "SE3.exp": (spatial.SE3.exp, {"twist": POSE[:6]}),
    "SE3.apply": (spatial.SE3.identity().apply, {"points": POSE[:3]}),
    "ddp": (trajopt.ddp, {"problem": PROBLEM, "us": US, "xs": XS}),
    "mppi": (trajopt.mppi, {"problem": PROBLEM, "us": US, "key": jax.random.key(0)}),
    "cem": (trajopt.cem, {"problem": PROBLEM, "us": US, "key": jax.random.key(0)}),
    "predictive_sampling": (trajopt.predictive_sampling, {"problem": PROBLEM, "us": US, "key": jax.random.key(0)}),
    "MPC.start": (trajopt.MPC(PROBLEM).start, {"x0": np.zeros(2)}),
    "closed_loop": (trajopt.closed_loop, {"mpc": trajopt.MPC(PROBLEM), "plant": max, "x0": XS[0], "steps": 1}),
    "interpolated_guess": (trajopt.interpolated_guess, {"problem": PROBLEM, "goal": XS[0]}),
    "Problem.starting_at": (PROBLEM.starting_at, {"x0": XS[0]}),
    "Problem.rollout": (PROBLEM.rollout, {"us": US}),
    "Problem.total_cost": (PROBLEM.total_cost, {"xs": XS, "us": US}),
    **{
        name: (getattr(sysid, name), {argument: value})
        for name, argument, value in (
            ("pseudo_inertia", "parameters", BALL),
            ("is_physical", "parameters", BALL),
            ("nearest_physical", "parameters", BALL),
            ("log_cholesky_from_inertial_parameters", "parameters", BALL),
            ("inertial_parameters_from_log_cholesky", "theta", BALL),
            ("log_cholesky_factor", "theta", BALL),
            ("inertial_parameters_from_pseudo_inertia", "J", np.eye(4)),
        )
    },
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_functions_name_the_argument(name):
    assert require_named_errors(name, *OTHERS[name]) > 0


RECORDING = sysid.Recording(np.arange(200) / 100, np.sin(np.arange(200.0) / 30)[:, None] * np.ones(N))
MOTION = sysid.JointTrajectory("fourier", 2.0, 3, 0.1 * np.ones((5, N)))
FREE = sysid.Parametrization(MODEL.with_joint_friction(damping=0.1), sysid.Positive("damping"))
FLEET = dict.fromkeys(("q", "v", "tau"), np.ones((1, 100, N)))
NOISE = {"position_noise": 0.01, "velocity_noise": 0.1}
BALL_AT = jaxdyn.BodyInertia.sphere(1.0, 0.1)
NUMBERS = {
    "fit_fleet": (sysid.fit_fleet, {"parametrization": FREE, **FLEET, "dt": 0.01, "segment": 0.5, **NOISE}),
    "rollout_errors": (
        functools.partial(sysid.rollout_errors, MODEL),
        {"recording": RECORDING, "horizon": 0.1, "every": 0.1},
    ),
    "JointTrajectory.sampled": (MOTION.sampled, {"rate": 100.0, "periods": 1}),
    "JointTrajectory.__call__": (MOTION.__call__, {"t": np.zeros(2)}),
    "Recording.between": (RECORDING.between, {"start": 0.1, "stop": 0.2}),
    "Recording.trimmed": (RECORDING.trimmed, {"start": 0.1, "stop": 0.2}),
    "Recording.resampled": (RECORDING.resampled, {"rate": 50.0, "max_gap": 0.1, "kind": "cubic"}),
    "Recording.filtered": (RECORDING.filtered, {"cutoff": 10.0, "order": 4}),
    "Recording.prepared": (RECORDING.prepared, {"cutoff": 10.0}),
    "Recording.aligned": (RECORDING.aligned, {"delay": 0.01}),
    "load_npz": (sysid.load_npz, {"path": "nowhere.npz"}),
    "Parametrization.model": (FREE.model, {"free": np.zeros(N)}),
    "BodyInertia.box": (jaxdyn.BodyInertia.box, {"mass": 1.0, "size": np.ones(3)}),
    "BodyInertia.sphere": (jaxdyn.BodyInertia.sphere, {"mass": 1.0, "radius": 0.1}),
    "BodyInertia.rod": (jaxdyn.BodyInertia.rod, {"mass": 1.0, "start": np.zeros(3), "end": np.ones(3)}),
    "BodyInertia": (jaxdyn.BodyInertia, {"mass": 1.0, "center_of_mass": np.zeros(3), "rotational": np.ones(3)}),
    "chain": (samples.chain, {"n": 2, "length": 0.2}),
    "to_mjcf": (jaxdyn.to_mjcf, {"model": MODEL}),
    "to_urdf": (jaxdyn.to_urdf, {"model": MODEL}),
    "save_model": (functools.partial(jaxdyn.save_model, model=MODEL), {"path": "model.npz"}),
    "gravity": (jaxdyn.ModelBuilder().add_body("b", inertia=BALL_AT).build, {"gravity": np.zeros(3)}),
    "placement": (lambda placement: jaxdyn.ModelBuilder().add_body("b", placement=placement), {"placement": None}),
    "inertia": (lambda inertia: jaxdyn.ModelBuilder().add_body("b", inertia=inertia), {"inertia": None}),
    "contacts": (
        functools.partial(jaxdyn.World, samples.cube(), [jaxdyn.ContactShape("cube", jaxdyn.Sphere(0.1))]),
        {"law": None, "limits": False, "options": None, "surface": "ground", "pairs": "all"},
    ),
    "shape": (lambda shape: jaxdyn.World(samples.cube(), [jaxdyn.ContactShape("cube", shape)]), {"shape": 1}),
    "shapes": (functools.partial(jaxdyn.World, samples.cube()), {"contacts": []}),
    "axis": (lambda axis: jaxdyn.ModelBuilder().add_body("b", joint=jaxdyn.Joint(axis=axis)), {"axis": np.ones(3)}),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_texts_and_paths_of_a_wrong_kind_are_named(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    function, arguments = NUMBERS[name]
    for argument, valid in arguments.items():
        for what, wrong in WRONG.items():
            if (wrong is None and valid is None) or (isinstance(valid, str) and isinstance(wrong, str)):
                continue
            with pytest.raises(JaxdynError, match=argument.replace("kind", "interpolation|kind")) as caught:
                function(**(arguments | {argument: wrong}))
            assert "np." not in str(caught.value), (argument, what)


@pytest.mark.parametrize("value", [np.nan, -1.0, 0.0, np.inf])
def test_durations_and_rates_are_positive_numbers(value):
    calls = {
        "dt": lambda: sysid.fit_fleet(FREE, **FLEET, dt=value, segment=0.5, **NOISE),
        "segment": lambda: sysid.fit_fleet(FREE, **FLEET, dt=0.01, segment=value, **NOISE),
        "rate": lambda: MOTION.sampled(value),
        "horizon": lambda: sysid.rollout_errors(MODEL, RECORDING, value, every=0.1),
        "every": lambda: sysid.rollout_errors(MODEL, RECORDING, 0.1, every=value),
    }
    for name, call in calls.items():
        with pytest.raises(JaxdynError, match=name):
            call()


@pytest.mark.parametrize("wrong", [1, None, np.zeros(2), ["joint1"]], ids=str)
def test_names_are_texts(wrong):
    for call in (MODEL.q_index, MODEL.link_parameters, lambda x: MODEL.with_payload(x, BALL_AT)):
        with pytest.raises(JaxdynError, match=r"a name is a text|a text is needed"):
            call(wrong)


@pytest.fixture(scope="module")
def world() -> jaxdyn.World:
    return jaxdyn.load_world(
        """<mujoco><worldbody><body><joint name="j"/><geom size="0.1"/></body></worldbody>
        <actuator><motor joint="j"/></actuator></mujoco>"""
    )


def test_worlds_have_no_other_fields_by_replacement(world):
    for kind in (world, jaxdyn.World(MODEL)):
        with pytest.raises(JaxdynError, match=r"equinox\.tree_at\(.*with_model, with_timestep"):
            dataclasses.replace(kind, options=jaxdyn.SolverOptions(3))


def test_worlds_name_the_argument(world):
    state = world.state()
    q, v, u, f = np.zeros(1), np.zeros(1), np.zeros(1), np.zeros((2, 6))
    forces = {"state": state, "control": u, "torque": v, "wrenches": f}
    functions = dict.fromkeys(
        ("accelerations", "step", "sensors", "report", "constraint_forces", "contact_forces"), forces
    )
    functions["state"] = {"q": q, "v": v}
    functions["rate"] = {"t": 0.0, "state": state, "control": u}
    functions["rollout"] = {"state": state, "controls": u[None], "torques": v[None], "wrenches": f[None]}
    functions |= {"from_qvel": {"q": q, "qvel": v}, "to_qvel": {"q": q, "v": v}}
    for name, arguments in functions.items():
        assert require_named_errors(name, getattr(world, name), arguments) > 0
        if "state" in arguments:
            with pytest.raises(ShapeError, match=f"{name}: `state` is a str .* a State is needed"):
                getattr(world, name)(**(arguments | {"state": "abc"}))
    with pytest.raises(ShapeError, match="dtype is a str"):
        world.astype("abc")


@pytest.mark.parametrize("what", WRONG)
def test_fields_and_states_are_named(what):
    """Objects keep what they are given, or convert it; either way the message has the name."""
    wrong: typing.Any = WRONG[what]
    fields = {
        "target": lambda: trajopt.FramePositionResidual(FRAME, wrong),
        "weight": lambda: trajopt.QuadraticCost(trajopt.ControlResidual(), wrong),
        "initial": lambda: simulate.FirstOrderLag(0.1, wrong),
        "radius": lambda: jaxdyn.Capsule(wrong, 1.0),
        "x0": lambda: trajopt.Problem(PROBLEM.dynamics, wrong, 4, stage_costs=PROBLEM.stage_costs),
        "state.q": lambda: simulate.step(MODEL, simulate.State(wrong, STATE.v), STATE.v, 0.01),
        "q": lambda: sysid.Recording(np.arange(2.0), wrong),
        "recordings": lambda: sysid.identify(MODEL, wrong),
    }
    if wrong is not None:
        # A state without a velocity is at rest.
        fields["state.v"] = lambda: simulate.rollout(MODEL, simulate.State(STATE.q, wrong), np.zeros((2, N)), 0.01)
    for name, call in fields.items():
        with pytest.raises(JaxdynError, match=name.replace(".", r"\.")):
            call()


def test_what_is_no_model_is_named(tmp_path):
    """What a user may hand over in the place of a model is refused with its name."""
    text = '<mujoco><worldbody><body name="b"><joint/><geom size="0.1"/></body></worldbody></mujoco>'
    world, file = jaxdyn.load_world(text), tmp_path / "model.npz"
    jaxdyn.save_model(file, MODEL)
    wrong = [STATE, world.state(), sysid.Recording(np.arange(3.0), np.zeros((3, N))), [MODEL], np.zeros(2), 3, None]
    for thing in (*wrong, world, jaxdyn.ModelBuilder()):
        calls = {
            "model": (lambda x: jaxdyn.save_model(tmp_path / "other.npz", x), jaxdyn.to_urdf),
            "visuals": (lambda x: viz.save_png(tmp_path / "a.png", MODEL, visuals=3 if x is None else x),),
            "shown": () if thing is world else (lambda x: viz.save_png(tmp_path / "a.png", x),),
            "contacts": (lambda x: viz.save_png(tmp_path / "a.png", MODEL, contacts=3 if x is None else x),),
        }
        for argument, functions in calls.items():
            for function in functions:
                message = message_of(functools.partial(function, thing))
                assert argument in message, message
                assert thing is not world or argument != "model" or "it has one: give its `model`" in message
    assert "load_model reads" in message_of(lambda: viz.Viewer(file))
    batch = jax.tree.map(lambda x: x[None], MODEL)
    assert "batch axes" in message_of(lambda: viz.Viewer(batch))
    assert not list(tmp_path.glob("other.npz"))


def test_messages_say_what_is_needed():
    with pytest.raises(ShapeError) as caught:
        jaxdyn.aba(MODEL, "abc", STATE.v, STATE.v)  # pyright: ignore[reportArgumentType]
    assert str(caught.value) == "aba: `q` is a str ('abc'); an array of shape [*batch, nq], with nq = 7, is needed"
    assert caught.value.__suppress_context__
    for wrong in WRONG.values():
        with pytest.raises(ShapeError, match=r"aba: `v` is .* an array of shape"):
            jax.jit(lambda q, wrong=wrong: jaxdyn.aba(MODEL, q, wrong, q))(STATE.q)


class Tensor:
    """An array of another library, as PyTorch has them."""

    dtype = "float64"

    def __init__(self, values):
        self.values = np.asarray(values)
        self.__dlpack__, self.__dlpack_device__ = self.values.__dlpack__, self.values.__dlpack_device__


def test_arrays_of_other_libraries_have_a_way_in():
    with pytest.raises(ShapeError, match=r"aba: `q` is a Tensor of \w+: jax\.dlpack\.from_dlpack\(x\) makes"):
        jaxdyn.aba(MODEL, Tensor(STATE.q), STATE.v, STATE.v)  # pyright: ignore[reportArgumentType]


def test_long_names_are_cut_in_messages():
    long, path = "x" * 10_000, "/folder/" + "x" * 10_000
    calls = [
        lambda: MODEL.with_locked_joints([long]),
        lambda: jaxdyn.ModelBuilder().add_body(long).add_body(long),
        lambda: jaxdyn.ModelBuilder().add_body("a", joint=jaxdyn.Joint(long)),
        lambda: simulate.rollout(MODEL, STATE, np.zeros((2, N)), 0.01, integrator=long),
        lambda: jaxdyn.load_urdf(f"<robot name='a'><link name='{long}'/><link name='{long}'/></robot>"),
        lambda: jaxdyn.load_model(path),
    ]
    for call in calls:
        message = message_of(call)
        assert "xxx..." in message.replace("'", "")
        assert len(message) < 1000, message
    # Apostrophes are no quotes, and what people write is shorter than what is cut.
    whole = "the joint's axis is not the row's, " * 9 + f"{'name with spaces ' * 5!r} {'/a' * 140!r}"
    assert str(ModelError(whole)) == whole


@pytest.mark.parametrize("dtype", ["abc", int, None, np.ones(2), 1j, "complex64"], ids=str)
def test_precisions_are_floating_point(dtype):
    with pytest.raises(ShapeError, match=r"dtype is .*; a type of floating-point numbers is needed"):
        MODEL.astype(dtype)


def test_functions_are_needed_where_functions_are_called():
    calls = {
        "report": lambda: sysid.fit_inverse_dynamics(MODEL, RECORDING, report="abc"),  # pyright: ignore[reportArgumentType]
        "sensors": lambda: simulate.rollout(MODEL, STATE, np.zeros((2, N)), 0.01, sensors="abc"),  # pyright: ignore[reportArgumentType]
        "plant": lambda: trajopt.closed_loop(trajopt.MPC(PROBLEM), "abc", XS[0], 2),  # pyright: ignore[reportArgumentType]
    }
    for name, call in calls.items():
        with pytest.raises(ShapeError, match=f"`{name}` is a str .*a function is needed"):
            call()


def test_errors_of_the_users_own_code_stay():
    def policy(carry, state, t):
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        simulate.rollout(MODEL, STATE, policy, 0.01, steps=2)
    with pytest.raises(jaxdyn.ArgumentError, match="missing a required argument: 'tau'"):
        jaxdyn.aba(MODEL, STATE.q, STATE.v)  # pyright: ignore[reportCallIssue]
    with pytest.raises(TypeError, match=r"^step: got an unexpected keyword argument 'friction'$"):
        simulate.step(MODEL, STATE, STATE.v, 0.01, friction="none")  # pyright: ignore[reportCallIssue]


@pytest.mark.parametrize(
    "dt", [-0.01, 0.0, np.nan, np.inf, np.float64(-1), jnp.asarray(-0.01), "0.01", None, 1j, [1.0]]
)
def test_time_steps_are_positive_numbers(dt):
    calls = {
        "step": lambda: simulate.step(MODEL, STATE, STATE.v, dt),
        "step by name": lambda: simulate.step(MODEL, STATE, tau=STATE.v, dt=dt),
        "derivatives": lambda: simulate.step_derivatives(MODEL, STATE, STATE.v, dt),
        "rollout": lambda: simulate.rollout(MODEL, STATE, np.zeros((2, N)), dt),
        "rk4": lambda: simulate.rk4_step(MODEL, STATE, STATE.v, dt),
        "euler": lambda: simulate.semi_implicit_euler_step(MODEL, STATE, STATE.v, dt),
        "dynamics": lambda: trajopt.ModelDynamics(MODEL, dt),
        "function": lambda: trajopt.DiscreteDynamics(lambda x, u, t, p: x, 2, 1, dt=dt),
    }
    for call in calls.values():
        with pytest.raises((ModelError, ShapeError), match="dt"):
            call()


@pytest.mark.parametrize(
    "value",
    [np.float64(-1.5), (np.float32(2), np.int64(3)), np.array([-1.0]), jnp.array([[-1.0]]), [np.True_], np.str_("x")],
)
def test_messages_show_plain_numbers(value):
    text = str(ModelError(f"x is {value!r}"))
    assert not any(word in text for word in ("np.", "array", "Array", "dtype", "_)")), text
    assert plain_numbers(text) == text
    calls = [
        lambda: jaxdyn.ModelBuilder().add_body("b", joint=jaxdyn.Joint("revolute", lower=value)),
        lambda: simulate.step(MODEL, STATE, STATE.v, value),
        lambda: simulate.rollout(MODEL, STATE, np.zeros((2, N)), 0.01, substeps=value),
        lambda: trajopt.Problem(PROBLEM.dynamics, XS[0], value, stage_costs=PROBLEM.stage_costs),
        lambda: sysid.Recording(np.arange(2.0), np.zeros((2, 1))).resampled(value),
    ]
    for call in calls:
        message = message_of(call)
        assert not any(word in message for word in ("np.", "Array(", "array("))


def message_of(call) -> str:
    """The message of the library's error, or nothing."""
    try:
        call()
    except Exception as error:
        return str(error) if isinstance(error, JaxdynError) else ""
    return ""


CUBE = samples.cube()
ZERO, STILL = np.zeros(7), np.zeros(6)


@pytest.mark.parametrize(
    "call",
    [
        lambda q: jaxdyn.forward_kinematics(CUBE, q),
        lambda q: jaxdyn.aba(CUBE, jnp.asarray(q), STILL, tau=STILL),
        lambda q: jaxdyn.frame_pose(CUBE, q=q, frame=CUBE.body_names[0]),
        lambda q: jaxdyn.inverse_kinematics(CUBE, algorithms.FrameTarget(CUBE.body_names[0], np.zeros(3)), q),
        lambda q: CUBE.integrate(q, STILL),
        lambda q: CUBE.difference(np.stack([CUBE.neutral(), q]), CUBE.neutral()),
        lambda q: simulate.step(CUBE, simulate.State(q), STILL, 0.01),
        lambda q: simulate.rollout(CUBE, simulate.State(q, STILL), np.zeros((2, 6)), 0.01),
        lambda q: simulate.rk4_step(CUBE, simulate.State(q, STILL), STILL, 0.01),
        lambda q: jax.grad(lambda v: jaxdyn.kinetic_energy(CUBE, q, v))(STILL),
    ],
)
def test_a_quaternion_of_zeros_is_an_error(call):
    with pytest.raises(ModelError, match=r"q.?\[3:7\], is zero(.|\n)*model\.neutral\(\)"):
        call(ZERO)


def test_degrees_are_warned_of():
    """Where limits are known; turns of a free joint and angles near the limits stay."""
    model = samples.double_pendulum()
    limited = eqx.tree_at(lambda m: (m.position_lower, m.position_upper), model, (np.full(2, -3.0), np.full(2, 3.0)))
    start, name = np.array([0.0, 90.0]), model.joint_names[1]
    calls = (
        lambda m, q: jaxdyn.forward_kinematics(m, q),
        lambda m, q: simulate.step(m, simulate.State(q), np.zeros(2), 0.01),
        lambda m, q: simulate.rollout(m, simulate.State(np.stack([0 * q, q])), np.zeros((2, 2)), 0.01),
    )
    for call in calls:
        with pytest.warns(
            jaxdyn.PhysicalityWarning, match=f"beyond the limits of joint '{name}', -3 to 3 rad.*degrees"
        ):
            call(limited, start)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            call(model, start)
            call(limited, np.array([8.0, -8.0]))


def test_other_names_of_arguments_and_numbers_by_position():
    calls: dict[str, Callable] = {
        "step: .*'timestep': did you mean 'dt'": lambda: simulate.step(MODEL, STATE, STATE.v, timestep=0.01),
        "rollout: .*'timestep': did you mean 'dt'": lambda: simulate.rollout(
            MODEL, STATE, np.zeros((2, N)), timestep=1
        ),
        "'torques': did you mean 'controls'": lambda: simulate.rollout(MODEL, STATE, torques=np.zeros((2, N)), dt=0.01),
        "scaled: .*by name: length=..., mass=...": lambda: MODEL.scaled(1.2),
    }
    for words, call in calls.items():
        with pytest.raises(TypeError, match=words):
            call()
