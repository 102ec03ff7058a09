"""Compose: hooks, parameters and variants, compared with each encoder by itself."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rope_jax as rj
from looping import for_each
from rope_jax.encoders.base import changed_options
from rope_jax.model.transformer import encoding_params, functional
from rope_jax.study.config import Method, Variant
from rope_jax.study.serialization import content_hash
from rope_jax.study.settings import ModelConfig

DIMS = rj.Dims(width=8, num_heads=2, head_dim=4)
LENGTH = 6
X = jax.random.normal(jax.random.key(0), (LENGTH, 8))
Q, K = jax.random.normal(jax.random.key(1), (2, LENGTH, 2, 4))
AT = rj.Positions(query=jnp.array([0, 1, 4, 5, 9, 12]), length=13)


@partial(jax.jit, static_argnums=0)
def hooks(encoder, params, positions=AT):
    """(embedded, q, k, bias) of one layer."""
    tables = encoder.tables(encoder.prepare(params, positions.length, DIMS), positions)
    q, k = encoder.rotate(tables, Q, K)
    return encoder.embed(tables, X, positions), q, k, encoder.bias(tables, q, k, positions)


def drawn(encoder, seed=0):
    """Every parameter away from where it starts."""
    initial, random = encoder.init(jax.random.key(seed), DIMS), np.random.default_rng(seed)
    return jax.tree.map(lambda x: x + jnp.asarray(random.normal(size=x.shape), jnp.float32), initial)


def assert_same(got, expected, **tolerance):
    for ours, theirs in zip(got, expected, strict=True):
        if theirs is None:
            assert ours is None
        else:
            np.testing.assert_allclose(ours, theirs, **{"rtol": 1e-6, "atol": 1e-6} | tolerance)


@for_each(
    "encoder",
    [
        rj.NoPE(),
        rj.Learned(max_length=16),
        rj.RoPE(learn_base=True, scaling=rj.DynamicNTK(original_length=4)),
        rj.Kerple(),
        rj.CoPE(max_count=3, init_scale=1.0),
        rj.LogN(original_length=4),
    ],
)
def test_of_one_is_the_one(encoder):
    one = rj.Compose(encoder)
    params = drawn(encoder)
    assert_same(hooks(one, {"encoder0": params} if params else {}), hooks(encoder, params))
    assert one.requirements.length == encoder.requirements.length
    assert one.requirements.original_lengths == encoder.requirements.original_lengths
    assert one.retunable == {f"encoders[0].{name}" for name in encoder.retunable}


def test_what_is_added_is_the_sum_in_any_order():
    encoders = (rj.ALiBi(), rj.Kerple(), rj.T5Bias(init_scale=1.0), rj.Fire())
    learned = [drawn(encoder, i) for i, encoder in enumerate(encoders)]
    biases = [np.asarray(hooks(encoder, params)[3], np.float64) for encoder, params in zip(encoders, learned, strict=True)]
    for order in ((0, 1, 2, 3), (3, 1, 0, 2), (2, 3, 1, 0)):
        params = {f"encoder{i}": learned[j] for i, j in enumerate(order) if learned[j]}
        got = hooks(rj.Compose(*(encoders[j] for j in order)), params)[3]
        np.testing.assert_allclose(got, sum(biases), rtol=1e-5, atol=1e-5)
    embedding = hooks(rj.Compose(rj.Sinusoidal(), rj.Learned(max_length=16)), {"encoder1": {"table": jnp.ones((16, 8))}})[0]
    np.testing.assert_allclose(embedding, np.asarray(X) + np.asarray(rj.sinusoidal(AT.query, 8)) + 1, rtol=1e-6, atol=1e-6)


def test_a_bias_is_none_only_if_no_encoder_has_one():
    assert hooks(rj.Compose(rj.RoPE(), rj.NoPE()), {})[3] is None
    both = hooks(rj.Compose(rj.NoPE(), rj.ALiBi(), rj.RoPE()), {})
    np.testing.assert_array_equal(both[3], rj.alibi_bias(AT.query, AT.query, 2))


def test_biases_with_and_without_a_batch_axis_add_up():
    """TransformerXL's bias has the contents' batch, ALiBi's the positions', which have none."""
    q = jnp.stack([Q, 2 * Q])
    content = rj.TransformerXL()
    params = drawn(content)
    encoder = rj.Compose(rj.ALiBi(), content)
    got = jax.jit(lambda: encoder.bias(encoder.prepare({"encoder1": params}, None, DIMS), q, q, AT))()
    alone = jax.jit(lambda: content.bias(params, q, q, AT))()
    expected = np.asarray(alone) + np.asarray(rj.alibi_bias(AT.query, AT.query, 2))
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_rotations_follow_one_another():
    """Two of one layout rotate by the sum of both angles; those of two layouts do not commute."""
    first, second = rj.RoPE(), rj.RoPE(base=50.0)
    cos, sin = rj.rotary_tables(first.frequencies(4), AT.query)
    also = rj.rotary_tables(second.frequencies(4), AT.query)
    once = rj.rotate(rj.rotate(Q, cos, sin), *also)
    assert_same(hooks(rj.Compose(first, second), {})[1:2], [once], atol=1e-5)
    half, pairs = rj.RoPE(), rj.RoPE(layout="interleaved", base=50.0)
    for order in ((half, pairs), (pairs, half)):
        expected = Q
        for encoder in order:
            expected = rj.rotate(expected, *rj.rotary_tables(encoder.frequencies(4), AT.query), layout=encoder.layout)
        assert_same(hooks(rj.Compose(*order), {})[1:2], [expected], atol=1e-5)
    one, other = (hooks(rj.Compose(*order), {})[1] for order in ((half, pairs), (pairs, half)))
    assert float(jnp.max(jnp.abs(one - other))) > 0.1


def test_each_encoder_has_separate_parameters():
    encoder = rj.Compose(rj.ALiBi(), rj.Kerple(), rj.Sinusoidal(), rj.Kerple())
    initial = encoder.init(jax.random.key(0), DIMS)
    assert set(initial) == {"encoder1", "encoder3"}
    for leaf in ("log_r1", "log_r2"):  # drawn apart
        assert not np.allclose(initial["encoder1"][leaf], initial["encoder3"][leaf])
    assert rj.Compose(rj.RoPE(), rj.ALiBi()).init(jax.random.key(0), DIMS) == {}
    swapped = {"encoder1": initial["encoder3"], "encoder3": initial["encoder1"]}
    np.testing.assert_allclose(hooks(encoder, swapped)[3], hooks(encoder, initial)[3], rtol=1e-5, atol=1e-6)
    without = jax.tree.map(lambda x: jnp.full_like(x, -30.0), initial["encoder3"])  # r1 = e^-30: part 3 adds nothing
    alone = hooks(rj.Compose(rj.ALiBi(), rj.Kerple()), {"encoder1": initial["encoder1"]})[3]
    np.testing.assert_allclose(hooks(encoder, initial | {"encoder3": without})[3], alone, rtol=1e-5, atol=1e-6)


def test_composites_nest():
    kerple = drawn(rj.Kerple())
    nested = rj.Compose(rj.RoPE(), rj.Compose(rj.ALiBi(), rj.Kerple()))
    flat = rj.Compose(rj.RoPE(), rj.ALiBi(), rj.Kerple())
    assert_same(hooks(nested, {"encoder1": {"encoder1": kerple}}), hooks(flat, {"encoder2": kerple}))
    assert set(nested.init(jax.random.key(0), DIMS)["encoder1"]) == {"encoder1"}


def test_it_is_a_value():
    encoder = rj.Compose(rj.RoPE(), rj.ALiBi())
    assert encoder == rj.Compose(encoders=(rj.RoPE(), rj.ALiBi()))
    assert hash(encoder) == hash(rj.Compose(rj.RoPE(), rj.ALiBi()))
    assert content_hash(encoder) != content_hash(rj.Compose(rj.ALiBi(), rj.RoPE()))
    assert content_hash(encoder) != content_hash(rj.Compose(rj.RoPE(), rj.ALiBi(slope_scale=2.0)))


def test_the_length_is_needed_if_one_encoder_needs_it():
    dynamic = rj.RoPE(scaling=rj.DynamicNTK(original_length=26))
    assert rj.Compose(rj.ALiBi(), dynamic).requirements.length
    assert not rj.Compose(rj.ALiBi(), rj.RoPE()).requirements.length
    assert rj.Compose(rj.RoPE(), rj.LogN(original_length=8, by="length")).requirements.length
    assert rj.Compose(rj.LogN(original_length=99), dynamic).requirements.original_lengths == {26, 99}
    assert rj.Compose(rj.ALiBi(), rj.RoPE()).requirements.original_lengths == frozenset()


# variants of a trained method

TRAINED = rj.Compose(rj.RoPE(), rj.LogN(original_length=26), rj.Kerple())


@for_each(
    "variant",
    [
        rj.Compose(rj.RoPE(scaling=rj.NTK(factor=4.0)), rj.LogN(original_length=26), rj.Kerple()),
        rj.Compose(rj.RoPE(), rj.LogN(original_length=5), rj.Kerple()),
        rj.Compose(rj.RoPE(base=500.0, scaling=rj.Linear(factor=2.0)), rj.LogN(original_length=9), rj.Kerple()),
    ],
)
def test_a_variant_may_change_what_its_encoders_may(variant):
    assert set(changed_options(TRAINED, variant)) <= TRAINED.retunable
    method = Method(encoder=TRAINED, variants=(Variant(name="other", encoder=variant),))
    assert [each.name for each in method.all_variants] == ["as-trained", "other"]
    # and the trained encoder runs what the variant prepared
    params = drawn(TRAINED)
    tables = TRAINED.tables(variant.prepare(params, 13, DIMS), AT)
    q, k = TRAINED.rotate(tables, Q, K)
    assert_same((X, q, k, TRAINED.bias(tables, q, k, AT)), hooks(variant, params), atol=1e-5)
    assert float(jnp.max(jnp.abs(q - hooks(TRAINED, params)[1]))) > 1e-3


@for_each(
    ("variant", "changed"),
    [
        (rj.Compose(rj.RoPE(layout="interleaved"), rj.LogN(original_length=26), rj.Kerple()), "encoders[0].layout"),
        (rj.Compose(rj.RoPE(), rj.LogN(original_length=26, by="length"), rj.Kerple()), "encoders[1].by"),
        (rj.Compose(rj.RoPE(), rj.LogN(original_length=26), rj.Kerple(kernel="power")), "encoders[2].kernel"),
        (rj.Compose(rj.RoPE(), rj.LogN(original_length=26), rj.ALiBi()), "encoders[2]"),
        (
            rj.Compose(rj.RoPE(layout="interleaved"), rj.LogN(original_length=26), rj.Kerple(kernel="power")),
            "encoders[0].layout, encoders[2].kernel",
        ),
        (rj.Compose(rj.RoPE(), rj.Kerple()), "encoders"),
        (rj.Compose(rj.LogN(original_length=26), rj.RoPE(), rj.Kerple()), "encoders[0], encoders[1]"),
        (rj.RoPE(), "the class"),
    ],
)
def test_a_variant_that_changes_more_is_refused_by_encoder(variant, changed):
    with pytest.raises(
        ValueError, match=re.escape(f"variant 'other' changes {changed} of the trained Compose; options")
    ) as caught:
        Method(encoder=TRAINED, variants=(Variant(name="other", encoder=variant),))
    message = str(caught.value)
    assert "may change after training: " in message
    assert "encoders[0].scaling" in message
    assert "encoders[1].original_length" in message
    assert message.endswith("Make it a separate Method instead")


def test_a_plain_encoder_is_no_variant_of_a_composite_nor_the_reverse():
    with pytest.raises(ValueError, match="changes the class of the trained RoPE"):
        Method(encoder=rj.RoPE(), variants=(Variant(name="other", encoder=rj.Compose(rj.RoPE())),))


# in the model


@for_each("dtype", ["float32", "bfloat16"])
def test_in_the_model_all_encoders_learn(dtype):
    encoder = rj.Compose(rj.RoPE(learn_base=True), rj.LogN(original_length=3), rj.Kerple())
    config = ModelConfig(num_layers=1, width=8, num_heads=2, mlp_factor=1, compute_dtype=dtype)
    init, apply = functional(config, 5, encoder)
    params = init(jax.random.key(0))
    assert set(encoding_params(params)["encoder0"]) == {"encoder0", "encoder2"}
    tokens = jnp.array([[0, 1, 2, 3, 4, 1, 2], [4, 3, 2, 1, 0, 0, 1]])
    positions = rj.Positions(query=jnp.arange(7), length=jnp.array([7, 7]))

    @jax.jit
    def run(params):
        def total(params):
            logits = apply(params, tokens, positions)
            return -jnp.sum(jax.nn.log_softmax(logits)[:, :-1, 0]), logits

        return jax.grad(total, has_aux=True)(params)

    gradient, logits = run(params)
    assert logits.dtype == jnp.float32
    for leaf in jax.tree.leaves(encoding_params(gradient)):
        assert leaf.dtype == jnp.float32
        assert np.isfinite(np.asarray(leaf)).all()
        assert np.asarray(leaf).all()  # every head's
    for single, leaf in (("encoder2", "log_r1"), ("encoder0", "log_base")):
        moved = jax.tree.map(lambda x: x, params)
        moved["encoding"]["encoder0"][single][leaf] = moved["encoding"]["encoder0"][single][leaf] + 1.0
        assert float(jnp.max(jnp.abs(run(moved)[1] - logits))) > 1e-5


@for_each(
    ("make", "message"),
    [
        (
            lambda: rj.Compose(),
            "Compose needs at least one encoder, such as Compose(RoPE(), ALiBi()); NoPE() is the encoder that does nothing",
        ),
        (lambda: rj.Compose(rj.RoPE), "call it: RoPE(...)"),
        (lambda: rj.Compose(rj.RoPE(), rj.NTK(factor=2.0)), "got NTK(factor=2.0); a frequency map goes into RoPE(scaling=...)"),
        (
            lambda: rj.check_requirements(rj.Compose(rj.ALiBi(), rj.HardALiBi(masked_heads=3)), DIMS, max_position=8),
            "masked_heads=3 is above the 2 heads",
        ),
        (
            lambda: rj.check_requirements(rj.Compose(rj.ALiBi(), rj.Learned(max_length=4)), DIMS, max_position=8),
            "Learned(max_length=4) has no row for position",
        ),
    ],
)
def test_what_it_cannot_do_is_refused(make, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make()
