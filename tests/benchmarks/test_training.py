"""The benchmarks of training and evaluation: contenders take the same steps, rows say what was measured."""

import json
import math
from dataclasses import replace

import jax
import numpy as np
import pytest

from benchmarks import attention, curve, harness, step
from benchmarks.__main__ import main
from rope_jax.model.attention import attend
from rope_jax.model.transformer import transformer
from rope_jax.optimizers import AdamW, WarmupCosine

TINY = ["--num-layers", "1", "--width", "8", "--num-heads", "2", "--batch-size", "3", "--rounds", "1"]
CONTENDERS = ["ours", "ours:whole-batch", "ours:reference-attention", "ours:token-axes", "ours:one-replica", "plain-jax", "torch"]


@pytest.fixture(autouse=True)
def _plain_jax_promotes_ranks():
    """As one would first write it."""
    with jax.numpy_rank_promotion("allow"):
        yield


@pytest.fixture(scope="module")
def cell():
    made = step.StepBenchmark(batch_size=6, num_layers=2, width=16, num_heads=2, replicas=2).cell(5, 0.0, replicas=2)
    settings = {
        "optimizer": AdamW(weight_decay=0.3),
        "schedule": WarmupCosine(warmup_steps=0),
        "learning_rate": 0.02,
        "clip_norm": 0.5,
    }
    return replace(made, train=replace(made.train, **settings))


@pytest.fixture(scope="module")
def expected(cell):
    call = step.ours(cell)
    return [float(call()[0, 0]) for _ in range(4)]


@pytest.mark.parametrize("name", CONTENDERS)
def test_contenders_take_the_same_steps(cell, expected, name):
    """From the same parameters, on the same examples, with the same optimiser, so that they do the same work."""
    if name == "torch" and (why := harness.why_missing(["torch"])):
        pytest.skip(why)
    call = step.contenders(cell)[name](cell)
    losses = [float(np.ravel(call())[0]) for _ in range(4)]
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    assert expected[3] < expected[0] - 0.1  # it learns, so that a wrong step would be seen


@pytest.mark.slow
def test_contenders_with_dropout_are_the_same_model(cell):
    """Without training, their losses agree up to what is dropped."""
    dropped = replace(cell, train=replace(cell.train, dropout=0.1, learning_rate=1e-9, batch_size=64))
    found = {name: float(np.ravel(make(dropped)())[0]) for name, make in step.contenders(dropped).items()}
    assert {"ours:threefry", "plain-jax"} <= set(found)
    assert max(found.values()) - min(found.values()) < 0.02
    assert len(set(found.values())) >= 3  # what is dropped differs


def test_a_mechanism_is_out_only_as_long_as_it_is_asked_for(cell):
    before = transformer.Linear.__call__, transformer.attend
    for mechanism in ("token-axes", "reference-attention"):
        with step.without(mechanism):
            assert (transformer.Linear.__call__, transformer.attend) != before
    assert (transformer.Linear.__call__, transformer.attend) == before


def run(tmp_path, *arguments):
    out = tmp_path / "found.json"
    main([*arguments, "--out", str(out)])
    found = json.loads(out.read_text())
    assert list(found) == ["benchmark", "machine", "versions", "rows"]
    assert found["benchmark"] == arguments[0]
    assert {"jax", "flax"} <= set(found["versions"]) or arguments[0] == "attention"
    return found["rows"]


@pytest.mark.slow
def test_step(tmp_path, capsys):
    rows = run(tmp_path, "step", *TINY, "--lengths", "4", "--dropouts", "0.1", "--replicas", "2")
    names = [row["contender"] for row in rows if row["dropout"] == 0.1]
    assert names[0] == "ours"
    assert set(names) - {"torch"} == {*CONTENDERS, "ours:threefry"} - {"torch"}
    for row in rows:
        assert row["length"] == 4
        assert row["replicas"] == (2 if row["contender"].startswith("ours") and row["contender"] != "ours:one-replica" else 1)
        assert row["median_seconds"] > 0
        assert row["ratio"] > 0
    table, said = capsys.readouterr()
    assert {row["shortest"] for row in rows} == {4}
    assert "of the time of plain-jax; the target is 0.45." in table
    assert "4 symbols, dropout 0.1 ..." in said


def test_mixed_lengths_have_buckets(cell):
    mixed = replace(cell, train=replace(cell.train, min_length=1, max_length=9))
    made = step.contenders(mixed)
    ours, one_bucket = (float(made[name](mixed)()[0, 0]) for name in ("ours", "ours:one-bucket"))
    assert ours == pytest.approx(one_bucket, rel=1e-5)


def test_replicas(tmp_path, capsys):
    rows = run(tmp_path, "replicas", *TINY, "--length", "4", "--counts", "2", "3")
    assert [(row["contender"], row["replicas"]) for row in rows] == [("ours", 1), ("ours", 2), ("ours", 3)]
    assert rows[0]["ratio"] == 1
    assert "The target is 1.5 for 2 replicas" in capsys.readouterr().out


def test_sampled_lengths_are_different():
    for longest, sample in ((9, 9), (100, 5), (100, 100), (7, 3), (1, 1)):
        found = curve.CurveBenchmark(longest=longest, sample=sample).sampled
        assert len(set(found)) == sample
        assert 1 <= min(found) <= max(found) <= longest


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
    before = jax.config.values["jax_enable_compilation_cache"], jax.config.values["jax_compilation_cache_dir"]
    rows = run(tmp_path, "compile", *TINY, "--length", "6")
    assert [row["contender"] for row in rows] == [
        "ours", "ours:one-bucket", "ours:scanned-layers", "ours:warm-cache", "plain-jax", "ours:evaluation",
        "ours:evaluation-unrolled",
    ]  # fmt: skip
    assert before == (jax.config.values["jax_enable_compilation_cache"], jax.config.values["jax_compilation_cache_dir"])


def test_attention(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(attention, "set_aside", lambda model, encoder, length, direction: 10 * length)
    sizes = ["--tokens", "16", "--heads", "2", "--head-dim", "4", "--rounds", "1", "--memory-length", "8"]
    rows = run(tmp_path, "attention", "--lengths", "5", *sizes)
    assert rows[0]["contender"] == "ours"
    assert {(row["contender"], row["direction"]) for row in rows if "ratio" in row} >= {
        (name, direction) for name in ("ours", "reference", "jax.nn") for direction in attention.DIRECTIONS
    }
    assert {row["growth"] for row in rows if "growth" in row} == {2.0}
    assert "Twice the length takes at most 2.00 times the memory" in capsys.readouterr().out


@pytest.mark.parametrize("direction", attention.DIRECTIONS)
def test_attention_contenders_compute_one_function(direction):
    q, k, v, w = jax.random.normal(jax.random.key(0), (4, 2, 150, 2, 8))
    at = attention.Positions(query=jax.numpy.arange(150))
    expected = {
        "forward": lambda: attend(q, k, v, at),
        "backward": lambda: jax.grad(lambda q, k, v: jax.numpy.sum(w * attend(q, k, v, at)), argnums=(0, 1, 2))(q, k, v),
    }[direction]()
    for name, call in attention.timed(q, k, v, w)[direction].items():
        found = call()
        if name == "torch":
            found = jax.tree.map(lambda x: x.transpose(1, 2).detach().numpy(), found)
        for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5)


def test_what_xla_sets_aside_is_read_off():
    sizes = step.ModelConfig(num_layers=1, width=8, num_heads=2)
    forward, backward = (attention.set_aside(sizes, step.RoPE(), 300, direction) for direction in attention.DIRECTIONS)
    assert 4 * 300 * sizes.hidden <= forward < backward < math.inf
