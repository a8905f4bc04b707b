"""The closed loop of a quadruped in MuJoCo: its gait, its plant, and a few seconds of it."""

import numpy as np
import pytest

from experiments import quadruped_mpc
from experiments._main import parse_arguments
from experiments._quadruped import HEIGHT, RADIUS, TIMESTEP, Plant, Trot, go2, standing
from experiments.quadruped_mpc import Loop, Run, speeds, withstands
from jaxdyn.trajopt.mpc import count_compilations


def config(*arguments):
    return parse_arguments(quadruped_mpc.Config, arguments, quadruped_mpc.DEFAULT_CONFIG, "quadruped_mpc", "")


def test_diagonal_pairs_swing_in_turn_from_the_beginning_on():
    gait = Trot(swing=3, stance=2, lift=0.1)
    gait.begins = 4
    holds, heights, counts = gait.rows(np.arange(14), moves=True)
    np.testing.assert_array_equal(holds[:, 0], holds[:, 3])
    np.testing.assert_array_equal(holds[:, 1], holds[:, 2])
    np.testing.assert_array_equal(np.flatnonzero(~holds[:, 0]), [4, 5, 6])
    np.testing.assert_array_equal(np.flatnonzero(~holds[:, 1]), [9, 10, 11])
    # A foot rises from the ground, and is down at the stage in which it begins to hold.
    np.testing.assert_allclose(heights[3:8, 0], [0, 0, 0.075, 0.075, 0], atol=1e-12)
    np.testing.assert_array_equal(np.flatnonzero(counts[:, 0]), [5, 6, 7])
    holds, _, counts = gait.rows(np.arange(14), moves=False)
    assert holds.all()
    assert not counts.any()


def test_a_plant_stands_by_the_weight_and_a_push_changes_its_velocity():
    """The state is in this library's coordinates, and the IMU shows gravity at rest and a push within its range."""
    pytest.importorskip("mujoco")
    plant = Plant(go2())
    np.testing.assert_allclose(plant.state, standing(), atol=1e-12)
    # The feet of the stance are on the ground.
    feet = plant.data.geom_xpos[np.flatnonzero(plant.engine.geom_type == plant.mujoco.mjtGeom.mjGEOM_SPHERE)]
    np.testing.assert_allclose(feet[:, 2], RADIUS, atol=1e-3)
    gyroscope, accelerometer = plant.step(np.zeros(12))
    assert accelerometer[2] < 9.81
    assert np.abs(gyroscope).max() < 0.1
    turned = np.array([np.cos(0.4), 0, 0, np.sin(0.4)])
    plant.data.qpos[3:7] = turned
    before = plant.state
    shown = plant.push(np.array([0.6, 0.0, 0.0]))
    change = plant.state - before
    np.testing.assert_allclose(change[19:22], 0.6 * np.array([np.cos(0.8), -np.sin(0.8), 0]), atol=1e-12)
    np.testing.assert_allclose(shown[:2], [16 * 9.81, -16 * 9.81], rtol=1e-12)
    plant.data.qpos[2] = 0.1
    assert plant.fallen
    plant.reset()
    assert not plant.fallen
    assert plant.engine.opt.timestep == TIMESTEP
    assert plant.state[2] == HEIGHT


def test_what_counts_as_withstood_and_as_speed():
    case = config()
    xs = np.tile(standing(), (151, 1))
    xs[:, 0] = 0.5 * case.timestep * np.arange(151)
    yaw = 0.3 * case.timestep * np.arange(151)
    xs[:, 3], xs[:, 6] = np.cos(yaw / 2), np.sin(yaw / 2)
    run = Run(xs, np.zeros((151, 5)), np.ones(151), np.ones(151), False)
    np.testing.assert_allclose(speeds(case, run), [0.5, 0.3])
    assert withstands(case, run)
    xs[-25:, 19] = 0.2
    assert not withstands(case, run)


@pytest.mark.slow
@pytest.mark.parametrize("estimated", [False, True])
def test_a_quadruped_trots_and_withstands_a_push(estimated):
    """Half a meter per second to within a tenth, a push that comes while it stands, and no compilation."""
    pytest.importorskip("mujoco")
    case = config()
    loop = Loop(case)
    loop.run(3 * case.timestep, estimated=estimated)
    with count_compilations() as compiled:
        trot = loop.run(3.0, (0.5, 0.0, 0.0), estimated=estimated)
        pushed = quadruped_mpc.push_once(loop, 0, False, estimated)
    assert not trot.fallen
    assert speeds(case, trot)[0] == pytest.approx(0.5, rel=0.1)
    assert withstands(case, pushed)
    assert not compiled
    if estimated:
        assert 0 < np.sqrt(np.mean(trot.errors[:, 1:4] ** 2)) < 0.1
