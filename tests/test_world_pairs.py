"""Which geoms can touch, and the parameters of their contacts, compared with the contacts that MuJoCo reports."""

import dataclasses
import functools
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from world_contacts import difference, evaluate
from world_oracle import SMALL, random_states, state_of
from world_oracle import compiled as small_model

from jaxdyn import RobotFileWarning, State, load_world, native
from jaxdyn.geometry import is_built
from jaxdyn.io.mjcf import GeomType, geom_pairs
from jaxdyn.worlds import accelerations_step_and_sensors
from jaxdyn.worlds._refusals import what_is_missing


def random_geom(rng) -> str:
    """A geom with random parameters of contact; all are so large that they touch everything."""
    numbers = {
        "contype": rng.integers(4),
        "conaffinity": rng.integers(4),
        "condim": rng.choice([1, 3, 4, 6]),
        "friction": " ".join(str(x) for x in rng.uniform(0, 1, 3) * rng.choice([0, 1], 3)),
        "priority": rng.choice([0, 0, 0, 1]),
        "solmix": rng.choice([0, 1, 2.5]),
        "margin": rng.choice([0, 0.1]),
        "gap": rng.choice([0, 0.03]),
        "solref": rng.choice(["0.02 1", "0.05 0.7", "-1000 -20"]),
        "solimp": f"0.5 {rng.uniform(0.6, 0.99)} 0.01 0.5 {rng.integers(1, 4)}",
        "adhesion": rng.choice([0, 2, 3]),
        "pos": f"{rng.uniform(-0.1, 0.1)} {rng.uniform(-0.1, 0.1)} 0",
    }
    kind = rng.choice(["sphere", "box", "capsule", "ellipsoid", "cylinder"])
    return f'<geom type="{kind}" size="1 1 1" ' + " ".join(f'{k}="{v}"' for k, v in numbers.items()) + "/>"


def random_body(rng, names: list[str], depth: int = 0) -> str:
    names.append(f"b{len(names)}")
    name = names[-1]
    mocap = depth == 0 and rng.random() < 0.2
    joint = "" if mocap else rng.choice(["", "", '<joint type="hinge"/>', '<joint type="slide" axis="0 1 0"/>'])
    geoms = "".join(random_geom(rng) for _ in range(rng.integers(1, 3)))
    children = "".join(random_body(rng, names, depth + 1) for _ in range(rng.integers(0, 3))) if depth < 3 else ""
    inertia = '<inertial pos="0 0 0" mass="1" diaginertia="1 1 1"/>'
    return f'<body name="{name}" mocap="{str(mocap).lower()}">{joint}{inertia}{geoms}{children}</body>'


def random_world(rng) -> mujoco.MjModel:
    """Bodies in one another, with named pairs, excluded bodies and flags."""
    names: list[str] = []
    planes = '<geom type="plane" size="1 1 1" pos="0 0 -0.1"/><geom type="plane" size="1 1 1" contype="2"/>'
    first, *rest = (planes + random_geom(rng) + "".join(random_body(rng, names) for _ in range(3))).split("<geom ")
    world = first + "".join(f'<geom name="g{i}" {text}' for i, text in enumerate(rest))
    bodies = mujoco.MjModel.from_xml_string(f"<mujoco><worldbody>{world}</worldbody></mujoco>").geom_bodyid
    contact, used = "", set()
    own = 'condim="4" friction="1 2 3 4 5" adhesion="3" margin="0.01" solreffriction="0.03 1"'
    for _ in range(3):
        a, b = sorted(rng.choice(len(rest), 2, replace=False))
        if bodies[a] != bodies[b] and (a, b) not in used:
            used.add((a, b))
            contact += f'<pair geom1="g{a}" geom2="g{b}" {rng.choice(["", own])}/>'
    excluded = {tuple(sorted(rng.choice(len(names), 2, replace=False))) for _ in range(3)}
    contact += "".join(f'<exclude body1="b{a}" body2="b{b}"/>' for a, b in excluded)
    switches = [rng.choice(["enable", "disable"]), rng.choice(["enable", "disable", "disable"])]
    flags = '<flag filterparent="{}" override="{}"/>'.format(*switches)
    option = f'<option o_margin="0.3" o_friction="1 2 0 4 5">{flags}</option>'
    return mujoco.MjModel.from_xml_string(
        f"<mujoco>{option}<worldbody>{world}</worldbody><contact>{contact}</contact></mujoco>"
    )


def check_pairs(seed: int) -> int:
    """Compare the pairs of a random world with those whose contacts MuJoCo reports; return their number."""
    rng = np.random.default_rng(seed)
    m = random_world(rng)
    if m.nv == 0:
        return 0
    d = mujoco.MjData(m)
    d.qpos[:] = rng.uniform(-0.1, 0.1, m.nq)
    mujoco.mj_forward(m, d)
    # 3: the contact moves no degree of freedom.
    wanted = {tuple(int(g) for g in con.geom): con for con in d.contact if con.exclude != 3}
    found = {(pair.geom1, pair.geom2): pair for pair in geom_pairs(m)}
    assert set(wanted) <= set(found)
    for geoms in set(found) - set(wanted):
        # The convex routine of MuJoCo sometimes finds nothing between geoms that share their center.
        assert min(found[geoms].type1, found[geoms].type2) > GeomType.PLANE
        assert not is_built(*found[geoms].kinds), geoms
    for geoms, con in wanted.items():
        pair = found[geoms]
        assert pair.condim == con.dim
        for mine, theirs in (
            (pair.margin, con.includemargin),
            (pair.solref, con.solref),
            (pair.solreffriction, con.solreffriction),
            (pair.solimp, con.solimp),
            (pair.friction, con.friction),
            (pair.adhesion, con.adhesion),
        ):
            np.testing.assert_allclose(mine, theirs, rtol=1e-14, atol=1e-15)
    return len(wanted)


def test_pairs_and_their_parameters_are_those_of_mujoco():
    assert sum(check_pairs(seed) for seed in range(8)) > 500


@pytest.mark.slow
def test_pairs_and_their_parameters_are_those_of_mujoco_in_many_scenes():
    assert sum(check_pairs(seed) for seed in range(8, 200)) > 10_000


@pytest.mark.parametrize(
    ("flag", "kind", "missing"),
    [
        ("", "capsule", None),
        ("", "cylinder", None),
        ("", "mesh", None),
        ('multiccd="disable"', "mesh", 'capsule and mesh, with <flag multiccd="disable"/>,'),
        ('nativeccd="disable"', "mesh", 'capsule and mesh, with <flag nativeccd="disable"/>,'),
        ('multiccd="disable"', "capsule", None),
        ('multiccd="disable"', "ellipsoid", None),
        ('nativeccd="disable"', "ellipsoid", 'capsule and ellipsoid, with <flag nativeccd="disable"/>,'),
        ('multiccd="disable"', "cylinder", 'capsule and cylinder, with <flag multiccd="disable"/>,'),
    ],
)
def test_what_is_missing_of_pairs(flag, kind, missing):
    shape = 'mesh="rock"' if kind == "mesh" else 'size="0.1 0.2 0.1"'
    m = mujoco.MjModel.from_xml_string(
        f"""<mujoco><option><flag {flag}/></option>
        <asset><mesh name="rock" vertex="0 0 0  1 0 0  0 1 0  0 0 1"/></asset>
        <worldbody><geom type="{kind}" {shape}/>
        <body><freejoint/><geom type="capsule" size="0.1 0.2"/></body></worldbody></mujoco>"""
    )
    (pair,) = geom_pairs(m)
    assert what_is_missing(m, pair) == missing


def test_ends_of_cylinders_that_can_lie_flat_are_warned_of():
    text = """<mujoco><worldbody><geom name="table" type="box" size="1 1 .1"/><body pos="0 0 .2"><freejoint/>
    <geom name="can" type="cylinder" size=".05 .1"/></body></worldbody></mujoco>"""
    with pytest.warns(RobotFileWarning, match="lies flat on a box.*'can' and 'table'"):
        load_world(text)


def contacts_of(d, geoms: set) -> dict:
    """The contacts that MuJoCo reports for pairs of geoms, as distance, position and frame."""
    found: dict = {pair: [] for pair in geoms}
    for con in d.contact:
        found[tuple(int(g) for g in con.geom)].append(np.concatenate([[con.dist], con.pos, con.frame]))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ant", "half_cheetah", "hopper", "humanoid", "humanoidstandup", "walker2d", "point"])
def test_contacts_in_scenes_are_those_of_mujoco(name):
    """All contacts of all pairs, at states near those that files begin with and lower."""
    gymnasium = pytest.importorskip("gymnasium")
    path = Path(gymnasium.__file__).parent / "envs/mujoco/assets" / f"{name}.xml"
    m = mujoco.MjModel.from_xml_path(str(path))
    d, rng = mujoco.MjData(m), np.random.default_rng(0)
    pairs = geom_pairs(m)
    states, wanted = [], []
    for k in range(20):
        mujoco.mj_resetData(m, d)
        d.qpos += rng.normal(size=m.nq) * (0.03, 0.1, 0.3)[k % 3]
        if m.jnt_type[0] == mujoco.mjtJoint.mjJNT_FREE:
            d.qpos[2] -= rng.uniform(0, 0.7)
        mujoco.mj_forward(m, d)
        states.append(np.concatenate([d.geom_xpos, d.geom_xmat], axis=1))
        wanted.append(contacts_of(d, {(pair.geom1, pair.geom2) for pair in pairs}))
    states = np.array(states)
    for kinds in {pair.kinds for pair in pairs}:
        members = [pair for pair in pairs if pair.kinds == kinds]
        first, second = ([getattr(pair, side) for pair in members] for side in ("geom1", "geom2"))
        margin = np.array([[pair.margin + pair.gap] for pair in members])
        sizes = m.geom_size[first][:, None], m.geom_size[second][:, None]
        got = evaluate(*kinds, sizes[0], states[:, first, None], sizes[1], states[:, second, None], margin)
        for k, at_state in enumerate(wanted):
            for j, pair in enumerate(members):
                assert difference(got[k, j, 0], at_state[pair.geom1, pair.geom2]) < 1e-10
    assert sum(len(x) for at_state in wanted for x in at_state.values()) > 0


def with_contacts_searched_for(world):
    """The world with rows for contacts that are found, as those with many pairs have, instead of all candidates."""
    contacts = dataclasses.replace(world.parts.constraints.contacts, listed=True)
    return eqx.tree_at(lambda w: w.parts.constraints.contacts, world, contacts)


@functools.cache
def both_forms():
    """A world with contacts of several numbers of directions and sensors of them, with rows for all candidates and with
    rows for those that are found, and states in which some touch."""
    text = SMALL.replace('<site name="eye"/>', '<site name="eye" size=".3"/>')
    sensors = '<sensor><touch site="eye"/><force site="eye"/><accelerometer site="eye"/></sensor></mujoco>'
    m = small_model(text.replace("</mujoco>", sensors), "elliptic")
    qpos, qvel, act, control, *_ = random_states(m, 6)
    one = load_world(m)
    return one, with_contacts_searched_for(one), state_of(one, qpos, qvel, act), jnp.asarray(control)


def test_contacts_that_are_searched_for_have_the_rows_of_all_candidates():
    one, two, state, control = both_forms()
    for a, b in zip(*(accelerations_step_and_sensors(w, state, control) for w in (one, two)), strict=True):
        for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
            np.testing.assert_allclose(y, x, rtol=1e-7, atol=1e-8 * (1 + np.abs(x).max()))
    assert one.contact_names == two.contact_names
    a, b = (w.contact_forces(state, control) for w in (one, two))
    there = np.isfinite(np.asarray(a.gap))
    assert there.any()
    assert (np.isfinite(np.asarray(b.gap)) == there).all()
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(np.asarray(y)[there], np.asarray(x)[there], atol=1e-7 * (1 + np.abs(x[there]).max()))


@pytest.mark.slow
def test_contacts_that_are_searched_for_have_the_same_derivatives():
    one, two, state, control = both_forms()
    state, control = jax.tree.map(lambda x: x[1:3], (state, control))

    def gradient(world):
        def weighted(q, v, friction, sizes):
            contacts = world.parts.constraints.contacts
            pairs = [eqx.tree_at(lambda p: p.friction, p, p.friction * friction) for p in contacts.pairs]
            other = eqx.tree_at(
                lambda w: (w.parts.constraints.contacts.pairs, w.parts.constraints.contacts.sizes),
                world,
                (tuple(pairs), contacts.sizes * sizes),
            )
            a = other.accelerations(State(q, v, state.activation, state.time), control)
            return (a * jnp.cos(jnp.arange(a.size)).reshape(a.shape)).sum()

        return jax.jit(jax.grad(weighted, (0, 1, 2, 3)))(state.q, state.v, 1.0, 1.0)

    for x, y in zip(gradient(one), gradient(two), strict=True):
        np.testing.assert_allclose(y, x, rtol=1e-6, atol=1e-6 * (1 + np.abs(x).max()))


def test_contacts_beyond_the_room_of_a_list_are_named(monkeypatch):
    text = "".join(
        f'<body pos="{k} 0 .04"><freejoint/><geom type="sphere" size=".05" condim="1"/></body>' for k in range(4)
    )
    m = mujoco.MjModel.from_xml_string(
        f'<mujoco><worldbody><geom type="plane" size="9 9 .1"/>{text}</worldbody></mujoco>'
    )
    world = with_contacts_searched_for(load_world(m))
    raised = world.start.at[2].set(1.0)
    state = world.state(jnp.stack([world.start, raised]))
    # No other test has a world of this structure, whose programs are kept.
    monkeypatch.setattr("jaxdyn.worlds._contact_search.ROOM", (3, 3))
    report = world.report(state)
    assert report.crowded.tolist() == [1, 0]
    assert report.converged.tolist() == [False, True]
    assert np.isnan(world.accelerations(state)).any(axis=1).tolist() == [True, False]
    with native.disabled():
        np.testing.assert_array_equal(world.report(state).crowded, report.crowded)


def mesh_scene() -> mujoco.MjModel:
    """A brick and a stone as meshes on a plane, beside a box, with contacts of several numbers of
    directions."""
    rng = np.random.default_rng(2)
    brick = np.array(np.meshgrid([-0.1, 0.1], [-0.15, 0.15], [-0.05, 0.05])).reshape(3, 8).T
    stone = rng.normal(size=(12, 3))
    meshes = {"brick": brick, "stone": 0.1 * stone / np.linalg.norm(stone, axis=1)[:, None]}
    asset = "".join(f'<mesh name="{n}" vertex="{" ".join(map(str, v.ravel()))}"/>' for n, v in meshes.items())
    geoms = [('type="mesh" mesh="brick" condim="3"', 0.05), ('type="mesh" mesh="stone" condim="1"', 0.18)]
    geoms += [('type="box" size=".1 .1 .05"', 0.31)]
    bodies = "".join(f'<body pos="0 0 {z}"><freejoint/><geom {geom}/></body>' for geom, z in geoms)
    text = f'<mujoco><option tolerance="0" iterations="200"/><asset>{asset}</asset><worldbody>'
    return mujoco.MjModel.from_xml_string(f'{text}<geom type="plane" size="9 9 .1"/>{bodies}</worldbody></mujoco>')


@functools.cache
def world_of_meshes():
    """The world of these, and states in which they touch, with the distances of MuJoCo's contacts."""
    m, rng = mesh_scene(), np.random.default_rng(0)
    m.opt.ccd_tolerance, m.opt.ccd_iterations = 1e-12, 200
    d = mujoco.MjData(m)
    qpos, qvel, distances = [], [], []
    for _ in range(8):
        mujoco.mj_resetData(m, d)
        d.qpos[:] += 0.02 * rng.normal(size=m.nq)
        d.qvel[:] = 0.1 * rng.normal(size=m.nv)
        mujoco.mj_forward(m, d)
        qpos.append(d.qpos.copy())
        qvel.append(d.qvel.copy())
        distances.append(sorted(d.contact.dist))
    world = load_world(m)
    state = state_of(world, np.array(qpos), np.array(qvel), np.zeros((8, 0)))
    return world, state, distances


def test_contacts_of_meshes_are_those_of_mujoco_with_native_steps():
    world, state, distances = world_of_meshes()
    found = jax.jit(lambda state: world.contact_forces(state)).lower(state)
    # The poses, the search of each type of pairs, and the solution.
    assert found.as_text().count("@jaxdyn_") > 4 or not native.enabled()
    forces = found.compile()(state)
    for gap, wanted in zip(np.asarray(forces.gap), distances, strict=True):
        np.testing.assert_allclose(np.sort(gap[np.isfinite(gap)]), wanted, atol=1e-9)
    assert sum(map(len, distances)) > 15


@pytest.mark.slow
def test_derivatives_through_contacts_of_meshes_are_those_of_differences():
    """Of the velocities after a step, by the state and by the vertices of the meshes."""
    world, state, *_ = world_of_meshes()
    pick = jnp.cos(jnp.arange(world.model.nv))

    def gained(q, v, grown):
        other = eqx.tree_at(lambda w: w.parts.constraints.contacts.vertices, world, replace_fn=lambda x: x * grown)
        return other.step(State(q, v)).v @ pick

    args = state.q[1], state.v[1], jnp.asarray(1.0)
    backward = jax.jit(jax.grad(gained, (0, 1, 2)))(*args)
    move = jax.tree.map(lambda x: jnp.cos(3.0 * jnp.arange(x.size)).reshape(x.shape), args)
    # Along the sphere of unit quaternions to first order.
    quats = np.concatenate([np.arange(7 * k + 3, 7 * k + 7) for k in range(3)]).reshape(3, 4)
    turned = np.array(move[0])
    for at in quats:
        turned[at] -= args[0][at] * (turned[at] @ args[0][at]) / (args[0][at] @ args[0][at])
    move = jnp.asarray(turned), move[1], move[2]
    forward = jax.jit(lambda *m: jax.jvp(gained, args, m)[1])(*move)
    along = sum(jnp.vdot(a, b) for a, b in zip(backward, move, strict=True))
    np.testing.assert_allclose(along, forward, rtol=1e-8)
    function, step = jax.jit(gained), 1e-7
    ends = [function(*jax.tree.map(lambda x, m: x + sign * step * m, args, move)) for sign in (1, -1)]  # noqa: B023
    np.testing.assert_allclose(forward, (ends[0] - ends[1]) / (2 * step), rtol=1e-4)


GRIP, LIFTED, STEPS = 12.0, 0.5, 60
"""The force of a finger, N, the mass of the box, kg, and the steps of a lift."""


@functools.cache
def gripper():
    """The text of a hand with two fingers that are meshes, which holds a box in the air."""
    rng = np.random.default_rng(4)
    # A flat pad at x = 0, and a back of 20 vertices on an ellipsoid beyond.
    pad = np.array(np.meshgrid([0.0], [-1, 1], [-1, 1])).reshape(3, 4).T
    back = rng.normal(size=(20, 3))
    back = np.abs(back / np.linalg.norm(back, axis=1)[:, None] * [1, 0, 0]) + 0.5 * back.clip(-1, 1) * [0, 1, 1]
    vertices = np.concatenate([pad, back]) * [0.01, 0.012, 0.015]
    meshes = "".join(
        f'<mesh name="{name}" vertex="{" ".join(map(str, (vertices * [way, 1, 1]).ravel()))}"/>'
        for name, way in (("left", -1), ("right", 1))
    )
    # The frames of meshes are at their centers of mass: files place them by their vertices again.
    fingers = "".join(
        f'<body pos="{0.02 * way} 0 0"><joint name="{name}" type="slide" axis="{-way} 0 0"/>'
        f'<geom type="mesh" mesh="{name}" mass=".05" friction=".5 0 0"/></body>'
        for name, way in (("left", -1), ("right", 1))
    )
    motors = "".join(f'<motor joint="{name}"/>' for name in ("left", "right", "lift"))
    return (
        f'<mujoco><option timestep=".001" tolerance="0" iterations="200" ccd_tolerance="1e-12" ccd_iterations="200"/>'
        f'<default><geom solref=".004 1"/></default>'
        f'<asset>{meshes}</asset><worldbody><body><joint name="lift" type="slide" axis="0 0 1"/>'
        f'<geom size=".02" mass="1" pos="0 0 .2" contype="0" conaffinity="0"/>{fingers}</body>'
        f'<body><freejoint/><geom type="box" size=".02 .02 .02" mass="{LIFTED}" friction="0 0 0"/></body>'
        f"</worldbody><actuator>{motors}</actuator></mujoco>"
    )


@pytest.mark.slow
def test_a_box_between_fingers_slips_where_friction_ends_and_has_exact_derivatives():
    world, m = load_world(gripper()), mujoco.MjModel.from_xml_string(gripper())
    g, total = 9.81, 1.0 + 2 * 0.05 + LIFTED
    # Without slip, the hand rises with its box at this acceleration, for which m (g + a) of friction is needed.
    rise = 1.0
    least = LIFTED * (g + rise) / (2 * GRIP)

    def lifted(friction, force):
        contacts = world.parts.constraints.contacts
        pairs = [eqx.tree_at(lambda p: p.friction, p, p.friction.at[:, :2].set(friction)) for p in contacts.pairs]
        held = eqx.tree_at(lambda w: w.parts.constraints.contacts.pairs, world, tuple(pairs))
        control = jnp.stack([force, force, jnp.full_like(force, total * (g + rise))])
        # The fingers overlap with the box: where they only touch, rounding says whether there are contacts.
        start = held.state(held.start.at[1:3].set(1e-5))
        end = jax.lax.scan(lambda s, _: (held.step(s, control), None), start, length=STEPS)[0]
        # The height of the box, behind the three joints of the hand.
        return end.q[5]

    def lifted_by_mujoco(friction):
        d = mujoco.MjData(m)
        # A pair has the larger friction of its geoms.
        m.geom_friction[:, 0] = friction
        d.qpos[1:3] = 1e-5
        d.ctrl[:] = GRIP, GRIP, total * (g + rise)
        mujoco.mj_step(m, d, STEPS)
        return d.qpos[5]

    function = jax.jit(lifted)
    grip = jnp.asarray(GRIP)
    duration = STEPS * world.parts.timestep
    held, slipping = (function(jnp.asarray(part * least), grip) for part in (1.3, 0.7))
    for part, height in ((1.3, held), (0.7, slipping)):
        np.testing.assert_allclose(height, lifted_by_mujoco(part * least), rtol=1e-7)
    np.testing.assert_allclose(held, 0.5 * rise * duration**2, rtol=0.2)
    np.testing.assert_allclose(slipping, 0.5 * (0.7 * (g + rise) - g) * duration**2, rtol=0.1)
    args = jnp.asarray(0.7 * least), grip
    gradient = jax.jit(jax.grad(lifted, (0, 1)))(*args)
    for k, x in enumerate(args):
        step = 1e-5 * x
        ends = [function(*(y + sign * step * (i == k) for i, y in enumerate(args))) for sign in (1, -1)]
        np.testing.assert_allclose(gradient[k], (ends[0] - ends[1]) / (2 * step), rtol=1e-4)
    # d z / d friction = force / mass t^2 while it slips.
    np.testing.assert_allclose(gradient[0], GRIP / LIFTED * duration**2, rtol=0.1)
