"""What holds for every encoder. New encoders and frequency maps enter these tests by themselves (`examples`)."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rope_jax as rj
from examples import (
    ABSOLUTE,
    BIASES,
    CONTENT,
    DIMS,
    ENCODERS,
    MAPS,
    ONE_OF_EACH,
    RELATIVE,
    ROTATIONS,
    sample,
    tables_of_first_layer,
)
from looping import for_each
from rope_jax.encoders.layers import as_layers
from rope_jax.model.attention import attend
from rope_jax.model.transformer import encoding_params, functional
from rope_jax.study.config import Method, Variant
from rope_jax.study.settings import ModelConfig
from rope_jax.tasks import Copy
from rope_jax.training.train import loss

LENGTH = 9


@functools.partial(jax.jit, static_argnums=0)
def outputs(encoder, params, x, q, k, v, positions):
    """What a layer with this encoder gives: the embedded input, and attention."""
    tables = tables_of_first_layer(encoder, params, positions)
    q, k = encoder.rotate(tables, q, k)
    at_queries = encoder.embed(tables, x, positions)
    return at_queries, attend(q, k, v, positions, bias=functools.partial(encoder.bias, tables), block_size=4)


def inputs(*leading):
    x = jax.random.normal(jax.random.key(1), (*leading, LENGTH, 16))
    return x, *jax.random.normal(jax.random.key(2), (3, *leading, LENGTH, 2, 8))


@functools.cache
def drawn(encoder):
    return encoder.init(jax.random.key(0), DIMS)


@for_each("encoder", ENCODERS)
def test_step_by_step_decoding_is_the_whole_pass(encoder):
    """One query at a time against a cache of the whole length, at the same stated length, whose later keys are not yet there."""
    x, q, k, v = inputs()
    positions = jnp.arange(LENGTH)
    whole = outputs(encoder, drawn(encoder), x, q, k, v, rj.Positions(query=positions, length=LENGTH))
    for t in range(LENGTH):
        # what stands in the cache after position t is still rubbish; finite, as memory is
        empty = (positions > t)[:, None, None]
        keys, values = jnp.where(empty, 100.0, k), jnp.where(empty, -100.0, v)
        one = rj.Positions(query=positions[t : t + 1], key=positions, length=jnp.asarray(LENGTH))
        step = outputs(encoder, drawn(encoder), x[t : t + 1], q[t : t + 1], keys, values, one)
        chex.assert_trees_all_close(step, jax.tree.map(lambda a, t=t: a[t : t + 1], whole), atol=2e-5, rtol=2e-5)


@for_each("encoder", RELATIVE)
def test_packed_documents_are_separate_ones(encoder):
    """Documents of 4, 1 and 4 tokens in one row, with the first one's id coming back, give what each gives alone."""
    x, q, k, v = inputs()
    ids = jnp.array([7, 7, 7, 7, 2, 7, 7, 7, 7])
    places = rj.positions.from_segment_ids(ids)
    document = jnp.cumsum(places == 0)  # ids that do not come back
    packed = outputs(encoder, drawn(encoder), x, q, k, v, rj.Positions(query=places, length=9, query_segment=document))
    for part in (slice(0, 4), slice(4, 5), slice(5, 9)):
        here = rj.Positions(query=jnp.arange(part.stop - part.start), length=9)
        alone = outputs(encoder, drawn(encoder), x[part], q[part], k[part], v[part], here)
        chex.assert_trees_all_close(jax.tree.map(lambda a, part=part: a[part], packed), alone, atol=2e-5)
    mixed = outputs(encoder, drawn(encoder), x, q, k, v, rj.Positions(query=places, length=9))
    assert float(jnp.max(jnp.abs(mixed[1] - packed[1])[5:])) > 1e-3


@pytest.mark.slow
@for_each("encoder", ENCODERS)
def test_vmap_is_a_loop(encoder):
    """Over examples with different positions and lengths; and over parameters, as for replicas."""
    arrays = inputs(2)
    query = jnp.stack([jnp.arange(LENGTH), 3 * jnp.arange(LENGTH)])
    positions = rj.Positions(query=query, length=jnp.array([LENGTH, 30]))
    run = functools.partial(outputs, encoder, drawn(encoder))
    batched = run(*arrays, positions)
    mapped = jax.vmap(run)(*arrays, positions)
    chex.assert_trees_all_close(mapped, batched, atol=1e-5)
    for row in range(2):
        alone = run(*(a[row] for a in arrays), rj.Positions(query=query[row], length=positions.length[row]))
        chex.assert_trees_all_close(alone, jax.tree.map(lambda a, row=row: a[row], batched), atol=1e-5)
    several = jax.tree.map(lambda a: jnp.stack([a, 1.1 * a]), drawn(encoder))
    one = [a[0] for a in arrays]
    first = rj.Positions(query=query[0], length=positions.length[0])
    replicas = jax.vmap(lambda params: outputs(encoder, params, *one, first), axis_size=2)(several)
    for row in range(2):
        alone = outputs(encoder, jax.tree.map(lambda a, row=row: a[row], several), *one, first)
        chex.assert_trees_all_close(jax.tree.map(lambda a, row=row: a[row], replicas), alone, atol=1e-5)


@functools.partial(jax.jit, static_argnums=0)
def logits(encoder, params, q, k, positions):
    """float32 [H, Tq, Tk]: scores and bias, where a key is visible."""
    tables = tables_of_first_layer(encoder, params, positions)
    q, k = encoder.rotate(tables, q, k)
    scores = jnp.einsum("thd,shd->hts", q, k) / np.sqrt(8)
    added = encoder.bias(tables, q, k, positions)
    return jnp.where(positions.visible(), scores if added is None else scores + added, 0.0)


@for_each("encoder", RELATIVE)
@settings(deadline=None, max_examples=5)
@given(gaps=st.lists(st.integers(0, 9), min_size=6, max_size=6), shift=st.integers(1, 100))
def test_relative_encoders_see_distances_alone(encoder, gaps, shift):
    """Fire below its threshold of 512; xPos within what float32 holds; the length stays as stated."""
    q, k = jax.random.normal(jax.random.key(3), (2, 6, 2, 8))
    positions = jnp.cumsum(jnp.array(gaps))
    here, there = (
        logits(encoder, drawn(encoder), q, k, rj.Positions(query=p, length=60)) for p in (positions, positions + shift)
    )
    np.testing.assert_allclose(there, here, atol=2e-4, rtol=1e-4)


@for_each("encoder", [e for e in ABSOLUTE if type(e) is not rj.Compose])
def test_absolute_encoders_do_not(encoder):
    """The same property, broken: so that it means something above."""
    x, q, k, v = inputs()
    here, there = (
        outputs(encoder, drawn(encoder), x, q, k, v, rj.Positions(query=jnp.arange(LENGTH) + shift)) for shift in (0, 20)
    )
    assert max(float(jnp.max(jnp.abs(a - b))) for a, b in zip(here, there, strict=True)) > 1e-3


@pytest.mark.slow
@for_each("encoder", ENCODERS)
def test_gradients_are_finite(encoder):
    """At distance 0 (all tokens in one place), at usual and at large distances; in parameters, inputs, queries and keys."""
    arrays = inputs()

    @jax.jit
    def gradients(params, arrays, positions):
        def total(params, arrays):
            return sum(jnp.sum(out**2) for out in outputs(encoder, params, *arrays, rj.Positions(query=positions, length=60)))

        return jax.grad(total, argnums=(0, 1))(params, arrays)

    for positions in (jnp.zeros(LENGTH, jnp.int32), jnp.arange(LENGTH), 7 * jnp.arange(LENGTH)):
        derivatives = gradients(drawn(encoder), arrays, positions)
        assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(derivatives))
        assert any(bool(jnp.any(leaf != 0)) for leaf in jax.tree.leaves(derivatives[1]))


@for_each("learned", ["learn_base", "learn_angles"])
@for_each("scaling", [None, *MAPS])
def test_rotary_dim_2_has_finite_values_and_gradients(scaling, learned):
    dims = rj.Dims(width=2, num_heads=1, head_dim=2)

    def accepts_one_pair(scaling):
        rj.check_requirements(rj.RoPE(scaling=scaling), dims)

    try:
        accepts_one_pair(scaling)
    except ValueError:  # a number for each pair, as LongRoPE
        scaling = sample(type(scaling), accepts_one_pair)
    encoder = rj.RoPE(scaling=scaling, **{learned: True})
    q = jnp.ones((3, 1, 2))

    def total(params, q):
        positions = rj.Positions(query=jnp.array([0, 1, 50]), length=51)
        tables = encoder.tables(encoder.prepare(params, positions.length, dims), positions)
        return jnp.sum(jnp.sin(encoder.rotate(tables, q, q)[0]))

    value, derivatives = jax.value_and_grad(total, argnums=(0, 1))(encoder.init(jax.random.key(0), dims), q)
    assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves((value, derivatives)))


@for_each("encoder", [*BIASES, *CONTENT])
def test_biases_are_float32_and_nothing_narrower_touches_them(encoder):
    """At position 4,000, where bfloat16 knows multiples of 16 only; q and k are exact in bfloat16."""
    positions = rj.Positions(query=4000 + jnp.arange(4), key=3995 + jnp.arange(9))
    q, k = (jnp.round(8 * jax.random.normal(jax.random.key(i), (n, 2, 8))) / 8 for i, n in enumerate((4, 9)))
    tables = tables_of_first_layer(encoder, drawn(encoder), positions)
    narrow, wide = (encoder.bias(tables, q.astype(d), k.astype(d), positions) for d in (jnp.bfloat16, jnp.float32))
    assert narrow.dtype == jnp.float32
    np.testing.assert_array_equal(narrow, wide)


@for_each("encoder", [e for e in ROTATIONS if e.requirements.length])
def test_a_length_may_be_an_int_traced_or_one_an_example(encoder):
    x, q, k, v = inputs(2)
    positions = jnp.arange(LENGTH)
    each = outputs(encoder, drawn(encoder), x, q, k, v, rj.Positions(query=positions, length=jnp.array([4, 5])))
    for row, length in enumerate((4, 5)):
        arrays = [a[row] for a in (x, q, k, v)]
        tables = tables_of_first_layer(encoder, drawn(encoder), rj.Positions(query=positions), length)  # a Python int
        static = encoder.rotate(tables, *arrays[1:3])
        traced = outputs(encoder, drawn(encoder), *arrays, rj.Positions(query=positions, length=jnp.asarray(length)))
        chex.assert_trees_all_close(jax.tree.map(lambda a, row=row: a[row], each), traced, atol=1e-5)
        chex.assert_trees_all_close(attend(*static, arrays[3], rj.Positions(query=positions)), traced[1], atol=2e-5)
    # lengths that were seen before leave no trace
    again = outputs(encoder, drawn(encoder), x, q, k, v, rj.Positions(query=positions, length=jnp.array([4, 5])))
    chex.assert_trees_all_equal(again, each)


@for_each("encoder", [rj.NoPE(), *BIASES, *CONTENT])
def test_positions_of_other_tokens_are_refused(encoder):
    """A cache whose key positions were forgotten, which would broadcast and let a query see everything."""
    _, q, k, v = inputs()
    forgotten = rj.Positions(query=jnp.array([5]))
    with pytest.raises(ValueError, match=r"has 9 tokens, but query= of shape \(1,\) is for 1; give key= one entry for each"):
        attend(q[5:6], k, v, forgotten)
    if encoder != rj.NoPE():
        with pytest.raises(ValueError, match=r"has 9 tokens, but query= of shape \(1,\) is for 1; give key="):
            encoder.bias(tables_of_first_layer(encoder, drawn(encoder), forgotten), q[5:6], k, forgotten)


@for_each("encoder", [rj.TransformerXL(init_scale=0.5), *CONTENT])
def test_grouped_keys_serve_their_query_heads(encoder):
    """Four query heads and two key heads are four of each, every key head twice; three do not divide them."""
    dims = rj.Dims(width=16, num_heads=4, head_dim=4)
    params = encoder.init(jax.random.key(0), dims)
    q, k = jax.random.normal(jax.random.key(1), (6, 4, 4)), jax.random.normal(jax.random.key(2), (6, 2, 4))
    positions = rj.Positions(query=jnp.arange(6))
    got = encoder.bias(params, q, k, positions)
    np.testing.assert_array_equal(got, encoder.bias(params, q, k[:, [0, 0, 1, 1]], positions))
    with pytest.raises(ValueError, match="the 4 heads of q must be a multiple of the 3 heads of k"):
        encoder.bias(params, q, q[:, :3], positions)


@for_each("encoder", [*BIASES, *CONTENT])
@for_each("query_rank", [1, 2])
def test_query_and_key_positions_may_differ_in_rank(encoder, query_rank):
    """Positions of a batch beside positions that all examples share; ranks are not promoted silently."""
    q, k = jax.random.normal(jax.random.key(1), (2, 3, 4, 2, 8))[:2]
    shared, each = jnp.arange(4), jnp.stack([jnp.arange(4), 2 * jnp.arange(4)])
    query, key = (shared, each) if query_rank == 1 else (each, shared)

    def bias(q, k, query, key):
        positions = rj.Positions(query=query, key=key)
        return encoder.bias(tables_of_first_layer(encoder, drawn(encoder), positions), q, k, positions)

    got = bias(q[:2], k[:2], query, key)
    for row in range(2):
        alone = bias(q[row], k[row], query if query_rank == 1 else query[row], key[row] if query_rank == 1 else key)
        np.testing.assert_allclose(np.broadcast_to(got, (2, *got.shape[-3:]))[row], alone, atol=1e-5)


@for_each(
    ("make", "message"),
    [
        (lambda: rj.RoPE(arrangement="axial"), "arrangement='axial' arranges sections, but sections is None"),
        (lambda: rj.ALiBi(axis=-1), "ALiBi axis must not be negative, got -1"),
        (lambda: rj.YaRN(factor=2.0, original_length=8, mscale=-3.0), "YaRN mscale must not be negative, got -3.0"),
        (lambda: rj.rotary_frequencies(4, scaling="ntk"), r"must be a frequency map, such as NTK\(factor=2.0\)"),
        (lambda: rj.RoPE(head_fraction=0.25).rotate({}, jnp.ones((1, 8, 8)), jnp.ones((1, 2, 8))), "gives no head"),
        (
            lambda: rj.RoPE(head_fraction=0.7).rotate({}, jnp.ones((1, 8, 8)), jnp.ones((1, 2, 8))),
            "rotates 5 of 8 query heads, but 1 of 2 key heads",
        ),
        (
            lambda: rj.ALiBi(axis=0).bias(jnp.ones(2), None, None, rj.Positions(query=jnp.arange(8), axes=2)),
            r"query positions of 2 axes must be \[2, ..., T\], got \(8,\)",
        ),
        (
            lambda: rj.Sinusoidal().embed({}, jnp.ones((3, 4), jnp.int32), rj.Positions(query=jnp.arange(3))),
            "x must be floats with the axes .*, got int32",
        ),
    ],
)
def test_what_would_pass_silently_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_resonance_is_learned_through_its_rounding():
    encoder = rj.RoPE(learn_base=True, scaling=rj.Resonance())
    params = encoder.init(jax.random.key(0), DIMS)
    slope = jax.grad(lambda params: jnp.sum(encoder.prepare(params, None, DIMS).inv_freq))(params)["log_base"]
    plain = jax.grad(lambda params: jnp.sum(rj.RoPE(learn_base=True).prepare(params, None, DIMS).inv_freq))(params)["log_base"]
    assert float(slope) == pytest.approx(float(plain), rel=0.1)


# in the model

MODEL = ModelConfig(num_layers=1, width=16, num_heads=2, mlp_factor=1)


@pytest.mark.slow
@for_each("encoder", ONE_OF_EACH)
def test_it_trains_in_the_model(encoder):
    """Gradient steps on one batch lower the loss, and every parameter of the encoder has a part in it."""
    task = Copy(alphabet=4)
    rj.check_requirements(encoder, MODEL.dims, max_position=task.input_length(5) - 1)
    init, apply = functional(MODEL, task.vocabulary, encoder)
    batch = task.sample(jax.random.key(0), jnp.array([1, 3, 5, 5]), max_length=5)
    positions = rj.Positions(query=jnp.arange(12), length=batch.lengths)
    params = init(jax.random.key(1))
    step = jax.jit(jax.value_and_grad(functools.partial(loss, apply=apply)))
    losses = []
    for _ in range(4):
        value, gradient = step(params, batch, positions)
        losses.append(float(value))
        params = jax.tree.map(lambda p, g: p - 0.3 * g, params, gradient)
    assert losses[0] == pytest.approx(np.log(task.vocabulary), abs=0.2)
    assert losses[-1] < losses[0] - 0.05
    for leaf in jax.tree.leaves(encoding_params(gradient)):
        assert bool(jnp.any(leaf != 0))


@for_each("encoder", ONE_OF_EACH)
def test_no_token_sees_what_comes_after_it(encoder):
    """The gradient of a logit with respect to later tokens' embeddings is exactly zero, and not that to earlier ones."""
    task = Copy(alphabet=4)
    init, apply = functional(MODEL, task.vocabulary, encoder)
    params = init(jax.random.key(1))

    @jax.jit
    @jax.grad
    def gradient(embedding):
        """Of the logits at position 3, where token t has embedding t."""
        positions = jnp.arange(6)
        return jnp.sum(apply(params | {"embedding": embedding}, positions, rj.Positions(query=positions, length=6))[3] ** 2)

    derivatives = np.asarray(gradient(params["embedding"]))
    assert not derivatives[4:].any()
    assert derivatives[:4].any(axis=1).all()


@for_each("scaling", MAPS)
def test_every_map_is_a_variant_of_a_trained_model(scaling):
    """The trained encoder runs what the variant prepared, and that is the variant."""
    method = Method(encoder=rj.RoPE(), variants=(Variant(name="x", encoder=rj.RoPE(scaling=scaling)),))
    trained, variant = (each.encoder for each in method.all_variants)
    init, apply = functional(MODEL, 6, trained)
    tokens, positions = jnp.array([1, 2, 3, 4, 5]), rj.Positions(query=jnp.arange(5), length=5)
    params = init(jax.random.key(0))
    prepared = as_layers(variant).prepare(encoding_params(params), 5, MODEL.dims)
    embedding = functional(MODEL, 6, variant)[1](params, tokens, positions)
    chex.assert_trees_all_close(apply(params, tokens, positions, prepared), embedding, atol=1e-6)
    assert float(jnp.max(jnp.abs(embedding - apply(params, tokens, positions)))) > 1e-5
