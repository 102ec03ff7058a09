"""The rest of a Hugging Face model config: where its rope part is, for which layers it holds, and the head dim."""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from rope_jax.interop.rope_types import (
    FOREIGN,
    FRACTION,
    INTERLEAVED_MODELS,
    LOCAL_BASES,
    TOP_NAMES,
    TYPES,
    checked,
    model_defaults,
)

Config = Mapping[str, Any]

PARTS = ("rope_parameters", "rope_scaling")  # v5, older
MODEL_KEYS = {  # a mapping with one of these keys is a whole config
    *(*PARTS, *LOCAL_BASES, "text_config", "model_type", "architectures", "vocab_size", "layer_types", "num_hidden_layers"),
    *("hidden_size", "num_attention_heads", "head_dim", "n_embd", "n_head", "qk_rope_head_dim", "rotary_pct", "rotary_dim"),
}


def split(config: Config) -> tuple[Config, Config]:
    """The keys of the model config (none if config is only a rope part), and the rope part."""
    text = config.get("text_config")
    if isinstance(text, Mapping) and not _has_rope(config):
        config = text
    has_part = any(key in config for key in PARTS)
    if not MODEL_KEYS & set(config) or (not has_part and {"rope_type", "type"} & set(config)):
        return {}, config
    inner = [key for key, value in config.items() if key not in PARTS and isinstance(value, Mapping) and _has_rope(value)]
    if inner and not _has_rope(config):
        raise ValueError(f"this config has no rope, but its {listed(inner)} does; pass that part, config[{inner[0]!r}]")
    config = model_defaults(config.get("model_type")) | {key: value for key, value in config.items() if value is not None}
    for key, value in config.items():
        _refuse_foreign(key, value)
    given = {key: config[key] for key in PARTS if key in config}
    for key, value in given.items():
        if not isinstance(value, Mapping):
            raise ValueError(f"{key} must be a mapping or null, got {value!r}")
    if len(given) == 2 and given["rope_parameters"] != given["rope_scaling"]:
        raise ValueError(f"rope_parameters and rope_scaling contradict each other, got {given}; keep one of them")
    part: Config = next(iter(given.values()), {})
    for key in LOCAL_BASES:
        if config.get(key) is not None:
            part = _with_local_base(part, key, checked(key, config[key]))
    return config, part


def _has_rope(config: Config) -> bool:
    return any(config.get(key) is not None for key in (*PARTS, *LOCAL_BASES, *TOP_NAMES["rope_theta"]))


def _refuse_foreign(key: str, value: Any) -> None:
    """Raises ValueError for a top-level key that another library uses in place of a known key, or that is a misspelt one."""
    neutral = value is False or (value == 1 and value is not True)
    if key in FOREIGN and not neutral:
        raise ValueError(f"{key}={value!r} is not a key that transformers reads; {FOREIGN[key]}")
    known = {*PARTS, *LOCAL_BASES, *(top for tops in TOP_NAMES.values() for top in tops)}
    close = difflib.get_close_matches(key, known, n=1, cutoff=0.85)
    if close and key not in known:
        raise ValueError(f"{key}={value!r} is not a key of a model config; perhaps you meant {close[0]!r}")


def _with_local_base(part: Config, key: str, base: float) -> Config:
    """The rope part, by layer type, of a config with another base for its sliding-window layers."""
    if is_nested(part):
        sliding = part.get("sliding_attention", {})
        return {**part, "sliding_attention": {"rope_theta": base, **sliding}} if isinstance(sliding, Mapping) else part
    scaled = part if key == "local_rope_theta" else {}  # ModernBERT scales all its layers, Gemma 3 the global ones
    return {"full_attention": part, "sliding_attention": {**scaled, "rope_theta": base}}


def is_nested(part: Config) -> bool:
    """Whether the rope part has an entry for each type of layer."""
    known = {key for rope_type in TYPES.values() for key in rope_type.known}
    if any(isinstance(value, Mapping) for value in part.values()):
        return True
    return bool(part) and not known & set(part) and all(value is None for value in part.values())


def of_layer(part: Config, layer_types: Any, layer_type: str | None) -> Config | None:
    """The rope part of layers of one type; None is no position encoding."""
    if not is_nested(part):
        if layer_type is None or (layer_types is not None and layer_type in checked("layer_types", layer_types)):
            return part
        raise ValueError(f"this config has one rope for all layers, got layer_type={layer_type!r}; leave layer_type out")
    for key, value in part.items():
        if value is not None and not isinstance(value, Mapping):
            raise ValueError(f"a rope part with an entry for each layer type holds mappings and nulls only, got {key}={value!r}")
    if layer_type is None and all(value is None for value in part.values()):
        return None
    if layer_type is None or layer_type not in part:
        raise ValueError(
            f"this config has a rope for each type of layer: layer_type must be one of {listed(part)}, got {layer_type!r}"
        )
    return part[layer_type]


def _size(model: Config, key: str) -> int:
    """A positive integer of the model config; 0 if it is absent or something else, such as a list with one for each layer."""
    value = model.get(key)
    if isinstance(value, str):
        raise ValueError(f"{key} must be a number, got {value!r}; remove the quotes")
    return value if isinstance(value, int) and value > 0 else 0


def head_dim_of(model: Config) -> int | None:
    """The head dim, or None if the config does not contain it."""
    for width, heads in (("hidden_size", "num_attention_heads"), ("n_embd", "n_head")):
        count = _size(model, heads)
        if count and not _size(model, "head_dim") and _size(model, width) % count:
            raise ValueError(f"{width}={_size(model, width)} is not divisible by {heads}={count}; correct one, or give head_dim")
        head_dim = _size(model, "head_dim") or (count and _size(model, width) // count)
        if head_dim:
            return head_dim
    return None


def fraction_of(rotary_dim: int, model: Config) -> float:
    """rotary_dim (GPT-J, MiniMax-M2) as a fraction of the head dim."""
    head_dim = head_dim_of(model)
    if head_dim is None or rotary_dim > head_dim:
        raise ValueError(f"rotary_dim must be at most head_dim, got rotary_dim={rotary_dim} and head_dim={head_dim}; give both")
    fraction = rotary_dim / head_dim
    return fraction if int(head_dim * fraction) == rotary_dim else (rotary_dim + 0.5) / head_dim


def slice_of(model: Config, fraction: float) -> int | None:
    """The width of the rotated slice of a head (DeepSeek), None without one; raises ValueError if `fraction` contradicts it."""
    if model.get("qk_rope_head_dim") is None:
        return None
    width: int = checked("qk_rope_head_dim", model["qk_rope_head_dim"])
    wholes = (head_dim_of(model) or 0, width + _size(model, "qk_nope_head_dim"))
    if fraction != 1 and width not in [int(whole * fraction) for whole in wholes]:
        raise ValueError(
            f"{FRACTION}={fraction} and qk_rope_head_dim={width} contradict each other; drop {FRACTION}, since qk_rope_head_dim "
            "is the rotated slice"
        )
    return width


def is_interleaved(model: Config) -> bool:
    """Whether the model rotates neighbouring features."""
    if model.get("rope_interleave") is not None:
        return checked("rope_interleave", model["rope_interleave"])
    return model.get("model_type") is not None and checked("model_type", model["model_type"]) in INTERLEAVED_MODELS


def listed(names: Iterable[str]) -> str:
    """The names in quotes, for a message."""
    return ", ".join(repr(name) for name in names)
