"""Steps with contact against Drake's lagged convex contact, which solves the same problem, where Drake is installed.

Drake only knows pairs that overlap at the start of a step; here what closes within a step pushes already. So impacts
differ by a step, and the scenes begin with all contacts closed and keep them so, but for corners of the cube.
"""

import jax.numpy as jnp
import numpy as np
import pytest

import jaxdyn
from jaxdyn import BodyInertia, ContactLaw, ContactShape, Joint, Model, ModelBuilder, State, World
from jaxdyn.geometry import Capsule, Points

STEPS, DT = 200, 1e-3
LAW = {"stiffness": 1e4, "dissipation": 0.5, "friction": 0.5, "stiction_velocity": 1e-3}


def drake_positions(model: Model, q, v, spheres, dt=DT, steps=STEPS) -> np.ndarray:
    """Return Drake's positions of the origins of all bodies, `[steps + 1, nb, 3]`, for spheres `(link, position,
    radius)` over the plane `z = 0`.

    The spheres are rigid and the ground compliant, so that the force acts at the surface of the sphere, as here."""
    drake = pytest.importorskip("pydrake.all")
    builder = drake.DiagramBuilder()
    plant, graph = drake.AddMultibodyPlantSceneGraph(builder, dt)
    plant.set_discrete_contact_approximation(drake.DiscreteContactApproximation.kLagged)
    plant.set_contact_model(drake.ContactModel.kPoint)
    plant.set_stiction_tolerance(LAW["stiction_velocity"])
    drake.Parser(plant).AddModelsFromString(jaxdyn.to_urdf(model), "urdf")

    def properties(stiffness):
        out, mu = drake.ProximityProperties(), LAW["friction"]
        drake.AddContactMaterial(LAW["dissipation"], stiffness, drake.CoulombFriction(mu, mu), out)
        return out

    ground = drake.HalfSpace(), "ground", properties(LAW["stiffness"])
    plant.RegisterCollisionGeometry(plant.world_body(), drake.RigidTransform(), *ground)
    bodies = []
    for i, (link, position, radius) in enumerate(spheres):
        bodies.append(plant.GetBodyByName(link))
        pose = drake.RigidTransform(np.asarray(position, float))
        plant.RegisterCollisionGeometry(bodies[-1], pose, drake.Sphere(radius), f"ball{i}", properties(1e14))
    plant.Finalize()
    everything = drake.GeometrySet([g for b in bodies for g in plant.GetCollisionGeometriesForBody(b)])
    graph.collision_filter_manager().Apply(drake.CollisionFilterDeclaration().ExcludeWithin(everything))
    diagram = builder.Build()
    context = diagram.CreateDefaultContext()
    inner = plant.GetMyMutableContextFromRoot(context)
    base = plant.GetBodyByName(model.body_names[0])
    rotation = np.asarray(jaxdyn.spatial.quaternion_to_rotation(q[3:7]))
    plant.SetFreeBodyPose(inner, base, drake.RigidTransform(drake.RotationMatrix(rotation), q[:3]))
    twist = drake.SpatialVelocity(rotation @ v[3:6], rotation @ v[:3])
    plant.SetFreeBodySpatialVelocity(inner, base, twist)
    for name, angle, rate in zip(model.joint_names[1:], q[7:], v[6:], strict=True):
        joint = plant.GetJointByName(name)
        joint.set_angle(inner, angle)
        joint.set_angular_rate(inner, rate)
    simulator, out = drake.Simulator(diagram, context), []
    for k in range(steps + 1):
        if k:  # at time 0 this would take the first step
            simulator.AdvanceTo(k * dt)
        at = [plant.EvalBodyPoseInWorld(inner, plant.GetBodyByName(n)).translation() for n in model.body_names]
        out.append(np.stack(at))
    return np.stack(out)


def own_positions(model: Model, q, v, shapes, dt, steps) -> np.ndarray:
    """Return the positions of the bodies' origins at the times of Drake's."""
    world = World(model, shapes, law=ContactLaw(**LAW), timestep=dt)
    motion = world.rollout(State(jnp.asarray(q), jnp.asarray(v)), steps=steps)
    return np.asarray(jaxdyn.forward_kinematics(model, motion.q).translation)


def base_start(model: Model, height, quaternion, linear, angular, joints=0.0):
    """Return a state with the velocities of the base in world axes."""
    q, v = np.array(model.neutral()), np.zeros(model.nv)
    q[2], q[3:7] = height, np.asarray(quaternion) / np.linalg.norm(quaternion)
    q[7:] = joints
    rotation = np.asarray(jaxdyn.spatial.quaternion_to_rotation(q[3:7]))
    v[:3], v[3:6] = rotation.T @ linear, rotation.T @ angular
    return q, v


def cube():
    model, h = jaxdyn.samples.cube(), jaxdyn.samples.CUBE_HALF_WIDTH
    corners = [(x, y, z) for x in (-h, h) for y in (-h, h) for z in (-h, h)]
    start = base_start(model, 0.085, (0.9, 0.3, 0.2, 0.1), (0.6, 0.2, -0.3), (1.0, -2.0, 0.5))
    return model, start, [("cube", c, 1e-9) for c in corners], [ContactShape("cube", Points(np.array(corners)))]


def capsule():
    inertia = BodyInertia(0.5, (0, 0, 0), (2.2e-3, 2.2e-3, 4.2e-4))
    model = ModelBuilder().add_body("capsule", joint=Joint("free", name="root_joint"), inertia=inertia).build()
    start = base_start(model, 0.0395, (0.5**0.5, 0.5**0.5, 0.0, 0.0), (0.3, 0.4, 0.0), (0.0, 0.0, 2.0))
    balls = [("capsule", (0, 0, z), 0.04) for z in (-0.1, 0.1)]
    return model, start, balls, [ContactShape("capsule", Capsule(0.04, 0.1))]


def quadruped():
    model = jaxdyn.samples.quadruped().with_joint_friction(damping=np.array([0.0] * 6 + [0.3] * 12))
    legs = np.array([0.1, 0.7, -1.4, -0.1, 0.7, -1.4, 0.1, -0.7, 1.4, -0.1, -0.7, 1.4])
    start = base_start(model, 0.2, (1.0, 0.0, 0.0, 0.0), (0.3, -0.1, 0.0), (0.0, 0.0, 0.3), legs)
    pose = jaxdyn.frame_pose(model, start[0], "FL_FOOT")
    start[0][2] += 0.0155 - float(pose.translation[2])
    balls = [(s.link, (0, 0, 0), float(s.shape.radius)) for s in jaxdyn.samples.quadruped_shapes()]
    return model, start, balls, jaxdyn.samples.quadruped_shapes()


@pytest.mark.slow
@pytest.mark.parametrize("scene", [cube, capsule, quadruped])
def test_positions_are_those_of_drake(scene):
    model, (q, v), balls, shapes = scene()
    theirs = drake_positions(model, q, v, balls)
    own = own_positions(model, q, v, shapes, DT, STEPS)
    np.testing.assert_allclose(own, theirs, atol=1e-4)
    assert np.ptp(theirs[:, 0], axis=0).max() > 1e-2
