"""Andrews' squeezing mechanism: seven bodies in a plane, three loops and a spring (Schiehlen, Multibody Systems
Handbook, 1990; Hairer & Wanner, Solving Ordinary Differential Equations II, 1996, section VII.7; Mazzia & Magherini,
Test set for initial value problem solvers, 2008, problem andrews, whose parameters and solutions these are)."""

import functools

import jax.numpy as jnp
import numpy as np

import jaxdyn
from jaxdyn import BodyInertia, Joint, ModelBuilder

M = (0.04325, 0.00365, 0.02373, 0.00706, 0.07050, 0.00706, 0.05498)
I = (2.194e-6, 4.410e-7, 5.255e-6, 5.667e-7, 1.169e-5, 5.667e-7, 1.912e-5)
A, B, C = (-0.06934, -0.00227), (-0.03635, 0.03273), (0.014, 0.072)
C0, L0, MOMENT = 4530.0, 0.07785, 0.033
D, DA, E, EA, RR, RA = 0.028, 0.0115, 0.02, 0.01421, 0.007, 0.00092
SS, SA, SB, SC, SD = 0.035, 0.01874, 0.01043, 0.018, 0.02
TA, TB, U, UA, UB, ZF, ZT, FA = 0.02308, 0.00916, 0.04, 0.01228, 0.00449, 0.02, 0.04, 0.01421

ORDER = [0, 1, 2, 4, 3, 6, 5]
"""The places of beta, Theta, gamma, Phi, delta, Omega, epsilon in the model's coordinates."""
Q0 = np.array(
    [-0.0617138900142764496, 0.0, 0.455279819163070380, 0.222668390165885885, 0.487364979543842550,
     -0.222668390165885885, 1.23054744454982120]
)  # fmt: skip
A0 = np.array([14222.4439199541, -10666.8329399656, 0, 0, 0, 0, 0])
FORCES0 = np.array([98.5668703962410897, -6.12268834425566, 0, 0, 0, 0])
"""The multipliers of the test set: `M a = f - G^T l`, in the axes of the world."""
Q1 = np.array(
    [15.81077119629904, -15.75637105984298, 0.04082224013073101, -0.5347301163226948, 0.5244099658805304,
     0.5347301163226948, 1.048080741042263]
)  # fmt: skip
V1 = np.array(
    [1139.920302151208, -1424.379294994111, 11.03291221937134, 19.29337464421385, 0.5735699284790808,
     -19.29337464421385, 0.3231791658026955]
)  # fmt: skip


def body(k: int, x: float, y: float) -> BodyInertia:
    return BodyInertia(M[k], (x, y, 0.0), (0.5 * I[k], 0.5 * I[k], I[k]))


@functools.cache
def squeezer() -> jaxdyn.Model:
    """The mechanism, whose coordinates follow `ORDER`."""
    z, b = Joint(axis=(0, 0, 1)), ModelBuilder()
    b.add_body("K1", "world", z, None, body(0, RA, 0))
    b.add_body("K2", "K1", z, (RR, 0, 0), body(1, -DA, 0))
    b.add_body("K3", "world", z, (*B, 0), body(2, SA, SB))
    b.add_body("K5", "world", z, (*A, 0), body(4, TA, TB))
    b.add_body("K4", "K5", z, (ZT, 0, 0), body(3, 0, -(E - EA)))
    b.add_body("K7", "world", z, (*A, 0), body(6, UA, UB))
    b.add_body("K6", "K7", z, (0, -U, 0), body(5, ZF - FA, 0))
    for name, link, point in (("K3", "K3", (0, -SS, 0)), ("K4", "K4", (0, -E, 0)), ("K6", "K6", (ZF, 0, 0))):
        b.add_loop(name, "connect", link, "K2", point, (-D, 0, 0))
    return b.build(gravity=(0, 0, 0))


def spring(model: jaxdyn.Model, q):
    """The wrenches `[nb, 6]` of the spring between the point C of the world and a point of K3."""
    gamma = q[..., 2]
    at = jnp.stack([SD * jnp.cos(gamma) + SC * jnp.sin(gamma), SD * jnp.sin(gamma) - SC * jnp.cos(gamma)], axis=-1)
    stretch = at + np.array(B) - np.array(C)
    length = jnp.linalg.norm(stretch, axis=-1, keepdims=True)
    f = -C0 * (length - L0) / length * stretch
    moment = at[..., 0] * f[..., 1] - at[..., 1] * f[..., 0]
    zero = jnp.zeros_like(moment)
    wrench = jnp.stack([f[..., 0], f[..., 1], zero, zero, zero, moment], axis=-1)
    return jnp.zeros((*q.shape[:-1], model.nb, 6)).at[..., 2, :].set(wrench)


def torque(model: jaxdyn.Model):
    return jnp.zeros(model.nv).at[0].set(MOMENT)


def in_world(forces, q):
    """The multipliers of the test set from `constraint_forces`, which are in the axes of K3, K4 and K6."""
    angles = (q[2], q[3] + q[4], q[5] + q[6])
    out = []
    for k, angle in enumerate(angles):
        c, s = np.cos(angle), np.sin(angle)
        out.append(-np.array([[c, -s], [s, c]]) @ np.asarray(forces)[3 * k : 3 * k + 2])
    return np.concatenate(out)
