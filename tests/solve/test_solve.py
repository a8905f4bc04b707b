"""Problems of rows under laws: both eliminations, laws of both kinds in one problem, and derivatives."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdyn
from jaxdyn import BodyInertia, Joint, ModelBuilder, SolverOptions
from jaxdyn.algorithms.recursions import RobotAndParts, equations_and_velocities, inverse, kinematics
from jaxdyn.laws import HuntCrossley, LawRows, SoftEquality, SoftInequality, normal_force
from jaxdyn.rows import DofRows, MatrixRows
from jaxdyn.solve import Equations, MovingBodies, Term, Unknown, problem_of, push_on_dofs, pushes_at, solve
from jaxdyn.spatial import Vec3
from jaxdyn.tree import sum_down

DT, STIFFNESS, DISSIPATION, AREF, G = 1e-2, 1e4, 0.5, 0.3, 9.81


class Softness(eqx.Module):
    """The part of a robot whose numbers are the laws'."""

    D: jax.Array

    def axes(self):
        return [1]

    def leaves_of_model(self):
        return ()

    def on_rows(self, robot):
        return Softness(jnp.moveaxis(self.D, -1, 0).reshape((-1,) + (1,) * robot.rank))


def sliders() -> jaxdyn.Model:
    """Masses of 2 and 1 kg that slide along the vertical."""
    builder = ModelBuilder()
    for name, mass in (("one", 2.0), ("two", 1.0)):
        builder.add_body(name, joint=Joint("prismatic", axis=(0, 0, 1)), inertia=BodyInertia.sphere(mass, 0.1))
    return builder.build()


def state(robot, parts, q, v):
    at = kinematics(robot, q)
    return equations_and_velocities(robot, *at, v, None)[0], q, robot.broadcast(v), robot.broadcast(parts.D)


def touching_and_coupled(robot, now):
    """The first mass touches the ground, by one law, and the second one is coupled to it, by another."""
    _, q, v, D = now
    one, zero = jnp.ones_like(v[:1]), jnp.zeros_like(v[:1])
    upward = np.array([[0.0, 0.0], [0.0, 0.0], [1.0, 0.0]])
    J = robot.broadcast(robot.constant(upward))
    numbers = LawRows(STIFFNESS * one, DISSIPATION * one, 0.5 * one, 1e-3 * one, zero)
    normal, lagged = Vec3(zero, zero, one), normal_force(numbers, q[:1], v[:1], 0.0)[0]
    law = HuntCrossley(numbers, robot.broadcast(q[:1]), normal, lagged, DT * one)
    ground = Term(MatrixRows.of(J, upward != 0), law, (J * v).sum(1), DT * one)
    difference = robot.broadcast(robot.constant(np.array([[1.0, -1.0]])))
    coupling = Term(MatrixRows.of(difference, np.ones((1, 2), bool)), SoftEquality(D[:1]), -AREF * one)
    return ground, coupling


def limited(robot, now):
    """Each mass has a limit below it, which acts for the first one."""
    _, q, v, D = now
    below = jnp.where(robot.broadcast(q) < 0, D, 0.0)
    return (Term(DofRows.of_all(robot), SoftInequality(below), robot.broadcast(20.0 * v + 100.0 * q)),)


def equations_of(terms, dense: bool) -> Equations:
    def problem(robot, parts, now):
        bodies = MovingBodies(now[0].S, now[0].inertia, robot.broadcast(now[0].armature))
        return problem_of(robot, bodies, terms(robot, now), robot.constant(np.full(2, -G)), dense=dense)

    def residual(robot, parts, now, unknown):
        a, own = unknown.a, terms(robot, now)
        pushes = pushes_at(robot, own, sum_down(robot.tree, now[0].S * a), a)
        pushed = push_on_dofs(robot, now[0].S, [term.rows for term in own], pushes)
        return Unknown(inverse(robot.tree, now[0], a) - pushed)

    return Equations(state, problem, residual)


def solved(equations, D, q, v):
    bound, operands = RobotAndParts.of(sliders(), Softness(D), q.dtype, "a test", (D, q, v))
    return solve(equations, bound, operands, {"q": q, "v": v}, SolverOptions())


def test_laws_of_both_kinds_act_in_one_problem():
    equations = equations_of(touching_and_coupled, dense=False)
    run = jax.jit(lambda D, q, v: solved(equations, D, q, v).a)
    D, q, v = jnp.array([30.0, 1.0]), jnp.array([-1e-3, 0.2]), jnp.array([0.1, -0.4])
    a = np.asarray(run(D, q, v))
    after = 0.1 + DT * a[0]
    ground = STIFFNESS * max(0.0, 1e-3 - DT * after) * max(0.0, 1 - DISSIPATION * after)
    coupling = -30.0 * (a[0] - a[1] - AREF)
    np.testing.assert_allclose([2 * (a[0] + G), a[1] + G], [ground + coupling, -coupling], rtol=1e-9, atol=1e-9)
    assert ground > 1.0
    gradient = np.asarray(jax.jit(jax.jacrev(run))(D, q, v))[:, 0]
    ends = [np.asarray(run(D.at[0].add(h), q, v)) for h in (1e-3, -1e-3)]
    np.testing.assert_allclose(gradient, (ends[0] - ends[1]) / 2e-3, rtol=1e-6, atol=1e-10)


@pytest.mark.parametrize("dense", [False, True])
def test_both_eliminations_have_the_same_minimum(dense):
    """A limit that acts, and one that does not: the masses do not depend on each other."""
    equations = equations_of(limited, dense)
    D, q, v = jnp.array([30.0, 20.0]), jnp.array([-0.01, 0.2]), jnp.array([-0.5, -0.4])
    found = jax.jit(lambda D, q, v: solved(equations, D, q, v))(D, q, v)
    aref = 20.0 * 0.5 + 100.0 * 0.01
    np.testing.assert_allclose(found.a, [(30.0 * aref - 2 * G) / (2 + 30.0), -G], rtol=1e-12)
    assert found.error == 0
    assert found.iterations == 1
