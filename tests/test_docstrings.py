"""Every public name says what it is: meaning, shapes, units, errors, source; and has a place in the reference."""

import ast
import functools
import importlib
import inspect
import re
import textwrap
from pathlib import Path
from typing import Any

import jaxdyn

ROOT = Path(__file__).parents[1]
PACKAGES = ("", "samples", "model", "io", "algorithms", "simulate", "spatial", "sysid", "trajopt", "viz")
UNIT = re.compile(r"(?<![\w`*])(m|kg|s|rad|N|J|W|Hz|A|SI)(/s|/m|/rad|\^2| m)*(?![\w*])")
SHAPED = re.compile(r"\[[^\]]*\]|\bnumbers?\b|\bscalars?\b")
LOOSE = re.compile(r"ArrayLike|\bjax\.Array|\bnp\.ndarray|\bArray\b|^_empty$")
YEAR = re.compile(r"\b(19|20)\d\d\b")
ERRORS = {name for name in jaxdyn.__all__ if name.endswith("Error")} | {"ImportError"}
DIMENSIONLESS = {
    "denoc_matrices",  # geometry and axes
    "velocity_products",  # of any velocities
}
DEFINITIONS = {
    *("forward_kinematics", "frame_pose", "frame_velocity", "frame_jacobian", "frame_acceleration"),
    *("frame_bias_acceleration", "frame_jacobian_time_derivative", "center_of_mass", "com_velocity"),
    *("com_acceleration", "com_bias_acceleration", "com_jacobian", "kinetic_energy", "potential_energy"),
    *("potential_energy_gradient", "mechanical_energy", "power", "generalized_gravity", "nonlinear_effects"),
    *("spring_torque", "friction_torque", "velocity_products", "base_reaction", "joint_reactions"),
    *("mass_matrix_derivative", "denoc_matrices", "centroidal_momentum_time_derivative"),
    # By composition of first derivatives.
    *("rnea_second_derivatives", "aba_second_derivatives", "rnea_hessian_vector_product"),
    "aba_hessian_vector_product",
}
"""Functions of `jaxdyn.algorithms` that compute what their first sentence defines, by no algorithm of somebody's."""
SOLVERS = {
    "simulate": ("rk4_step",),
    "sysid": (
        *("fit_inverse_dynamics", "fit_rollouts", "base_parameters", "optimize_excitation", "identify_payload"),
        *("bootstrap", "ordinary_least_squares", "LogCholesky", "pseudo_inertia", "JointEffects"),
    ),
    "trajopt": ("ddp", "mppi", "cem", "predictive_sampling", "collocation"),
}


def public() -> dict[str, Any]:
    """Every public object once, by the first name that it has."""
    out, seen = {}, set()
    for package in PACKAGES:
        module = importlib.import_module(f"jaxdyn.{package}" if package else "jaxdyn")
        for name in module.__all__:
            value = getattr(module, name)
            if id(value) not in seen and not inspect.ismodule(value):
                seen.add(id(value))
                out[f"{package}.{name}".lstrip(".")] = value
    return out


PUBLIC = public()
FUNCTIONS = {k: v for k, v in PUBLIC.items() if not inspect.isclass(v) and callable(v)}
CLASSES = {k: v for k, v in PUBLIC.items() if inspect.isclass(v)}


def doc_of(value: Any) -> str:
    return (inspect.cleandoc(value.__doc__) if value.__doc__ else "").strip()


@functools.cache
def tree_of(value: Any) -> Any:
    return ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(value)))).body[0]


def raised(node: ast.AST) -> set[str]:
    """The errors of the library that a function raises itself: `raise Name(...)`."""
    calls = [x.exc.func for x in ast.walk(node) if isinstance(x, ast.Raise) and isinstance(x.exc, ast.Call)]
    return {call.id for call in calls if isinstance(call, ast.Name) and call.id in ERRORS}


def methods(cls: type) -> dict[str, Any]:
    """What a class itself defines and shows: functions and properties."""
    out = {}
    for name, value in vars(cls).items():
        value = getattr(value, "__func__", value)
        value = getattr(value, "method", value)  # equinox wraps those of modules
        if not name.startswith("_") and (inspect.isfunction(value) or isinstance(value, property)):
            out[name] = value
    return out


def test_every_name_says_what_it_means():
    bad = []
    for name, value in PUBLIC.items():
        if callable(value):
            text = doc_of(value)
            # A constant's docstring stands beside it in the source; dataclasses make one up: `Name(field, ...)`.
            if len(text) < 20 or text.startswith(f"{name.rpartition('.')[2]}("):
                bad.append(name)
    assert not bad


def test_every_member_says_what_it_means():
    bad = [f"{n}.{m}" for n, cls in CLASSES.items() for m in methods(cls) if not inspect.getdoc(getattr(cls, m))]
    assert not bad


def test_shapes():
    """An array has its shape in the signature, or the docstring says it."""
    bad = []
    for name, function in FUNCTIONS.items():
        if SHAPED.search(doc_of(function)):
            continue
        signature = inspect.signature(function)
        loose = [k for k, p in signature.parameters.items() if LOOSE.search(annotation(p.annotation))]
        if set(loose) - {"key", "dtype"} or LOOSE.search(annotation(signature.return_annotation)):
            bad.append((name, loose))
    assert not bad


def annotation(value: Any) -> str:
    """In words, with what has a shape left out."""
    text = value if isinstance(value, str) else getattr(value, "__name__", str(value))
    return re.sub(r"(Float|Int|Bool|Shaped)\[[^\[\]]*(\[[^\]]*\])?[^\[\]]*\]", "shaped", text)


def test_errors():
    """What a function, a constructor or a method raises itself is told, by the name of the error."""
    bad = []
    for name, value in PUBLIC.items():
        if not callable(value):
            continue
        told, tree = doc_of(value), tree_of(value)
        if not inspect.isclass(value):
            bad += [(name, error) for error in raised(tree) if error not in told]
            continue
        for node in tree.body:
            if isinstance(node, ast.FunctionDef):
                if node.name in ("__init__", "__check_init__", "__post_init__"):
                    text = told + (ast.get_docstring(node) or "")
                elif node.name.startswith("_"):
                    continue
                else:
                    text = told + (inspect.getdoc(getattr(value, node.name)) or "")
                bad += [(f"{name}.{node.name}", error) for error in raised(node) if error not in text]
    assert not bad


def with_references(value: Any) -> str:
    """A docstring, and those of the public names in it."""
    text = doc_of(value)
    names = {name.rpartition(".")[2]: other for name, other in PUBLIC.items()}
    return text + " ".join(doc_of(names[x]) for x in re.findall(r"`(\w+)`", text) if x in names)


ALGORITHMS = [name for name in FUNCTIONS if FUNCTIONS[name].__module__.startswith("jaxdyn.algorithms")]


def test_units_of_algorithms():
    """In the docstring, or in that of a name that it refers to."""
    bad = []
    for name in ALGORITHMS:
        if not UNIT.search(with_references(FUNCTIONS[name])) and name not in DIMENSIONLESS:
            bad.append(name)
    assert not bad


def test_sources():
    """In the docstring, in that of a name that it refers to, or in that of the module."""
    solvers = [f"{package}.{name}" for package, names in SOLVERS.items() for name in names]
    bad = []
    for name in [*(x for x in ALGORITHMS if x not in DEFINITIONS), *solvers]:
        module = importlib.import_module(PUBLIC[name].__module__)
        if not YEAR.search(with_references(PUBLIC[name]) + doc_of(module)):
            bad.append(name)
    assert not bad


def test_the_reference_has_every_name_once():
    text = "\n".join(page.read_text() for page in sorted((ROOT / "docs" / "reference").glob("*.md")))
    places = re.findall(r"^::: jaxdyn\.([\w.]+)$", text, flags=re.MULTILINE)
    shown = {}
    for place in places:
        value = functools.reduce(getattr, place.split("."), jaxdyn)
        if place not in ("inverse_dynamics", "forward_dynamics", "mass_matrix"):
            assert id(value) not in shown, f"{place} is {shown[id(value)]}"
            shown[id(value)] = place
    missing = [name for name, value in PUBLIC.items() if id(value) not in shown]
    assert not missing, f"nowhere in docs/reference: {missing}"
    assert {"inverse_dynamics", "forward_dynamics", "mass_matrix"} <= set(places)
