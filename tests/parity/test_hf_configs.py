"""The expected values in tests/fixtures/hf_configs are what transformers computes, computed again by its own model classes."""

import importlib
import json
from pathlib import Path

import numpy as np
import pytest

from looping import for_each
from rope_jax.interop import rope_from_hf

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.parity

CONFIGS = sorted((Path(__file__).parents[1] / "fixtures" / "hf_configs").glob("*.json"))
TABLE_POSITIONS = [[0, 1, 7, 30], [0, 2, 5, 9], [0, 3, 11, 4]]  # time, height, width of four tokens


def reference(config):
    """A transformers config object and the rotary embedding class of its model, from a published config."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    text = config.get("text_config", config)
    kind = {"qwen2_vl": "qwen2_vl_text", "qwen3_vl_moe_text": "qwen3_vl_text"}.get(text["model_type"], text["model_type"])
    options = {key: value for key, value in json.loads(json.dumps(text)).items() if key != "model_type"}
    layers = len(options["layer_types"]) if "layer_types" in options else 6
    made = CONFIG_MAPPING[kind](**options | {"num_hidden_layers": layers})
    module = importlib.import_module(type(made).__module__.replace(".configuration_", ".modeling_"))
    name = next(n for n in vars(module) if n.endswith("RotaryEmbedding") and "Vision" not in n and "Dynamic" not in n)
    return made, getattr(module, name)


def expected(config, layer_type=None, length=None):
    """(inv_freq, attention_scale), float32 as transformers computes them."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    made, embedding = reference(config)
    if made.model_type == "gptj":  # it has tables only: the angles at position 1
        sin, cos = embedding(made)(torch.zeros(1), torch.tensor([[1]]))
        return torch.atan2(sin, cos)[0, 0].numpy(), 1.0
    parameters = made.rope_parameters if layer_type is None else made.rope_parameters[layer_type]
    layer = {} if layer_type is None else {"layer_type": layer_type}
    if parameters["rope_type"] == "default":
        inv_freq, scale = embedding.compute_default_rope_parameters(made, **layer)
    else:
        inv_freq, scale = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](made, None, seq_len=length, **layer)
    return inv_freq.numpy(), scale


def tables(config):
    """(cos, sin), [T, R/2], of a model with three position axes at TABLE_POSITIONS."""
    made, embedding = reference(config)
    cos, sin = embedding(made)(torch.zeros(1), torch.tensor(TABLE_POSITIONS)[:, None])
    return cos[0, :, : cos.shape[-1] // 2].numpy(), sin[0, :, : sin.shape[-1] // 2].numpy()


@for_each("path", CONFIGS)
def test_the_fixture_is_what_transformers_computes(path):
    fixture = json.loads(path.read_text())
    for case in fixture["expected"]:
        inv_freq, scale = expected(fixture["config"], case["layer_type"], case["length"])
        np.testing.assert_allclose(case["inv_freq"], inv_freq, rtol=2e-6)
        assert case["attention_scale"] == pytest.approx(scale, rel=1e-6)
    if "tables" in fixture:
        cos, sin = tables(fixture["config"])
        np.testing.assert_allclose(fixture["tables"]["cos"], cos, atol=1e-6)
        np.testing.assert_allclose(fixture["tables"]["sin"], sin, atol=1e-6)


def test_defaults_of_model_types_are_those_of_transformers():
    """Every model_type whose defaults are known here, with a config that says nothing of rope."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    from rope_jax.interop import rope_types

    tables = (rope_types._BASES, rope_types._FRACTIONS, rope_types._LOCAL_BASES)
    names = {name for table in tables for models in table.values() for name in models}
    assert len(names) > 25
    for name in names:
        parameters = CONFIG_MAPPING[name]().rope_parameters
        by_layer = "rope_type" not in parameters
        for layer_type, part in parameters.items() if by_layer else [(None, parameters)]:
            if name == "olmo3":  # both entries are one
                layer_type = None
            rope = rope_from_hf({"model_type": name}, layer_type=layer_type)
            assert rope.base == part["rope_theta"], name
            assert rope.rotary_fraction == part.get("partial_rotary_factor", 1.0), name
