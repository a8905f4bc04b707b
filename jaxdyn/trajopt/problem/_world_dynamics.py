"""Discrete-time dynamics of worlds."""

import equinox as eqx
import jax
import jax.numpy as jnp

from jaxdyn._errors import ModelError, naming_arguments, require_positive_integer
from jaxdyn._types import Array, ArrayLike, Float
from jaxdyn.model import Model
from jaxdyn.simulate import AbstractWorld, State
from jaxdyn.trajopt.problem._dynamics import AbstractRobotDynamics, seconds


class WorldDynamics(AbstractRobotDynamics):
    """A world under controls of its actuators, each held for `substeps` time steps: `x = [q, v, activation]`,
    displacements `[dq, dv, activation]`.

    Steps are those of the world's integrator, with its contacts, limits, tendons and equality constraints; derivatives
    are those of the minimum that they solve for. Where a problem says so, `dt` may be another one than the world's
    (`FreeTimeDynamics`): it is the length of all substeps together.
    """

    world: AbstractWorld
    dt: Float[Array, ""]
    t0: Float[Array, ""]
    substeps: int = eqx.field(static=True)
    nx: int = eqx.field(static=True)
    ndx: int = eqx.field(static=True)
    nu: int = eqx.field(static=True)

    @naming_arguments
    def __init__(self, world: AbstractWorld, *, substeps: int = 1, t0: ArrayLike = 0.0):
        """**Raises** `ModelError` for what is no world, and a number of substeps below 1; `ShapeError` for a world with
        batch axes."""
        if not isinstance(world, AbstractWorld):
            raise ModelError(f"the first argument must be a jaxdyn.World, not {type(world).__name__}")
        require_positive_integer(substeps, "substeps")
        self.world, self.substeps, model = world, substeps, world.model
        self.dt = seconds(world.timestep * substeps, "dt", model.dtype)
        self.t0 = seconds(t0, "t0", model.dtype)
        self.nx, self.ndx, self.nu = model.nq + model.nv + world.na, 2 * model.nv + world.na, world.nu
        x, u = (jax.ShapeDtypeStruct((n,), model.dtype) for n in (self.nx, self.nu))
        # Raises errors of shapes here, not inside a solver.
        eqx.filter_eval_shape(lambda d, x, u: d.step(x, u, 0), self, x, u)

    @property
    def model(self) -> Model:
        """The world's tree."""
        return self.world.model

    def join(self, state: State) -> Float[Array, "*batch nx"]:
        """The state `[*batch, nx]` of problems from one of the world, with zeros where it lacks something."""
        whole = self.world.start_of(state, {})
        return jnp.concatenate([whole.q, whole.v, whole.activation], axis=-1)

    def step(self, x, u, k):
        world = self.world.with_timestep((self.dt / self.substeps).astype(x.dtype))
        state = self.split(x)
        state = eqx.tree_at(lambda s: s.time, state, self.time(k).astype(x.dtype), is_leaf=lambda x: x is None)
        if self.world.na == 0:
            state = State(state.q, state.v, x[x.shape[0] :], state.time)
        after = world.advance(state, u, None, None, substeps=self.substeps).state
        return jnp.concatenate([after.q, after.v, after.activation])
