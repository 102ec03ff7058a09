"""What each key of a Hugging Face config means, and that what is written reads back the same."""

import dataclasses
import json

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import rope_jax as rj
from looping import for_each
from rope_jax.interop import rope_from_hf, rope_to_hf

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
OF_YARN = rj.YaRN(factor=4.0, original_length=512)
LONG = {"rope_type": "longrope", "short_factor": [1, 2], "long_factor": [3, 4], "original_max_position_embeddings": 64}
OF_LONG = rj.LongRoPE(short_factor=(1, 2), long_factor=(3, 4), original_length=64, factor=4)
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}
OF_LLAMA3 = rj.Llama3(factor=8.0, original_length=512)
MODEL = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4}
LAYERS = {"full_attention": {"rope_theta": 5e5} | YARN, "sliding_attention": {"rope_theta": 100.0}, "none": None}
OLD_GEMMA = {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
MLA = {"qk_rope_head_dim": 64, "qk_nope_head_dim": 128}
SECTIONS = {"mrope_section": [4, 2, 2]}


@for_each(
    ("config", "expected"),
    [
        # every type, as a rope part alone
        ({}, rj.RoPE()),
        ({"rope_theta": 500000}, rj.RoPE(base=500_000.0)),
        ({"rope_type": "default", "rope_theta": 5e5}, rj.RoPE(base=500_000.0)),
        ({"rope_type": "linear", "factor": 2}, rj.RoPE(scaling=rj.Linear(factor=2.0))),
        (
            {"rope_type": "dynamic", "factor": 2.0, "max_position_embeddings": 32},
            rj.RoPE(scaling=rj.DynamicNTK(factor=2.0, original_length=32)),
        ),
        (YARN, rj.RoPE(scaling=OF_YARN)),
        (LONG | {"factor": 4.0}, rj.RoPE(scaling=OF_LONG)),
        (LLAMA3, rj.RoPE(scaling=OF_LLAMA3)),
        ({"rope_type": "proportional"}, rj.RoPE(scaling=rj.Proportional(fraction=1.0))),
        (
            {"rope_type": "proportional", "partial_rotary_factor": 0, "factor": 2.0},
            rj.RoPE(scaling=rj.Proportional(fraction=0.0, factor=2.0)),
        ),
        # older names
        ({"type": "linear", "factor": 2.0}, rj.RoPE(scaling=rj.Linear(factor=2.0))),
        ({"type": "linear", "rope_type": "linear", "factor": 2.0}, rj.RoPE(scaling=rj.Linear(factor=2.0))),
        (LONG | {"rope_type": "su", "factor": 4.0}, rj.RoPE(scaling=OF_LONG)),
        (LONG | {"type": "su", "factor": 4.0}, rj.RoPE(scaling=OF_LONG)),
        (YARN | {"finetuned": True}, rj.RoPE(scaling=OF_YARN)),
        (YARN | {"type": "mrope"} | SECTIONS, rj.RoPE(scaling=OF_YARN, sections=(4, 2, 2))),
        # whole configs: rope_parameters, rope_scaling, neither
        (MODEL | {"rope_theta": 5e5}, rj.RoPE(base=5e5)),
        (MODEL | {"rope_theta": 5e5, "rope_scaling": None}, rj.RoPE(base=5e5)),
        (MODEL | {"rope_theta": 5e5, "rope_scaling": {}}, rj.RoPE(base=5e5)),
        (MODEL | {"rope_parameters": None, "rope_scaling": YARN}, rj.RoPE(scaling=OF_YARN)),
        (MODEL | {"rope_parameters": YARN, "rope_scaling": YARN}, rj.RoPE(scaling=OF_YARN)),
        (MODEL | {"rope_parameters": YARN, "anything": "else"}, rj.RoPE(scaling=OF_YARN)),
        ({"rope_scaling": YARN, "rope_theta": 5e5}, rj.RoPE(base=5e5, scaling=OF_YARN)),
        ({"model_type": "x", "text_config": {"rope_parameters": YARN}, "vision_config": {}}, rj.RoPE(scaling=OF_YARN)),
        ({"rope_scaling": YARN, "text_config": {"rope_parameters": LLAMA3}}, rj.RoPE(scaling=OF_YARN)),
        # inside wins
        (
            MODEL
            | {
                "rope_theta": 7.0,
                "partial_rotary_factor": 1.0,
                "rope_parameters": {"rope_theta": 5e5, "partial_rotary_factor": 0.5},
            },
            rj.RoPE(base=5e5, rotary_fraction=0.5),
        ),
        (MODEL | {"rope_theta": 5e5, "partial_rotary_factor": 0.5}, rj.RoPE(base=5e5, rotary_fraction=0.5)),
        (
            MODEL | {"partial_rotary_factor": 0.25, "rope_parameters": {"rope_type": "proportional"}},
            rj.RoPE(scaling=rj.Proportional(fraction=0.25)),
        ),
        (MODEL | {"rotary_pct": 0.25, "rotary_emb_base": 500}, rj.RoPE(base=500.0, rotary_fraction=0.25)),
        (MODEL | {"rotary_dim": 4}, rj.RoPE(rotary_fraction=0.25)),
        (MODEL | {"rotary_dim": 4, "partial_rotary_factor": 0.5}, rj.RoPE(rotary_fraction=0.5)),
        # null is absent
        ({"rope_type": None, "rope_theta": None, "partial_rotary_factor": None}, rj.RoPE()),
        (YARN | {"attention_factor": None, "beta_fast": None, "truncate": None, "mrope_section": None}, rj.RoPE(scaling=OF_YARN)),
        # YaRN's options
        (YARN | {"mscale": 0, "mscale_all_dim": 0.0}, rj.RoPE(scaling=OF_YARN)),
        (YARN | {"mscale": 1, "mscale_all_dim": 0}, rj.RoPE(scaling=dataclasses.replace(OF_YARN, mscale=1.0))),
        (
            YARN
            | {"mscale": 0.5, "mscale_all_dim": 0.7, "attention_factor": 1.5, "beta_fast": 16, "beta_slow": 2, "truncate": False},
            rj.RoPE(
                scaling=dataclasses.replace(
                    OF_YARN, mscale=0.5, mscale_all_dim=0.7, attention_factor=1.5, beta_fast=16.0, beta_slow=2.0, truncate=False
                )
            ),
        ),
        # several axes
        ({"type": "mrope"} | SECTIONS, rj.RoPE(sections=(4, 2, 2))),
        ({"rope_type": "default", "type": "mrope"} | SECTIONS, rj.RoPE(sections=(4, 2, 2))),
        ({"mrope_interleaved": True} | SECTIONS, rj.RoPE(sections=(4, 2, 2), arrangement="interleaved")),
        ({"interleaved": True, "mrope_interleaved": True} | SECTIONS, rj.RoPE(sections=(4, 2, 2), arrangement="interleaved")),
        ({"mrope_interleaved": False} | SECTIONS, rj.RoPE(sections=(4, 2, 2))),
        # layouts
        (MODEL | {"rope_interleave": True}, rj.RoPE(layout="interleaved")),
        (MODEL | {"rope_interleave": False, "model_type": "deepseek_v3"}, rj.RoPE()),
        (MODEL | {"model_type": "deepseek_v3"}, rj.RoPE(layout="interleaved")),
        (MODEL | {"model_type": "glm", "partial_rotary_factor": 0.5}, rj.RoPE(layout="interleaved", rotary_fraction=0.5)),
        # a rotated slice: the encoding is that of the slice
        (MODEL | MLA, rj.RoPE()),
        (MODEL | MLA | {"head_dim": 192}, rj.RoPE()),
        (MODEL | MLA | {"head_dim": 128, "partial_rotary_factor": 0.5}, rj.RoPE()),
        (MODEL | MLA | {"rope_scaling": {"mrope_section": [16, 8, 8]}}, rj.RoPE(sections=(16, 8, 8))),
    ],
)
def test_what_a_config_means(config, expected):
    before = json.dumps(config)
    assert rope_from_hf(config) == expected
    assert json.dumps(config) == before


@for_each("entry", [YARN, LLAMA3, LONG | {"factor": 4.0}])
@for_each(
    ("top", "inside", "longest", "expected"),
    [
        (256, 512, 4096, 256),
        (256, None, 4096, 256),
        (None, 512, 4096, 512),
        (None, None, 4096, 4096),
        (256, None, None, 256),
    ],
)
def test_where_the_original_length_comes_from(entry, top, inside, longest, expected):
    key = "original_max_position_embeddings"
    config = {key: top, "max_position_embeddings": longest, "rope_scaling": entry | {key: inside}}
    assert rope_from_hf(config).scaling.original_length == expected


def test_absent_factors_and_lengths_follow_from_the_others():
    whole = {"max_position_embeddings": 256, "rope_scaling": LONG}
    assert rope_from_hf(whole).scaling.factor == 4
    assert rope_from_hf(whole | {"original_max_position_embeddings": 32}).scaling.factor == 8
    assert rope_from_hf(LONG | {"max_position_embeddings": 640}).scaling.factor == 10
    assert rope_from_hf(whole | {"rope_scaling": LONG | {"factor": 3.0}}).scaling.factor == 3

    entry = {"type": "dynamic", "factor": 2.0}
    whole = {"rope_scaling": entry, "max_position_embeddings": 64, "original_max_position_embeddings": 16}
    assert rope_from_hf(whole) == rj.RoPE(scaling=rj.DynamicNTK(factor=2.0, original_length=64))


@for_each("part", [LAYERS, {"rope_parameters": LAYERS}, {"layer_types": list(LAYERS), "rope_scaling": LAYERS}])
def test_an_entry_for_each_type_of_layer(part):
    assert rope_from_hf(part, layer_type="full_attention") == rj.RoPE(base=5e5, scaling=OF_YARN)
    assert rope_from_hf(part, layer_type="sliding_attention") == rj.RoPE(base=100.0)
    assert rope_from_hf(part, layer_type="none") == rj.NoPE()


def test_types_of_layers_share_the_top_level_and_local_bases_are_those_of_sliding_layers():
    part = {"a": {"rope_theta": 7.0}, "b": {"partial_rotary_factor": 1.0}}
    config = {"rope_theta": 500.0, "partial_rotary_factor": 0.5, "rope_parameters": part}
    assert rope_from_hf(config, layer_type="a") == rj.RoPE(base=7.0, rotary_fraction=0.5)
    assert rope_from_hf(config, layer_type="b") == rj.RoPE(base=500.0)

    assert rope_from_hf(OLD_GEMMA, layer_type="full_attention") == rj.RoPE(base=1e6, scaling=rj.Linear(factor=8.0))
    assert rope_from_hf(OLD_GEMMA, layer_type="sliding_attention") == rj.RoPE(base=1e4)
    modern = {"global_rope_theta": 1e6, "local_rope_theta": 1e4, "rope_scaling": YARN}  # it scales both
    assert rope_from_hf(modern, layer_type="full_attention") == rj.RoPE(base=1e6, scaling=OF_YARN)
    assert rope_from_hf(modern, layer_type="sliding_attention") == rj.RoPE(base=1e4, scaling=OF_YARN)
    nested = {
        "rope_local_base_freq": 7.0,
        "rope_parameters": {"full_attention": {}, "sliding_attention": {"rope_type": "default"}},
    }
    assert rope_from_hf(nested, layer_type="sliding_attention") == rj.RoPE(base=7.0)
    nested["rope_parameters"]["sliding_attention"] = None
    assert rope_from_hf(nested, layer_type="sliding_attention") == rj.NoPE()

    config = {"rope_parameters": YARN, "layer_types": ["full_attention", "sliding_attention"]}
    for layer_type in ("full_attention", "sliding_attention", None):
        assert rope_from_hf(config, layer_type=layer_type) == rj.RoPE(scaling=OF_YARN)


@for_each("head_dim", range(2, 200))
def test_a_rotary_dim_is_kept_exactly(head_dim):
    for rotary_dim in range(2, head_dim + 1, 2):
        assert rope_from_hf({"head_dim": head_dim, "rotary_dim": rotary_dim}).rotary_dim(head_dim) == rotary_dim


def numbers(low, high):
    return st.floats(low, high, allow_nan=False)


LENGTHS = st.integers(2, 100_000)
MAPS = st.one_of(
    st.none(),
    st.builds(rj.Linear, factor=numbers(0.1, 64)),
    st.builds(rj.DynamicNTK, factor=numbers(0.1, 64), original_length=LENGTHS),
    st.builds(
        rj.YaRN,
        factor=numbers(0.1, 64),
        original_length=LENGTHS,
        attention_factor=st.none() | numbers(0.1, 2),
        mscale=st.none() | numbers(0.1, 2),
        mscale_all_dim=st.none() | numbers(0.1, 2),
        beta_fast=numbers(8, 64),
        beta_slow=numbers(0.1, 8),
        truncate=st.booleans(),
    ),
    st.integers(1, 8).flatmap(
        lambda pairs: st.builds(
            rj.LongRoPE,
            short_factor=st.tuples(*[numbers(1, 4)] * pairs),
            long_factor=st.tuples(*[numbers(1, 64)] * pairs),
            original_length=LENGTHS,
            factor=numbers(1, 64),
            attention_factor=st.none() | numbers(0.1, 2),
        )
    ),
    st.builds(
        rj.Llama3, factor=numbers(1, 64), original_length=LENGTHS, low_freq_factor=numbers(0.1, 2), high_freq_factor=numbers(3, 9)
    ),
    st.builds(rj.Proportional, fraction=st.just(0.0) | numbers(0.001, 1), factor=numbers(0.1, 8)),
)


@settings(deadline=None, max_examples=300)
@given(
    base=numbers(1.5, 1e7),
    layout=st.sampled_from(["half", "interleaved"]),
    fraction=st.just(1.0) | numbers(0.01, 1),
    scaling=MAPS,
    sections=st.none() | st.lists(st.integers(1, 30), min_size=1, max_size=4).map(tuple),
    arrangement=st.sampled_from(["chunked", "interleaved"]),
)
def test_what_is_written_reads_back_the_same(base, layout, fraction, scaling, sections, arrangement):
    rope = rj.RoPE(
        base=base,
        layout=layout,
        rotary_fraction=1.0 if isinstance(scaling, rj.Proportional) else fraction,
        scaling=scaling,
        sections=sections,
        arrangement="chunked" if sections is None else arrangement,
    )
    written = json.loads(json.dumps(rope_to_hf(rope)))
    assert rope_from_hf(written) == rope
    assert rope_from_hf(written | MODEL | {"hidden_size": 0}) == rope  # put into a model's config


def test_what_is_written():
    assert rope_to_hf(rj.NoPE()) == {"rope_parameters": {"full_attention": None}}
    assert rope_from_hf(rope_to_hf(rj.NoPE())) == rj.NoPE()
    assert rope_from_hf(rope_to_hf(rj.NoPE()), layer_type="full_attention") == rj.NoPE()

    rope = rj.RoPE(base=5e5, rotary_fraction=0.5, layout="interleaved", scaling=rj.DynamicNTK(factor=2.0, original_length=64))
    assert rope_to_hf(rope) == {
        "rope_parameters": {"rope_type": "dynamic", "rope_theta": 5e5, "partial_rotary_factor": 0.5, "factor": 2.0},
        "max_position_embeddings": 64,
        "rope_interleave": True,
    }
    assert rope_to_hf(rj.RoPE(sections=(4, 2, 2), arrangement="interleaved")) == {
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10_000.0,
            "mrope_section": [4, 2, 2],
            "mrope_interleaved": True,
        }
    }


def test_ntk_written_as_its_remedy_says_has_the_same_frequencies():
    rope, width = rj.RoPE(scaling=rj.NTK(factor=4.0)), 64
    written = rope_to_hf(dataclasses.replace(rope, base=rope.base * 4.0 ** (width / (width - 2)), scaling=None))
    np.testing.assert_allclose(rope_from_hf(written).frequencies(width).inv_freq, rope.frequencies(width).inv_freq, rtol=1e-6)
