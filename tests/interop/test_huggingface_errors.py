"""An error in a config names the key, its value and what is accepted."""

import dataclasses

import pytest

import rope_jax as rj
from looping import for_each
from rope_jax.interop import rope_from_hf, rope_to_hf

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
LONG = {
    "rope_type": "longrope",
    "short_factor": [1.0, 2.0],
    "long_factor": [3.0, 4.0],
    "factor": 2.0,
    "original_max_position_embeddings": 64,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "max_position_embeddings": 64}
MODEL = {"hidden_size": 64, "num_attention_heads": 4}
LAYERS = {"full_attention": YARN, "sliding_attention": {"rope_type": "default"}}


def without(config, *keys):
    return {key: value for key, value in config.items() if key not in keys}


# a key is missing: of a rope part, alone or in a config
MISSING = [
    (without({"rope_type": "linear", "factor": 2.0}, "factor"), "a 'linear' rope needs factor; add it"),
    (without(DYNAMIC, "factor"), "a 'dynamic' rope needs factor"),
    (without(DYNAMIC, "max_position_embeddings"), "needs max_position_embeddings; .* or pass the whole model config"),
    (without(YARN, "factor"), "a 'yarn' rope needs factor"),
    (without(YARN, "original_max_position_embeddings"), "a 'yarn' rope needs original_max_position_embeddings"),
    (without(LONG, "short_factor"), "a 'longrope' rope needs short_factor"),
    (without(LONG, "long_factor"), "a 'longrope' rope needs long_factor"),
    (without(LONG, "factor"), "a 'longrope' rope needs factor"),
    (without(LONG, "original_max_position_embeddings"), "a 'longrope' rope needs original_max_position_embeddings"),
    (without(LLAMA3, "factor"), "a 'llama3' rope needs factor"),
    (without(LLAMA3, "low_freq_factor", "high_freq_factor"), "needs low_freq_factor, high_freq_factor"),
    (without(LLAMA3, "original_max_position_embeddings"), "a 'llama3' rope needs original_max_position_embeddings"),
    (YARN | {"factor": None}, "a 'yarn' rope needs factor"),
    ({"type": "mrope"}, "type 'mrope' needs mrope_section"),
]
# a key or type is unknown
UNKNOWN = [
    (YARN | {"beta_fats": 32}, "a key of a 'yarn' rope must be one of .*; perhaps you meant 'beta_fast', got beta_fats=32"),
    (YARN | {"attn_factor": 1.0}, "perhaps you meant 'attention_factor', got attn_factor=1.0"),
    (YARN | {"truncat": None}, "perhaps you meant 'truncate', got truncat=None"),
    (YARN | {"llama_4_scaling_beta": 0.1}, "got llama_4_scaling_beta=0.1"),
    ({"factor": 2.0}, "a key of a 'default' rope must be one of .*got factor=2.0"),
    ({"rope_type": "linear", "factor": 2.0, "original_max_position_embeddings": 8}, "a key of a 'linear' rope"),
    ({"rope_type": "linear", "factor": 2.0, "short_factor": [1.0]}, "got short_factor="),
    ({"rope_type": "yarm"}, "rope_type must be one of 'default', .*'yarn'.*; perhaps you meant 'yarn', got yarm"),
    ({"type": "ntk"}, "type must be one of 'default', .*got ntk"),
]
# a value cannot be
VALUES = [
    ({"rope_theta": "10000"}, "rope_theta must be a positive number, got '10000'"),
    ({"rope_theta": 0}, "rope_theta must be a positive number, got 0"),
    ({"rope_theta": True}, "rope_theta must be a positive number, got True"),
    ({"rope_theta": float("nan")}, "rope_theta must be a positive number, got nan"),
    ({"rope_type": 3}, "rope_type must be a string, got 3"),
    ({"rope_type": "linear", "factor": -2.0}, "factor must be a positive number, got -2.0"),
    ({"rope_type": "linear", "factor": [2.0]}, r"factor must be a positive number, got \[2.0\]"),
    ({"rope_type": "linear", "factor": float("inf")}, "factor must be a positive number, got inf"),
    ({"partial_rotary_factor": 0}, "partial_rotary_factor must be a number above 0 and at most 1, got 0"),
    ({"partial_rotary_factor": 1.5}, "partial_rotary_factor must be a number above 0 and at most 1, got 1.5"),
    (
        {"rope_type": "proportional", "partial_rotary_factor": -0.5},
        "partial_rotary_factor must be a number from 0 to 1, got -0.5",
    ),
    (
        YARN | {"original_max_position_embeddings": 512.5},
        "original_max_position_embeddings must be a positive integer, got 512.5",
    ),
    (YARN | {"original_max_position_embeddings": 0}, "original_max_position_embeddings must be a positive integer, got 0"),
    (DYNAMIC | {"max_position_embeddings": -1}, "max_position_embeddings must be a positive integer, got -1"),
    (YARN | {"truncate": 1}, "truncate must be true or false, got 1"),
    (YARN | {"finetuned": "yes"}, "finetuned must be true or false, got 'yes'"),
    (YARN | {"mscale": -1.0}, "mscale must be a number that is not negative, got -1.0"),
    (YARN | {"mscale": False}, "mscale must be a number that is not negative, got False"),
    (YARN | {"attention_factor": 0}, "attention_factor must be a positive number, got 0"),
    (YARN | {"beta_slow": 0}, "beta_slow must be a positive number, got 0"),
    (YARN | {"beta_slow": 64}, "0 < beta_slow <= beta_fast, got beta_slow=64"),
    (YARN | {"rope_theta": 1.0}, "rope_theta of a 'yarn' rope must be above 1, got 1.0"),
    (LLAMA3 | {"low_freq_factor": 5.0}, "low_freq_factor <=? high_freq_factor, got low_freq_factor=5.0"),
    (LONG | {"short_factor": 1.0}, "short_factor must be a list of positive numbers, .*, got 1.0"),
    (LONG | {"long_factor": [1.0, "2"]}, r"long_factor must be a list of positive numbers, .*, got \[1.0, '2'\]"),
    (LONG | {"long_factor": [1.0, 0.0]}, "long_factor must be a list of positive numbers"),
    (LONG | {"long_factor": []}, "long_factor must be a list of positive numbers"),
    (LONG | {"long_factor": [1.0]}, "short_factor and long_factor must be equally long, got 2 and 1"),
    (LONG | {"original_max_position_embeddings": 1}, "original_length of 1 gives no attention_scale"),
    ({"mrope_section": [16, 24.5]}, "mrope_section must be a list of positive integers"),
    ({"mrope_section": 64}, "mrope_section must be a list of positive integers .*, got 64"),
    (
        {"mrope_interleaved": True},
        "mrope_interleaved goes with mrope_section, .*got mrope_interleaved=True, .*mrope_section=None",
    ),
    (
        {"mrope_section": [4, 4], "mrope_interleaved": True, "interleaved": False},
        "no other value of interleaved, got .*False",
    ),
    ({"rope_type": "yarn", "type": "linear"}, "rope_type='yarn' and type='linear' contradict each other; keep rope_type"),
]
# a whole config cannot be
WHOLE = [
    ({"rope_scaling": "yarn"}, "rope_scaling must be a mapping or null, got 'yarn'"),
    ({"rope_parameters": [1]}, r"rope_parameters must be a mapping or null, got \[1\]"),
    (
        {"rope_parameters": {"rope_theta": 5.0}, "rope_scaling": YARN},
        "rope_parameters and rope_scaling contradict each other",
    ),
    (MODEL | {"rope_theta": "1e4"}, "rope_theta must be a positive number, got '1e4'"),
    (MODEL | {"rotary_emb_base": -1}, "rotary_emb_base must be a positive number, got -1"),
    (MODEL | {"rotary_pct": 2}, "rotary_pct must be a number above 0 and at most 1, got 2"),
    (MODEL | {"partial_rotary_factor": 0}, "partial_rotary_factor must be a number above 0"),
    (MODEL | {"rope_local_base_freq": 0}, "rope_local_base_freq must be a positive number, got 0"),
    (MODEL | {"rope_interleave": "yes"}, "rope_interleave must be true or false, got 'yes'"),
    (MODEL | {"model_type": ["glm"]}, r"model_type must be a string, got \['glm'\]"),
    (MODEL | {"rotary_dim": 8.0}, "rotary_dim must be a positive integer, got 8.0"),
    (MODEL | {"rotary_dim": 32}, "rotary_dim must be at most head_dim, got rotary_dim=32 and head_dim=16"),
    ({"rotary_dim": 32}, "rotary_dim must be at most head_dim, got rotary_dim=32 and head_dim=None"),
    (MODEL | {"qk_rope_head_dim": "64"}, "qk_rope_head_dim must be a positive integer, got '64'"),
    (
        {"max_position_embeddings": "long", "rope_scaling": YARN},
        "max_position_embeddings must be a positive integer, got 'long'",
    ),
    ({"original_max_position_embeddings": 1.5, "rope_scaling": YARN}, "original_max_position_embeddings must be a positive"),
    # the head dim is known
    (
        {"head_dim": 10, "partial_rotary_factor": 0.5},
        r"head_dim=10, partial_rotary_factor=0.5.*int\(head_dim 10 \* .* 0.5\) = 5",
    ),
    ({"hidden_size": 60, "num_attention_heads": 4}, r"head_dim=15.* = 15; choose them so that this is even"),
    ({"head_dim": 4, "hidden_size": 64, "num_attention_heads": 2, "partial_rotary_factor": 0.3}, " = 1; choose"),
    (MODEL | {"rope_scaling": LONG}, "head_dim=16.*short_factor has 2 numbers, but rotary_dim 16 has 8 pairs"),
    (
        {"head_dim": 8, "partial_rotary_factor": 0.75, "rope_scaling": LONG},
        "short_factor has 2 numbers, but rotary_dim 6 has 3",
    ),
    (MODEL | {"qk_rope_head_dim": 6, "rope_scaling": LONG}, "short_factor has 2 numbers, but rotary_dim 6 has 3 pairs"),
    (
        MODEL | {"rope_scaling": {"mrope_section": [2, 3, 4]}},
        r"mrope_section=\(2, 3, 4\).*must sum to the 8 rotated pairs, got 9",
    ),
    (
        MODEL | {"rope_scaling": {"mrope_section": [1, 5, 2], "mrope_interleaved": True}},
        "do not fit: axis 1 would take pair 13 of 8",
    ),
    (
        {"head_dim": 128, "qk_rope_head_dim": 64, "partial_rotary_factor": 0.25},
        "factor=0.25 and qk_rope_head_dim=64 contradict",
    ),
    ({"n_embd": 30, "n_head": 2, "rotary_dim": 3}, "= 3; choose"),
]
# what would be overlooked
OVERLOOKED = [
    ({"model_type": "llama", "rope_scalling": LLAMA3}, "'rope_scalling'|perhaps you meant 'rope_scaling'"),
    ({"model_type": "llama", "rope_tetha": 5e5}, "perhaps you meant 'rope_theta'"),
    (
        {"model_type": "chatglm", "rope_ratio": 500},
        "rope_ratio=500 is not a key that transformers reads; multiply rope_theta",
    ),
    ({"model_type": "falcon", "alibi": True}, "alibi=True is not a key that transformers reads; use ALiBi"),
    ({"model_type": "internvl", "llm_config": {"rope_theta": 1e6}}, "its 'llm_config' does; pass that part"),
    ({"hidden_size": 100, "num_attention_heads": 3}, "hidden_size=100 is not divisible by num_attention_heads=3"),
    ({"head_dim": "64", "rope_theta": 1e4}, "head_dim must be a number, got '64'; remove the quotes"),
    ({"rope_theta": 1e4, "factor": 2.0}, "got factor=2.0; is its rope_type missing"),
    (
        {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0], "original_max_position_embeddings": 8},
        "needs factor; .* or max_position_embeddings, from which it follows",
    ),
]
# a layer type is missing, or there is none
LAYER_TYPES = [
    (LAYERS, None, "layer_type must be one of 'full_attention', 'sliding_attention', got None"),
    ({"rope_parameters": LAYERS}, "full", "layer_type must be one of 'full_attention', 'sliding_attention', got 'full'"),
    (
        {"rope_parameters": LAYERS | {"rope_theta": 1e4}},
        "full_attention",
        "holds mappings and nulls only, got rope_theta=10000.0",
    ),
    ({"rope_theta": 1e6, "rope_local_base_freq": 1e4}, None, "one of 'full_attention', 'sliding_attention', got None"),
    ({"rope_parameters": {"full_attention": None}}, "sliding_attention", "one of 'full_attention', got 'sliding_attention'"),
    (
        {"rope_parameters": YARN},
        "full_attention",
        "one rope for all layers, got layer_type='full_attention'; leave layer_type out",
    ),
    ({"rope_parameters": YARN, "layer_types": ["full_attention"]}, "sliding_attention", "leave layer_type out"),
    (YARN, "full_attention", "leave layer_type out"),
    ({"rope_parameters": YARN, "layer_types": 3}, "full_attention", "layer_types must be a list .*, got 3"),
    (
        {"rope_parameters": {"full_attention": YARN | {"facter": 1}}},
        "full_attention",
        "perhaps you meant 'factor', got facter=1",
    ),
]


@for_each(
    ("config", "layer_type", "message"),
    [
        *((config, None, message) for part, message in MISSING for config in (part, {"rope_scaling": part})),
        *((config, None, message) for part, message in UNKNOWN for config in (part, {"rope_parameters": part} | MODEL)),
        *((config, None, message) for part, message in VALUES for config in (part, {"rope_parameters": part})),
        *((config, None, message) for config, message in (*WHOLE, *OVERLOOKED)),
        *LAYER_TYPES,
        *((config, None, "rope_from_hf reads a mapping") for config in (None, "llama", [1], 3)),
    ],
)
def test_an_error_of_a_config_names_the_key_and_its_value(config, layer_type, message):
    with pytest.raises(ValueError, match=message):
        rope_from_hf(config, layer_type=layer_type)


@for_each(
    ("rope", "message"),
    [
        (rj.RoPE(scaling=rj.NTK(factor=2.0)), r"scaling=NTK\(factor=2.0\); for a rotated width d it is plain RoPE: replace\("),
        (rj.RoPE(scaling=rj.DynamicLinear(original_length=8)), r"scaling=DynamicLinear\(original_length=8\); .*Linear\(factor"),
        (rj.RoPE(scaling=rj.Resonance()), r"scaling=Resonance\(of=None\); write one of 'default', 'linear'"),
        (rj.RoPE(learn_base=True), r"learn_base=True; .*replace\(rope, base=..., learn_base=False\)"),
        (rj.RoPE(learn_angles=True), "learn_angles=True; a config has no key for learned frequencies"),
        (rj.RoPE(head_fraction=0.5), "head_fraction=0.5; Hugging Face models rotate all heads"),
        (rj.RoPE(exact=True), r"exact=True; .*replace\(rope, exact=False\)"),
        (rj.RoPE(sections=(4, 4), arrangement="axial"), "arrangement='axial'; use 'chunked' or 'interleaved'"),
        (rj.RoPE(rotary_fraction=0.5, scaling=rj.Proportional(fraction=0.5)), "rotary_fraction=0.5 together with Proportional"),
        (
            rj.RoPE(scaling=rj.YaRN(factor=2.0, original_length=8, mscale=0.0)),
            "YaRN mscale=0.0, which would be read back as",
        ),
        (rj.Learned(max_length=8), "writes RoPE and NoPE, got Learned"),
        (rj.ALiBi(), "writes RoPE and NoPE, got ALiBi"),
        (
            rj.RoPE(scaling=rj.LongRoPE(short_factor=(1.0,), long_factor=(1.0, 2.0), original_length=8, factor=2.0)),
            "must be equally long",
        ),
    ],
)
def test_what_a_config_cannot_say(rope, message):
    with pytest.raises(ValueError, match=message):
        rope_to_hf(rope)


def test_every_field_of_rope_is_written_or_refused():
    """A field that RoPE gains later cannot be dropped silently: whatever is not the default must come back, or be refused."""
    changed = {
        "base": 500.0,
        "layout": "interleaved",
        "rotary_fraction": 0.5,
        "head_fraction": 0.5,
        "scaling": rj.Linear(factor=2.0),
        "learn_base": True,
        "learn_angles": True,
        "sections": (4, 4),
        "arrangement": "interleaved",
        "exact": True,
    }
    for field in dataclasses.fields(rj.RoPE):
        needed = {"sections": (4, 4)} if field.name == "arrangement" else {}
        rope = rj.RoPE(**{field.name: changed[field.name]}, **needed)
        try:
            written = rope_to_hf(rope)
        except ValueError as error:
            assert field.name in str(error)  # noqa: PT017
        else:
            assert rope_from_hf(written) == rope != rj.RoPE()


def test_what_a_known_model_leaves_out_is_its_default():
    """Gemma 3's published configs have neither base; `tests/parity` compares every default with transformers."""
    gemma = {
        "model_type": "gemma3",
        "text_config": {"model_type": "gemma3_text", "rope_scaling": {"factor": 8.0, "rope_type": "linear"}},
    }
    assert rope_from_hf(gemma, layer_type="full_attention") == rj.RoPE(base=1e6, scaling=rj.Linear(factor=8.0))
    assert rope_from_hf(gemma, layer_type="sliding_attention") == rj.RoPE()
    assert rope_from_hf({"model_type": "mixtral"}).base == 1e6
    assert rope_from_hf({"model_type": "mixtral", "rope_theta": 5e4}).base == 5e4
    assert rope_from_hf({"model_type": "gpt_neox"}).rotary_fraction == 0.25
    assert rope_from_hf({"rope_scaling": None, "text_config": {"rope_theta": 1e6}}).base == 1e6
