"""The structures for the tests of formulations, each with random states and one compiled program of all quantities."""

import functools
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import jaxdyn
from jaxdyn import BodyInertia, Joint, ModelBuilder
from jaxdyn import algorithms as alg
from tests import draws

STATES = 10
LOOPS = 3
"""The number of states that are compared with other implementations."""
KINDS = {
    "forest": ("free", "ball", "planar", "helical", "universal"),
    "forest of all types": ("free", "ball", "planar", "helical", "universal", "cylindrical", "revolute", "prismatic"),
}
"""The joints of the trees. Those of the first have all kinds of primitive joints: hinges are in universal joints and in
the two links, slides in planar joints."""


class Case(NamedTuple):
    model: jaxdyn.Model
    q: jax.Array
    v: jax.Array
    x: jax.Array
    f_ext: jax.Array


M1, M2, L1, L2, G = 1.3, 0.7, 0.6, 0.4, 9.81


def two_links():
    """Point masses at the ends of two links in a vertical plane, x horizontal, gravity along -y."""
    builder = ModelBuilder().add_body("one", joint=Joint(), inertia=BodyInertia(M1, (L1, 0, 0)))
    builder.add_body("two", "one", Joint(), (L1, 0, 0), BodyInertia(M2, (L2, 0, 0)))
    return builder.build(gravity=(0, -G, 0))


@functools.cache
def case(name: str) -> Case:
    if name in KINDS:
        kinds = KINDS[name]
        model = jaxdyn.samples.random_tree(jax.random.key(0), len(kinds), kinds, branching=3)
        # The base has no rotors, so it falls freely.
        model = eqx.tree_at(
            lambda m: (m.armature, m.gravity), model, (model.armature.at[:6].set(0), jnp.array([0, -G, 0]))
        )
        model = jaxdyn.attach(model, two_links(), "world")
    else:
        model = jaxdyn.samples.random_tree(jax.random.key(1), 3, ("ball", "helical", "revolute"), branching=1)
    n = STATES if name in KINDS else LOOPS
    q, v, x, f_ext = draws.states(model, 7, n)
    if name in KINDS:
        # No external wrenches act on the two links: their closed form has none.
        f_ext[:, model.nb - 2 :] = 0
    return Case(model.astype(jnp.float64), *jax.device_put((q, v, x, f_ext)))


QUANTITIES = {
    "C": lambda m, q, v, x, f_ext: alg.coriolis_matrix(m, q, v),
    "b": lambda m, q, v, x, f_ext: alg.christoffel_symbols(m, q),
    "M of jacobians": lambda m, q, v, x, f_ext: alg.mass_matrix_from_jacobians(m, q),
    "newton_euler": lambda m, q, v, x, f_ext: alg.newton_euler(m, q, v, x, f_ext),
    "bodies": lambda m, q, v, x, f_ext: alg.articulated_bodies(m, q, v, x, f_ext, joint_friction=False),
    "Minv": lambda m, q, v, x, f_ext: alg.inverse_mass_matrix(m, q),
    "solved": lambda m, q, v, x, f_ext: alg.solve_mass_matrix(m, q, x),
    "LD": lambda m, q, v, x, f_ext: alg.mass_matrix_ltdl(m, q),
    "denoc": lambda m, q, v, x, f_ext: alg.denoc(m, q, v, f_ext),
}


def quantities(model, q, v, x, f_ext) -> dict:
    return {name: of(model, q, v, x, f_ext) for name, of in QUANTITIES.items()}


def quantities_of_chain(model, q, v, x, f_ext) -> dict:
    """The quantities that are compared on the small chain only."""
    tau, tip = jaxdyn.rnea(model, q, v, x, f_ext, joint_friction=False), model.body_names[-1]
    return {
        "M": jaxdyn.crba(model, q),
        "tau": tau,
        "BC": alg.coriolis_centrifugal_matrices(model, q),
        "cholesky": alg.mass_matrix_cholesky(model, q),
        "IA": alg.articulated_inertias(model, q),
        "N": alg.denoc_matrices(model, q),
        "J": jaxdyn.frame_jacobian(model, q, tip),
        "operational": alg.operational_space_inertia(model, q, tip, part="linear"),
        "reactions": alg.joint_reactions(model, q, v, tau=tau, f_ext=f_ext, joint_friction=False),
        "base": alg.base_reaction(model, q, v, a=x, f_ext=f_ext),
    }


@functools.cache
def computed(name: str):
    program = jax.jit(quantities if name in KINDS else quantities_of_chain)
    return jax.tree.map(np.asarray, program(*case(name)))
