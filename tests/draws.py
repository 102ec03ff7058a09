"""Prints the SHA-256 of everything that is drawn at random, and of a training. `test_flags` runs it under flags of JAX.

PYTHONPATH=tests python -m draws
"""

import hashlib
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

import examples
from rope_jax.model.dropout import Dropout
from rope_jax.optimizers import WarmupCosine
from rope_jax.policies import Randomized
from rope_jax.study.config import Cell, Method
from rope_jax.study.settings import EvaluateConfig, ModelConfig, TrainConfig
from rope_jax.tasks import Batch, Copy, Reverse, Task
from rope_jax.training.evaluate import evaluate, fixed_batch
from rope_jax.training.train import draw_batch, draw_lengths, fit, init_state

TASKS = (Copy(end_marker=True), Reverse(unique=True, alphabet=24))


def users_key(seed):
    """What `jax.random.key(seed)` is without an offset of seeds: a key of the default generator, of 2 or 4 words; for an array
    of seeds, an array of keys.
    """
    seed = jnp.asarray(seed, jnp.uint32)
    generator = jax.config.values["jax_default_prng_impl"]
    words = [jnp.zeros_like(seed), seed] * (1 if generator == "threefry2x32" else 2)
    return jax.random.wrap_key_data(jnp.stack(words, axis=-1), impl=generator)


def digest(tree):
    leaves = map(np.asarray, jax.tree.leaves(tree))
    return hashlib.sha256(b"".join(str(x.dtype).encode() + x.tobytes() for x in leaves)).hexdigest()[:16]


def draws():
    """The name and the digest of each draw."""
    lengths = jnp.array([5, 2, 3], jnp.int32)
    for task in TASKS:
        for size in (5, 9):
            batch = task.sample(users_key(5), lengths, max_length=size)
            yield f"{task} of a user's key", digest(batch.cut_to(task.input_length(5)))
            batch = fixed_batch(task, 5, examples=4, max_length=size)
            yield f"{task} for tests", digest(batch.cut_to(task.input_length(5)))
    cell = Cell(
        task=Copy(),
        method=Method(encoder=examples.rj.T5Bias()),
        model=ModelConfig(width=16, num_heads=2),
        train=TrainConfig(batch_size=4),
        evaluate=EvaluateConfig(),
        seeds=(3,),
    )
    seed, step = jnp.uint32(3), jnp.int32(7)
    yield "training lengths", digest(draw_lengths(step, cell.train))
    yield "training examples", digest(draw_batch(seed, step, cell))
    yield "initial weights", digest(init_state(seed, cell).params)
    for encoder in (examples.rj.Fire(), examples.rj.Kerple(), examples.rj.Learned(max_length=8)):  # split, uniform, normal
        yield f"{encoder}", digest(encoder.init(users_key(5), examples.DIMS))
    batch = Copy(end_marker=True).sample(users_key(5), lengths, max_length=5)
    for policy in examples.POLICIES:
        together = policy.positions(users_key([0, 1, 2]), batch).query
        yield f"{policy}", digest(together)
        last = policy.positions(users_key([2]), jax.tree.map(lambda x: x[2:], batch)).query
        if together.ndim > 1:
            np.testing.assert_array_equal(np.asarray(together)[..., 2:, :], last, err_msg=str(policy))
    for generator in ("counter", "threefry"):
        dropout = Dropout(keys=jnp.arange(2, dtype=jnp.uint32), rate=0.3)
        yield f"dropout by {generator}", digest(dropout(jnp.ones((2, 3, 4), jnp.float32), 1, generator=generator))


@dataclass(frozen=True, kw_only=True)
class Labels(Task):
    """A task of a user, who draws with JAX's own functions and names no dtype; every token is its own answer."""

    @property
    def vocabulary(self):
        return 5

    def input_length(self, length):
        return length

    def sample(self, key, lengths, *, max_length):
        keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, jnp.arange(max_length))
        tokens = jax.vmap(lambda key: jax.random.randint(key, lengths.shape, 0, 5), out_axes=1)(keys)
        mask = jnp.arange(max_length)[None] < lengths[:, None]
        return Batch(tokens=tokens, targets=tokens, loss_mask=mask, answer_mask=mask, lengths=lengths)


def training():
    """The digests of the parameters of a trained cell, and its rows: code of flax, optax and a user takes part."""
    cell = Cell(
        task=Labels(),
        method=Method(encoder=examples.rj.T5Bias(), policy=Randomized(max_position=20)),
        model=ModelConfig(num_layers=1, width=8, num_heads=2, mlp_factor=1),
        train=TrainConfig(steps=5, batch_size=5, max_length=4, dropout=0.2, schedule=WarmupCosine(warmup_steps=2)),
        evaluate=EvaluateConfig(lengths=(2, 3), examples=6),
        seeds=(0,),
    )
    *_, last = fit(cell)
    yield "parameters and losses", digest((last.state, last.losses))
    for rows in evaluate(cell, last.state.params, np.asarray(last.state.diverged_at)):
        yield "rows", rows


if __name__ == "__main__":
    for name, value in (*draws(), *training()):
        print(value, name)
