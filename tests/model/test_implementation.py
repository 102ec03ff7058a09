"""Every implementation computes the same function, in the model and in training."""

from dataclasses import fields, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rope_jax as rj
from rope_jax.encoders.positions import Positions
from rope_jax.model.dropout import Dropout
from rope_jax.model.implementation import Implementation
from rope_jax.model.transformer import functional
from rope_jax.study.settings import ModelConfig
from rope_jax.training import train
from rope_jax.training.microbatch import microbatch_plan

CONFIG = ModelConfig(num_layers=3, width=16, num_heads=2)
SWITCHES = (  # every switch away from its default
    {"attention": "reference"},
    {"fused_attention": False},
    {"tokens_as_rows": False},
    {"dropout": "threefry"},
    {"activation_bytes": 2**12},
    {"scan_layers": True},
)


def test_every_switch_is_tested():
    assert [name for switch in SWITCHES for name in switch] == [field.name for field in fields(Implementation)]
    for switch in SWITCHES:
        assert Implementation(**switch) != Implementation()


@pytest.mark.slow
def test_every_switch_gives_the_same_parameters_logits_and_gradient():
    """With more than one block of queries, padding, a rotation, an added bias and learned parameters of the encoder."""
    encoder = rj.Compose(rj.RoPE(learn_base=True), rj.T5Bias())
    positions = Positions(query=jnp.arange(150), length=jnp.array([150, 70]))
    tokens = jax.random.randint(jax.random.key(1), (2, 150), 0, 10)

    def computed(**switches):
        init, apply = functional(CONFIG, 10, encoder, implementation=Implementation(**switches))
        params = init(jax.random.key(0))

        def mean(params):
            logits = apply(params, tokens, positions)
            return jnp.mean(jnp.sin(logits)), logits

        return params, *jax.jit(jax.value_and_grad(mean, has_aux=True))(params)

    expected_params, expected, expected_gradient = computed()
    for switch in SWITCHES:
        params, value, gradient = computed(**switch)
        jax.tree.map(np.testing.assert_array_equal, params, expected_params)
        for one, other in zip(jax.tree.leaves((value, gradient)), jax.tree.leaves((expected, expected_gradient)), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5, err_msg=str(switch))


def test_a_switch_is_used():
    """The compiled programs differ as the switches say: loops, linear maps of [B, T, width], and random bits."""
    tokens, positions = jnp.zeros((2, 150), int), Positions(query=jnp.arange(150))

    def program(**switches):
        init, apply = functional(CONFIG, 10, rj.RoPE(), implementation=Implementation(**switches))
        dropout = Dropout(keys=jnp.arange(2, dtype=jnp.uint32), rate=0.1) if "dropout" in switches else None
        return str(jax.make_jaxpr(lambda params: apply(params, tokens, positions, dropout=dropout))(init(jax.random.key(0))))

    usual = program()
    assert "f32[2,2,150,150]" not in usual  # all scores at once
    assert "f32[2,2,150,150]" in program(attention="reference")
    assert "f32[300,48]" in usual
    assert "f32[300,48]" not in program(tokens_as_rows=False)
    assert "random_bits" not in program(dropout="counter")
    assert "random_bits" in program(dropout="threefry")
    assert "length=3" not in usual
    assert "length=3" in program(scan_layers=True)


def test_fused_attention_is_left_out_when_it_is_switched_off(fused_calls):
    config = replace(CONFIG, compute_dtype="bfloat16")
    tokens, positions = jnp.zeros((2, 9), int), Positions(query=jnp.arange(9))
    for switches, count in (({}, 3), ({"fused_attention": False}, 0), ({"attention": "reference"}, 0)):
        init, apply = functional(config, 10, rj.RoPE(), implementation=Implementation(**switches))
        fused_calls.clear()
        apply(init(jax.random.key(0)), tokens, positions)
        assert fused_calls == ["cudnn"] * count, switches


def test_training_takes_the_same_steps(toy_cell):
    """With all switches away from their defaults at once, without dropout: the plan hands the implementation to the model."""
    seeds = np.asarray(toy_cell.seeds, np.uint32)

    def losses(implementation):
        plan = replace(microbatch_plan(toy_cell), implementation=implementation)
        state = train.init_replicas(seeds, {}, cell=toy_cell)
        return np.asarray(train.train_chunk(state, seeds, {}, np.int32(0), np.int32(3), cell=toy_cell, plan=plan)[1])[:, :3]

    other = Implementation(**{name: value for switch in SWITCHES for name, value in switch.items()})
    np.testing.assert_allclose(losses(other), losses(Implementation()), atol=1e-5)


def test_an_unknown_implementation_is_refused():
    with pytest.raises(ValueError, match="Implementation attention must be 'blocks' or 'reference', got 'block'"):
        Implementation(attention="block")
    with pytest.raises(ValueError, match="Implementation scan_layers must be a bool, got 'yes'"):
        Implementation(scan_layers="yes")
