"""The benchmarks of training, evaluation and attention: contenders compute the same function, rows record what was measured."""

import json
import math
from dataclasses import replace

import jax
import numpy as np
import pytest

import rope_jax as rj
from benchmarks import attention, curve, harness, step, training
from benchmarks.__main__ import main
from benchmarks.compile import CompileBenchmark
from rope_jax.model.attention import attend
from rope_jax.model.implementation import Implementation
from rope_jax.optimizers import AdamW, WarmupCosine
from rope_jax.study.settings import ModelConfig
from rope_jax.training.microbatch import microbatch_plan

TINY = ["--num-layers", "1", "--width", "8", "--num-heads", "2", "--batch-size", "3", "--rounds", "1"]
CONTENDERS = {"ours", "ours:whole-batch", "ours:reference-attention", "ours:token-axes", "ours:one-replica", "plain-jax", "torch"}
INSTALLED = CONTENDERS if harness.why_missing(["torch"]) is None else CONTENDERS - {"torch"}


@pytest.fixture(autouse=True)
def _plain_jax_promotes_ranks():
    """As one would first write it."""
    with jax.numpy_rank_promotion("allow"):
        yield


@pytest.fixture(scope="module")
def cell():
    made = step.StepBenchmark(batch_size=6, num_layers=2, width=16, num_heads=2, replicas=2).cell(5, 0.0, replicas=2)
    settings = {"optimizer": AdamW(weight_decay=0.3), "schedule": WarmupCosine(warmup_steps=0)}
    return replace(made, train=replace(made.train, learning_rate=0.02, clip_norm=0.5, **settings))


@pytest.mark.slow
def test_contenders_take_the_same_steps(cell):
    """From the same parameters, on the same examples, with the same optimiser, so that they do the same work."""
    losses = {}
    for name, make in step.contenders(cell).items():
        call = make()
        losses[name] = [float(np.ravel(call())[0]) for _ in range(4)]
    assert set(losses) == INSTALLED
    for name, values in losses.items():
        np.testing.assert_allclose(values, losses["ours"], rtol=1e-4, err_msg=name)
    assert losses["ours"][3] < losses["ours"][0] - 0.1  # it learns, so that a wrong step would be seen


@pytest.mark.slow
def test_contenders_with_dropout_are_the_same_model(cell):
    """Without training, their losses agree up to what is dropped."""
    dropped = replace(cell, train=replace(cell.train, dropout=0.1, learning_rate=1e-9, batch_size=64))
    losses = {name: float(np.ravel(make()())[0]) for name, make in step.contenders(dropped).items()}
    assert set(losses) == INSTALLED | {"ours:threefry"}
    assert max(losses.values()) - min(losses.values()) < 0.02
    assert len(set(losses.values())) >= 3  # what is dropped differs


def test_each_ablation_leaves_one_mechanism_out(cell):
    """In a plan, one field differs; in an implementation, one switch."""
    mixed = replace(cell, train=replace(cell.train, min_length=1, max_length=9, dropout=0.1))
    chosen, *ablations = step.plans(mixed).values()
    assert chosen == microbatch_plan(mixed)
    assert len(ablations) == len(set(ablations)) == 5
    for plan in ablations:
        values = {name: value for name, value in vars(plan).items() if value != vars(chosen)[name]}
        assert len(values) == 1
        if "implementation" in values:
            switches = vars(plan.implementation).items() - vars(chosen.implementation).items()
            assert len(switches) == 1


@pytest.mark.slow
def test_mixed_lengths_have_buckets(cell):
    mixed = replace(cell, train=replace(cell.train, min_length=1, max_length=9))
    made = step.contenders(mixed)
    ours, one_bucket = (float(made[name]()()[0, 0]) for name in ("ours", "ours:one-bucket"))
    assert ours == pytest.approx(one_bucket, rel=1e-5)


def run(tmp_path, *arguments):
    """The rows that a command writes."""
    out = tmp_path / "benchmark.json"
    main([*arguments, "--out", str(out)])
    written = json.loads(out.read_text())
    assert list(written) == ["benchmark", "machine", "versions", "rows"]
    assert written["benchmark"] == arguments[0]
    assert {"jax", "flax"} <= set(written["versions"]) or arguments[0] == "attention"
    return written["rows"]


@pytest.mark.slow
def test_step(tmp_path, capsys):
    rows = run(tmp_path, "step", *TINY, "--lengths", "4", "--dropouts", "0.1", "--replicas", "2")
    names = [row["contender"] for row in rows]
    assert names[0] == "ours"
    assert set(names) == INSTALLED | {"ours:threefry"}
    for row in rows:
        assert (row["length"], row["shortest"], row["dropout"]) == (4, 4, 0.1)
        assert row["replicas"] == (2 if row["contender"].startswith("ours") and row["contender"] != "ours:one-replica" else 1)
        assert row["median_seconds"] > 0
        assert row["ratio"] > 0
    table, log = capsys.readouterr()
    assert "of the time of plain-jax; the target is 0.45." in table
    assert "4 symbols, dropout 0.1 ..." in log


def test_the_shares_of_a_table_are_the_largest():
    """Ours takes half and a quarter of the time of plain-jax; one replica alone, 1.5 times as long as one of several."""
    rows = [
        {"contender": "plain-jax", "length": 4, "dropout": 0.0, "ratio": 2.0},
        {"contender": "ours:one-replica", "length": 4, "dropout": 0.0, "ratio": 1.5},
        {"contender": "plain-jax", "length": 8, "dropout": 0.0, "ratio": 4.0},
        {"contender": "ours:one-replica", "length": 8, "dropout": 0.0, "ratio": 1.5},
    ]
    whole = [{**row, "replicas": 1, "median_seconds": 1.0, "min_ratio": 1.0, "max_ratio": 1.0} for row in rows]
    table = step.StepBenchmark().table(whole)
    assert "Ours takes at most 0.50 of the time of plain-jax; the target is 0.45." in table
    assert "One replica of ours alone takes at most 0.75 of the time of plain-jax." in table
    assert "torch" not in table


@pytest.mark.slow
def test_replicas(tmp_path, capsys):
    rows = run(tmp_path, "replicas", *TINY, "--length", "4", "--counts", "2", "3")
    assert [(row["contender"], row["replicas"]) for row in rows] == [("ours", 1), ("ours", 2), ("ours", 3)]
    assert rows[0]["ratio"] == 1
    assert "The target is 1.5 for 2 replicas" in capsys.readouterr().out


def test_sampled_lengths_are_different():
    for longest, sample in ((9, 9), (100, 5), (100, 100), (7, 3), (1, 1)):
        lengths = curve.CurveBenchmark(longest=longest, sample=sample).sampled
        assert len(set(lengths)) == sample
        assert 1 <= min(lengths) <= max(lengths) <= longest


def test_curve(tmp_path, capsys):
    rows = run(tmp_path, "curve", *TINY, "--longest", "9", "--examples", "2", "--sample", "3")
    ours, single = rows
    assert (ours["contender"], ours["lengths"]) == ("ours", 9)
    assert ours["programs"] <= 6
    assert (single["contender"], single["lengths"]) == ("one-program-a-length", 3)
    assert single["programs"] >= 3
    for row in rows:
        assert row["seconds_for_all"] == pytest.approx(9 * row["median_seconds_a_length"], rel=1e-3)
    assert "(estimate)" in capsys.readouterr().out


@pytest.mark.slow
def test_compile(tmp_path):
    settings = ("jax_enable_compilation_cache", "jax_compilation_cache_dir")
    before = [jax.config.values[name] for name in settings]
    rows = run(tmp_path, "compile", *TINY, "--length", "6")
    assert [row["contender"] for row in rows] == [
        "ours", "ours:one-bucket", "ours:scanned-layers", "ours:warm-cache", "plain-jax", "ours:evaluation",
        "ours:evaluation-unrolled",
    ]  # fmt: skip
    assert [jax.config.values[name] for name in settings] == before


def test_evaluation_is_compiled_as_the_package_does():
    """The program of "ours:evaluation" has a loop over the layers, that of "ours:evaluation-unrolled" has none."""
    cell = CompileBenchmark(num_layers=3, width=8, num_heads=2).cell(3, 0.0, replicas=1)
    scanned, unrolled = (
        training.lower_evaluation(cell, Implementation(scan_layers=scan)).as_text().count("stablehlo.while")
        for scan in (True, False)
    )
    assert scanned == unrolled + 1


def test_attention(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(attention, "temporary_bytes", lambda model, encoder, length, direction: 10 * length)
    sizes = ["--tokens", "16", "--num-heads", "2", "--head-dim", "4", "--rounds", "1", "--memory-length", "8"]
    rows = run(tmp_path, "attention", "--lengths", "5", *sizes)
    assert rows[0]["contender"] == "ours"
    assert {(row["contender"], row["direction"]) for row in rows if "ratio" in row} >= {
        (name, direction) for name in ("ours", "reference", "jax.nn") for direction in attention.DIRECTIONS
    }
    assert {row["growth"] for row in rows if "growth" in row} == {2.0}
    assert "Twice the length takes at most 2.00 times the memory" in capsys.readouterr().out


def test_attention_contenders_compute_one_function():
    q, k, v, w = jax.random.normal(jax.random.key(0), (4, 2, 150, 2, 8))
    positions = rj.Positions(query=jax.numpy.arange(150))
    total = jax.grad(lambda q, k, v: jax.numpy.sum(w * attend(q, k, v, positions)), argnums=(0, 1, 2))
    expected = {"forward": attend(q, k, v, positions), "backward": total(q, k, v)}
    for direction, calls in attention.contenders(q, k, v, w).items():
        for name, call in calls.items():
            results = call()
            if name == "torch":
                results = jax.tree.map(lambda x: x.transpose(1, 2).detach().numpy(), results)
            for one, other in zip(jax.tree.leaves(results), jax.tree.leaves(expected[direction]), strict=True):
                np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5, err_msg=f"{name} {direction}")


def test_temporary_bytes_are_those_of_xla():
    sizes = ModelConfig(num_layers=1, width=8, num_heads=2)
    forward, backward = (attention.temporary_bytes(sizes, rj.RoPE(), 300, direction) for direction in attention.DIRECTIONS)
    assert 4 * 300 * sizes.hidden <= forward < backward < math.inf
