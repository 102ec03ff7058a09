"""Published model configs, read and compared with what transformers computes from them (`expected_source` in each file)."""

import json
from pathlib import Path

import numpy as np
import pytest

import rope_jax as rj
from looping import for_each
from rope_jax.interop import rope_from_hf, rope_to_hf

FIXTURES = Path(__file__).parents[1] / "fixtures"
FILES = sorted((FIXTURES / "hf_configs").glob("*.json"))
CONFIGS = {path.stem: json.loads(path.read_text()) for path in FILES}
CASES = [(name, index) for name, fixture in CONFIGS.items() for index in range(len(fixture["expected"]))]


@for_each(("name", "index"), CASES)
def test_frequencies_of_published_configs(name, index):
    case = CONFIGS[name]["expected"][index]
    rope = rope_from_hf(CONFIGS[name]["config"], layer_type=case["layer_type"])
    got = rope.frequencies(case["head_dim"], length=case["length"])
    np.testing.assert_allclose(got.inv_freq, case["inv_freq"], rtol=2e-6)
    assert float(got.attention_scale) == pytest.approx(case["attention_scale"], rel=1e-6)
    assert rope.layout == CONFIGS[name]["layout"]
    assert rope_from_hf(json.loads(json.dumps(rope_to_hf(rope)))) == rope


@for_each("name", [name for name, fixture in CONFIGS.items() if "tables" in fixture])
def test_several_axes_of_published_configs(name):
    """Qwen2-VL's sections name half of what its code splits, cos and sin twice over: that is our chunked arrangement."""
    expected = CONFIGS[name]["tables"]
    rope = rope_from_hf(CONFIGS[name]["config"])
    cos, sin = rj.rotary_tables(
        rope.frequencies(128), np.array(expected["positions"]), sections=rope.sections, arrangement=rope.arrangement
    )
    np.testing.assert_allclose(cos, expected["cos"], atol=2e-6)
    np.testing.assert_allclose(sin, expected["sin"], atol=2e-6)


@for_each(
    ("name", "layer_type", "expected"),
    [
        (
            "llama-3.1-8b",
            None,
            rj.RoPE(
                base=500_000.0,
                scaling=rj.Llama3(factor=8.0, original_length=8192, low_freq_factor=1.0, high_freq_factor=4.0),
            ),
        ),
        ("llama-4-scout", None,
         rj.RoPE(base=500_000.0, layout="interleaved",
                 scaling=rj.Llama3(factor=16.0, original_length=8192, low_freq_factor=1.0, high_freq_factor=1.0))),
        ("qwen2.5-7b-yarn", None, rj.RoPE(base=1e6, scaling=rj.YaRN(factor=4.0, original_length=32768))),
        ("gpt-oss-20b", "sliding_attention",
         rj.RoPE(base=150_000.0, scaling=rj.YaRN(factor=32.0, original_length=4096, truncate=False))),
        ("deepseek-v3", None,
         rj.RoPE(layout="interleaved", scaling=rj.YaRN(factor=40.0, original_length=4096, mscale=1.0, mscale_all_dim=1.0))),
        ("gemma-3-12b", "full_attention", rj.RoPE(base=1e6, scaling=rj.Linear(factor=8.0))),
        ("gemma-3-12b", "sliding_attention", rj.RoPE()),
        ("gemma-3-12b-v5", "full_attention", rj.RoPE(base=1e6, scaling=rj.Linear(factor=8.0))),
        ("gemma-3-12b-v5", "sliding_attention", rj.RoPE()),
        ("pythia-14m", None, rj.RoPE(rotary_fraction=0.25)),
        ("phi-2", None, rj.RoPE(rotary_fraction=0.4)),
        ("gpt-j-6b", None, rj.RoPE(rotary_fraction=0.25, layout="interleaved")),
        ("modernbert-base", "full_attention", rj.RoPE(base=160_000.0)),
        ("qwen2-vl-7b", None, rj.RoPE(base=1e6, sections=(16, 24, 24))),
        ("qwen3-vl-30b", None, rj.RoPE(base=5e6, sections=(24, 20, 20), arrangement="interleaved")),
    ],
)  # fmt: skip
def test_what_published_configs_say(name, layer_type, expected):
    assert rope_from_hf(CONFIGS[name]["config"], layer_type=layer_type) == expected


def test_absent_factors_and_the_number_of_generated_configs():
    scaling = rope_from_hf(CONFIGS["phi-3.5-mini"]["config"]).scaling
    assert (scaling.factor, scaling.original_length) == (131072 / 4096, 4096)
    assert scaling.attention_factor is None

    assert len(GENERATED) >= 45


GENERATED = json.loads((FIXTURES / "transformers_5_24.json").read_text())["frequencies"]


@for_each("case", GENERATED)
def test_frequencies_of_generated_configs(case):
    got = rope_from_hf(case["config"]).frequencies(case["head_dim"], length=case["length"])
    np.testing.assert_allclose(got.inv_freq, case["inv_freq"], rtol=2e-6)
    assert float(got.attention_scale) == pytest.approx(case["attention_scaling"], rel=1e-6)
