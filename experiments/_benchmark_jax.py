"""The libraries of the benchmark that are written in JAX, each behind one small interface.

A `JaxLibrary` has functions of one state in the library's own conventions; states are converted before the clock runs,
and results after it. Only `Jaxdyn` takes batches itself; the others are mapped by `jax.vmap`.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments import _benchmark_models as models
from experiments._benchmark_models import GRAVITY, States, Tree, UnsupportedError, WorldLinear


class JaxLibrary:
    """`aba`, `rnea` and `crba` of one state, and conversions of states and results. Subclasses load the library."""

    batched = False
    """Whether the functions take batches without `jax.vmap`."""

    def __init__(self, tree: Tree, dtype: str):
        self.tree, self.dtype = tree, jnp.dtype(dtype)
        self.conversion = WorldLinear(tree)

    def origin(self) -> dict[str, str]:
        """Return the record of the library's folder, where there may be several."""
        return {}

    def aba(self, q, v, tau) -> jax.Array:
        raise NotImplementedError

    def rnea(self, q, v, a) -> jax.Array:
        raise NotImplementedError

    def crba(self, q) -> jax.Array:
        raise NotImplementedError

    def states(self, s: States) -> States:
        """Convert states to the library's conventions."""
        return self.conversion.states(s)

    def back(self, operation: str, s: States, x: np.ndarray) -> np.ndarray:
        """Convert a result of `aba`, `rnea` or `crba` to this project's conventions."""
        c = self.conversion
        return {"aba": c.acceleration, "rnea": c.torque, "crba": c.mass_matrix}[operation](s, x)

    def comparable(self, operation: str) -> bool:
        """Tell whether results are in this project's order and conventions after `back`."""
        return operation in ("aba", "rnea", "crba") or not self.tree.free

    def parameters(self) -> tuple[Any, Callable]:
        """Return the inertial parameters, and `aba` as a function of them and the state."""
        raise UnsupportedError("inertial parameters are constants of the compiled program")

    def derivatives(self, operation: str) -> Callable:
        """Return the Jacobians of `aba` or `rnea`: by forward mode, unless the library has its own function."""
        return jax.jacfwd(getattr(self, operation), (0, 1, 2))

    def quantity(self, name: str) -> Callable:
        """Return a function of `QUANTITIES`."""
        raise UnsupportedError(f"{name} is compared with Pinocchio only")

    def step(self, q, v) -> tuple[jax.Array, jax.Array]:
        """Return the state after a step of semi-implicit Euler without torques."""
        v = v + models.TIMESTEP * self.aba(q, v, jnp.zeros_like(v))
        return self.integrate(q, models.TIMESTEP * v), v

    def rollout(self, q, v, steps: int) -> tuple[jax.Array, jax.Array]:
        """Return the state after some steps."""
        return jax.lax.scan(lambda state, _: (self.step(*state), None), (q, v), length=steps)[0]

    def integrate(self, q, dv) -> jax.Array:
        """Return `q` displaced by `dv`, with the linear velocity of a free joint in world axes."""
        if not self.tree.free:
            return q + dv
        return jnp.concatenate([q[:3] + dv[:3], _turn(q[3:7], dv[3:6]), q[7:] + dv[6:]])

    def only(self, name: str) -> Callable:
        """Return a function of one library only: `vmap_aba`, `vmap_rnea`, `aba_model_argument`."""
        raise UnsupportedError(f"{name} is a measurement of jaxdyn only")


def _turn(quaternion, angle) -> jax.Array:
    """Turn a quaternion by a rotation vector in body axes. The peers' processes do not import this library."""
    square = jnp.sum(angle**2)
    half = 0.5 * jnp.sqrt(jnp.where(square > 0, square, 1.0))
    w2 = jnp.where(square > 0, jnp.cos(half), 1.0)
    u2 = angle * jnp.where(square > 0, 0.5 * jnp.sin(half) / half, 0.5)
    w1, u1 = quaternion[0], quaternion[1:]
    out = jnp.concatenate([(w1 * w2 - u1 @ u2)[None], w1 * u2 + w2 * u1 + jnp.cross(u1, u2)])
    return out / jnp.sqrt(jnp.sum(out**2))


class Jaxdyn(JaxLibrary):
    batched = True

    def __init__(self, tree: Tree, dtype: str):
        super().__init__(tree, dtype)
        import jaxdyn

        self.library = jaxdyn
        self.model = jaxdyn.load_urdf(models.to_urdf(tree), free_base=tree.free).astype(self.dtype)

    def origin(self) -> dict[str, str]:
        return {"jaxdyn": str(Path(self.library.__file__).parent.parent)}

    def aba(self, q, v, tau):
        return self.library.aba(self.model, q, v, tau)

    def rnea(self, q, v, a):
        return self.library.rnea(self.model, q, v, a)

    def crba(self, q):
        return self.library.crba(self.model, q)

    def states(self, s: States) -> States:
        return s

    def back(self, operation: str, s: States, x: np.ndarray) -> np.ndarray:
        return x

    def comparable(self, operation: str) -> bool:
        return True

    def parameters(self):
        import equinox as eqx

        def aba(parameters, q, v, tau):
            model = eqx.tree_at(lambda m: m.inertial_parameters, self.model, parameters)
            return self.library.aba(model, q, v, tau)

        return self.model.inertial_parameters, aba

    def derivatives(self, operation: str) -> Callable:
        name = f"{operation}_derivatives"
        function = getattr(self.library, name, None)
        if function is None:
            raise UnsupportedError(f"this version of jaxdyn has no {name}")
        return lambda q, v, x: function(self.model, q, v, x)

    def quantity(self, name: str) -> Callable:
        from jaxdyn import algorithms

        function = getattr(algorithms, name, None)
        if function is None:
            raise UnsupportedError(f"this version of jaxdyn has no {name}")
        return lambda *state: function(self.model, *state)

    def rollout(self, q, v, steps: int):
        from jaxdyn.simulate import RolloutOptions

        # Like the others, it keeps only the end.
        tau, options = jnp.zeros((steps, self.model.nv), self.dtype), RolloutOptions(save_every=steps)
        end = self.library.rollout(self.model, self.library.State(q, v), tau, models.TIMESTEP, options=options)
        return end.q[..., -1, :], end.v[..., -1, :]

    def only(self, name: str) -> Callable:
        if name == "vmap_aba":
            return jax.vmap(self.aba)
        if name == "vmap_rnea":
            return jax.vmap(self.rnea)
        if name == "aba_model_argument":
            return self.library.aba
        return super().only(name)


class Brax(JaxLibrary):
    """Brax's generalized pipeline: mass matrix, bias forces, Cholesky factors."""

    def __init__(self, tree: Tree, dtype: str):
        super().__init__(tree, dtype)
        self.kinematics = models.library("brax.kinematics")
        self.base = models.library("brax.generalized.base")
        self.dynamics = models.library("brax.generalized.dynamics")
        self.mass = models.library("brax.generalized.mass")
        loader = models.library("brax.io.mjcf")
        self.system = _cast(loader.load_model(models.to_mujoco(tree)), self.dtype)

    def _state(self, system, q, v):
        x, xd = self.kinematics.forward(system, q, v)
        return self.dynamics.transform_com(system, self.base.State.init(q, v, x, xd))

    def _aba(self, system, q, v, tau):
        state = self._state(system, q, v)
        matrix = self.mass.matrix(system, state)
        return jax.scipy.linalg.solve(matrix, self.dynamics.forward(system, state, tau), assume_a="pos")

    def aba(self, q, v, tau):
        return self._aba(self.system, q, v, tau)

    def rnea(self, q, v, a):
        state = self._state(self.system, q, v)
        return self.mass.matrix(self.system, state) @ a + self.dynamics.inverse(self.system, state)

    def crba(self, q):
        return self.mass.matrix(self.system, self._state(self.system, q, jnp.zeros(self.tree.nv, q.dtype)))

    def parameters(self):
        inertia = self.system.link.inertia

        def aba(parameters, q, v, tau):
            mass, moments, center = parameters
            new = inertia.replace(mass=mass, i=moments, transform=inertia.transform.replace(pos=center))
            return self._aba(self.system.replace(link=self.system.link.replace(inertia=new)), q, v, tau)

        return (inertia.mass, inertia.i, inertia.transform.pos), aba


class Frax(JaxLibrary):
    def __init__(self, tree: Tree, dtype: str):
        super().__init__(tree, dtype)
        frax = models.library("frax.core.robot")
        with _file(models.to_urdf(tree), ".urdf") as path:
            self.robot = frax.Robot(
                path,
                joint_ordering=[models.joint_name(i) for i in range(len(tree.bodies))],
                floating_base="quaternion" if tree.free else None,
            )

    def aba(self, q, v, tau):
        return self.robot.forward_dynamics(q, v, tau, None)

    def rnea(self, q, v, a):
        gravity = jnp.array([0, 0, GRAVITY, 0, 0, 0], q.dtype)
        return self.robot.rnea(q, v, a, gravity, None)

    def crba(self, q):
        return self.robot.mass_matrix(q)


class Mjx(JaxLibrary):
    def __init__(self, tree: Tree, dtype: str):
        super().__init__(tree, dtype)
        self.mjx = models.library("mujoco.mjx")
        # No public function returns the mass matrix alone.
        self.smooth = models.library("mujoco.mjx._src.smooth")
        self.support = models.library("mujoco.mjx._src.support")
        model = models.to_mujoco(tree)
        self.model = self.mjx.put_model(model)
        self.data = self.mjx.put_data(model, models.library("mujoco").MjData(model))

    def aba(self, q, v, tau):
        return self.mjx.forward(self.model, self.data.replace(qpos=q, qvel=v, qfrc_applied=tau)).qacc

    def rnea(self, q, v, a):
        return self.mjx.inverse(self.model, self.data.replace(qpos=q, qvel=v, qacc=a)).qfrc_inverse

    def crba(self, q):
        data = self.smooth.kinematics(self.model, self.data.replace(qpos=q))
        data = self.smooth.crb(self.model, self.smooth.com_pos(self.model, data))
        return self.support.full_m(self.model, data)

    def parameters(self):
        names = ("body_mass", "body_inertia", "body_ipos", "body_iquat")

        def aba(parameters, q, v, tau):
            model = self.model.replace(**dict(zip(names, parameters, strict=True)))
            return self.mjx.forward(model, self.data.replace(qpos=q, qvel=v, qfrc_applied=tau)).qacc

        return tuple(jnp.asarray(getattr(self.model, x), self.dtype) for x in names), aba


class JaxSim(JaxLibrary):
    """JaxSim. With `parallel` its forward dynamics run by levels of the tree, otherwise body by body."""

    parallel = False

    def __init__(self, tree: Tree, dtype: str):
        super().__init__(tree, dtype)
        self.js = models.library("jaxsim.api")
        self.representation = models.library("jaxsim.api.common").VelRepr.Body
        self.model = self.js.model.JaxSimModel.build_from_model_description(
            models.to_sdf(tree), is_urdf=False, gravity=GRAVITY
        )
        ours = [models.joint_name(i) for i in range(len(tree.bodies))]
        order = np.array([ours.index(name) for name in self.model.joint_names()], int)
        self.base_q, self.base_v = (7, 6) if tree.free else (0, 0)
        self.q_order = np.concatenate([np.arange(self.base_q), self.base_q + order])
        self.v_order = np.concatenate([np.arange(self.base_v), self.base_v + order])

    def states(self, s: States) -> States:
        v = self.v_order
        return States(models.unit(self.tree.free, s.q)[:, self.q_order], s.v[:, v], s.tau[:, v], s.a[:, v])

    def back(self, operation: str, s: States, x: np.ndarray) -> np.ndarray:
        place = np.argsort(self.v_order)
        return x[:, place][:, :, place] if operation == "crba" else x[:, place]

    def comparable(self, operation: str) -> bool:
        ordered = np.array_equal(self.v_order, np.arange(self.tree.nv))
        return operation in ("aba", "rnea", "crba") or (not self.tree.free and ordered)

    def _data(self, model, q, v):
        arguments: dict[str, Any] = {
            "joint_positions": q[self.base_q :],
            "joint_velocities": v[self.base_v :],
            "velocity_representation": self.representation,
        }
        if self.tree.free:
            arguments |= {"base_position": q[:3], "base_quaternion": q[3:7]}
            arguments |= {"base_linear_velocity": v[:3], "base_angular_velocity": v[3:6]}
        return self.js.data.JaxSimModelData.build(model, **arguments)

    def _join(self, base, joints):
        return jnp.concatenate([base, joints]) if self.tree.free else joints

    def _aba(self, model, q, v, tau):
        # Other libraries take forces on a free base as torques of its joint; here they are a wrench on the base link.
        joints = tau[self.base_v :]
        forces = None
        if self.tree.free:
            forces = jnp.zeros((model.number_of_links(), 6), q.dtype).at[0].set(tau[:6])
        data = self._data(model, q, v)
        return self._join(
            *self.js.model.forward_dynamics_aba(
                model, data, joint_forces=joints, link_forces=forces, parallel=self.parallel
            )
        )

    def aba(self, q, v, tau):
        return self._aba(self.model, q, v, tau)

    def rnea(self, q, v, a):
        arguments = {"base_acceleration": a[:6]} if self.tree.free else {}
        data = self._data(self.model, q, v)
        return self._join(
            *self.js.model.inverse_dynamics(self.model, data, joint_accelerations=a[self.base_v :], **arguments)
        )

    def crba(self, q):
        data = self._data(self.model, q, jnp.zeros(self.tree.nv, q.dtype))
        M = self.js.model.free_floating_mass_matrix(self.model, data)
        return M if self.tree.free else M[6:, 6:]

    def integrate(self, q, dv):
        if not self.tree.free:
            return q + dv
        w, u = q[3], q[4:7]
        t = 2 * jnp.cross(u, dv[:3])
        world = dv[:3] + w * t + jnp.cross(u, t)
        return super().integrate(q, jnp.concatenate([world, dv[3:]]))

    def parameters(self):
        links = self.model.kin_dyn_parameters.link_parameters
        names = ("mass", "center_of_mass", "inertia_elements")

        def aba(parameters, q, v, tau):
            new = links.replace(**dict(zip(names, parameters, strict=True)), validate=False)
            kinematics = self.model.kin_dyn_parameters.replace(link_parameters=new, validate=False)
            return self._aba(self.model.replace(kin_dyn_parameters=kinematics, validate=False), q, v, tau)

        return tuple(jnp.asarray(getattr(links, x), self.dtype) for x in names), aba


class JaxSimParallel(JaxSim):
    parallel = True


LIBRARIES: dict[str, type[JaxLibrary]] = {
    "jaxdyn": Jaxdyn,
    # The process of the baseline imports `jaxdyn` from another checkout.
    "baseline": Jaxdyn,
    "brax": Brax,
    "frax": Frax,
    "mjx": Mjx,
    "jaxsim": JaxSim,
    "jaxsim_parallel": JaxSimParallel,
}


def _cast(tree: Any, dtype) -> Any:
    def cast(x):
        floating = isinstance(x, jax.Array | np.ndarray) and jnp.issubdtype(x.dtype, jnp.floating)
        return jnp.asarray(x, dtype) if floating else x

    return jax.tree.map(cast, tree)


@contextlib.contextmanager
def _file(text: str, suffix: str) -> Iterator[str]:
    """Write a text into a file, for a library that reads files only."""
    handle, path = tempfile.mkstemp(suffix)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        yield path
    finally:
        Path(path).unlink(missing_ok=True)


QUANTITIES = {
    "inverse_mass_matrix": "q",
    "coriolis_matrix": "qv",
    "torque_regressor": "qva",
    "centroidal_momentum": "qv",
    "centroidal_momentum_matrix": "q",
    "centroidal_momentum_matrix_time_derivative": "qv",
    "com_jacobian": "q",
}
"""Quantities of this library and of Pinocchio, with the letters of their arguments."""


def operation(library: JaxLibrary, name: str, batch: int, steps: int) -> tuple[Callable, str]:
    """Return the function of an operation on a batch (one state without batch axis if `batch` is 1), and its arguments'
    names: letters of `q`, `v`, `t` (torque), `a`, and `m`, the model or its inertial parameters.

    **Raises** `UnsupportedError`.
    """

    def mapped(function: Callable, axes: int | tuple = 0) -> Callable:
        return function if batch == 1 or library.batched else jax.vmap(function, axes)

    if name in ("aba", "rnea", "crba"):
        return mapped(getattr(library, name)), {"aba": "qvt", "rnea": "qva", "crba": "q"}[name]
    if name in ("aba_derivatives", "rnea_derivatives"):
        return mapped(library.derivatives(name.removesuffix("_derivatives"))), "qvt" if name[0] == "a" else "qva"
    if name in QUANTITIES:
        return mapped(library.quantity(name)), QUANTITIES[name]
    if name == "gradient":
        return mapped(jax.grad(lambda q, v, t: jnp.sum(library.aba(q, v, t) ** 2), (0, 1, 2))), "qvt"
    if name == "parameter_gradient":
        _, aba = library.parameters()
        batches = mapped(aba, (None, 0, 0, 0))
        return jax.grad(lambda m, q, v, t: jnp.sum(batches(m, q, v, t) ** 2)), "mqvt"
    if name in ("rollout", "rollout_gradient"):

        def rollout(q, v):
            return library.rollout(q, v, steps)

        def loss(q, v):
            q, v = rollout(q, v)
            return jnp.sum(q**2) + jnp.sum(v**2)

        return mapped(rollout if name == "rollout" else jax.grad(loss, (0, 1))), "qv"
    if name == "aba_model_argument":
        return library.only(name), "mqvt"
    if batch == 1:
        raise UnsupportedError(f"{name} needs a batch")
    return library.only(name), "qva" if name == "vmap_rnea" else "qvt"
