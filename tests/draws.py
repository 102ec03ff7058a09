"""Prints the SHA-256 of everything that is drawn at random. `test_flags` runs it under flags of JAX and compares.

python tests/draws.py
"""

import hashlib

import jax
import jax.numpy as jnp
import numpy as np

import examples
from rope_jax.model.dropout import Dropout
from rope_jax.study.config import Cell, Method
from rope_jax.study.settings import EvaluateConfig, ModelConfig, TrainConfig
from rope_jax.tasks import Copy, Reverse
from rope_jax.training.evaluate import fixed_batch
from rope_jax.training.train import draw_batch, draw_lengths, init_state

TASKS = (Copy(end_marker=True), Reverse(unique=True, alphabet=24))


def users_key(seed):
    """What `jax.random.key(seed)` is without an offset of seeds: a key of the default generator, of 2 or 4 words."""
    generator = jax.config.values["jax_default_prng_impl"]
    words = [0, seed] * (1 if generator == "threefry2x32" else 2)
    return jax.random.wrap_key_data(jnp.array(words, jnp.uint32), impl=generator)


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
    keys = jnp.stack([users_key(seed) for seed in range(3)])
    for policy in examples.POLICIES:
        together = policy.positions(keys, batch).query
        yield f"{policy}", digest(together)
        last = policy.positions(keys[2:], jax.tree.map(lambda x: x[2:], batch)).query
        if together.ndim > 1:
            np.testing.assert_array_equal(np.asarray(together)[..., 2:, :], last, err_msg=str(policy))
    for generator in ("counter", "threefry"):
        dropout = Dropout(keys=jnp.arange(2, dtype=jnp.uint32), rate=0.3)
        yield f"dropout by {generator}", digest(dropout(jnp.ones((2, 3, 4), jnp.float32), 1, generator=generator))


if __name__ == "__main__":
    for name, value in draws():
        print(value, name)
