"""Evaluation: the same examples for everyone, counts as a naive reading has them, teacher forcing equal to greedy decoding."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rope_jax as rj
from rope_jax.encoders.positions import Positions
from rope_jax.model.transformer import encoding_params, functional
from rope_jax.optimizers import WarmupCosine
from rope_jax.study.config import Cell, EvaluateConfig, Method, ModelConfig, TrainConfig, Variant
from rope_jax.study.serialization import described
from rope_jax.tasks import EOS, SEP, Batch, Copy, Reverse
from rope_jax.training.evaluate import _padded_lengths, count_replicas, evaluate, fixed_batch
from rope_jax.training.metrics import count
from rope_jax.training.train import fit


def test_lengths_of_other_numbers_of_examples_are_apart(toy_cell):
    """They share no program, so that a short one with many examples is not padded to a long one with few."""
    cell = replace(toy_cell, evaluate=EvaluateConfig(lengths=(2, 3, 40), examples=(64, 64, 2)))
    assert _padded_lengths(cell) == {2: 3, 3: 3, 40: 40}


@pytest.mark.parametrize("task", [Copy(alphabet=7), Reverse(alphabet=7, unique=True)], ids=repr)
def test_examples_depend_on_task_and_length_alone(task):
    short, long = (fixed_batch(task, 5, examples=9, max_length=n) for n in (5, 7))
    more = fixed_batch(task, 5, examples=12, max_length=5)
    np.testing.assert_array_equal(short.tokens, long.tokens[:, :12])
    np.testing.assert_array_equal(short.tokens, more.tokens[:9])
    x = {
        (type(t).__name__, t.alphabet): np.asarray(fixed_batch(t, 5, examples=64, max_length=5).tokens)[:, 1:6]
        for t in (Copy(alphabet=7), Copy(alphabet=8), Reverse(alphabet=7))
    }
    first, *others = x.values()
    for other in others:  # another task, other strings: they agree by chance alone
        assert (first == other).mean() < 0.3


def test_counts_against_a_naive_reading():
    batch = Batch(
        tokens=jnp.zeros((4, 3), jnp.int32),
        targets=jnp.array([[1, 2, 3], [1, 2, 3], [4, 4, 4], [1, 1, 1]]),
        loss_mask=jnp.array([[False, True, True], [True, True, True], [False, False, True], [False, False, False]]),
        lengths=jnp.array([3, 3, 3, 3]),
    )
    predicted = jnp.array([[9, 2, 3], [1, 2, 9], [9, 9, 9], [1, 1, 1]])
    counts = count(jax.nn.one_hot(predicted, 10), batch)
    # the last asks for nothing: it is filling, neither right nor wrong
    assert [int(x) for x in counts[:4]] == [3, 1, 6, 4]


def test_errors_of_content_and_of_the_end_are_counted_apart():
    """Of y = 5 6 and its EOS: all right; a wrong symbol; a symbol for EOS; EOS for a symbol; wrong in both ways."""
    predicted = jnp.array([[9, 5, 6, EOS], [9, 5, 7, EOS], [9, 5, 6, 6], [9, 5, EOS, EOS], [9, 6, 6, 5], [0, 0, 0, 0]])
    batch = Batch(
        tokens=jnp.zeros((6, 4), jnp.int32),
        targets=jnp.tile(jnp.array([[1, 5, 6, EOS]]), (6, 1)),
        loss_mask=jnp.tile(jnp.array([[False, True, True, True]]), (6, 1)) & (jnp.arange(6) < 5)[:, None],
        lengths=jnp.full(6, 4),
    )
    counts = count(jax.nn.one_hot(predicted, 10), batch)
    assert {name: int(value) for name, value in counts._asdict().items()} == {
        "examples": 5, "exact": 1, "tokens": 15, "right": 10, "content_wrong": 2, "end_wrong": 3,
    }  # fmt: skip


def test_the_format_of_a_task_does_not_change_its_test_strings():
    plain, marked = (fixed_batch(Copy(end_marker=m), 5, examples=9, max_length=5).tokens for m in (False, True))
    np.testing.assert_array_equal(plain[:, 1:6], marked[:, 1:6])


def test_passes_do_not_change_the_counts(toy_cell, monkeypatch):
    def rows():
        jax.clear_caches()
        state = list(fit(toy_cell))[-1].state
        return [row for rows in evaluate(toy_cell, state.params, np.asarray(state.diverged_at)) for row in rows]

    whole = rows()
    # 16 examples in micro-batches of 3, the last filled up
    monkeypatch.setattr("rope_jax.training.microbatch.micro_batch_size", lambda length, **_: 3)
    assert rows() == whole
    jax.clear_caches()


def test_rows_say_what_was_measured(toy_cell):
    state = list(fit(toy_cell))[-1].state
    rows = [row for rows in evaluate(toy_cell, state.params, np.asarray(state.diverged_at)) for row in rows]
    assert [(row["variant"], row["length"], row["seed"]) for row in rows] == [
        (variant, length, seed) for variant in ("as-trained", "NTK 2", "DynamicNTK") for length in (2, 3, 5) for seed in (0, 1)
    ]
    _, apply = functional(toy_cell.model, toy_cell.task.vocabulary, toy_cell.method.encoder)
    for row in rows:
        # a naive count: one example at a time, unpadded, the variant as the model's own encoder
        variant = next(v for v in toy_cell.method.all_variants if v.name == row["variant"])
        params = jax.tree.map(lambda x, row=row: x[row["seed"]], state.params)
        batch = fixed_batch(toy_cell.task, row["length"], examples=16, max_length=row["length"])
        length = 2 * row["length"] + 2
        prepared = variant.encoder.prepare(encoding_params(params), length, toy_cell.model.dims)
        logits = apply(params, batch.tokens, Positions(query=jnp.arange(length)), prepared)
        asked = slice(row["length"] + 1, length)
        right = np.asarray(logits.argmax(-1) == batch.targets)[:, asked]
        assert row["count"] == 16
        assert row["exact_match"] == right.all(axis=1).mean()
        assert row["token_accuracy"] == pytest.approx(right.mean())
        assert row["status"] == "ok"
        assert row["train_length"] == 3
        assert row["privileged"] == (["length"] if row["variant"] == "DynamicNTK" else [])


def test_all_variants_and_lengths_of_a_bucket_share_one_program(toy_cell):
    state = list(fit(toy_cell))[-1].state
    before = count_replicas._cache_size()
    wide = replace(toy_cell, evaluate=EvaluateConfig(lengths=(4, 5, 6, 7), examples=8))
    list(evaluate(wide, state.params, np.asarray(state.diverged_at)))
    assert count_replicas._cache_size() == before + 1


CURVES = (
    rj.RoPE(),
    rj.Learned(max_length=90),
    rj.Compose(rj.XPos(), rj.Fire()),
    rj.RoPE(learn_base=True),
    rj.Compose(rj.RoPE(scaling=rj.DynamicNTK(original_length=8)), rj.Fire()),
)


@pytest.mark.parametrize("encoder", CURVES, ids=described)
def test_a_curve_over_any_lengths_takes_six_programs(toy_cell, compiled, encoder, monkeypatch):
    monkeypatch.setattr(
        "rope_jax.training.evaluate._work", lambda cell, examples, length: length
    )  # so that compiling is cheap beside it
    cell = replace(
        toy_cell,
        method=Method(encoder=encoder),
        evaluate=EvaluateConfig(lengths=tuple(range(1, 41)), examples=2),
        train=replace(toy_cell.train, steps=1),
    )
    state = list(fit(cell))[-1].state
    params, diverged_at = state.params, np.asarray(state.diverged_at)
    jax.clear_caches()
    compiled.clear()
    assert len(list(evaluate(cell, params, diverged_at))) == 40
    assert compiled.count("jit(count_replicas)") == 4
    assert len(compiled) <= 6, compiled


def greedy(apply, params, x, positions_of, prepared, limit):
    """Decodes one answer on the model's own outputs, a full forward pass a token: no teacher, no cache, no padding mask."""
    read = list(x)
    answer = []
    while len(answer) < limit:
        tokens = jnp.asarray(read + [0] * (len(x) + limit - len(read)))
        token = int(jnp.argmax(apply(params, tokens, positions_of, prepared)[len(read) - 1]))
        answer.append(token)
        read.append(token)
        if token == EOS:
            break
    return answer


def test_teacher_forced_exact_match_is_greedy_decoding():
    """On a half-trained model, so that a good part of the answers is wrong; RoPE as trained and a dynamic variant."""
    dynamic = rj.RoPE(scaling=rj.DynamicNTK(original_length=8))
    cell = Cell(
        task=Copy(alphabet=6),
        method=Method(encoder=rj.RoPE(), variants=(Variant(name="DynamicNTK", encoder=dynamic),)),
        model=ModelConfig(num_layers=2, width=32, num_heads=2),
        train=TrainConfig(steps=170, max_length=6, schedule=WarmupCosine(warmup_steps=20), learning_rate=4e-3),
        evaluate=EvaluateConfig(lengths=(6, 7), examples=120),
        seeds=(0,),
    )
    state = list(fit(cell))[-1].state
    params = jax.tree.map(lambda x: x[0], state.params)
    _, apply = functional(cell.model, cell.task.vocabulary, cell.method.encoder)
    apply = jax.jit(apply)
    rows = {(r["variant"], r["length"]): r for found in evaluate(cell, state.params, np.array([-1])) for r in found}
    decoded = {}
    for variant in cell.method.all_variants:
        for n in cell.evaluate.lengths:
            batch = fixed_batch(cell.task, n, examples=120, max_length=n)
            prepared = variant.encoder.prepare(encoding_params(params), 2 * n + 2, cell.model.dims)
            right = []
            for tokens in np.asarray(batch.tokens):
                x = tokens[: n + 2].tolist()
                assert x[-1] == SEP
                positions = Positions(query=jnp.arange(2 * n + 3), length=2 * n + 2)
                right.append(greedy(apply, params, x, positions, prepared, n + 1) == [*x[1:-1], EOS])
            # example by example, so that no two errors cancel; and the row says the same
            positions = Positions(query=jnp.arange(2 * n + 2), length=2 * n + 2)
            logits = jax.jit(jax.vmap(apply, in_axes=(None, 0, None, None)))(params, batch.tokens, positions, prepared)
            forced = np.asarray((logits.argmax(-1) == batch.targets) | ~batch.loss_mask).all(axis=-1)
            assert right == forced.tolist()
            decoded[variant.name, n] = np.mean(right)
            assert rows[variant.name, n]["exact_match"] == pytest.approx(decoded[variant.name, n])
    # the comparison says something: right and wrong answers are both well represented
    assert any(0.1 < share < 0.9 for share in decoded.values()), decoded
