"""A variational step: symplectic, of second order, without drift of the energy."""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax

from jaxdyn.algorithms import (
    aba,
    aba_derivatives,
    configuration_correction,
    forward_kinematics,
    rnea,
    rnea_derivatives,
)
from jaxdyn.friction import JointFriction
from jaxdyn.model import Model
from jaxdyn.simulate._state import State
from jaxdyn.spatial import SE3, Mat3, Sym3, Vec3

ITERATIONS = 8
"""The number of Newton steps, each of which multiplies the error of the step's velocity by about `dt |v|` (rad) or
less. A double pendulum at 10 rad/s is solved to 1e-12 rad/s with 5 ms, to 1e-10 with 10 ms, to 3e-8 with 20 ms. With
closed loops an error falls more slowly, because the loops turn between `q0` and `q1`, and combined steps (`_combined`)
make up for it."""

LARGEST_SHARE = 2.0
"""The largest part of the change by a step that `_combined` adds or takes back: errors that fall by 0.6 or less in a
step need no more."""


def variational_midpoint_step(model: Model, state: State, tau, dt, f_ext=None) -> State:
    """The step that makes a discrete action stationary: every particle of a body moves in a straight line and evenly
    from its place at `q0` to its place at `q1`.

    The kinetic energy is that of these mean velocities, the potential energy the mean of both ends. Torques and
    friction do the work of the mean velocity `w`, with `q1 = q0 (+) dt w`, and external wrenches act half at either end
    (Marsden & West, Discrete mechanics and variational integrators, Acta Numerica 2001, sections 1.5 and 3.2; for one
    body it is the step of Moser & Veselov, Discrete versions of some classical integrable systems, 1991). The step is
    symmetric in time and symplectic, so without friction and torques the energy oscillates by `O(dt^2)` and does not
    drift, and momenta are kept; with friction it is second order, too. Springs are explicit: `dt` times the highest
    frequency must stay below 2.

    `w` solves `D1 L(q0, q1) + p0 = 0` by `ITERATIONS` simplified Newton steps with the mass matrix at `q0`: a fixed
    number, so that both modes differentiate them. With loops and couplings, impulses along `J(q0)^T` close them at
    `q1`, and impulses along `J(q1)^T` let `v1` keep them closed; the step stays symplectic and of second order (Marsden
    & West, section 3.5; Leyendecker, Marsden & Ortiz, Variational integrators for constrained dynamical systems, ZAMM
    2008, section 3). The momenta cost digits, `eps / dt`: use float64 for long horizons.
    """
    q0, v0 = state.q, state.v
    weightless = without_potential(model)
    friction = JointFriction(model.damping, model.friction, model.friction_velocity)
    tau = jnp.broadcast_to(tau, v0.shape)
    at_rest = jnp.zeros_like(v0)
    loads = 0.0 if f_ext is None else f_ext
    poses0 = forward_kinematics(model, q0)
    momentum = rnea(weightless, q0, at_rest, v0, joint_friction=False)
    # Half a step of friction is in the matrix of the Newton steps, so that stiff damping converges, too.
    iteration = dataclasses.replace(weightless, armature=model.armature + 0.5 * dt * friction.secant(v0))

    def impulse(w):
        """Half of the impulse of torques and friction over the step."""
        return 0.5 * dt * (tau - friction.torque(w))

    def improve(w):
        q1 = model.integrate(q0, dt * w)
        wrench = _momenta(model, poses0, forward_kinematics(model, q1), poses0, dt)
        # J^T wrench + dt/2 (grad V - J^T f_ext), all at q0, in one sweep.
        of_bodies = 0.5 * dt * rnea(model, q0, at_rest, at_rest, loads - 2 / dt * wrench, joint_friction=False)
        # The momenta of the armatures, armature * w, are the same at both ends.
        residual = of_bodies + model.armature * w - impulse(w) - momentum
        w = w - aba(iteration, q0, at_rest, residual, joint_friction=False)
        if model.topology.has_loops:
            # `aba` leaves out what impulses of the loops take up, and this closes the loops at q1.
            w = w + configuration_correction(iteration, q1) / dt
        return w

    w = _combined(improve, v0) if model.topology.has_loops else _repeated(improve, v0)
    q1 = model.integrate(q0, dt * w)
    poses1 = forward_kinematics(model, q1)
    wrench = _momenta(model, poses0, poses1, poses1, dt)
    of_bodies = -0.5 * dt * rnea(model, q1, at_rest, at_rest, loads + 2 / dt * wrench, joint_friction=False)
    momentum = of_bodies + model.armature * w + impulse(w)
    return State(q1, aba(weightless, q1, at_rest, momentum, joint_friction=False))


def _repeated(improve, w):
    return lax.scan(lambda w, _: (improve(w), None), w, length=ITERATIONS)[0]


def _combined(improve, w):
    """The last of `ITERATIONS` steps, each of which is combined with the two before it so that the linear part of what
    they leave is least (Anderson's acceleration: Walker & Ni, Anderson acceleration for fixed-point iterations, SIAM
    Journal on Numerical Analysis 2011). A step stays as it is where the last one did not help, as in singular
    configurations, and where only rounding errors are left."""
    least = jnp.finfo(w.dtype).eps ** 0.75

    def squared(x):
        return (x * x).sum(axis=-1, keepdims=True)

    def share(x, along, use):
        """The multiple of `along` that is nearest to `x`, or zero; it is not differentiated."""
        square = squared(along)
        use = use & (square > jnp.finfo(square.dtype).tiny)
        ratio = (x * along).sum(axis=-1, keepdims=True) / jnp.where(use, square, 1.0)
        return lax.stop_gradient(jnp.where(use, jnp.clip(ratio, -LARGEST_SHARE, LARGEST_SHARE), 0.0))

    def step(carry, k):
        w, rest_before, better_before, older, older_result = carry
        better = improve(w)
        rest = better - w
        turn, result = rest - rest_before, better - better_before
        use = (k > 0) & (squared(rest) < squared(rest_before)) & (squared(rest) > least**2 * squared(better))
        again = use & (k > 1)
        same = share(older, turn, again)
        other, other_result = older - same * turn, older_result - same * result
        combined = better - share(rest, turn, use) * result - share(rest, other, again) * other_result
        return (combined, rest, better, turn, result), None

    zero = jnp.zeros_like(w)
    return lax.scan(step, (w, zero, zero, zero, zero), jnp.arange(ITERATIONS))[0][0]


def variational_midpoint_derivatives(model: Model, state: State, tau, dt, f_ext, after: State):
    """The derivatives `[*batch, 2 nv, 3 nv]` of `[displacement of q1, v1]` by `[displacement of q0, v0, tau]`.

    By the implicit function theorem: the mean velocity `w` solves `D1 L(q0, q1) + p0 = 0`, whatever the iterations
    were, and `v1 = M(q1)^-1 p1(q0, q1, w, tau)`. The forces of constant wrenches are differentiated by
    `rnea_derivatives`, and the bodies' momenta through the kinematics alone. A step that turns a continuous joint by
    more than half a turn is beyond them."""
    q0, v0, q1 = state.q, state.v, after.q
    at_rest, n = jnp.zeros_like(v0), v0.shape[-1]
    w = model.difference(q0, q1) / dt
    weightless, friction = (
        without_potential(model),
        JointFriction(model.damping, model.friction, model.friction_velocity),
    )
    loads = jnp.zeros((model.nb, 6), v0.dtype) if f_ext is None else f_ext
    (start, by_start), (end, by_end) = _wrenches_and_derivatives(model, state, w, dt)

    def forces(q, wrench, columns, sign):
        """Half the impulse of potential and loads at `q`, and the momenta, with their derivatives: at constant wrenches
        by `q`, and by the wrenches along columns."""
        own = rnea_derivatives(model, q, at_rest, at_rest, loads - sign * 2 / dt * wrench, joint_friction=False)[0]
        many, rest, rows = q[..., None, :], at_rest[..., None, :], jnp.moveaxis(columns, -1, -3)
        of_wrenches = rnea(weightless, many, rest, rest, rows, joint_friction=False)
        return 0.5 * dt * own, -jnp.swapaxes(of_wrenches, -1, -2)

    def diagonal(x):
        return x[..., None] * jnp.eye(n, dtype=x.dtype)

    at_start, of_wrenches = forces(q0, start, by_start, 1)
    momentum_by_q, _, M = rnea_derivatives(weightless, q0, at_rest, v0, joint_friction=False)
    slope = 0.5 * dt * friction.slope(w)
    zero = jnp.zeros_like(M)
    half = 0.5 * dt * jnp.broadcast_to(jnp.eye(n, dtype=M.dtype), M.shape)
    by_q = at_start + of_wrenches[..., :n] - momentum_by_q
    by_w = of_wrenches[..., n:] + diagonal(model.armature + slope)
    dw = -jnp.linalg.solve(by_w, jnp.concatenate([by_q, -M, -half], axis=-1))
    moved_by_q, moved_by_w = model.integrate_jacobians(q0, dt * w)
    dq1 = dt * _matmul(moved_by_w, dw) + jnp.concatenate([moved_by_q, zero, zero], axis=-1)
    at_end, of_wrenches = forces(q1, end, by_end, -1)
    dp1 = _matmul(of_wrenches[..., n:] + diagonal(model.armature - slope), dw) - _matmul(at_end, dq1)
    dp1 = dp1 + jnp.concatenate([of_wrenches[..., :n], zero, half], axis=-1)
    momentum = rnea(weightless, q1, at_rest, after.v, joint_friction=False)
    by_q1, _, Minv = aba_derivatives(weightless, q1, at_rest, momentum, joint_friction=False)
    return jnp.concatenate([dq1, _matmul(by_q1, dq1) + _matmul(Minv, dp1)], axis=-2)


def _wrenches_and_derivatives(model: Model, state: State, w, dt):
    """The momenta of the bodies about their origins at the start and at the end of a step, `[*batch, nb, 6]`, each with
    its derivatives by the displacement of `q0` and by `w`, `[*batch, nb, 6, 2 nv]`."""
    n = w.shape[-1]

    def momenta(displacement):
        q0 = model.integrate(state.q, displacement[..., :n])
        start = forward_kinematics(model, q0)
        end = forward_kinematics(model, model.integrate(q0, dt * (w + displacement[..., n:])))
        return tuple(_momenta(model, start, end, reference, dt) for reference in (start, end))

    zero = jnp.zeros((*w.shape[:-1], 2 * n), w.dtype)
    values, along = jax.linearize(momenta, zero)
    derivatives = jax.vmap(lambda unit: along(jnp.broadcast_to(unit, zero.shape)), out_axes=-1)(
        jnp.eye(2 * n, dtype=w.dtype)
    )
    return tuple(zip(values, derivatives, strict=True))


def _matmul(a, b):
    return jnp.matmul(a, b, precision=lax.Precision.HIGHEST)


def without_potential(model: Model) -> Model:
    """The model without gravity and springs, whose forces at rest are the mass matrix times the accelerations."""
    gravity = jnp.zeros_like(model.gravity)
    return dataclasses.replace(model, gravity=gravity, stiffness=None, spring_reference=None)


def _momenta(model: Model, start: SE3, end: SE3, reference: SE3, dt):
    """The momenta `[linear, angular]` of the bodies, `[*batch, nb, 6]`, whose particles move from `start` to `end` in
    `dt`, in world axes about the bodies' origins in `reference`, which is one of the two."""
    m, *first, xx, xy, yy, xz, yz, zz = jnp.moveaxis(model.inertial_parameters, -1, 0)
    first = Vec3(*first)
    # The second moments of mass are half of the inertia's trace less the inertia.
    half = 0.5 * (xx + yy + zz)
    second = Sym3(half - xx, -xy, half - yy, -xz, -yz, half - zz)
    turned = Mat3.from_array((end.rotation - start.rotation) / dt)
    moved = Vec3.from_array((end.translation - start.translation) / dt)
    R = Mat3.from_array(reference.rotation)
    # A particle at r in the body has the velocity  moved + turned r  and the lever  R r.
    linear = moved * m + turned.apply(first)
    angular = R.apply(first).cross(moved)
    spread = R.compose(second.to_mat3())
    for lever, rate in ((spread.x, turned.x), (spread.y, turned.y), (spread.z, turned.z)):
        angular = angular + lever.cross(rate)
    return jnp.concatenate([linear.to_array(), angular.to_array()], axis=-1)
