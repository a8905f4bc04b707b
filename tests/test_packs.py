"""A program for one element of the batch, whose vectors hold alike operations, gives the results of one for several."""

import draws
import jax
import numpy as np
import pytest

import jaxdyn
from jaxdyn import BodyInertia, Joint, ModelBuilder, native, samples, simulate
from jaxdyn.native._graph import Node
from jaxdyn.native._joined_order import JoinedOrder
from jaxdyn.native._packs import find_packs, unsigned
from jaxdyn.native._specialize import specialize

pytestmark = pytest.mark.skipif(not native.status().enabled, reason=native.status().reason)

PRECISIONS = {"float32": 2e-4, "float64": 1e-10}


def two_arms():
    """Two arms that are mirror images of each other and share nothing."""
    builder = ModelBuilder()
    for name, side in (("left", 1), ("right", -1)):
        parent = "world"
        for k, axis in enumerate(((0, 0, 1), (0, side, 0), (1, 0, 0))):
            inertia = BodyInertia(
                1.0, (0.1, 0.2 * side, 0.3), ((0.3, 0.01 * side, 0), (0.01 * side, 0.4, 0), (0, 0, 0.5))
            )
            builder.add_body(f"{name}{k}", parent, Joint(axis=axis), (0.3, 0.1 * side, 0), inertia)
            parent = f"{name}{k}"
    return builder.build()


def tree(seed: int):
    return samples.random_tree(jax.random.key(seed), 9, ("free", "revolute", "prismatic", "ball", "helical"), 4)


def ends(model, q, v, tau):
    """The samples of a roll-out, and those of the same one in a batch."""

    @jax.jit
    def roll_out(q, v, tau):
        out = simulate.rollout(model, jaxdyn.State(q, v), tau, 1e-3)
        return out.q, out.v

    alone, among = roll_out(q, v, tau), roll_out(*(np.stack([x] * 2) for x in (q, v, tau)))
    return [(np.asarray(a), np.asarray(b[1])) for a, b in zip(alone, among, strict=True)]


def start(model, precision: str, steps: int = 3):
    q, v, x, _ = draws.states(model, 0)
    return [x.astype(precision) for x in (q, v, np.stack([x] * steps))]


@pytest.mark.parametrize("precision", [pytest.param("float32", marks=pytest.mark.slow), "float64"])
@pytest.mark.parametrize("seed", [0, *(pytest.param(k, marks=pytest.mark.slow) for k in range(1, 20))])
def test_one_roll_out_of_a_random_tree(seed, precision):
    model = tree(seed).astype(precision)
    for alone, among in ends(model, *start(model, precision)):
        np.testing.assert_allclose(alone, among, rtol=0, atol=PRECISIONS[precision] * np.abs(among).max())


@pytest.mark.slow
def test_values_that_cross_from_one_function_to_the_next(monkeypatch):
    monkeypatch.setattr("jaxdyn.native._emit.Backend.longest", 300)
    model = tree(100)
    for alone, among in ends(model, *start(model, "float64")):
        np.testing.assert_allclose(alone, among, rtol=0, atol=1e-10 * np.abs(among).max())


@pytest.mark.slow
def test_very_large_angles_in_some_lanes():
    model = samples.quadruped().astype("float64")
    q, v, tau = start(model, "float64")
    q[8], q[13] = 3e10, -7e9
    for alone, among in ends(model, q, v, tau):
        np.testing.assert_allclose(alone, among, rtol=1e-10, atol=1e-10)


def test_what_is_not_finite_shows_where_it_does_in_batches():
    model = two_arms().astype("float64")
    q, v, tau = start(model, "float64")
    tau[1, 4] = np.nan
    for alone, among in ends(model, q, v, tau):
        np.testing.assert_allclose(alone, among, rtol=1e-10, atol=1e-10)
        assert np.isfinite(alone[:2]).all()
        assert np.isnan(alone[2:, 3:]).any()


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(samples.quadruped(), marks=pytest.mark.slow),
        two_arms(),
        pytest.param(tree(3), marks=pytest.mark.slow),
    ],
    ids=["quadruped", "two arms", "tree"],
)
def test_packs_can_be_ordered(model):
    """Operations of a pack are of one kind, each is in one pack, and packs do not wait for each other."""
    shapes = [jax.ShapeDtypeStruct(shape, "float32") for shape in ((model.nq,), (model.nv,), (model.nv,))]
    program = specialize(lambda q, v, tau: jaxdyn.aba(model, q, v, tau), shapes, [False] * 3, 32)
    nodes = [n for n in program.nodes if not n.uniform]
    item = {n.number: n.number for n in nodes}
    for pack in find_packs([n for n in nodes if n.op != "input"], 4):
        members = list(pack.lanes.values())
        assert len({n.op.replace("sub", "add") for n in members}) == 1
        for n in members:
            assert item[n.number] == n.number
            item[n.number] = -1 - members[0].number
    # What a node or a pack needs is ready before it, in some order.
    needed: dict[int, set[int]] = {}
    for n in nodes:
        operands = [] if n.op == "input" else [unsigned(a)[0] for a in n.args]
        own = {item[a.number] for a in operands if isinstance(a, Node) and not a.uniform}
        needed.setdefault(item[n.number], set()).update(own)
    while ready := [x for x, before in needed.items() if not before]:
        for x in ready:
            del needed[x]
        for before in needed.values():
            before.difference_update(ready)
    assert not needed
    if model.nb > 3:
        assert sum(x < 0 for x in item.values()) > 0.3 * len(item)


@pytest.mark.parametrize("seed", range(3))
def test_joined_orders(seed):
    """Items of a random graph are joined where none depends on another, and the order is one of the joined graph."""
    rng = np.random.default_rng(seed)
    count = 60
    before = {k: sorted(set(rng.integers(0, k, rng.integers(0, 3)).tolist())) if k else [] for k in range(count)}
    order = JoinedOrder(before)
    joined, refused = 0, 0
    for _ in range(200):
        a, b = (order.item[int(k)] for k in rng.integers(0, count, 2))
        if a == b:
            continue
        edges = {(order.item[x], order.item[k]) for k, needed in before.items() for x in needed}
        depends = _reaches(edges, a, b) or _reaches(edges, b, a)
        assert order.join([a, b]) != depends
        joined, refused = joined + (not depends), refused + depends
        assert all(order.rank[order.item[x]] < order.rank[order.item[k]] for k, xs in before.items() for x in xs)
    assert joined > 5
    assert refused > 5


def _reaches(edges, a, b) -> bool:
    found, stack = set(), [a]
    while stack:
        x = stack.pop()
        found.add(x)
        stack += [y for z, y in edges if z == x and y not in found]
    return b in found
