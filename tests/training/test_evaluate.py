"""Evaluation: the same examples for everyone, counts as a naive reading has them, teacher forcing equal to greedy decoding."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rope_jax as rj
from rope_jax.encoders.layers import as_layers
from rope_jax.encoders.positions import Positions
from rope_jax.model.transformer import encoding_params, functional
from rope_jax.optimizers import WarmupCosine
from rope_jax.policies import Randomized
from rope_jax.study.config import Cell, Method, Variant
from rope_jax.study.settings import ROW_COLUMNS, EvaluateConfig, ModelConfig, TrainConfig
from rope_jax.tasks import EOS, FIRST_SYMBOL, SEP, Copy, Reverse
from rope_jax.tasks.metrics import ExactMatch, Metric
from rope_jax.training.evaluate import _programs, check_evaluation, evaluate, fixed_batch, measure_replicas
from rope_jax.training.microbatch import microbatch_plan
from rope_jax.training.train import draw_batch, fit, init_state, loss_and_gradient

VARIANTS = (Variant(name="random", policy=Randomized(max_position=60)),)


def padded(cell):
    return {length: program.max_length for _, programs in _programs(cell, None, 1) for length, program in programs}


def test_what_a_length_is_padded_to(toy_cell, monkeypatch):
    """Rungs of a ladder where lengths are cheap beside compiling, themselves where they are not; nothing beyond the positions."""
    cell = replace(toy_cell, evaluate=EvaluateConfig(lengths=(2, 3, 7, 9, 40, 100), examples=8))
    assert padded(cell) == {2: 8, 3: 8, 7: 8, 9: 12, 40: 48, 100: 128}
    longer = replace(cell, train=replace(cell.train, max_length=12))
    assert padded(longer) == {2: 24, 3: 24, 7: 24, 9: 24, 40: 48, 100: 128}
    limited = replace(cell, method=Method(encoder=rj.Learned(max_length=203)))  # 100 symbols are 202 input positions
    assert padded(limited) == {2: 8, 3: 8, 7: 8, 9: 12, 40: 48, 100: 100}
    limited = replace(limited, method=Method(encoder=rj.Learned(max_length=250)))
    assert padded(limited)[100] == 124
    monkeypatch.setattr("rope_jax.training.evaluate._work", lambda task, model, examples, length: length / 40)
    assert padded(longer) == {2: 8, 3: 8, 7: 8, 9: 12, 40: 40, 100: 100}


@pytest.mark.slow
def test_a_measurement_depends_on_nothing_else_that_is_measured(toy_cell, monkeypatch):
    """Bit for bit, by the sum of a float: whatever other lengths, variants, numbers of examples and seeds there are."""
    sums = {}

    def note(cell, variant, *, seed, length, measured, **_):
        assert sums.setdefault((variant.name, seed, length), measured) == measured
        return (variant.name, seed, length)

    monkeypatch.setattr("rope_jax.training.evaluate.row", note)
    method = Method(encoder=rj.Compose(rj.RoPE(learn_base=True), rj.Fire()), variants=VARIANTS)
    settings = EvaluateConfig(lengths=(2, 3, 5, 12, 19), examples=16, metrics=(MeanLoss(),))
    whole = replace(toy_cell, method=method, evaluate=settings, seeds=(4, 0, 7))
    params = jax.vmap(lambda seed: init_state(seed, whole).params)(jnp.array(whole.seeds, jnp.uint32))

    def measure(cell, kept=(0, 1, 2), only=None):
        stacked = jax.tree.map(lambda x: x[np.array(kept)], params)
        return [each for rows in evaluate(cell, stacked, np.full(len(kept), -1), only=only) for each in rows]

    assert len(measure(whole)) == 2 * 5 * 3
    pairs = [("random", 19), ("as-trained", 3)]
    assert set(measure(whole, only=pairs)) == {(*pair[:1], seed, pair[1]) for pair in pairs for seed in (4, 0, 7)}
    for lengths, kept in (((19,), (0, 2)), ((5, 2), (1,)), ((12, 3, 5), (2, 1, 0, 1, 2))):
        fewer = replace(whole, evaluate=replace(settings, lengths=lengths), seeds=tuple(range(len(kept))))
        fewer = replace(fewer, method=replace(method, variants=VARIANTS[: len(kept) - 1]))
        object.__setattr__(fewer, "seeds", tuple(whole.seeds[i] for i in kept))  # one of them twice
        measure(fewer, kept)
    with pytest.raises(ValueError, match=r"only holds \('random', 4\), which the cell does not measure; add it"):
        measure(whole, only=[("random", 4)])
    monkeypatch.undo()
    check_evaluation(whole, only=pairs)


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


# the symbols of two test examples of 5 symbols each; recorded once, so that results stay comparable
TEST_STRINGS = {
    Copy(): [[5, 10, 16, 9, 5], [5, 7, 10, 18, 8]],
    Reverse(): [[6, 19, 10, 11, 12], [6, 11, 13, 6, 11]],
    Reverse(alphabet=7, unique=True): [[9, 6, 8, 4, 10], [6, 7, 4, 10, 8]],
}


def strings(task):
    return fixed_batch(task, 5, examples=2, max_length=5).tokens[:, 1:6].tolist()


def test_test_strings_are_those_that_were_recorded():
    for task, recorded in TEST_STRINGS.items():
        assert strings(task) == recorded
        assert strings(replace(task, end_marker=True)) == recorded  # whatever the format


def test_only_what_a_task_declares_determines_its_test_strings():
    copy_class, copy_strings = Copy, TEST_STRINGS[Copy()]

    @dataclass(frozen=True, kw_only=True)
    class Copy_(copy_class):  # noqa: N801
        format: int = 0
        seed: int = 0

        @property
        def string_options(self):
            return {**super().string_options, **({"seed": self.seed} if self.seed else {})}

    Copy_.__name__ = "Copy"  # as a later version of the class, which has gained two options
    assert strings(Copy_()) == strings(Copy_(format=3)) == copy_strings
    assert strings(Copy_(seed=1)) != copy_strings


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
        prepared = as_layers(variant.encoder).prepare(encoding_params(params), length, toy_cell.model.dims)
        logits = apply(params, batch.tokens, Positions(query=jnp.arange(length)), prepared)
        asked = slice(row["length"] + 1, length)
        right = np.asarray(logits.argmax(-1) == batch.targets)[:, asked]
        assert row["count"] == 16
        assert row["exact_match"] == right.all(axis=1).mean()
        assert row["token_accuracy"] == pytest.approx(right.mean())
        assert row["status"] == "ok"
        assert row["train_length"] == 3
        assert row["privileged"] == (["length"] if row["variant"] == "DynamicNTK" else [])


@dataclass(frozen=True, kw_only=True)
class LossEverywhere(Copy):
    """Trains on every token of an example, and is scored on y and EOS."""

    def sample(self, key, lengths, *, max_length):
        batch = super().sample(key, lengths, max_length=max_length)
        return batch._replace(loss_mask=jnp.arange(batch.tokens.shape[1])[None] < batch.lengths[:, None])


@dataclass(frozen=True, kw_only=True)
class MeanLoss(Metric):
    """Cross-entropy of the trained tokens, a float sum."""

    def measure(self, logits, batch):
        nats = -jnp.take_along_axis(jax.nn.log_softmax(logits), batch.targets[..., None], axis=-1)[..., 0]
        return jnp.sum(nats * batch.loss_mask), jnp.sum(batch.loss_mask, dtype=jnp.int32)


@dataclass(frozen=True, kw_only=True)
class Uncounted(Metric):
    def measure(self, logits, batch):
        return jnp.int32(0), jnp.int32(0)


def test_a_task_with_loss_on_every_token_trains_on_them_all_and_is_scored_on_its_answers(toy_cell, monkeypatch):
    task = LossEverywhere(alphabet=4)
    cell = replace(toy_cell, task=task, evaluate=EvaluateConfig(lengths=(2, 3, 5), examples=40, metrics=(MeanLoss(),)))
    params = init_state(jnp.uint32(0), cell).params
    _, apply = functional(cell.model, task.vocabulary, cell.method.encoder)
    batch = draw_batch(jnp.uint32(0), jnp.int32(0), cell)
    nats = []
    for tokens, targets, length in zip(batch.tokens, batch.targets, batch.lengths.tolist(), strict=True):
        logits = apply(params, tokens[:length], Positions(query=jnp.arange(length)))
        nats += [-jax.nn.log_softmax(logits)[i, targets[i]].item() for i in range(length)]
    value, _ = loss_and_gradient(params, jnp.uint32(0), jnp.int32(0), cell, microbatch_plan(cell))
    assert float(value) == pytest.approx(np.mean(nats), rel=1e-5)

    def copying(*_, **__):
        """A model that copies, but takes the first symbol of the alphabet for the second; elsewhere it is wrong."""

        def apply(params, tokens, positions, prepared, **_):
            n = positions.length // 2 - 1
            index = jnp.arange(tokens.shape[1])[None]
            copied = jnp.roll(tokens, n, axis=1)
            predicted = jnp.where(index == 2 * n + 1, EOS, jnp.where(copied == FIRST_SYMBOL, FIRST_SYMBOL + 1, copied))
            return jax.nn.one_hot(jnp.where(index <= n, SEP, predicted), task.vocabulary)

        return None, apply

    monkeypatch.setattr("rope_jax.training.evaluate.functional", copying)
    jax.clear_caches()
    stacked = jax.tree.map(lambda x: jnp.stack([x] * 2), params)
    for rows in evaluate(cell, stacked, np.array([-1, -1])):
        for row in rows:
            n = row["length"]
            x = fixed_batch(task, n, examples=40, max_length=n).tokens[:, 1 : n + 1].tolist()
            assert row["exact_match"] == np.mean([FIRST_SYMBOL not in symbols for symbols in x])
            misses = sum(symbols.count(FIRST_SYMBOL) for symbols in x)
            assert row["token_accuracy"] == pytest.approx(1 - misses / (40 * (n + 1)))
            assert row["content_error"] == 1 - row["exact_match"]
            assert row["end_error"] == 0
            assert 0 < row["exact_match"] < 1
            # each wrong prediction of a one-hot model costs 1 more; of the input n + 1 targets are x and SEP, SEP is right
            at_best = np.log(np.e + task.vocabulary - 1) - 1
            assert row["mean_loss"] == pytest.approx(at_best + (40 * n + misses) / (40 * (2 * n + 2)), rel=1e-5)
    jax.clear_caches()


def test_a_row_has_one_column_for_each_metric(toy_cell):
    """Beside those of the task; None where nothing was counted, or the seed diverged. No column of a row is both."""
    cell = replace(toy_cell, evaluate=EvaluateConfig(lengths=(2,), examples=5, metrics=(MeanLoss(), Uncounted())))
    params = jax.vmap(lambda seed: init_state(seed, cell).params)(jnp.arange(2, dtype=jnp.uint32))
    fine, diverged = next(iter(evaluate(cell, params, np.array([-1, 3]))))
    metrics = ["exact_match", "token_accuracy", "content_error", "end_error", "mean_loss", "uncounted"]
    for row in (fine, diverged):
        assert [name for name in row if name not in ROW_COLUMNS] == metrics
        assert row["count"] == 5
    assert all(type(fine[name]) is float for name in metrics[:5])
    assert fine["uncounted"] is None
    assert {diverged[name] for name in metrics} == {None}
    assert (diverged["status"], diverged["diverged_at"]) == ("diverged", 3)


def test_metrics_must_be_distinct_columns_and_measure_two_scalars(toy_cell):
    class Status(Uncounted):
        pass

    class ByExample(Uncounted):
        def measure(self, logits, batch):
            return jnp.any(batch.answer_mask, axis=-1), jnp.int32(1)

    with pytest.raises(ValueError, match="'mean_loss' of MeanLoss is that of another metric; leave the metric out, or"):
        EvaluateConfig(metrics=(MeanLoss(), MeanLoss()))
    with pytest.raises(ValueError, match="'status' of Status is that of another value; leave"):
        EvaluateConfig(metrics=(Status(),))
    with pytest.raises(ValueError, match="EvaluateConfig metrics must be a tuple, of which each is an object of class Metric"):
        EvaluateConfig(metrics=(3,))
    with pytest.raises(ValueError, match=r"metrics of task copy and .* 'exact_match' of ExactMatch is that"):
        replace(toy_cell, evaluate=EvaluateConfig(metrics=(ExactMatch(),)))
    cell = replace(toy_cell, evaluate=EvaluateConfig(lengths=(2,), examples=5, metrics=(ByExample(),)))
    params = jax.vmap(lambda seed: init_state(seed, cell).params)(jnp.arange(2, dtype=jnp.uint32))
    with pytest.raises(ValueError, match=r"ByExample.measure must return .* got \(\(5,\), \(\)\); add up"):
        next(iter(evaluate(cell, params, np.array([-1, -1]))))


def test_all_variants_and_lengths_of_a_bucket_share_one_program(toy_cell):
    state = list(fit(toy_cell))[-1].state
    before = measure_replicas._cache_size()
    wide = replace(toy_cell, evaluate=EvaluateConfig(lengths=(4, 5, 6, 7), examples=8))
    list(evaluate(wide, state.params, np.asarray(state.diverged_at)))
    assert measure_replicas._cache_size() == before + 1


CURVES = (
    rj.RoPE(learn_base=True),
    rj.Compose(rj.RoPE(scaling=rj.DynamicNTK(original_length=8)), rj.Fire()),
    *(
        pytest.param(encoder, marks=pytest.mark.slow)
        for encoder in (rj.RoPE(), rj.Learned(max_length=90), rj.Compose(rj.XPos(), rj.Fire()))
    ),
)


@pytest.mark.slow
@pytest.mark.parametrize("encoder", CURVES)
def test_a_curve_over_any_lengths_takes_few_programs(toy_cell, compiled, encoder, monkeypatch):
    # so that most lengths are not cheap, and none is as dear as compiling
    monkeypatch.setattr("rope_jax.training.evaluate._work", lambda task, model, examples, length: length / 100)
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
    assert compiled.count("jit(measure_replicas)") == 6
    assert len(compiled) <= 8, compiled


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


@pytest.mark.slow
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
            prepared = as_layers(variant.encoder).prepare(encoding_params(params), 2 * n + 2, cell.model.dims)
            right = []
            for tokens in np.asarray(batch.tokens):
                x = tokens[: n + 2].tolist()
                assert x[-1] == SEP
                positions = Positions(query=jnp.arange(2 * n + 3), length=2 * n + 2)
                right.append(greedy(apply, params, x, positions, prepared, n + 1) == [*x[1:-1], EOS])
            # example by example, so that no two errors cancel; and the row says the same
            positions = Positions(query=jnp.arange(2 * n + 2), length=2 * n + 2)
            logits = jax.jit(jax.vmap(apply, in_axes=(None, 0, None, None)))(params, batch.tokens, positions, prepared)
            forced = np.asarray((logits.argmax(-1) == batch.targets) | ~batch.answer_mask).all(axis=-1)
            assert right == forced.tolist()
            decoded[variant.name, n] = np.mean(right)
            assert rows[variant.name, n]["exact_match"] == pytest.approx(decoded[variant.name, n])
    # the comparison says something: right and wrong answers are both well represented
    assert any(0.1 < share < 0.9 for share in decoded.values()), decoded


def test_evaluation_uses_what_was_traced_before_training(toy_cell, monkeypatch):
    """With encoders that learn nothing, learn numbers, and read the length."""
    rope = rj.RoPE(learn_base=True, scaling=rj.DynamicNTK(original_length=8))
    encoder = rj.Compose(rj.Learned(max_length=32), rj.ALiBi(), rope)
    method = Method(encoder=encoder, variants=(Variant(name="random", policy=Randomized(max_position=30)),))
    cell = replace(toy_cell, method=method)
    check_evaluation(cell)
    *_, last = fit(replace(cell, train=replace(cell.train, steps=1)))

    def refuse(*_, **__):
        raise AssertionError("traced again")

    monkeypatch.setattr("rope_jax.training.evaluate.fixed_batch", refuse)
    assert list(evaluate(cell, last.state.params, np.asarray(last.state.diverged_at)))
    monkeypatch.undo()
