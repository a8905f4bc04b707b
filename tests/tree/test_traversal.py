"""Trees and their walks match plain recursion in NumPy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdyn.spatial import Mat3, Pose, Vec3
from jaxdyn.tree import Tree, _walks, compose_down, scan_down, scan_up, sum_down, sum_up, take_rows


def random_forest(size: int, seed: int, reach: int, roots: float = 0.0) -> Tree:
    """Return a forest; a node's parent is one of the last `reach` nodes, or it is a root with probability `roots`."""
    rng = np.random.default_rng(seed)
    parents = [-1]
    for i in range(1, size):
        parents.append(-1 if rng.uniform() < roots else int(rng.integers(max(0, i - reach), i)))
    return Tree(tuple(parents))


def limbs(*lengths: int, trunk: int) -> Tree:
    """Return a trunk with a serial limb of each length at its end."""
    parents = list(range(-1, trunk - 1))
    for length in lengths:
        first = len(parents)
        parents += [trunk - 1, *range(first, first + length - 1)]
    return Tree(tuple(parents))


def comb(teeth: int, length: int) -> Tree:
    """Return a spine whose nodes each carry a tooth as their first child."""
    parents, spine = [], -1
    for _ in range(teeth):
        parents.append(spine)
        spine = len(parents) - 1
        last = spine
        for _ in range(length):
            parents.append(last)
            last = len(parents) - 1
    return Tree(tuple(parents))


TREES = {
    "one node": Tree((-1,)),
    "chain": Tree(tuple(range(-1, 11))),
    "star": Tree((-1, *[0] * 9)),
    "roots only": Tree((-1,) * 5),
    "two chains": Tree((-1, 0, 1, -1, 3, 4)),
    "two roots": Tree((-1, 0, 1, 1, -1, 4, 5, 4, 2, 7)),
    "limbs": limbs(3, 3, 7, 7, 1, trunk=4),
    "hand at the end of an arm": limbs(2, 2, 2, 2, trunk=7),
    "comb": comb(3, 2),
    "bush": random_forest(20, 0, 20),
    "forest": random_forest(16, 3, 10, roots=0.2),
    "spine with twigs": random_forest(25, 0, 4),
    "large": random_forest(60, 2, 12),
}
MANY = [random_forest(size, seed, reach, roots) for seed, (size, reach, roots) in enumerate(
    (size, reach, roots) for size in (1, 2, 3, 7, 20, 50, 128) for reach in (1, 2, 5, 200) for roots in (0.0, 0.1)
)]  # fmt: skip
every_tree = pytest.mark.parametrize("tree", [*TREES.values(), *MANY], ids=lambda t: f"{t.size}")


def quick_jit(f):
    """Compile without optimization, because the program runs only once."""
    return jax.jit(f, compiler_options={"xla_backend_optimization_level": 0})


# The structure


def path_of(tree: Tree, node: int) -> list[int]:
    """Return the path from the node to the root, both included."""
    path = []
    while node >= 0:
        path.append(node)
        node = tree.parents[node]
    return path


def children_of(tree: Tree, node: int) -> list[int]:
    return [i for i, p in enumerate(tree.parents) if p == node]


@every_tree
def test_ancestors_paths_and_roots(tree):
    every = [path_of(tree, i) for i in range(tree.size)]
    expected = np.zeros((tree.size, tree.size), dtype=bool)
    for i, path in enumerate(every):
        expected[i, path] = True
    np.testing.assert_array_equal(tree.ancestors, expected)

    depth = max(map(len, every))
    padded = np.array([path + [-1] * (depth - len(path)) for path in every]).T
    np.testing.assert_array_equal(tree.paths, padded)

    ends = [path[-1] for path in every]
    np.testing.assert_array_equal(tree.roots, ends[:1] if len(set(ends)) == 1 else ends)
    assert tree.is_chain == (depth == tree.size)


@every_tree
def test_last_children(tree):
    last = {node: children_of(tree, node)[-1:] for node in range(-1, tree.size)}
    expected = [[i] == last[p] for i, p in enumerate(tree.parents)]
    np.testing.assert_array_equal(tree.last_child, expected)


@every_tree
def test_places(tree):
    """No other node takes a node's place before its last child; there are as many places as branches open at once."""
    places, last = tree.places, {}
    for node in range(tree.size):
        children = children_of(tree, node)
        assert (places[node] >= 0) == bool(children)
        if children:
            last[node] = children[-1]
    for node, stop in last.items():
        # The last child itself may reuse the place.
        assert (places[node + 1 : stop] != places[node]).all()
    most = max((sum(a <= node < b for a, b in last.items()) for node in range(tree.size)), default=0)
    assert places.max() + 1 == most


def test_the_number_of_places_is_small():
    """The number of places grows neither with the length of a limb nor with the number of limbs."""
    counts = {name: TREES[name].places.max() + 1 for name in ("one node", "chain", "star", "limbs", "comb")}
    assert counts == {"one node": 0, "chain": 1, "star": 1, "limbs": 2, "comb": 2}
    assert limbs(*[30] * 40, trunk=30).places.max() + 1 == 2
    assert comb(50, 3).places.max() + 1 == 2


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


@pytest.mark.parametrize("max_pieces", [8, *(pytest.param(x, marks=pytest.mark.slow) for x in (0, 100))])
def test_take_rows(max_pieces, monkeypatch):
    """Rows taken by slices or by a gather are right for any number of batch axes, and so is the transpose."""
    monkeypatch.setattr(_walks, "MAX_PIECES", max_pieces)
    rng = np.random.default_rng(0)
    x = {"a": rng.normal(size=(6,)), "b": rng.normal(size=(6, 2, 3))}

    def take(x):
        return {name: take_rows(x, np.array(rows, dtype=int)) for name, rows in ROWS.items()}

    weights = jax.tree.map(lambda a: rng.normal(size=a.shape), jax.eval_shape(take, x))
    out, (transposed,) = quick_jit(lambda x, w: (take(x), jax.vjp(take, x)[1](w)))(x, weights)
    total = {key: np.zeros_like(value) for key, value in x.items()}
    for name, rows in ROWS.items():
        for key, value in x.items():
            expected = np.array([value[r] if r >= 0 else 0 * value[0] for r in rows]).reshape(-1, *value.shape[1:])
            np.testing.assert_array_equal(out[name][key], expected, err_msg=name)
            for r, w in zip(rows, weights[name][key], strict=True):
                if r >= 0:
                    total[key][r] += w
    for key in x:
        np.testing.assert_allclose(transposed[key], total[key], rtol=1e-13, atol=1e-13)


# Walks


def down(parent, x):
    """Return a nonlinear carry of two leaves and an output that differs from the carry."""
    s, t = parent
    carry = (jnp.sin(s) + x["a"], t * x["b"] + s)
    return carry, {"y": carry[0] * carry[1]}


def up(children, x):
    """Return a nonlinear carry and an output of two leaves."""
    passed = x["a"] * (1 + x["b"] * jnp.cos(children))
    return passed, (children, passed + 1)


def about_z(angles) -> Mat3:
    ones, zeros = jnp.ones_like(angles), jnp.zeros_like(angles)
    c, s = jnp.cos(angles), jnp.sin(angles)
    return Mat3(Vec3(c, s, zeros), Vec3(-s, c, zeros), Vec3(zeros, zeros, ones))


def walks(tree: Tree, x, angles, root):
    """Return the results of every walk on the same data."""
    return {
        "sum_down": sum_down(tree, x),
        "sum_up": sum_up(tree, x),
        "scan_down": scan_down(tree, down, root, x),
        "scan_up": scan_up(tree, up, 0.0, x),
        "compose": compose_down(tree, Pose(about_z(angles), Vec3(x["a"], x["b"], angles))),
    }


def expected_walks(tree: Tree, x, angles, root):
    """Return the same results by recursion, node by node."""
    A = tree.ancestors.astype(float)
    return {
        "sum_down": {key: np.tensordot(A, v, 1) for key, v in x.items()},
        "sum_up": {key: np.tensordot(A.T, v, 1) for key, v in x.items()},
        "scan_down": expected_down(tree, x["a"], x["b"], root),
        "scan_up": expected_up(tree, x["a"], x["b"]),
        "compose": expected_poses(tree, x["a"], x["b"], angles),
    }


def expected_down(tree: Tree, a, b, root):
    carries, ys = [], []
    for i, p in enumerate(tree.parents):
        s, t = carries[p] if p >= 0 else (root[0], root[1][0])
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
        # All nodes turn about z, so angles add.
        t, r = (turn[p], position[p]) if p >= 0 else (0 * a[i], [0 * a[i]] * 3)
        c, s = np.cos(t), np.sin(t)
        position.append([r[0] + c * a[i] - s * b[i], r[1] + s * a[i] + c * b[i], r[2] + angles[i]])
        turn.append(t + angles[i])
    t, r = np.array(turn), np.moveaxis(np.array(position), 1, 0)
    c, s, zero = np.cos(t), np.sin(t), 0 * t
    return Pose(Mat3(Vec3(c, s, zero), Vec3(-s, c, zero), Vec3(zero, zero, zero + 1)), Vec3(*r))


def data(tree: Tree, batch: tuple[int, ...]):
    """Return two leaves, angles, and the world's carry, which is a number and a row with batch axes."""
    rng = np.random.default_rng(tree.size)
    a, b, angles = rng.normal(size=(3, tree.size, *batch))
    return {"a": a, "b": b}, angles, (0.3, rng.normal(size=(1, *batch)))


def check(actual, expected, shape) -> None:
    for key in expected:
        for got, want in zip(jax.tree.leaves(actual[key]), jax.tree.leaves(expected[key]), strict=True):
            assert got.shape == shape, key
            np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12, err_msg=key)


QUICK = ("one node", "two roots", "comb", "forest")


@pytest.mark.parametrize("name", [pytest.param(x, marks=[pytest.mark.slow] * (x not in QUICK)) for x in TREES])
def test_walks(name):
    tree, batch = TREES[name], (3,)
    values = data(tree, batch)
    actual = quick_jit(functools.partial(walks, tree))(*values)
    check(actual, expected_walks(tree, *values), (tree.size, *batch))


@pytest.mark.parametrize(
    "batch", [(), (2, 5), *(pytest.param(x, marks=pytest.mark.slow) for x in ((1,), (20,)))], ids=str
)
def test_walks_in_batches(batch):
    tree = TREES["forest"]
    values = data(tree, batch)
    actual = quick_jit(functools.partial(walks, tree))(*values)
    check(actual, expected_walks(tree, *values), (tree.size, *batch))


@pytest.mark.slow
def test_scans_of_many_forests():
    """Scans are right for many kinds of small forests, in which several nodes share a place; one program runs all."""
    trees = [tree for tree in MANY if 2 < tree.size < 20]
    values = [data(tree, (2,)) for tree in trees]

    @quick_jit
    def scans(values):
        pairs = zip(trees, values, strict=True)
        return [(scan_down(t, down, root, x), scan_up(t, up, 0.0, x)) for t, (x, _, root) in pairs]

    for tree, (x, _, root), (fell, rose) in zip(trees, values, scans(values), strict=True):
        expected = {"down": expected_down(tree, x["a"], x["b"], root), "up": expected_up(tree, x["a"], x["b"])}
        check({"down": fell, "up": rose}, expected, (tree.size, 2))


def test_a_batch_of_one_broadcasts():
    """Leaves may have batch axes of length one, and the results have these axes at full length."""
    tree = TREES["two roots"]
    rng = np.random.default_rng(6)
    a, b, angles = rng.normal(size=(tree.size, 3, 1)), rng.normal(size=(tree.size, 1, 2)), rng.normal(size=(10, 1, 1))
    root = (0.3, rng.normal(size=(1, 3, 1)))
    actual = quick_jit(functools.partial(walks, tree))({"a": a, "b": b}, angles, root)
    a, b, angles = (np.broadcast_to(x, (tree.size, 3, 2)) for x in (a, b, angles))
    check(actual, expected_walks(tree, {"a": a, "b": b}, angles, root), (tree.size, 3, 2))


@pytest.mark.parametrize("name", ["chain", "two roots"])
def test_single_precision_stays_single(name):
    tree = TREES[name]
    x, angles, root = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), data(tree, (3,)))
    out = jax.eval_shape(functools.partial(walks, tree), x, angles, root)
    assert {leaf.dtype for leaf in jax.tree.leaves(out)} == {np.dtype(np.float32)}
    # A Python number as the world's carry does not determine the precision.
    out = jax.eval_shape(functools.partial(walks, tree), x, angles, (0.3, root[1]))
    assert {leaf.dtype for leaf in jax.tree.leaves(out)} == {np.dtype(np.float32)}


# Derivatives


@pytest.mark.parametrize(
    "name", ["one node", pytest.param("chain", marks=pytest.mark.slow), "roots only", "two roots", "forest"]
)
def test_sums_are_linear_and_each_others_transposes(name):
    """The matrices of the sums by forward mode, reverse mode, and one and two transpositions are all right."""
    tree = TREES[name]
    A = tree.ancestors.astype(float)
    x = np.random.default_rng(0).normal(size=tree.size)

    @quick_jit
    def matrices(x):
        out = []
        for f in (functools.partial(sum_down, tree), functools.partial(sum_up, tree)):
            transposed = jax.linear_transpose(f, x)
            again = jax.linear_transpose(lambda y, transposed=transposed: transposed(y)[0], x)
            rows = jax.vmap(lambda y, transposed=transposed: transposed(y)[0])(jnp.eye(tree.size))
            columns = jax.vmap(lambda y, again=again: again(y)[0], out_axes=1)(jnp.eye(tree.size))
            out.append((jax.jacfwd(f)(x), jax.jacrev(f)(x), rows, columns))
        return out

    for by_each_way, expected in zip(matrices(x), (A, A.T), strict=True):
        for matrix in by_each_way:
            np.testing.assert_array_equal(matrix, expected)


def test_gradients_through_the_sums():
    """First and second derivatives of a nonlinear function are right in a batch whose leaves broadcast."""
    tree = TREES["spine with twigs"]
    A = tree.ancestors.astype(float)
    rng = np.random.default_rng(5)
    x, w, step = rng.normal(size=(3, tree.size, 3))
    y = rng.normal(size=(tree.size, 1))

    def f(x, y):
        fallen, risen = sum_down(tree, (x, y)), sum_up(tree, x)
        return jnp.sum(w * jnp.sin(fallen[0]) * fallen[1] + w * w * jnp.sin(risen))

    def run(x, y, step):
        gradient = jax.grad(f, argnums=(0, 1))
        return gradient(x, y), jax.jvp(lambda x: gradient(x, y)[0], (x,), (step,))[1]

    (by_x, by_y), turned = quick_jit(run)(x, y, step)
    fallen, risen, weight = A @ x, A.T @ x, A @ y
    np.testing.assert_allclose(by_x, A.T @ (w * weight * np.cos(fallen)) + A @ (w * w * np.cos(risen)), atol=1e-12)
    np.testing.assert_allclose(by_y, (A.T @ (w * np.sin(fallen))).sum(axis=1, keepdims=True), atol=1e-12)
    second = -A.T @ (w * weight * np.sin(fallen) * (A @ step)) - A @ (w * w * np.sin(risen) * (A.T @ step))
    np.testing.assert_allclose(turned, second, atol=1e-12)


@pytest.mark.parametrize("axis", [1, *(pytest.param(x, marks=pytest.mark.slow) for x in (0, 2))])
def test_sums_and_poses_under_vmap(axis):
    """`vmap` over any axis, and over two axes one after the other, gives the right results."""
    tree = TREES["two roots"]
    x = np.random.default_rng(1).normal(size=(tree.size, 3, 4))
    A = tree.ancestors.astype(float)
    scales = (1, 2, -1)

    def run(mapped):
        risen = jax.vmap(lambda x: sum_up(tree, x), axis, 2)(mapped)
        fallen = jax.vmap(jax.vmap(functools.partial(sum_down, tree), 1, 1), 1, 1)(x)
        poses = jax.vmap(lambda x: compose_down(tree, Pose(about_z(x), Vec3(x, 2 * x, x))), axis)(mapped)
        return risen, fallen, poses

    risen, fallen, poses = quick_jit(run)(np.stack([s * x for s in scales], axis=axis))
    np.testing.assert_allclose(risen, np.stack([s * np.tensordot(A.T, x, 1) for s in scales], axis=2), atol=1e-12)
    np.testing.assert_allclose(fallen, np.tensordot(A, x, 1), atol=1e-12)
    for k, s in enumerate(scales):
        expected = expected_poses(tree, s * x, 2 * s * x, s * x)
        for got, want in zip(jax.tree.leaves(poses), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(got[k], want, atol=1e-12)


def turning(tree: Tree, rng):
    """Return a function from angles and shifts `z`, `[size, 4]`, to poses that turn about oblique axes."""
    x, y, z = rng.normal(size=(3, tree.size))
    x, y, z = (c / np.sqrt(x * x + y * y + z * z) for c in (x, y, z))

    def local(values) -> Pose:
        angle, *shift = values.T
        c, s = jnp.cos(angle), jnp.sin(angle)
        k = 1 - c
        rotation = Mat3(
            Vec3(c + k * x * x, k * x * y + s * z, k * x * z - s * y),
            Vec3(k * x * y - s * z, c + k * y * y, k * y * z + s * x),
            Vec3(k * x * z + s * y, k * y * z - s * x, c + k * z * z),
        )
        return Pose(rotation, Vec3(*shift))

    return local


@pytest.mark.parametrize("name", [pytest.param("chain", marks=pytest.mark.slow), "forest"])
def test_derivatives_of_poses(name):
    """Forward derivatives equal central differences, and reverse derivatives equal forward ones."""
    tree = TREES[name]
    rng = np.random.default_rng(2)
    local = turning(tree, rng)
    z, dot = rng.normal(size=(2, tree.size, 4))

    def poses(z):
        return jnp.stack(jax.tree.leaves(compose_down(tree, local(z))))

    weights = rng.normal(size=(12, tree.size))
    step = 1e-6

    @quick_jit
    def run(z):
        value, forward = jax.jvp(poses, (z,), (dot,))
        # The differences use the walk itself and not its derivative rule.
        differences = (poses(z + step * dot) - poses(z - step * dot)) / (2 * step)
        return value, forward, differences, jax.vjp(poses, z)[1](weights)[0]

    value, forward, differences, reverse = run(z)
    assert np.abs(value).max() > 1
    np.testing.assert_allclose(forward, differences, atol=1e-8 * np.abs(forward).max())
    assert float(np.vdot(weights, forward)) == pytest.approx(float(np.vdot(reverse, dot)), rel=1e-11)


@pytest.mark.slow
def test_second_derivatives_of_poses():
    tree = TREES["two roots"]
    rng = np.random.default_rng(3)
    local = turning(tree, rng)
    z, dot = rng.normal(size=(2, tree.size, 4))
    weights = rng.normal(size=(12, tree.size))

    def f(z):
        return jnp.vdot(weights, jnp.sin(jnp.stack(jax.tree.leaves(compose_down(tree, local(z))))))

    @quick_jit
    def run(z):
        gradient, forward = jax.jvp(jax.grad(f), (z,), (dot,))
        return gradient, forward, jax.grad(lambda z: jax.jvp(f, (z,), (dot,))[1])(z)

    step = 1e-6
    differences = (run(z + step * dot)[0] - run(z - step * dot)[0]) / (2 * step)
    _, forward, reverse = run(z)
    scale = np.abs(differences).max()
    np.testing.assert_allclose(forward, differences, atol=1e-7 * scale)
    np.testing.assert_allclose(reverse, forward, atol=1e-11 * scale)


@pytest.mark.slow
def test_derivatives_of_poses_far_from_the_origin():
    """Derivatives 1 km away are accurate in single precision, because twists refer to the tree's root."""
    tree = limbs(3, 3, trunk=4)
    rng = np.random.default_rng(4)
    # Both precisions represent these positions exactly, so only the derivative has rounding errors.
    shift = rng.integers(-64, 64, size=(tree.size, 3)) / 64
    shift[0] = 1024, -1024, 1024
    turn_dot, shift_dot = rng.normal(size=(2, tree.size, 3)).astype(np.float32)
    weights = rng.normal(size=(12, tree.size)).astype(np.float32)

    def poses(turn, shift):
        # The turns about the axes are small, and they are evaluated at zero.
        x, y, z = turn.T
        ones = jnp.ones_like(x)
        return compose_down(tree, Pose(Mat3(Vec3(ones, z, -y), Vec3(-z, ones, x), Vec3(y, -x, ones)), Vec3(*shift.T)))

    @quick_jit
    def run(shift, turn_dot, shift_dot, weights):
        def values(turn, shift):
            return jnp.stack(jax.tree.leaves(poses(turn, shift)))

        origin = (jnp.zeros_like(shift), shift)
        return jax.jvp(values, origin, (turn_dot, shift_dot))[1], jax.vjp(values, *origin)[1](weights)

    single = run(*(np.asarray(x, np.float32) for x in (shift, turn_dot, shift_dot, weights)))
    double = run(*(np.asarray(x, np.float64) for x in (shift, turn_dot, shift_dot, weights)))
    for got, want in zip(jax.tree.leaves(single), jax.tree.leaves(double), strict=True):
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, want, atol=2e-6 * np.abs(want).max())
