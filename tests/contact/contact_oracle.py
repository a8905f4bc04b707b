"""The convex problem of a step with contact for one free body, with dense matrices and SciPy."""

import itertools

import numpy as np
from scipy.optimize import minimize
from scipy.spatial.transform import Rotation

G = 9.81


def one_body_step(q, v, mass, inertia, half, dt, k, d, mu, vs):
    """Return the velocity `[6]` (linear and angular, in the body's axes at the end) after a step of a box with half
    sizes `half` over the plane `z = 0`, and whether it touches. `inertia` is about the center, body axes."""
    w, x, y, z = q[3:] / np.linalg.norm(q[3:])
    R = np.array([
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ])  # fmt: skip
    corners = np.array(list(itertools.product((-half, half), repeat=3)))
    gap = (q[:3] + corners @ R.T)[:, 2]
    # World velocity of a corner from the body's velocity in its axes.
    J = np.stack([np.hstack([R, -R @ _cross(c)]) for c in corners])
    M = np.block([[mass * np.eye(3), np.zeros((3, 3))], [np.zeros((3, 3)), inertia]])
    omega = v[3:]
    free = np.concatenate([
        v[:3] + dt * (R.T @ [0, 0, -G]),
        omega - dt * np.linalg.solve(inertia, np.cross(omega, inertia @ omega)),
    ])  # fmt: skip
    now = J @ v
    lagged = k * np.maximum(0, -gap) * np.maximum(0, 1 - d * now[:, 2])

    def normal(speed):
        return k * np.maximum(0, -gap - dt * speed) * np.maximum(0, 1 - d * speed)

    def potential(speed):
        """Minus the integral of the normal force, from where it vanishes."""
        end = -gap / dt if d == 0 else np.minimum(-gap / dt, 1 / d)
        s = np.minimum(speed, end)

        def primitive(s):
            return k * (-gap * s - (dt - gap * d) * s**2 / 2 + dt * d * s**3 / 3)

        return primitive(end) - primitive(s)

    def cost(u):
        c = J @ u
        slide = np.sqrt((c[:, :2] ** 2).sum(1) + vs**2)
        return 0.5 * (u - free) @ M @ (u - free) + dt * (potential(c[:, 2]) + mu * lagged * slide).sum()

    def gradient(u):
        c = J @ u
        slide = np.sqrt((c[:, :2] ** 2).sum(1) + vs**2)
        force = np.column_stack([-(mu * lagged / slide)[:, None] * c[:, :2], normal(c[:, 2])])
        return M @ (u - free) - dt * np.einsum("cij,ci->j", J, force)

    scale = np.sqrt(np.diag(M))
    best = minimize(lambda x: cost(x / scale), free * scale, jac=lambda x: gradient(x / scale) / scale, method="BFGS",
                    options={"gtol": 1e-12, "maxiter": 10_000})  # fmt: skip
    u = best.x / scale
    for _ in range(50):  # Newton's method with differences polishes what the search of a line cannot.
        r = gradient(u)
        H = np.array([(gradient(u + h) - gradient(u - h)) / 2e-7 for h in 1e-7 * np.eye(6)])
        p, length = -np.linalg.solve(0.5 * (H + H.T), r), 1.0
        while np.linalg.norm(gradient(u + length * p)) > np.linalg.norm(r) and length > 1e-6:
            length *= 0.5
        u = u + length * p
    assert np.abs(gradient(u)).max() < 1e-8, "the oracle found no minimum"
    touches = bool((normal((J @ u)[:, 2]) > 0).any())
    return np.concatenate([Rotation.from_rotvec(-dt * u[3:]).apply(u[:3]), u[3:]]), touches


def _cross(c):
    return np.array([[0, -c[2], c[1]], [c[2], 0, -c[0]], [-c[1], c[0], 0]])
