"""Which tokens a token sees: by gradient, and through training and evaluation as a whole."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

import rope_jax as rj
from rope_jax.encoders.positions import Positions
from rope_jax.model.transformer import functional
from rope_jax.policies import Contiguous, Grid, RandomOffset
from rope_jax.study.config import Cell, Method
from rope_jax.study.settings import EvaluateConfig, ModelConfig, TrainConfig
from rope_jax.tasks import Batch, Task
from rope_jax.tasks.metrics import Metric
from rope_jax.training.evaluate import evaluate
from rope_jax.training.microbatch import microbatch_plan
from rope_jax.training.token_positions import token_positions
from rope_jax.training.train import init_replicas, init_state, loss_and_gradient

MODEL = ModelConfig(num_layers=1, width=16, num_heads=2)


@dataclass(frozen=True, kw_only=True)
class Ramp(Task):
    """Token t is t, in the padding too, so that an embedding's gradient belongs to one place; the answer is the first token."""

    size: int = 12

    @property
    def vocabulary(self):
        return self.size

    @property
    def markers(self):
        return {0: "0"}

    def input_length(self, length):
        return length

    def sample(self, key, lengths, *, max_length):
        tokens = jnp.tile(jnp.minimum(jnp.arange(max_length), self.size - 1)[None], (lengths.shape[0], 1))
        first = tokens == 0
        return Batch(tokens=tokens, targets=tokens, loss_mask=first, answer_mask=first, lengths=lengths)


@dataclass(frozen=True, kw_only=True)
class TwoSided(Ramp):
    causal: ClassVar[bool] = False


@dataclass(frozen=True, kw_only=True)
class FirstLogit(Metric):
    """The mean of one logit of the first token."""

    def measure(self, logits, batch):
        first = batch.answer_mask[:, 0]
        return jnp.sum(jnp.where(first, logits[:, 0, 1], 0.0)), jnp.sum(first, dtype=jnp.int32)


def cell_of(task, encoder, policy):
    return Cell(
        task=task,
        method=Method(encoder=encoder, policy=policy),
        model=MODEL,
        train=TrainConfig(steps=1, batch_size=2, min_length=9, max_length=9),
        evaluate=EvaluateConfig(lengths=(9, 12), examples=3, metrics=(FirstLogit(),)),
        seeds=(0,),
    )


METHODS = (
    (rj.RoPE(), Contiguous()),
    (rj.Compose(rj.Learned(max_length=400), rj.ALiBi()), RandomOffset(max_position=400)),
    (rj.RoPE(sections=(2, 2)), Grid(separator=0)),
    (rj.Compose(rj.ALiBi(), rj.SlidingWindow(size=200)), Contiguous()),
)


def test_causality_and_padding_by_gradient():
    """Of a logit of token 2, with respect to the token at each place; 150 tokens are attended to in several blocks."""
    for size, (encoder, policy) in [(12, method) for method in METHODS] + [(150, METHODS[0])]:
        for kind in (Ramp, TwoSided) if size == 12 else (TwoSided,):
            task, lengths = kind(size=size), [size - 3, 5]
            batch = task.sample(jax.random.key(0), jnp.array(lengths), max_length=size)
            positions = token_positions(task, policy, jax.random.split(jax.random.key(1), 2), batch)
            init, apply = functional(MODEL, task.vocabulary, encoder)
            params = jax.jit(init)(jax.random.key(2))

            def logits(embedding, apply=apply, params=params, batch=batch, positions=positions):
                return apply(params | {"embedding": embedding}, batch.tokens, positions)[:, 2, 1]

            gradients = np.abs(jax.jit(jax.jacrev(logits))(params["embedding"])).max(axis=-1)
            for length, gradient in zip(lengths, gradients, strict=True):
                sees = length if kind is TwoSided else 3
                assert (gradient[:sees] > 1e-9).all(), (size, encoder, kind)
                assert (gradient[sees:] == 0).all(), (size, encoder, kind)


def test_training_and_evaluation_see_as_the_task_says():
    """The first token's loss and logit depend on the tokens after it only where the task is two-sided; on padding, never."""
    for kind in (Ramp, TwoSided):
        cell = cell_of(kind(), *METHODS[0])
        params = init_state(jnp.uint32(0), cell).params
        _, gradient = jax.jit(partial(loss_and_gradient, cell=cell, plan=microbatch_plan(cell)))(
            params, jnp.uint32(0), jnp.int32(0)
        )
        by_token = np.abs(gradient["embedding"]).max(axis=-1)
        assert (by_token[1:9] > 1e-9).all() if kind is TwoSided else (by_token[1:9] == 0).all()
        assert by_token[0] > 0
        state = init_replicas(jnp.array([0], jnp.uint32), {}, cell=cell)

        def values(token, cell=cell, state=state):
            embedding = state.params["embedding"].at[:, token].add(0.5)
            return {
                row["length"]: row["first_logit"]
                for rows in evaluate(cell, state.params | {"embedding": embedding}, np.array([-1]))
                for row in rows
            }

        start, padding, later = (values(token) for token in ([], [9, 10, 11], [8]))
        assert start[9] == padding[9]  # 9 tokens, padded to 12
        assert (start[9] != later[9]) == (kind is TwoSided)
        assert (start[12] != padding[12]) == (kind is TwoSided)
        # one unpadded example
        _, apply = functional(MODEL, 12, cell.method.encoder)
        logits = apply(params, jnp.arange(9), Positions(query=jnp.arange(9), causal=kind is Ramp))
        np.testing.assert_allclose(start[9], logits[0, 1], rtol=1e-5)
