"""Robots with few bodies and many kinds of joints, with states, and Pinocchio's results for them."""

import functools
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import jaxdyn
from jaxdyn import BodyInertia, Joint, Mimic, ModelBuilder
from tests import draws
from tests.oracles import PinocchioOracle, to_pinocchio

STATES = 3


class Forest(NamedTuple):
    model: jaxdyn.Model
    q: np.ndarray
    v: np.ndarray
    a: np.ndarray
    oracle: PinocchioOracle
    """Pinocchio's model of the spanning tree."""
    on_tree: list
    """The states of the spanning tree, each `(q, v, a)`."""
    G: np.ndarray
    """The matrix that maps velocities of the model to velocities of the spanning tree."""


@functools.cache
def forest() -> Forest:
    """Three trees: one with a free and one with a fixed base, with all joint types, and one with springs, where a joint
    mimics the joint before it."""
    free = jaxdyn.samples.random_tree(jax.random.key(1), 4, ("free", "ball", "universal", "helical"), branching=2)
    types = ("cylindrical", "planar", "revolute", "prismatic", "continuous")
    fixed = jaxdyn.samples.random_tree(jax.random.key(2), 5, types, branching=2)
    box = BodyInertia.box(1.0, (0.1, 0.2, 0.3), (0.05, 0.0, 0.1))
    pair = ModelBuilder().add_body("lead", joint=Joint(axis=(1, 0, 2), stiffness=2.0, damping=0.3), inertia=box)
    pair.add_body("hand", "lead", Joint(axis=(0, 1, 0), mimic=Mimic("lead_joint", -0.7, 0.2)), (0, 0.1, 0.2), box)
    model = free.with_attached(fixed, "world", prefix="fixed_").with_attached(pair.build(), "world")
    tree = model.spanning_tree()
    assert len(model.topology.mimics) == 1
    q, v, a, _ = draws.states(model, 3, STATES)
    # Pinocchio neglects that the axes of its universal joint turn in the moving body, so it gets two revolute joints.
    oracle = PinocchioOracle(tree, to_pinocchio(tree, universal_as_chain=True))
    states = (model.spanning_configuration(q), model.spanning_velocity(v), model.spanning_velocity(a))
    on_tree = list(zip(*map(np.asarray, states), strict=True))
    G = np.asarray(model.spanning_velocity(jnp.eye(model.nv))).T
    return Forest(model, q, v, a, oracle, on_tree, G)


@functools.cache
def robot():
    """A free base with ball, universal and mimicking joints, springs and friction; a configuration and a velocity."""
    rng = np.random.default_rng(0)

    def inertia():
        return BodyInertia.box(rng.uniform(0.5, 2), rng.uniform(0.1, 0.4, 3), rng.uniform(-0.1, 0.1, 3))

    builder = ModelBuilder().add_body("base", joint=Joint("free"), inertia=inertia())
    builder.add_body("ball", "base", Joint("ball", stiffness=2.0), (0.1, 0, 0.3), inertia())
    builder.add_body("lead", "base", Joint("universal", axis=(0, 1, 0), axis2=(1, 0, 0)), (0, 0.2, 0), inertia())
    builder.add_body("arm", "lead", Joint(axis=(0, 1, 1)), (0.1, 0.1, 0), inertia())
    builder.add_body("hand", "arm", Joint(axis=(1, 0, 0), mimic=Mimic("arm_joint", -0.7, 0.2)), (0, 0, 0.1), inertia())
    model = builder.build()
    actions = (jnp.full(model.nv, x) for x in (0.1, 0.2, 0.05))
    model = eqx.tree_at(lambda m: (m.damping, m.friction, m.armature), model, tuple(actions))
    return model, *jax.device_put(draws.states(model, 1)[:2])
