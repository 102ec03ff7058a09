"""The format of Hugging Face rope configs: the types of rope, their keys, and the values that each key may have."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rope_jax.encoders.rotary.scaling.base import FrequencyMap
from rope_jax.encoders.rotary.scaling.dynamic_ntk import DynamicNTK
from rope_jax.encoders.rotary.scaling.linear import Linear
from rope_jax.encoders.rotary.scaling.llama3 import Llama3
from rope_jax.encoders.rotary.scaling.longrope import LongRoPE
from rope_jax.encoders.rotary.scaling.proportional import Proportional
from rope_jax.encoders.rotary.scaling.yarn import YaRN

ORIGINAL = "original_max_position_embeddings"
LONGEST = "max_position_embeddings"
FRACTION = "partial_rotary_factor"


@dataclass(frozen=True, kw_only=True)
class RopeType:
    """One value of rope_type.

    Attributes:
      scaling: the frequency map of this library; None for plain RoPE.
      required, optional: Hugging Face's names of the map's options (`field_of` translates them).
      inert: known keys that change no frequency.
    """

    scaling: type[FrequencyMap] | None = None
    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    inert: tuple[str, ...] = ()

    @property
    def known(self) -> tuple[str, ...]:
        """Every key that a config of this type may have."""
        return tuple(dict.fromkeys((*COMMON, *self.required, *self.optional, *self.inert)))

    def checked(self, key: str, value: Any) -> Any:
        """As `checked` below, but the fraction may be 0 where it is an option of the map."""
        return checked(key, value, PART_OR_NONE if FRACTION in self.optional and key in TOP_NAMES[FRACTION] else None)


COMMON = ("rope_type", "type", "rope_theta", FRACTION, LONGEST, "mrope_section", "mrope_interleaved", "interleaved")

TYPES = {
    "default": RopeType(),
    "linear": RopeType(scaling=Linear, required=("factor",)),
    "dynamic": RopeType(scaling=DynamicNTK, required=("factor", LONGEST)),
    "yarn": RopeType(
        scaling=YaRN,
        required=("factor", ORIGINAL),
        optional=("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"),
        inert=("finetuned",),  # in the first YaRN checkpoints: how they were trained
    ),
    "longrope": RopeType(
        scaling=LongRoPE, required=("short_factor", "long_factor", ORIGINAL, "factor"), optional=("attention_factor",)
    ),
    "llama3": RopeType(scaling=Llama3, required=("factor", ORIGINAL, "low_freq_factor", "high_freq_factor")),
    "proportional": RopeType(scaling=Proportional, optional=(FRACTION, "factor")),
}
ALIASES = {"su": "longrope", "mrope": "default"}  # Phi-3's first name for it; Qwen2-VL's, which adds mrope_section

_FIELDS = {ORIGINAL: "original_length", LONGEST: "original_length", FRACTION: "fraction"}

# Older, model-specific names of a key, at the top level of a config.
TOP_NAMES = {
    "rope_theta": ("rope_theta", "rotary_emb_base", "global_rope_theta"),  # GPT-NeoX; ModernBERT
    FRACTION: (FRACTION, "rotary_pct"),  # GPT-NeoX
}
LOCAL_BASES = ("rope_local_base_freq", "local_rope_theta")  # the base of sliding-window layers: Gemma 3; ModernBERT

# Models whose code rotates neighbouring features, according to transformers 5.24.0; their published configs have no key for it.
INTERLEAVED_MODELS = frozenset(
    {
        *("gptj", "codegen", "cohere", "cohere2", "helium", "glm", "glm4", "ernie4_5", "ernie4_5_moe", "llama4_text"),
        *("glm4v_text", "glm_ocr_text", "moonshine", "moonshine_streaming", "mistral4", "youtu", "axk1"),
        *("deepseek_v2", "deepseek_v3", "deepseek_v32", "longcat_flash", "glm4_moe_lite", "glm_moe_dsa"),
    }
)


# The defaults of transformers 5.24.0 for keys that published configs of a model_type do not have (such as Gemma 3's).
_BASES = {
    1e6: ("mixtral", "phimoe", "lfm2", "lfm2_moe", "minimax", "qwen2_vl_text", "qwen2_5_vl_text", "gemma3_text", "gemma3n_text"),
    5e5: (
        "bitnet",
        "cohere",
        "csm",
        "ernie4_5",
        "ernie4_5_moe",
        "exaone",
        "flex_olmo",
        "llama4_text",
        "mllama_text_model",
        "olmo3",
    ),
    2e6: ("smollm3",),
    5e6: ("minimax_m2",),
    1e7: ("longcat_flash",),
    1e5: ("helium",),
}
_FRACTIONS = {
    0.5: ("bamba", "glm", "glm4", "glm4_moe", "nemotron", "persimmon", "phi", "recurrent_gemma"),
    0.25: ("gpt_neox", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "stablelm"),
}
_LOCAL_BASES: dict[float, tuple[str, ...]] = {1e4: ("gemma3_text", "gemma3n_text")}


def model_defaults(model_type: Any) -> dict[str, float]:
    """The keys and default values of transformers for a config of this model_type."""
    tables: dict[str, dict[float, tuple[str, ...]]] = {"rope_theta": _BASES, FRACTION: _FRACTIONS, LOCAL_BASES[0]: _LOCAL_BASES}
    return {key: value for key, table in tables.items() for value, models in table.items() if model_type in models}


# Keys of other libraries that change the encoding, and what to write instead.
FOREIGN = {
    "rope_embedding_base": "write it as rope_theta",
    "rope_ratio": "multiply rope_theta by it",
    "rope_position_scale": "write a 'linear' rope whose factor it is",
    "use_dynamic_ntk": "write a 'dynamic' rope, if the model uses its formula",
    "use_logn_attn": "leave it out, and compose the rope with LogN",
    "alibi": "use ALiBi",
}


def field_of(key: str) -> str:
    """The option of the frequency map that a key sets."""
    return _FIELDS.get(key, key)


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _positive(value: Any) -> bool:
    return _number(value) and value > 0


def _positive_int(value: Any) -> bool:
    return isinstance(value, int) and _positive(value)


def _all(test: Callable[[Any], bool], value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) > 0 and all(test(item) for item in value)


Kind = tuple[Callable[[Any], bool], str]
POSITIVE: Kind = (_positive, "a positive number")
POSITIVE_INT: Kind = (_positive_int, "a positive integer")
NOT_NEGATIVE: Kind = (lambda value: _number(value) and value >= 0, "a number that is not negative")
FLAG: Kind = (lambda value: isinstance(value, bool), "true or false")
PART: Kind = (lambda value: _number(value) and 0 < value <= 1, "a number above 0 and at most 1")
PART_OR_NONE: Kind = (lambda value: _number(value) and 0 <= value <= 1, "a number from 0 to 1")
FACTORS: Kind = (lambda value: _all(_positive, value), "a list of positive numbers, one for every pair of rotated features")
SIZES: Kind = (lambda value: _all(_positive_int, value), "a list of positive integers that sum to the rotated pairs")
NAME: Kind = (lambda value: isinstance(value, str), "a string")
NAMES: Kind = (lambda value: isinstance(value, (list, tuple)), "a list of the type of each layer")

KINDS: dict[str, Kind] = {
    **dict.fromkeys(("rope_type", "type", "model_type"), NAME),
    "layer_types": NAMES,
    **dict.fromkeys(("factor", "attention_factor", "beta_fast", "beta_slow"), POSITIVE),
    **dict.fromkeys(("low_freq_factor", "high_freq_factor", *TOP_NAMES["rope_theta"], *LOCAL_BASES), POSITIVE),
    **dict.fromkeys(("mscale", "mscale_all_dim"), NOT_NEGATIVE),
    **dict.fromkeys((ORIGINAL, LONGEST, "rotary_dim", "qk_rope_head_dim"), POSITIVE_INT),
    **dict.fromkeys(("truncate", "finetuned", "mrope_interleaved", "interleaved", "rope_interleave"), FLAG),
    **dict.fromkeys(("short_factor", "long_factor"), FACTORS),
    "mrope_section": SIZES,
    **dict.fromkeys(TOP_NAMES[FRACTION], PART),
}


def checked(name: str, value: Any, kind: Kind | None = None) -> Any:
    """The value, with a list as a tuple.

    Raises:
      ValueError: the key may not have this value; the message names the key, the value and what is accepted.
    """
    test, accepted = kind or KINDS[name]
    if not test(value):
        raise ValueError(f"{name} must be {accepted}, got {value!r}")
    return tuple(value) if isinstance(value, list) else value
