"""Metrics against plain Python loops over examples and tokens."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from rope_jax.tasks import EOS, Batch, Copy, Reverse


def measured(logits, batch):
    return {metric.name: tuple(value.item() for value in metric.measure(logits, batch)) for metric in Copy().metrics}


def naive(predicted, batch):
    """The sums and counts of the four metrics, one example and one token after the other."""
    exact = right = tokens = content = end = examples = 0
    for said, due, scored in zip(predicted.tolist(), batch.targets.tolist(), batch.answer_mask.tolist(), strict=True):
        pairs = [(a, b) for a, b, counts in zip(said, due, scored, strict=True) if counts]
        if not pairs:
            continue
        examples += 1
        tokens += len(pairs)
        right += sum(a == b for a, b in pairs)
        exact += all(a == b for a, b in pairs)
        content += any(a != b and a != EOS and b != EOS for a, b in pairs)
        end += any(a != b and (a == EOS or b == EOS) for a, b in pairs)
    return {
        "exact_match": (exact, examples),
        "token_accuracy": (right, tokens),
        "content_error": (content, examples),
        "end_error": (end, examples),
    }


def test_metrics_equal_plain_loops_and_add_up():
    """On noisy predictions of two tasks, with examples that only fill up the batch, whole and in two micro-batches."""
    totals = np.zeros(8)
    for seed in range(40):
        key = jax.random.key(seed)
        task = (Copy, Reverse)[seed % 2](alphabet=2, end_marker=seed % 3 == 0)
        batch = task.sample(key, jnp.array([1, 2, 3, 4, 2, 3]), max_length=4)
        real = (jnp.arange(6) < 5)[:, None]
        batch = batch._replace(loss_mask=jnp.ones_like(batch.loss_mask), answer_mask=batch.answer_mask & real)
        noise = jax.random.gumbel(jax.random.fold_in(key, 1), (*batch.tokens.shape, task.vocabulary))
        logits = noise + 4 * jax.nn.one_hot(batch.targets, task.vocabulary)
        expected = naive(np.asarray(logits.argmax(-1)), batch)
        assert measured(logits, batch) == expected
        halves = [measured(logits[rows], jax.tree.map(lambda x, rows=rows: x[rows], batch)) for rows in (slice(2), slice(2, 6))]
        for name, (total, count) in expected.items():
            assert (total, count) == tuple(sum(half[name][i] for half in halves) for i in (0, 1))
        totals += np.array(list(expected.values())).ravel()
    assert (totals > 10).all()
    assert (totals[[0, 2, 4, 6]] < 0.95 * totals[[1, 3, 5, 7]]).all()


def test_errors_of_content_and_of_the_end_are_counted_apart():
    """Of y = 5 6 and its EOS: all right; a wrong symbol; a symbol for EOS; EOS for a symbol; wrong in both ways; filling."""
    predicted = jnp.array([[9, 5, 6, EOS], [9, 5, 7, EOS], [9, 5, 6, 6], [9, 5, EOS, EOS], [9, 6, 6, 5], [0, 0, 0, 0]])
    answer = jnp.tile(jnp.array([[False, True, True, True]]), (6, 1)) & (jnp.arange(6) < 5)[:, None]
    batch = Batch(
        tokens=jnp.zeros((6, 4), jnp.int32),
        targets=jnp.tile(jnp.array([[1, 5, 6, EOS]]), (6, 1)),
        loss_mask=jnp.ones((6, 4), bool),  # what is trained on does not matter here
        answer_mask=answer,
        lengths=jnp.full(6, 4),
    )
    assert measured(jax.nn.one_hot(predicted, 10), batch) == {
        "exact_match": (1, 5), "token_accuracy": (10, 15), "content_error": (2, 5), "end_error": (3, 5),
    }  # fmt: skip


def test_metrics_are_hashable_values():
    """They are static arguments of compiled programs."""
    for metric in Copy().metrics:
        assert dataclasses.is_dataclass(metric)
        assert hash(metric) == hash(type(metric)())
        assert metric == type(metric)()
