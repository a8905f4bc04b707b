"""Schedules and walks of trees against plain recursion in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdyn.model import _traversal
from jaxdyn.model._schedule import MAX_RUNS, Tree
from jaxdyn.model._traversal import (
    compose_down,
    from_slots,
    scan_down,
    scan_up,
    sum_down,
    sum_rows,
    sum_up,
    take_rows,
    to_slots,
)
from jaxdyn.spatial import Mat3, Pose, Vec3


def random_forest(size: int, seed: int, reach: int, roots: float = 0.0) -> Tree:
    """Parents drawn from the last `reach` nodes; each node is a root with the probability `roots`."""
    rng = np.random.default_rng(seed)
    parents = [-1]
    for i in range(1, size):
        parents.append(-1 if rng.uniform() < roots else int(rng.integers(max(0, i - reach), i)))
    return Tree(tuple(parents))


def limbs(*lengths: int, trunk: int) -> Tree:
    """A trunk with a serial limb of each length at its end."""
    parents = list(range(-1, trunk - 1))
    for length in lengths:
        first = len(parents)
        parents += [trunk - 1, *range(first, first + length - 1)]
    return Tree(tuple(parents))


def comb(teeth: int, length: int) -> Tree:
    """A spine of which every node carries a tooth: widths that change at every level."""
    parents, spine = [], -1
    for _ in range(teeth):
        parents.append(spine)
        spine = len(parents) - 1
        at = spine
        for _ in range(length):
            parents.append(at)
            at = len(parents) - 1
    return Tree(tuple(parents))


TREES = {
    "one node": Tree((-1,)),
    "chain": Tree(tuple(range(-1, 11))),
    "star": Tree((-1, *[0] * 9)),
    "roots only": Tree((-1,) * 5),
    "two roots": Tree((-1, 0, 1, 1, -1, 4, 5, 4, 2, 7)),
    "limbs": limbs(3, 3, 7, 7, 1, trunk=4),
    "hand at the end of an arm": limbs(2, 2, 2, 2, trunk=7),
    "comb": comb(3, 2),
    "bush": random_forest(20, 0, 20),
    "forest": random_forest(16, 3, 10, roots=0.2),
    "spine with twigs": random_forest(25, 0, 4),
    "straight and branched runs": random_forest(30, 26, 4),
    "large": random_forest(60, 2, 12),
}
trees = pytest.mark.parametrize("tree", list(TREES.values()), ids=list(TREES))


def compiled(f):
    """Quickly, for it runs once."""
    return jax.jit(f, compiler_options={"xla_backend_optimization_level": 0})


# The schedule


def level_of(tree: Tree) -> list[int]:
    depth: list[int] = []
    for p in tree.parents:
        depth.append(0 if p < 0 else depth[p] + 1)
    return depth


MANY = [random_forest(size, seed, reach, roots) for seed, (size, reach, roots) in enumerate(
    (size, reach, roots) for size in (1, 2, 3, 7, 20, 50, 128) for reach in (1, 2, 5, 200) for roots in (0.0, 0.1)
)]  # fmt: skip


@pytest.mark.parametrize("tree", [*TREES.values(), *MANY], ids=lambda t: f"{t.size}")
def test_schedule(tree):
    """Every node has one slot, and its parent's slot is where its run says."""
    nodes = tree.node_of_slot
    assert sorted(nodes[nodes >= 0]) == list(range(tree.size))
    np.testing.assert_array_equal(nodes[tree.slot_of_node], np.arange(tree.size))
    np.testing.assert_array_equal(tree.padding, nodes < 0)
    assert 1 <= len(tree.runs) <= MAX_RUNS
    assert tree.runs[0].start == 0
    assert tree.runs[-1].stop == len(nodes)

    depth, level, above = level_of(tree), 0, None
    for before, run in zip([None, *tree.runs], tree.runs, strict=False):
        assert before is None or before.stop == run.start
        assert run.parents.shape == (run.length, run.width)
        assert run.stop - run.start == run.length * run.width
        rectangle = nodes[run.start : run.stop].reshape(run.length, run.width)
        for row in range(run.length):
            for w, node in enumerate(rectangle[row]):
                p = run.parents[row, w]
                if node < 0:
                    # Padding: dropped between runs, and within the level above inside of one.
                    assert p == -1 if row == 0 else 0 <= p < run.width
                    continue
                assert depth[node] == level
                if above is None:
                    assert tree.parents[node] == -1
                    assert p == 0
                else:
                    assert above[p] == tree.parents[node]
            above = rectangle[row]
            level += 1
        if run.straight:
            np.testing.assert_array_equal(run.parents[1:], np.tile(np.arange(run.width), (run.length - 1, 1)))
    assert level == max(depth) + 1


def test_padding_is_bounded():
    """Runs of similar width waste less than they hold."""
    tree = TREES["hand at the end of an arm"]
    assert len(tree.node_of_slot) == tree.size
    assert all(len(t.node_of_slot) <= 2 * t.size + 16 for t in [*TREES.values(), *MANY])


def test_a_chain_is_one_straight_run():
    (run,) = TREES["chain"].runs
    assert run.straight
    assert (run.length, run.width) == (12, 1)


@trees
def test_ancestors(tree):
    expected = np.zeros((tree.size, tree.size), dtype=bool)
    for i in range(tree.size):
        j = i
        while j >= 0:
            expected[i, j] = True
            j = tree.parents[j]
    np.testing.assert_array_equal(tree.ancestors, expected)


@pytest.mark.parametrize("parents", [(0,), (1, -1), (-1, 1), (-1, 0, -2), (-1, 2, 0)])
def test_parents_must_come_first(parents):
    with pytest.raises(ValueError, match="topological order"):
        Tree(parents)


# Rows

ROWS = {
    "same": [0, 1, 2, 3, 4, 5],
    "empty": [],
    "one": [3],
    "slice": [1, 2, 3],
    "reversed": [5, 4, 3, 2, 1, 0],
    "repeated": [2, 2, 2, 2],
    "padding only": [-1, -1],
    "padding at both ends": [-1, -1, 0, 1, -1],
    "padding before the first row": [-1, 0, 1, 2],
    "padding between": [4, -1, 5, -1, 0, 1],
    "rising and repeating": [0, 0, 1, 2, 2, 3],
    "scattered": [5, 0, 3, 3, 1, 4, 0, 2, 5, 1, 3, 0],
    "scattered with padding": [5, 0, -1, 3, 3, 1, -1, 4, 0, 2, 5, -1, 1, 3, 0],
    "two steps": [0, 2, 4],
}


@pytest.mark.parametrize("max_pieces", [0, 8, 100])
def test_take_rows(max_pieces, monkeypatch):
    """By slices and by gather, for any number of batch axes."""
    monkeypatch.setattr(_traversal, "MAX_PIECES", max_pieces)
    rng = np.random.default_rng(0)
    x = {"a": rng.normal(size=(6,)), "b": rng.normal(size=(6, 2, 3))}
    out = compiled(lambda x: {name: take_rows(x, np.array(rows, dtype=int)) for name, rows in ROWS.items()})(x)
    for name, rows in ROWS.items():
        for key, value in x.items():
            expected = np.array([value[r] if r >= 0 else 0 * value[0] for r in rows]).reshape(-1, *value.shape[1:])
            np.testing.assert_array_equal(out[name][key], expected, err_msg=name)


@pytest.mark.parametrize("max_pieces", [0, 8, 100])
def test_sum_rows_is_the_transpose(max_pieces, monkeypatch):
    monkeypatch.setattr(_traversal, "MAX_PIECES", max_pieces)
    rng = np.random.default_rng(0)
    x = {name: {"a": rng.normal(size=len(r)), "b": rng.normal(size=(len(r), 2, 3))} for name, r in ROWS.items()}
    out = compiled(lambda x: {name: sum_rows(x[name], np.array(rows, dtype=int), 6) for name, rows in ROWS.items()})(x)
    for name, rows in ROWS.items():
        for key, value in x[name].items():
            expected = np.zeros((6, *value.shape[1:]))
            for row, line in zip(rows, value, strict=True):
                if row >= 0:
                    expected[row] += line
            np.testing.assert_allclose(out[name][key], expected, rtol=1e-14, atol=1e-14, err_msg=name)


# Walks


def down(parent, x):
    """A carry of two leaves that is not linear, and an output that is not the carry."""
    s, t = parent
    carry = (jnp.sin(s) + x["a"], t * x["b"] + s)
    return carry, {"y": carry[0] * carry[1]}


def up(children, x):
    """What is passed vanishes with `a`, so padding passes nothing."""
    passed = x["a"] * (1 + x["b"] * jnp.cos(children))
    return passed, (children, passed + 1)


def walks(tree: Tree, x, angles, root):
    """Every walk on the same data, in node order."""
    slots = to_slots(tree, x)
    one, zero = jnp.ones_like(angles), jnp.zeros_like(angles)
    c, s = jnp.cos(angles), jnp.sin(angles)
    local = Pose(Mat3(Vec3(c, s, zero), Vec3(-s, c, zero), Vec3(zero, zero, one)), Vec3(x["a"], x["b"], angles))
    out = {
        "sum_down": sum_down(tree, slots),
        "sum_up": sum_up(tree, slots),
        "scan_down": scan_down(tree, down, root, slots),
        "scan_up": scan_up(tree, up, 0.0, slots),
        "slots": slots,
        "compose": compose_down(tree, to_slots(tree, local)),
    }
    return from_slots(tree, out)


def expected_walks(tree: Tree, x, angles, root):
    """The same by recursion, node by node."""
    a, b = x["a"], x["b"]
    return {
        "sum_down": {key: tree.ancestors.astype(float) @ v.reshape(tree.size, -1) for key, v in x.items()},
        "sum_up": {key: tree.ancestors.T.astype(float) @ v.reshape(tree.size, -1) for key, v in x.items()},
        "scan_down": expected_down(tree, a, b, root),
        "scan_up": expected_up(tree, a, b),
        "slots": x,
        "compose": expected_poses(tree, a, b, angles),
    }


def expected_down(tree: Tree, a, b, root):
    carries, ys = [], []
    for i, p in enumerate(tree.parents):
        s, t = carries[p] if p >= 0 else root
        carries.append((np.sin(s) + a[i], t * b[i] + s))
        ys.append(carries[-1][0] * carries[-1][1])
    return {"y": np.array(ys)}


def expected_up(tree: Tree, a, b):
    sums, passed = np.zeros_like(a), np.zeros_like(a)
    for i in reversed(range(tree.size)):
        passed[i] = a[i] * (1 + b[i] * np.cos(sums[i]))
        if tree.parents[i] >= 0:
            sums[tree.parents[i]] += passed[i]
    return sums, passed + 1


def expected_poses(tree: Tree, a, b, angles) -> Pose:
    turn, position = [], []
    for i, p in enumerate(tree.parents):
        # All turn about z, so angles add.
        t, r = (turn[p], position[p]) if p >= 0 else (0 * a[i], [0 * a[i]] * 3)
        c, s = np.cos(t), np.sin(t)
        position.append([r[0] + c * a[i] - s * b[i], r[1] + s * a[i] + c * b[i], r[2] + angles[i]])
        turn.append(t + angles[i])
    t, r = np.array(turn), np.moveaxis(np.array(position), 1, 0)
    c, s, zero = np.cos(t), np.sin(t), 0 * t
    return Pose(Mat3(Vec3(c, s, zero), Vec3(-s, c, zero), Vec3(zero, zero, zero + 1)), Vec3(*r))


def check_walks(tree: Tree, batch: tuple[int, ...]) -> None:
    rng = np.random.default_rng(tree.size)
    x = {"a": rng.normal(size=(tree.size, *batch)), "b": rng.normal(size=(tree.size, *batch))}
    angles = rng.normal(size=(tree.size, *batch))
    root = (0.3, rng.normal(size=batch))
    actual = compiled(lambda *args: walks(tree, *args))(x, angles, root)
    expected = expected_walks(tree, x, angles, root)
    for key in expected:
        for got, want in zip(jax.tree.leaves(actual[key]), jax.tree.leaves(expected[key]), strict=True):
            assert got.shape == (tree.size, *batch), key
            np.testing.assert_allclose(got, want.reshape(got.shape), rtol=1e-12, atol=1e-12, err_msg=key)


@pytest.mark.parametrize("name", ["one node", "chain", "star", "two roots", "hand at the end of an arm", "large"])
def test_walks(name):
    check_walks(TREES[name], (3,))


BRANCHED = ["spine with twigs", "straight and branched runs"]


@pytest.mark.parametrize("batch", [(), (3,), (20,), (2, 20)], ids=str)
def test_walks_in_batches(batch):
    check_walks(TREES["spine with twigs"], batch)


def test_a_batch_of_one_broadcasts():
    """Leaves of one call may have batch axes of length one."""
    tree = TREES["spine with twigs"]
    rng = np.random.default_rng(6)
    a, b, root = rng.normal(size=(tree.size, 3)), rng.normal(size=(tree.size, 1)), (0.3, rng.normal(size=3))

    @compiled
    def walk(a, b):
        x = to_slots(tree, {"a": a, "b": b})
        return from_slots(tree, (scan_down(tree, down, root, x), scan_up(tree, up, 0.0, x)))

    actual, b_full = walk(a, b), np.broadcast_to(b, a.shape)
    expected = (expected_down(tree, a, b_full, root), expected_up(tree, a, b_full))
    for got, want in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("limit", [0, 10**9])
def test_walks_either_way_of_fetching(limit, monkeypatch):
    """`where` over the slots and gather with scatter-add, whatever the batch."""
    monkeypatch.setattr(_traversal, "SELECT_BATCH_LIMIT", limit)
    monkeypatch.setattr(_traversal, "MAX_PIECES", 0 if limit else 100)
    check_walks(TREES["straight and branched runs"], (3,))


def test_some_tree_branches_inside_a_run():
    """Else the walks above would not have fetched by index at all."""
    for name in BRANCHED:
        assert any(not run.straight for run in TREES[name].runs), name
    assert any(run.straight for run in TREES[BRANCHED[1]].runs)


# Gradients


@pytest.mark.parametrize("limit", [0, 10**9])
def test_gradients(limit, monkeypatch):
    """Of functions of the two sums, against matrices, and of a walk that is not linear, against differences."""
    monkeypatch.setattr(_traversal, "SELECT_BATCH_LIMIT", limit)
    tree = TREES["straight and branched runs"]
    A = tree.ancestors.astype(float)
    rng = np.random.default_rng(5)
    x, w = rng.normal(size=(2, tree.size, 3))

    def sums(x):
        slots = to_slots(tree, x)
        down, up = from_slots(tree, (sum_down(tree, slots), sum_up(tree, slots)))
        return jnp.sum(w * jnp.sin(down) + w * w * jnp.sin(up))

    def nonlinear(x):
        children, y = from_slots(tree, scan_up(tree, up, 0.0, to_slots(tree, {"a": x, "b": w})))
        return jnp.sum(w * y + children)

    def plain(x):
        children, y = expected_up(tree, x, w)
        return np.sum(w * y + children)

    gradients = compiled(lambda x: (jax.grad(sums)(x), jax.grad(nonlinear)(x)))(x)
    expected = A.T @ (w * np.cos(A @ x)) + A @ (w * w * np.cos(A.T @ x))
    np.testing.assert_allclose(gradients[0], expected, rtol=1e-12, atol=1e-12)
    differences = np.empty_like(x)
    for index in np.ndindex(*x.shape):
        unit = np.zeros_like(x)
        unit[index] = 1e-5
        differences[index] = (plain(x + unit) - plain(x - unit)) / 2e-5
    np.testing.assert_allclose(gradients[1], differences, rtol=0, atol=1e-8 * np.abs(differences).max())


def test_single_precision_stays_single():
    tree = TREES["two roots"]
    x = {"a": jnp.ones((tree.size, 3), jnp.float32), "b": jnp.ones((tree.size, 3), jnp.float32)}
    angles = jnp.ones((tree.size, 3), jnp.float32)
    out = jax.eval_shape(lambda *args: walks(tree, *args), x, angles, (0.3, jnp.ones(3, jnp.float32)))
    assert {leaf.dtype for leaf in jax.tree.leaves(out)} == {np.dtype(np.float32)}
