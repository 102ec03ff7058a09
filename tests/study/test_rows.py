"""How many test examples are different, and how many were seen in training: against a count."""

import jax
import jax.numpy as jnp
import numpy as np

import rope_jax as rj
from rope_jax.study.config import Cell, Method
from rope_jax.study.rows import expected_share_seen
from rope_jax.study.settings import EvaluateConfig, ModelConfig, TrainConfig
from rope_jax.tasks import Copy, Reverse
from rope_jax.training.evaluate import evaluate, fixed_batch, share_distinct
from rope_jax.training.numbers import split_numbers
from rope_jax.training.train import draw_batch, init_replicas


def cell_of(task, *, seeds=(0,), **train):
    return Cell(
        task=task,
        method=Method(encoder=rj.NoPE()),
        model=ModelConfig(width=8, num_heads=1, num_layers=1),
        train=TrainConfig(**train),
        evaluate=EvaluateConfig(lengths=(2, 8, 9), examples=512),
        seeds=seeds,
    )


def strings(batch, length):
    """The x of each example, as bytes."""
    return [bytes(row[1 : 1 + length].astype(np.uint8)) for row in np.asarray(batch.tokens)]


def test_the_expected_share_is_what_training_draws():
    """Copying two symbols: test strings of 8 symbols that a seed's 60 steps of 32 examples drew, of 16 seeds."""
    cell = cell_of(Copy(alphabet=2), seeds=tuple(range(16)), steps=60, batch_size=32, min_length=1, max_length=8)
    draw = jax.jit(jax.vmap(lambda seed, step: draw_batch(seed, step, cell), in_axes=(None, 0)))
    tested = strings(fixed_batch(cell.task, 8, examples=512, max_length=8), 8)
    shares = []
    for seed in cell.seeds:
        batch = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), draw(jnp.uint32(seed), jnp.arange(60)))
        trained = int(np.sum(np.asarray(batch.lengths) == 2 * 8 + 2))  # the same for every seed, about 60 * 32 / 8
        drawn = {x for x, n in zip(strings(batch, 8), np.asarray(batch.lengths), strict=True) if n == 2 * 8 + 2}
        shares.append(np.mean([x in drawn for x in tested]))
    assert abs(trained - 240) < 4 * np.sqrt(240)
    assert abs(np.mean(shares) - (1 - (1 - 1 / 256) ** trained)) < 4 * np.std(shares) / np.sqrt(len(shares))
    assert abs(expected_share_seen(cell, 8) - (1 - (1 - 1 / 256) ** 240)) < 1e-12


def test_the_expected_share_by_exact_arithmetic():
    fractions = {
        (Copy(), 12): 4000 / 16**12,  # so small that 1 - (1 - 1/N)^n loses all digits
        (Copy(alphabet=2), 12): 1 - (1 - 1 / 4096) ** 4000,
        (Copy(alphabet=1), 3): 1.0,
        (Copy(), 13): 0.0,
        (Reverse(unique=True), 1): 1 - (15 / 16) ** 4000,
        (Reverse(unique=True), 12): 4000 / np.prod(np.arange(5, 17, dtype=float)),
    }
    for (task, length), share in fractions.items():
        np.testing.assert_allclose(expected_share_seen(cell_of(task), length), share, rtol=1e-6)

    class Unknown(Copy):
        def num_examples(self, length):
            return None

    assert expected_share_seen(cell_of(Unknown()), 12) is None
    assert expected_share_seen(cell_of(Unknown()), 13) == 0.0


def test_rows_have_the_share_of_different_examples():
    for task, length, different in ((Copy(), 1, 16), (Copy(alphabet=2), 3, 8), (Copy(), 9, 512), (Reverse(alphabet=1), 4, 1)):
        assert share_distinct(task, length, examples=512, max_length=9) == different / 512
    cell = cell_of(Copy(alphabet=2), steps=1, batch_size=12)
    whole, numbers = split_numbers(cell)
    state = init_replicas(jnp.array([0], jnp.uint32), numbers, cell=whole)
    rows = [row for rows in evaluate(cell, state.params, np.array([-1])) for row in rows]
    for row in rows:
        different = len(set(strings(fixed_batch(cell.task, row["length"], examples=512, max_length=9), row["length"])))
        assert row["distinct"] == different / 512
        assert row["seen"] == expected_share_seen(cell, row["length"])
        columns = list(row)
        assert columns.index("distinct") < columns.index("count") < columns.index("exact_match")
