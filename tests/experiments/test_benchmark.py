"""The benchmark on a small case writes its files, compares libraries and judges the results. Times are not tested."""

import importlib.util
import itertools
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import _benchmark_models as models
from experiments import benchmark, benchmark_contact, benchmark_gpu, benchmark_loops, benchmark_scenes
from experiments._benchmark_hlo import count_kernels
from experiments._benchmark_pool import ROOT
from experiments._benchmark_verdicts import Key, judge, lines, needed
from jaxdyn import DataError
from jaxdyn.cli import read_config

NATIVE = [
    name for name, module in (("pinocchio", "pinocchio"), ("mujoco", "mujoco")) if importlib.util.find_spec(module)
]
MEASURED = {"us_per_evaluation", "us_min", "us_max", "repeats", "max_rss_mb", "first_run_s"}
COMPILED = {"trace_s", "compile_s", "temporary_bytes", "output_bytes", "finite", "max_rss_before_mb"}


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The folder that a run on a chain of three joints wrote."""
    results = tmp_path_factory.mktemp("results")
    arguments = ["--robots", "chain3", "--scope", "all", "--operations", "aba,rnea", "--batches", "1,4"]
    arguments += ["--dtypes", "float64", "--peers", ",".join(["jaxdyn", *NATIVE]), "--rounds", "1", "--budget", "0.01"]
    assert benchmark.main([*arguments, "--results", str(results), "--no-plot"]) == 0
    return results / "benchmark"


@pytest.mark.experiments
def test_every_measurement_is_recorded(small):
    conditions, *measurements = [json.loads(x) for x in (small / "measurements.jsonl").read_text().splitlines()]
    assert conditions["kind"] == "conditions"
    assert conditions["versions"]["jax"] == jax.__version__
    assert conditions["cpu"]
    keys = [benchmark.key_of(r) for r in measurements]
    assert len(set(keys)) == len(keys) == 2 * 2 * (1 + len(NATIVE))
    for r in measurements:
        assert r["kind"] == "measurement"
        assert r["run"] == conditions["run"]
        if r["status"] == "ok":
            assert set(r) >= MEASURED | (COMPILED if r["peer"] == "jaxdyn" else set())
        else:
            assert (r["status"], r["peer"], r["batch"]) == ("unsupported", "mujoco", 4)
            assert r["reason"]


@pytest.mark.experiments
@pytest.mark.skipif(not NATIVE, reason="neither Pinocchio nor MuJoCo is installed")
def test_libraries_agree(small):
    records = [json.loads(x) for x in (small / "measurements.jsonl").read_text().splitlines()[1:]]
    compared = [r for r in records if "error" in r]
    assert {r["peer"] for r in compared} == {"jaxdyn", *NATIVE}
    for r in compared:
        assert r["error"] < 1e-10, r


@pytest.mark.experiments
def test_report_has_claims_and_reasons(small):
    report = (small / "report.md").read_text()
    assert "## Claims" in report
    assert "chain3 | 4" in report
    if "mujoco" in NATIVE:
        assert "one state a call" in report


@pytest.mark.experiments
def test_resume_measures_only_what_is_missing(small, capsys):
    before = (small / "measurements.jsonl").read_text()
    arguments = ["--robots", "chain3", "--scope", "all", "--operations", "aba,rnea", "--batches", "1,4", "--resume"]
    arguments += ["--dtypes", "float64", "--peers", "jaxdyn", "--results", str(small.parent), "--no-plot"]
    assert benchmark.main(arguments) == 0
    assert "0 measurements" in capsys.readouterr().out
    after = (small / "measurements.jsonl").read_text()
    assert after.startswith(before)
    assert len(after.splitlines()) == len(before.splitlines()) + 1


@pytest.mark.slow
def test_two_checkouts_side_by_side(tmp_path, capsys):
    """The other checkout is a folder with a link to this package; its process must import `jaxdyn` from there."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "jaxdyn").symlink_to(ROOT / "jaxdyn")
    arguments = ["--against", str(other), "--scope", "all", "--robots", "chain2", "--operations", "rnea"]
    arguments += ["--batches", "2", "--dtypes", "float64", "--rounds", "1", "--budget", "0.001"]
    assert benchmark.main([*arguments, "--results", str(tmp_path)]) == 0
    line = next(x for x in capsys.readouterr().out.splitlines() if x.startswith("chain2"))
    assert line.split()[:4] == ["chain2", "rnea", "2", "float64"]
    assert float(line.split()[-1]) == 0
    _, here, there = map(json.loads, (tmp_path / "benchmark_against" / "measurements.jsonl").read_text().splitlines())
    assert [here["jaxdyn"], there["jaxdyn"]] == [str(ROOT), str(other)]


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--robots", "pandas", "'pandas'"),
        ("--operations", "abba", "'abba'"),
        ("--batches", "1,two", "'1,two'"),
        ("--batches", "0", "begin at 1"),
        ("--peers", "drake", "'drake'"),
        ("--core", "100000", "100000"),
        ("--against", "/", "no package jaxdyn"),
    ],
)
def test_mistakes_are_named(option, value, message, tmp_path, capsys):
    assert benchmark.main([option, value, "--results", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err


def record(key: Key, us: float = 1.0, **more) -> dict:
    return {"status": "ok", "us_per_evaluation": us, "trace_s": 1.0, "compile_s": 1.0, "run": "now", **more}


def test_verdicts_compare_with_the_best():
    key = Key("panda", "aba", 1024, "jaxdyn", "float32")
    measured = {
        key: record(key, 3.0),
        key._replace(peer="pinocchio", dtype="float64"): record(key, 10.0),
        key._replace(peer="pinocchio_parallel", dtype="float64"): record(key, 4.0),
        key._replace(peer="frax"): record(key, 9.0),
        key._replace(peer="brax"): {"status": "not installed", "reason": "no module"},
    }
    judged = {j.line.claim: j for j in judge(measured) if j.line.ours == key}
    pinocchio = judged["aba against Pinocchio, one thread"]
    assert (pinocchio.ratio, pinocchio.verdict, pinocchio.best) == (0.75, "not reached", "pinocchio_parallel")
    frax = judged["aba against the best of frax and Brax"]
    assert frax.ratio == pytest.approx(1 / 3)
    assert frax.verdict == "reached"
    assert "without brax" in frax.best
    others = [j for j in judge(measured) if j.line.ours != key]
    assert all(j.verdict == "not measured" for j in others)
    assert len(others) == len(lines()) - 2


def test_errors_and_compilation_have_limits_of_their_own():
    chain, talos = (
        Key("chain32", "aba", 256, "jaxdyn", "float32"),
        Key("talos_reduced", "aba", 1, "jaxdyn", "float32"),
    )
    judged = {j.line.ours: j for j in judge({chain: record(chain, error=1e-4), talos: record(talos)}) if j.value}
    assert judged[chain].verdict == "reached"
    assert judged[chain].value == 1e-4
    compilation = [j for j in judge({talos: record(talos)}) if j.line.quantity == "compilation" and j.value]
    assert [(j.value, j.verdict) for j in compilation] == [(2.0, "reached")]


def test_what_is_planned_covers_the_claims():
    keys = benchmark.plan(benchmark.Config("x"))
    assert set(keys) == set(needed())
    some = benchmark.plan(benchmark.Config("x", scope="all", robots="chain4", peers="jaxdyn,pinocchio", batches="2"))
    assert {k.dtype for k in some if k.peer == "pinocchio"} == {"float64"}
    assert not any(k.operation.startswith("rollout") for k in some)


def test_what_took_too_long_is_not_tried_on_more():
    key = Key("chain8", "gradient", 64, "mjx", "float32")
    late = [{"kind": "measurement", **key._asdict(), "status": "timeout"}]
    for other in (key._replace(batch=256), key._replace(robot="chain32")):
        assert benchmark.hopeless(other, late)
    for other in (key._replace(batch=1), key._replace(robot="panda"), key._replace(peer="brax")):
        assert not benchmark.hopeless(other, late)


def test_trees_survive_files_and_velocities_conversion():
    tree, chain = models.load_tree("solo12"), models.load_tree("chain3")
    assert [models.tree_from_text(models.tree_as_text(x)) for x in (tree, chain)] == [tree, chain]
    assert (tree.nq, tree.nv) == (19, 18)
    s = models.states(tree, 5)
    np.testing.assert_array_equal(models.states(tree, 3).q, s.q[:3])
    there = models.WorldLinear(tree)
    w = there.states(s)
    np.testing.assert_allclose(there.acceleration(s, w.a), s.a, atol=1e-13)
    np.testing.assert_allclose(there.torque(s, w.tau), s.tau, atol=1e-13)
    # The power is the same.
    np.testing.assert_allclose(np.sum(w.v * w.tau, 1), np.sum(s.v * s.tau, 1), atol=1e-12)


def test_kernels_are_counted_in_entry_and_loops():
    text = """HloModule m

%fused (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  ROOT %a = f32[4]{0} add(%p, %p)
}

%body (s: (s32[], f32[4])) -> (s32[], f32[4]) {
  %s = (s32[], f32[4]{0}) parameter(0)
  %x = f32[4]{0} get-tuple-element(%s), index=1
  %f = f32[4]{0} fusion(%x), kind=kLoop, calls=%fused
  %c = f32[4]{0} copy(%f)
  ROOT %t = (s32[], f32[4]{0}) tuple(%x, %c)
}

%cond (s: (s32[], f32[4])) -> pred[] {
  %s = (s32[], f32[4]{0}) parameter(0)
  ROOT %p = pred[] fusion(%s), kind=kLoop, calls=%fused
}

ENTRY %main (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  %f = f32[4]{0} fusion(%p), kind=kLoop, calls=%fused
  %w = (s32[], f32[4]{0}) while(%t), condition=%cond, body=%body, backend_config={"known_trip_count":{"n":"7"}}
  ROOT %o = f32[4]{0} get-tuple-element(%w), index=1
}
"""
    assert count_kernels(text) == (4, 1 + 7 * 3, 0)
    assert count_kernels(re.sub(", backend_config=.*", "", text)) == (4, 4, 1)
    compiled = jax.jit(lambda x: jax.lax.scan(lambda c, y: (c + y, c), 0.0, x)).lower(jnp.ones(5)).compile()
    assert count_kernels(compiled.as_text()).launches >= 5


def test_gpu_benchmark_says_what_is_missing(tmp_path, capsys):
    if jax.default_backend() == "gpu":
        pytest.skip("there is a GPU")
    assert benchmark_gpu.main(["--results", str(tmp_path)]) == 2
    assert "needs an NVIDIA GPU" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("cases", "message"),
    [
        ("panda/aba/65536", "ROBOT/OPERATIONS/BATCHES/CODES"),
        ("pandas/aba/1/native", "'pandas'.*humanoid"),
        ("panda/step/1/native", "'step'"),
        ("humanoid/aba/1/native", "'aba'"),
        ("humanoid,panda/step/1/native", "'humanoid'"),
        ("ant/step/0/native", "begin at 1"),
        ("ant/step/1/frax", "'frax'"),
    ],
)
def test_wrong_cases_are_named(cases, message):
    with pytest.raises(DataError, match=message):
        benchmark_gpu.cases_in(cases)


def test_cases_keep_their_order():
    cases = benchmark_gpu.cases_in("humanoid,ant/step/64,2/native,warp  chain2/aba/4/native")
    assert [tuple(case.values()) for case in cases] == [
        *itertools.product(("humanoid", "ant"), ["step"], (2, 64), ("native", "warp")),
        ("chain2", "aba", 4, "native"),
    ]
    default = read_config(benchmark_gpu.Config, benchmark_gpu.DEFAULT_CONFIG)
    assert benchmark_gpu.cases_in(default.cases)[0]["robot"] == "panda"


@pytest.mark.experiments
def test_gpu_benchmark_writes_its_table(tmp_path):
    # The quadruped is made here; the scenes of files need other packages.
    scene = "quadruped_compliant/step,step_gradient,control,motion/3/native"
    cases = f"chain2/rnea/4/native,xla,xla_loops {scene} quadruped_compliant/step/2/mjx"
    arguments = ["--device", "cpu", "--cases", cases, "--steps", "2", "--seconds", "0.001", "--repeats", "1"]
    assert benchmark_gpu.main([*arguments, "--results", str(tmp_path)]) == 0
    _, *lines = (tmp_path / "benchmark_gpu" / "measurements.jsonl").read_text().splitlines()
    *measured, motion, mjx = map(json.loads, lines)
    assert [(r["operation"], r["code"]) for r in measured[:3]] == [("rnea", x) for x in ("native", "xla", "xla_loops")]
    for record in measured:
        assert record["status"] == "ok"
        assert record["finite"]
        assert record["repeats"]
        assert record["launches"] >= record["kernels"] > 0
    assert measured[0]["kernels"] < measured[1]["kernels"]
    assert [r["evaluations"] for r in measured[3:]] == [6, 3, 6]
    # On this device both are the same; the differences are those of single precision.
    assert motion["steps"] == [1]
    assert motion["here"] == motion["processor"]
    assert 0 < motion["here"][0] < 1e-5
    assert mjx["status"] == "unsupported"
    report = (tmp_path / "benchmark_gpu" / "report.md").read_text()
    assert "| chain2 | rnea | 4 | native |" in report
    assert "| quadruped_compliant | 3 | native | 1 |" in report


@pytest.mark.experiments
def test_gpu_benchmark_goes_on_after_a_case_that_takes_too_long(tmp_path):
    arguments = ["--device", "cpu", "--cases", "talos_reduced/aba_derivatives/4/xla chain2/rnea/4/native"]
    # The first one takes a minute, the second one less than a second.
    arguments += ["--case-seconds", "4", "--seconds", "0.001", "--repeats", "1"]
    assert benchmark_gpu.main([*arguments, "--results", str(tmp_path)]) == 0
    _, *lines = (tmp_path / "benchmark_gpu" / "measurements.jsonl").read_text().splitlines()
    assert [json.loads(line)["status"] for line in lines] == ["timeout", "ok"]


@pytest.mark.experiments
def test_steps_with_contact_are_timed_beside_mujoco(tmp_path):
    arguments = ["--batches", "3", "--libraries", "native,gradient,mujoco,mjx", "--steps", "2", "--seconds", "0.001"]
    assert benchmark_contact.main([*arguments, "--repeats", "1", "--results", str(tmp_path)]) == 0
    text = (tmp_path / "benchmark_contact" / "report.md").read_text()
    for library in ("native", "gradient", "mujoco"):
        assert f"| {library} | 3 | " in text
        assert f"| {library} | 3 | not measured" not in text


@pytest.mark.experiments
def test_steps_of_scenes_are_timed_beside_mujoco(tmp_path):
    arguments = ["--scenes", "quadruped", "--batches", "3", "--libraries", "native,gradient,mujoco"]
    arguments += ["--settling", "2", "--steps", "2", "--seconds", "0.001", "--repeats", "1"]
    assert benchmark_scenes.main([*arguments, "--results", str(tmp_path)]) == 0
    text = (tmp_path / "benchmark_scenes" / "report.md").read_text()
    for library in ("native", "gradient", "mujoco"):
        assert f"| quadruped | {library} | 3 | " in text
        assert f"| quadruped | {library} | 3 | not measured" not in text


@pytest.mark.experiments
def test_closed_loops_are_timed_beside_their_tree(tmp_path):
    arguments = ["--robots", "four_bar", "--batch", "2", "--rounds", "1", "--calls", "2"]
    assert benchmark_loops.main([*arguments, "--results", str(tmp_path)]) == 0
    assert "| four_bar | " in (tmp_path / "benchmark_loops" / "report.md").read_text()
