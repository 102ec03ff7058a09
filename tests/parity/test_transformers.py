"""Random configs, rotations, buckets and slopes, compared live with transformers 5.24.0 (the extra `parity`)."""

import importlib
import json
import logging

import jax.numpy as jnp
import numpy as np
import pytest

import rope_jax as rj
from looping import for_each
from rope_jax.interop import rope_from_hf
from rope_jax.interop.rope_types import INTERLEAVED_MODELS

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.parity

CONFIGS = 60  # of each type
TYPES = ("default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional")


@pytest.fixture(autouse=True)
def quiet():
    """transformers logs what it finds odd in a config; some of these are odd on purpose."""
    logging.getLogger("transformers").setLevel(logging.ERROR)


def drawn(rng, rope_type):
    """A random whole config of the type, in one of the forms that configs are published in, and lengths worth a look."""

    def maybe(**options):
        return {key: value for key, value in options.items() if rng.random() < 0.5}

    head_dim = int(rng.choice([8, 16, 32, 64, 80, 128, 256]))
    fraction = float(rng.choice([1.0, 0.25, 0.5, 0.75, 0.4, round(rng.uniform(0.2, 1.0), 3)]))
    if int(head_dim * fraction) % 2 or int(head_dim * fraction) < 4:
        fraction = 1.0
    pairs = int(head_dim * fraction) // 2
    original = int(rng.choice([64, 512, 2048, 4096, 8192, 32768]))
    factor = round(float(rng.choice([1.0, rng.uniform(1, 4), rng.uniform(4, 64)])), 3)
    longest = int(original * factor)
    lengths = [None, original - 1, original, original + 1, longest, longest + 1, 3 * longest]
    part = {
        "default": {},
        "linear": {"factor": factor},
        "dynamic": {"factor": factor},
        "yarn": {"factor": factor}
        | maybe(
            attention_factor=round(rng.uniform(0.5, 1.5), 3),
            truncate=bool(rng.random() < 0.5),
            beta_fast=float(rng.choice([24, 32, 48])),
            beta_slow=float(rng.choice([0.5, 1, 2])),
            mscale=float(rng.choice([0.0, 0.7, 1.0, 1.2])),
            mscale_all_dim=float(rng.choice([0.0, 0.7, 1.0])),
        ),
        "longrope": {
            "short_factor": rng.uniform(1, 3, pairs).round(3).tolist(),
            "long_factor": rng.uniform(1, 64, pairs).round(3).tolist(),
        }
        | maybe(factor=factor, attention_factor=round(rng.uniform(0.5, 1.5), 3)),
        "llama3": {
            "factor": factor,
            "low_freq_factor": float(rng.choice([0.5, 1.0, 2.0])),
            "high_freq_factor": float(rng.choice([3.0, 4.0, 8.0])),
        },
        "proportional": maybe(factor=factor),
    }[rope_type]
    config = {"hidden_size": 4 * head_dim, "num_attention_heads": 4, "max_position_embeddings": longest}
    if rng.random() < 0.5:
        config |= {"hidden_size": 256, "head_dim": head_dim}
    if rope_type in ("yarn", "longrope", "llama3"):
        place = rng.choice(["inside", "top", "nowhere"])
        if place == "inside":
            part["original_max_position_embeddings"] = original
        elif place == "top":
            config["original_max_position_embeddings"] = original
    theta = float(rng.choice([5000.0, 10_000.0, 150_000.0, 500_000.0, 1e6]))
    shared = {"rope_theta": theta} | ({} if fraction == 1 else {"partial_rotary_factor": fraction})
    if rng.random() < 0.5:
        return config | {"rope_parameters": {"rope_type": rope_type} | shared | part}, head_dim, lengths
    if rope_type == "default":
        return config | shared | {"rope_scaling": None}, head_dim, lengths
    return config | shared | {"rope_scaling": {rng.choice(["type", "rope_type"]).item(): rope_type} | part}, head_dim, lengths


def reference(config, length):
    """(inv_freq, attention_scale) as transformers computes them for a Llama of this config."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    from transformers.models.phi.modeling_phi import PhiRotaryEmbedding

    made = transformers.LlamaConfig(**json.loads(json.dumps(config)))
    rope_type = made.rope_parameters["rope_type"]
    if rope_type == "default":  # Phi's reads partial_rotary_factor
        inv_freq, scale = PhiRotaryEmbedding.compute_default_rope_parameters(made)
    else:
        inv_freq, scale = ROPE_INIT_FUNCTIONS[rope_type](made, None, seq_len=length)
    return inv_freq.numpy(), scale


@for_each("rope_type", TYPES)
def test_random_configs(rope_type, record_property):
    rng = np.random.default_rng([7, TYPES.index(rope_type)])
    worst_frequency = worst_scale = 0.0
    for _ in range(CONFIGS):
        config, head_dim, lengths = drawn(rng, rope_type)
        rope = rope_from_hf(config)
        for length in lengths:
            got = rope.frequencies(head_dim, length=length)
            inv_freq, scale = reference(config, length)
            turning = inv_freq != 0
            np.testing.assert_array_equal(np.asarray(got.inv_freq) != 0, turning, err_msg=str(config))
            errors = np.abs(np.asarray(got.inv_freq, np.float64)[turning] / inv_freq[turning] - 1)
            worst_frequency = max(worst_frequency, errors.max(initial=0.0))
            worst_scale = max(worst_scale, abs(float(got.attention_scale) / scale - 1))
            assert errors.max(initial=0.0) < 2e-6, (config, length)
            assert worst_scale < 1e-6, (config, length)
    record_property("worst relative error of a frequency", worst_frequency)
    record_property("worst relative error of an attention scale", worst_scale)
    print(f"{rope_type}: {CONFIGS} configs, frequencies within {worst_frequency:.1e}, scales within {worst_scale:.1e}")


def tensor(x):
    return torch.from_numpy(np.array(x))


@for_each("rope_type", ["default", "yarn", "longrope"])
def test_the_tables_of_a_model(rope_type):
    """cos and sin as a whole Llama rotary embedding gives them, attention scale folded in."""
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    rng = np.random.default_rng(8)
    part = {
        "default": {},
        "yarn": {"factor": 8.0, "original_max_position_embeddings": 64},
        "longrope": {
            "short_factor": rng.uniform(1, 3, 32).tolist(),
            "long_factor": rng.uniform(1, 64, 32).tolist(),
            "original_max_position_embeddings": 64,
        },
    }[rope_type]
    part = {"rope_type": rope_type, "rope_theta": 5e5} | part
    config = {"head_dim": 64, "max_position_embeddings": 512, "rope_parameters": part}
    positions = np.arange(300)
    embedding = LlamaRotaryEmbedding(transformers.LlamaConfig(**json.loads(json.dumps(config))))
    cos, sin = embedding(torch.zeros(1), tensor(positions)[None])
    got = rj.rotary_tables(rope_from_hf(config).frequencies(64, length=300), jnp.asarray(positions))
    np.testing.assert_allclose(got[0], cos[0, :, :32], atol=5e-5)
    np.testing.assert_allclose(got[1], sin[0, :, :32], atol=5e-5)


def modeling(model_type):
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    return importlib.import_module(CONFIG_MAPPING[model_type].__module__.replace(".configuration_", ".modeling_"))


def rotated_by(model_type, q, k, cos, sin):
    """q and k, [T, H, D], rotated by the model's function, which may use other shapes and another order of features."""
    module = modeling(model_type)
    q, k = tensor(q)[None], tensor(k)[None]
    cos, sin = tensor(cos)[None], tensor(sin)[None]
    twice = [torch.cat([x, x], dim=-1) for x in (cos, sin)]
    if model_type in ("gptj", "codegen"):
        return [module.apply_rotary_pos_emb(x, sin, cos)[0] for x in (q, k)]
    if model_type == "llama4_text":
        return [x[0] for x in module.apply_rotary_emb(q, k, torch.complex(cos, sin))]
    q, k = q.transpose(1, 2), k.transpose(1, 2)
    if model_type == "deepseek_v2":
        out = module.apply_rotary_emb(q, k, torch.complex(cos, sin))
    elif hasattr(module, "apply_rotary_pos_emb_interleave"):
        out = module.apply_rotary_pos_emb_interleave(q, k, *twice)
    elif model_type.startswith("cohere") or model_type in ("glm4v_text", "glm_ocr_text"):  # tables are made in pairs elsewhere
        out = module.apply_rotary_pos_emb(q, k, *[x.repeat_interleave(2, dim=-1) for x in (cos, sin)])
    else:
        out = module.apply_rotary_pos_emb(q, k, *twice)
    return [x[0].transpose(0, 1) for x in out]


HALF_MODELS = ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma3_text", "gpt_neox", "phi3", "olmo2", "granite", "glm4_moe")


@for_each("model_type", [*sorted(INTERLEAVED_MODELS), *HALF_MODELS])
def test_the_layout_of_a_model(model_type):
    """Scores, not features: some models reorder them while they rotate them."""
    rng = np.random.default_rng(9)
    q, k = rng.standard_normal((2, 12, 3, 16)).astype(np.float32)
    cos, sin = (np.asarray(x) for x in rj.rotary_tables(rj.rotary_frequencies(16), jnp.arange(12)))
    rotated = [np.asarray(x) for x in rotated_by(model_type, q, k, cos, sin)]
    layer_type = "full_attention" if model_type == "gemma3_text" else None
    layout = rope_from_hf({"model_type": model_type}, layer_type=layer_type).layout
    assert layout == ("interleaved" if model_type in INTERLEAVED_MODELS else "half")
    ours = [np.asarray(rj.rotate(jnp.asarray(x), cos, sin, layout=layout)) for x in (q, k)]
    expected, got = (np.einsum("thd,shd->hts", *pair) for pair in (rotated, ours))
    np.testing.assert_allclose(got, expected, atol=2e-5)


def test_rotations_are_those_of_llama():
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    rng = np.random.default_rng(10)
    for head_dim in (2, 8, 64, 128):
        q, k = rng.standard_normal((2, 20, 2, head_dim)).astype(np.float32)
        cos, sin = (np.asarray(x) for x in rj.rotary_tables(rj.rotary_frequencies(head_dim), rng.integers(0, 4096, 20)))
        twice = [tensor(np.concatenate([x, x], axis=-1))[None] for x in (cos, sin)]
        expected = apply_rotary_pos_emb(tensor(q)[None], tensor(k)[None], *twice, unsqueeze_dim=2)
        for x, y in zip((q, k), expected, strict=True):
            np.testing.assert_allclose(rj.rotate(jnp.asarray(x), cos, sin), y[0], atol=1e-6)


@for_each("bidirectional", [False, True])
def test_t5_buckets(bidirectional):
    from transformers.models.t5.modeling_t5 import T5Attention

    offsets = np.arange(-3000, 3000)
    for num_buckets, max_distance in ((32, 128), (8, 20), (16, 128), (64, 1000), (32, 256), (4, 7), (30, 99)):
        options = {"bidirectional": bidirectional, "num_buckets": num_buckets, "max_distance": max_distance}
        expected = T5Attention._relative_position_bucket(tensor(offsets), **options)
        np.testing.assert_array_equal(rj.t5_bucket(jnp.asarray(offsets), **options), expected)


def test_alibi_slopes():
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    for heads in range(1, 65):
        expected = build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)[:, 0, 1]
        np.testing.assert_allclose(rj.alibi_slopes(heads), expected, rtol=1e-6)


def test_every_type_of_rope_is_read():
    """What this version of transformers computes and we do not read would show here."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    assert set(ROPE_INIT_FUNCTIONS) | {"default"} == set(TYPES)
