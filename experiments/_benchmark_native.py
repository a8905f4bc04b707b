"""Pinocchio and MuJoCo's C library for the benchmark, called from Python in double precision with one thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from experiments import _benchmark_models as models
from experiments._benchmark_models import Tree, UnsupportedError, WorldLinear

# The largest number of states in a loop; more would give the same time per state.
_LOOP = 1024
_MOST_BYTES = 2**30


class Call(NamedTuple):
    """The calls that are timed."""

    run: Callable[[], Any]
    evaluations: int
    """Number of evaluations in one run."""
    empty: Callable[[], Any] | None
    """The same loop around a function that does nothing, whose cost is subtracted."""
    results: Callable[[int], Any]
    """The results of the first states, in this project's conventions: an array or a tuple of them."""


class Pinocchio:
    """A loop in Python over single calls."""

    def __init__(self, tree: Tree):
        pinocchio = models.library("pinocchio")
        self.pin, self.tree = pinocchio, tree
        root = (pinocchio.JointModelFreeFlyer(),) if tree.free else ()
        self.model = pinocchio.buildModelFromXML(models.to_urdf(tree), *root)
        self.data = self.model.createData()

    def _q(self, q: np.ndarray) -> np.ndarray:
        q = models.unit(self.tree.free, q)
        if self.tree.free:
            q = np.concatenate([q[:, :3], q[:, 4:7], q[:, 3:4], q[:, 7:]], axis=1)
        return q

    def call(self, name: str, batch: int, steps: int) -> Call:
        pin, model, data = self.pin, self.model, self.data
        functions = {
            "aba": lambda q, v, tau, a: pin.aba(model, data, q, v, tau),
            "rnea": lambda q, v, tau, a: pin.rnea(model, data, q, v, a),
            "crba": lambda q, v, tau, a: pin.crba(model, data, q),
            "aba_derivatives": lambda q, v, tau, a: pin.computeABADerivatives(model, data, q, v, tau),
            "rnea_derivatives": lambda q, v, tau, a: pin.computeRNEADerivatives(model, data, q, v, a),
            "inverse_mass_matrix": lambda q, v, tau, a: pin.computeMinverse(model, data, q),
            "coriolis_matrix": lambda q, v, tau, a: pin.computeCoriolisMatrix(model, data, q, v),
            "torque_regressor": lambda q, v, tau, a: pin.computeJointTorqueRegressor(model, data, q, v, a),
            "centroidal_momentum": lambda q, v, tau, a: pin.computeCentroidalMomentum(model, data, q, v),
            "centroidal_momentum_matrix": lambda q, v, tau, a: pin.computeCentroidalMap(model, data, q),
            "centroidal_momentum_matrix_time_derivative": lambda q, v, tau, a: pin.dccrba(model, data, q, v),
            "com_jacobian": lambda q, v, tau, a: pin.jacobianCenterOfMass(model, data, q, False),
        }
        if name not in functions:
            raise UnsupportedError(f"Pinocchio has no {name}")
        function = functions[name]
        s = models.states(self.tree, min(batch, _LOOP))
        rows = list(zip(self._q(s.q), s.v, s.tau, s.a, strict=True))

        def loop(f: Callable) -> Callable[[], None]:
            def run():
                for row in rows:
                    f(*row)

            return run

        def results(n: int) -> Any:
            out = []
            for row in rows[:n]:
                x = function(*row)
                if name in ("crba", "inverse_mass_matrix"):
                    x = np.triu(x) + np.triu(x, 1).T
                elif name == "aba_derivatives":
                    upper = np.triu(data.Minv)
                    x = (data.ddq_dq.copy(), data.ddq_dv.copy(), upper + np.triu(upper, 1).T)
                elif name == "rnea_derivatives":
                    upper = np.triu(data.M)
                    x = (data.dtau_dq.copy(), data.dtau_dv.copy(), upper + np.triu(upper, 1).T)
                else:
                    x = np.array(getattr(x, "vector", x))
                out.append(x)
            return tuple(np.array(x) for x in zip(*out, strict=True)) if isinstance(out[0], tuple) else np.array(out)

        return Call(loop(function), len(rows), loop(lambda q, v, tau, a: None), results)


class PinocchioParallel(Pinocchio):
    """Pinocchio's functions of whole batches, with one thread."""

    def call(self, name: str, batch: int, steps: int) -> Call:
        if name not in ("aba", "rnea"):
            raise UnsupportedError(f"Pinocchio has no {name} of whole batches")
        function = self.pin.abaInParallel if name == "aba" else self.pin.rneaInParallel
        pool = self.pin.ModelPool(self.model, 1)
        s = models.states(self.tree, batch)
        q, v, x = (np.asfortranarray(y.T) for y in (self._q(s.q), s.v, s.tau if name == "aba" else s.a))
        out = np.zeros((self.tree.nv, batch), order="F")

        def run():
            function(1, pool, q, v, x, out)

        def results(n: int) -> np.ndarray:
            run()
            return out.T[:n].copy()

        return Call(run, batch, None, results)


class Mujoco:
    """MuJoCo, with one call on one state, and `mujoco.rollout` for roll-outs."""

    def __init__(self, tree: Tree):
        mujoco = models.library("mujoco")
        self.mujoco, self.tree, self.model = mujoco, tree, models.to_mujoco(tree)
        self.data = mujoco.MjData(self.model)
        self.conversion = WorldLinear(tree)

    def call(self, name: str, batch: int, steps: int) -> Call:
        if name == "rollout":
            return self._rollout(batch, steps)
        mj, model, data = self.mujoco, self.model, self.data
        if name not in ("aba", "rnea", "crba"):
            raise UnsupportedError(f"MuJoCo has no {name}")
        if batch != 1:
            raise UnsupportedError("MuJoCo evaluates one state a call; its time at batch 1 holds for any batch")
        state = models.states(self.tree, 1)
        s = self.conversion.states(state)

        def matrix():
            mj.mj_kinematics(model, data)
            mj.mj_comPos(model, data)
            mj.mj_makeM(model, data)

        runs = {"aba": lambda: mj.mj_forward(model, data), "rnea": lambda: mj.mj_inverse(model, data), "crba": matrix}
        data.qpos[:], data.qvel[:], data.qfrc_applied[:] = s.q[0], s.v[0], s.tau[0]
        if name == "rnea":
            data.qfrc_applied[:], data.qacc[:] = 0, s.a[0]

        def results(n: int) -> np.ndarray:
            runs[name]()
            if name == "aba":
                return self.conversion.acceleration(state, np.array(data.qacc)[None])
            if name == "rnea":
                return self.conversion.torque(state, np.array(data.qfrc_inverse)[None])
            M = np.zeros((self.tree.nv, self.tree.nv))
            mj.mj_fullM(model, data, M)
            return self.conversion.mass_matrix(state, M[None])

        return Call(runs[name], 1, lambda: None, results)

    def _rollout(self, batch: int, steps: int) -> Call:
        rollout = models.library("mujoco.rollout")
        s = self.conversion.states(models.rollout_states(self.tree, batch))
        mj, kind = self.mujoco, self.mujoco.mjtState.mjSTATE_FULLPHYSICS
        size = mj.mj_stateSize(self.model, kind)
        if batch * steps * size * 8 > _MOST_BYTES:
            raise UnsupportedError(f"the states of {batch} roll-outs, which MuJoCo writes, need more than 1 GiB")
        start = np.zeros((batch, size))
        for i in range(batch):
            self.data.qpos[:], self.data.qvel[:] = s.q[i], s.v[i]
            mj.mj_getState(self.model, self.data, start[i], kind)
        states = np.zeros((batch, steps, size))
        sensors = np.zeros((batch, steps, self.model.nsensordata))

        def run():
            rollout.rollout(self.model, self.data, start, nstep=steps, state=states, sensordata=sensors)

        def results(n: int) -> tuple[np.ndarray, np.ndarray]:
            run()
            # The columns are time, configuration and velocity.
            end = 1 + self.tree.nq
            return states[:n, -1, 1:end].copy(), states[:n, -1, end : end + self.tree.nv].copy()

        return Call(run, batch * steps, None, results)


LIBRARIES: dict[str, Any] = {"pinocchio": Pinocchio, "pinocchio_parallel": PinocchioParallel, "mujoco": Mujoco}
