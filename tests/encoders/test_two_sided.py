"""Two-sided attention, `Positions(causal=False)`: windows on both sides, and encoders that are for causal attention alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rope_jax as rj
from examples import DIMS, ENCODERS
from rope_jax.model.attention import attend, attend_reference
from rope_jax.study.config import Cell, Method
from rope_jax.study.settings import EvaluateConfig, ModelConfig, TrainConfig
from rope_jax.tasks import Copy

CAUSAL_ONLY = (rj.CoPE(max_count=4), rj.XPos())


def test_a_window_is_on_both_sides():
    for tokens, size in ((6, 1), (6, 3), (150, 20)):
        rng = np.random.default_rng(size)
        q, k, v = rng.normal(size=(3, tokens, 2, 8)).astype(np.float32)
        real = tokens - 2  # the last two tokens are padding
        segment = jnp.where(jnp.arange(tokens) < real, 0, -1)
        positions = rj.Positions(
            query=jnp.arange(tokens), causal=False, query_segment=jnp.zeros(tokens, int), key_segment=segment
        )

        def bias(q, k, positions, size=size):
            return rj.SlidingWindow(size=size).bias({}, q, k, positions)

        # softmax over the real tokens at most size - 1 away, in float64
        scores = np.einsum("thd,shd->hts", q.astype(float), k.astype(float)) / np.sqrt(8)
        apart = abs(np.subtract.outer(np.arange(tokens), np.arange(tokens)))
        weights = np.where((apart < size) & (np.arange(tokens) < real), np.exp(scores), 0.0)
        with np.errstate(invalid="ignore"):
            right = np.einsum("hts,shd->thd", weights / weights.sum(-1, keepdims=True), v)
        for attention in (attend, attend_reference):
            got = jax.jit(lambda *a, attention=attention, p=positions, bias=bias: attention(*a, p, bias=bias))(q, k, v)
            np.testing.assert_allclose(got[:real], right[:real], rtol=2e-5, atol=2e-6)


def test_every_other_encoder_adds_the_same_with_and_without_causality():
    x, q = jnp.ones((5, 16)), jnp.ones((5, 2, 8))
    for encoder in ENCODERS:
        if encoder.requirements.causal or isinstance(encoder, rj.SlidingWindow):
            continue
        prepared = encoder.prepare(encoder.init(jax.random.key(0), DIMS), None, DIMS)
        results = []
        for causal in (True, False):
            positions = rj.Positions(query=jnp.arange(5), causal=causal)
            tables = encoder.tables(prepared, positions)
            if encoder.requirements.per_layer:
                tables = jax.tree.map(lambda leaf: leaf[0], tables)
            embedded, rotated = encoder.embed(tables, x, positions), encoder.rotate(tables, q, q)
            results.append((embedded, rotated, encoder.bias(tables, *rotated, positions)))
        jax.tree.map(np.testing.assert_array_equal, *results)


def test_encoders_for_causal_attention_refuse_two_sided_attention():
    q = jnp.ones((3, 2, 8))
    for encoder in (*CAUSAL_ONLY, rj.Compose(rj.NoPE(), rj.CoPE(max_count=4))):
        assert encoder.requirements.causal
        with pytest.raises(ValueError, match=r"(CoPE|XPos) is defined for causal attention, but this attention is two-sided"):
            rj.check_requirements(encoder, DIMS, causal=False)
        rj.check_requirements(encoder, DIMS)
        positions = rj.Positions(query=jnp.arange(3), causal=False)
        prepared = encoder.prepare(encoder.init(jax.random.key(0), DIMS), None, DIMS)

        def call_hooks(encoder=encoder, prepared=prepared, positions=positions):
            encoder.bias(encoder.tables(prepared, positions), q, q, positions)

        with pytest.raises(ValueError, match=r"(CoPE|XPos) is defined for causal attention, but these positions have causal"):
            call_hooks()


def test_a_task_that_is_not_causal_refuses_them_before_training():
    class TwoSidedCopy(Copy):
        causal = False

    sizes = {"model": ModelConfig(), "train": TrainConfig(), "evaluate": EvaluateConfig(), "seeds": (0,)}
    for encoder in CAUSAL_ONLY:
        Cell(task=Copy(), method=Method(encoder=encoder), **sizes)
        with pytest.raises(ValueError, match="is defined for causal attention, but this attention is two-sided; use another"):
            Cell(task=TwoSidedCopy(), method=Method(encoder=encoder), **sizes)
    Cell(task=TwoSidedCopy(), method=Method(encoder=rj.SlidingWindow(size=2)), **sizes)


def test_an_order_that_counts_no_tokens_is_refused():
    """One order for all tokens would let a window mask nothing."""
    q, zeros, late = jnp.ones((3, 2, 8)), jnp.zeros(3, jnp.int32), 2**31 - 1
    encoders = ((rj.SlidingWindow(size=2), {}), (rj.CoPE(max_count=4), rj.CoPE(max_count=4).init(jax.random.key(0), DIMS)))
    for encoder, tables in encoders:
        for orders in ({"query_order": zeros}, {"query_order": zeros, "key_order": jnp.array([0, 0, late])}):
            with pytest.raises(ValueError, match="counts tokens by their order, but all keys have the same order; for two-sided"):
                encoder.bias(tables, q, q, rj.Positions(query=jnp.arange(3), **orders))
        fine = {"query_order": jnp.arange(3), "key_order": jnp.array([late, late, 2])}  # one real key
        encoder.bias(tables, q, q, rj.Positions(query=jnp.arange(3), **fine))
        encoder.bias(tables, q, q, rj.Positions(query=jnp.arange(3), query_order=zeros, query_segment=jnp.arange(3)))
