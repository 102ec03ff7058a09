"""Reads Hugging Face rope configs into `RoPE`, and writes them from it.

The reference is transformers 5.24.0, `modeling_rope_utils`. Older names of its keys are read as well. Configs are written in the
format of version 5.
"""

import dataclasses
import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from rope_jax.encoders.base import Dims, NoPE, check_requirements
from rope_jax.encoders.rotary.rope import RoPE
from rope_jax.encoders.rotary.scaling.base import FrequencyMap
from rope_jax.encoders.rotary.scaling.longrope import LongRoPE
from rope_jax.encoders.rotary.scaling.yarn import YaRN
from rope_jax.interop.model_config import Config, fraction_of, head_dim_of, is_interleaved, listed, of_layer, slice_of, split
from rope_jax.interop.rope_types import ALIASES, FRACTION, LONGEST, ORIGINAL, TOP_NAMES, TYPES, checked, field_of

__all__ = ["rope_from_hf", "rope_to_hf"]

_UNWRITABLE = {  # options of RoPE without a key in a config: the value that needs no key, and the remedy for other values
    "head_fraction": (1.0, "Hugging Face models rotate all heads"),
    "learn_base": (False, "write the base that was learned: replace(rope, base=..., learn_base=False)"),
    "learn_angles": (False, "a config has no key for learned frequencies; store them with the weights"),
    "exact": (False, "it changes the precision and not the model: replace(rope, exact=False)"),
}
_REMEDIES = {  # maps without a rope_type
    "NTK": "for a rotated width d it is plain RoPE: replace(rope, base=base * factor ** (d / (d - 2)), scaling=None)",
    "DynamicLinear": "Hugging Face's 'linear' has one factor for every length: Linear(factor=...)",
}


def rope_from_hf(config: Config, *, layer_type: str | None = None) -> RoPE | NoPE:
    """Reads the position encoding of a Hugging Face config. The model is assumed to use RoPE.

    Args:
      config: a whole model config, or only its rope part, as `json.load` returns it. Of a multimodal config, the text part is
        read. The rope part is rope_parameters (transformers v5) or rope_scaling (older). Its keys rope_type or type, rope_theta
        (10000 if absent) and partial_rotary_factor may also be at the top level; those in the rope part take precedence. The
        names of GPT-NeoX, GPT-J, Gemma 3 and ModernBERT are read as well. For yarn, longrope and llama3,
        original_max_position_embeddings at the top level takes precedence; if it is absent everywhere, max_position_embeddings is
        used. null counts as absent. Unknown keys are errors in the rope part. At the top level, only misspelt names of these
        keys are errors, and a few keys of other libraries (rope_ratio, alibi, ...). For a known model_type, absent keys have the
        defaults of transformers (Gemma 3, Mixtral, Phi, GLM, GPT-NeoX, ...).
      layer_type: the type of layers to read, such as "full_attention", where the config has an encoding for each type. Where
        single layers have no encoding (no_rope_layers of Llama 4 and SmolLM3), use NoPE() for those; the result is for the
        others.

    Returns:
      A RoPE, or NoPE for layers whose entry is null. Its layout is "interleaved" if rope_interleave is true, or, without that
      key, if models of this model_type rotate neighbouring features (GPT-J, Cohere, GLM, DeepSeek, ...). Otherwise it is "half",
      as in most models. A rope part does not contain the layout; if you know it, use dataclasses.replace(rope, layout=...).
      With qk_rope_head_dim (DeepSeek), the result is the encoding of that slice of a head, not of the whole head. DeepSeek's
      factor of the logits is not included: compose it with LogitScale(scale=rope.scaling.softmax_scale).

    Raises:
      ValueError: a key is missing, unknown, of a wrong type, out of range, contradicts another key, or does not fit the head dim
        (where that is known); or layer_type is missing or unknown. The message names the key, its value and what is accepted.
    """
    if not isinstance(config, Mapping):
        raise ValueError(f"rope_from_hf reads a mapping, as json.load returns it, got {type(config).__name__} {config!r}")
    model, part = split(config)
    entry = of_layer(part, model.get("layer_types"), layer_type)
    return NoPE() if entry is None else _read(entry, model)


def _read(entry: Config, model: Config) -> RoPE:
    name = _type_name(entry)
    rope_type = TYPES[name]
    values = _settled(entry, name, model)
    missing = [key for key in rope_type.required if key not in values]
    if missing:
        raise ValueError(
            f"a {name!r} rope needs {', '.join(missing)}; add it to the rope part, or pass the whole model config if it is there"
            + (", or max_position_embeddings, from which it follows" if name == "longrope" and missing == ["factor"] else "")
        )
    scaling = None
    if rope_type.scaling is not None:
        fields = [key for key in (*rope_type.required, *rope_type.optional) if key in values]
        scaling = rope_type.scaling(**{field_of(key): values[key] for key in fields})
    rope = RoPE(
        base=values["rope_theta"],
        layout="interleaved" if is_interleaved(model) else "half",
        rotary_fraction=1.0 if FRACTION in rope_type.optional else values[FRACTION],
        scaling=scaling,
        sections=values.get("mrope_section"),
        arrangement="interleaved" if values["mrope_interleaved"] else "chunked",
    )
    return _fitted(rope, model)


def _type_name(entry: Config) -> str:
    """The rope_type, one of TYPES. It takes precedence over the type "mrope", which only adds mrope_section."""
    names = {key: checked(key, entry[key]) for key in ("rope_type", "type") if entry.get(key) is not None}
    for key, name in names.items():
        if name not in TYPES and name not in ALIASES:
            raise ValueError(_unknown(key, name, (*TYPES, *ALIASES)))
    meant = [ALIASES.get(name, name) for name in names.values()]
    if len(set(meant)) > 1 and names["type"] != "mrope":
        raise ValueError(f"rope_type={names['rope_type']!r} and type={names['type']!r} contradict each other; keep rope_type")
    if "mrope" in names.values() and entry.get("mrope_section") is None:
        raise ValueError("type 'mrope' needs mrope_section, the pairs of each position axis, such as [16, 24, 24]; add it")
    return meant[0] if meant else "default"


def _settled(entry: Config, name: str, model: Config) -> dict[str, Any]:
    """The checked values of an entry, with those from the top level of the model config and those computed from others."""
    rope_type = TYPES[name]
    for key in entry:
        if key not in rope_type.known:
            untyped = name == "default" and any(key in other.known for other in TYPES.values())
            hint = "; is its rope_type missing?" if untyped else ""
            raise ValueError(_unknown(f"a key of a {name!r} rope", key, rope_type.known) + f"={entry[key]!r}{hint}")
    values = {key: rope_type.checked(key, value) for key, value in entry.items() if value is not None}
    for key, tops in TOP_NAMES.items():
        for top in tops:
            if model.get(top) is not None:
                values.setdefault(key, rope_type.checked(top, model[top]))
    if model.get("rotary_dim") is not None and FRACTION not in values:
        values[FRACTION] = fraction_of(checked("rotary_dim", model["rotary_dim"]), model)
    values = {"rope_theta": 10_000.0, FRACTION: 1.0} | values
    if {ORIGINAL, LONGEST} & set(rope_type.required):
        values |= {key: checked(key, model[key]) for key in (ORIGINAL, LONGEST) if model.get(key) is not None}
        if LONGEST in values:
            values.setdefault(ORIGINAL, values[LONGEST])
            if name == "longrope":
                values.setdefault("factor", values[LONGEST] / values[ORIGINAL])
    interleaved = {values.pop(key) for key in ("mrope_interleaved", "interleaved") if key in values}
    if len(interleaved) > 1 or (interleaved and "mrope_section" not in values):
        raise ValueError(
            "mrope_interleaved goes with mrope_section, and with no other value of interleaved, got "
            + ", ".join(f"{key}={entry.get(key)!r}" for key in ("mrope_interleaved", "interleaved", "mrope_section"))
        )
    values["mrope_interleaved"] = True in interleaved
    return {key: value for key, value in values.items() if key not in ("mscale", "mscale_all_dim") or value}  # 0: absent


def _fitted(rope: RoPE, model: Config) -> RoPE:
    """The rope, or that of the rotated slice of a head; raises ValueError if its options do not fit together or the head dim."""
    if isinstance(rope.scaling, YaRN) and rope.base <= 1:
        raise ValueError(f"rope_theta of a 'yarn' rope must be above 1, got {rope.base}; the usual value is 10000.0")
    if isinstance(rope.scaling, LongRoPE) and len(rope.scaling.short_factor) != len(rope.scaling.long_factor):
        lengths = len(rope.scaling.short_factor), len(rope.scaling.long_factor)
        raise ValueError(f"short_factor and long_factor must be equally long, got {lengths[0]} and {lengths[1]} numbers")
    head_dim = slice_of(model, rope.rotary_fraction)
    if head_dim is not None:
        rope = dataclasses.replace(rope, rotary_fraction=1.0)
    head_dim = head_dim or head_dim_of(model)
    if head_dim is not None:
        try:
            check_requirements(rope, Dims(width=head_dim, num_heads=1, head_dim=head_dim))
        except ValueError as error:
            shown = f"head_dim={head_dim}, {FRACTION}={rope.rotary_fraction}, mrope_section={rope.sections}"
            raise ValueError(f"this config ({shown}) does not fit together: {error}") from None
    return rope


def _unknown(what: str, given: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(str(given), list(known), n=1)
    hint = f"perhaps you meant {close[0]!r}, " if close else ""
    return f"{what} must be one of {listed(known)}; {hint}got {given}"


def rope_to_hf(rope: RoPE | NoPE) -> dict[str, Any]:
    """Writes an encoding as keys of a Hugging Face model config (transformers v5), which `rope_from_hf` reads back as the same.

    Args:
      rope: NoPE, or a RoPE without scaling or with Linear, DynamicNTK, YaRN, LongRoPE, Llama3 or Proportional.

    Returns:
      rope_parameters, and keys that belong at the top level of a model config: max_position_embeddings (the trained length) with
      DynamicNTK, and rope_interleave with the interleaved layout. transformers itself reads rope_interleave in DeepSeek models
      only. NoPE is written as {"rope_parameters": {"full_attention": None}}; replace "full_attention" by the layer types of your
      model. The result holds numbers, strings, lists and dicts, and can be written as JSON.

    Raises:
      ValueError: a config has no key for an option (NTK, DynamicLinear, learned frequencies, a fraction of the heads, the axial
        arrangement, ...). The message names the option, its value and a remedy.
    """
    if type(rope) is NoPE:
        return {"rope_parameters": {"full_attention": None}}
    if type(rope) is not RoPE:
        raise ValueError(f"rope_to_hf writes RoPE and NoPE, got {rope!r}; Hugging Face's rope configs have no other encoding")
    for field, (plain, remedy) in _UNWRITABLE.items():
        if getattr(rope, field) != plain:
            raise ValueError(f"a Hugging Face config cannot express RoPE {field}={getattr(rope, field)!r}; {remedy}")
    name = _written_type(rope.scaling)
    part: dict[str, Any] = {"rope_type": name, "rope_theta": rope.base}
    if rope.rotary_fraction != 1:
        if name == "proportional":
            raise ValueError(
                f"a Hugging Face config cannot express RoPE rotary_fraction={rope.rotary_fraction} together with Proportional, "
                f"whose fraction has the same key {FRACTION}; use one of them"
            )
        part[FRACTION] = rope.rotary_fraction
    for key in (*TYPES[name].required, *TYPES[name].optional):
        value = getattr(rope.scaling, field_of(key))
        if value is not None:
            part[key] = list(value) if isinstance(value, tuple) else value
    if rope.sections is not None:
        if rope.arrangement == "axial":
            raise ValueError(
                "a Hugging Face config cannot express RoPE arrangement='axial'; use 'chunked' or 'interleaved' (M-RoPE)"
            )
        part["mrope_section"] = list(rope.sections)
        if rope.arrangement == "interleaved":
            part["mrope_interleaved"] = True
    config: dict[str, Any] = {"rope_parameters": part}
    if name == "dynamic":
        config[LONGEST] = part.pop(LONGEST)
    if rope.layout == "interleaved":
        config["rope_interleave"] = True
    return _reread(config, rope)


def _written_type(scaling: FrequencyMap | None) -> str:
    for name, rope_type in TYPES.items():
        if rope_type.scaling is (None if scaling is None else type(scaling)):
            return name
    remedy = _REMEDIES.get(type(scaling).__name__, "write one of " + listed(TYPES))
    raise ValueError(f"a Hugging Face config cannot express RoPE scaling={scaling!r}; {remedy}")


def _reread(config: dict[str, Any], rope: RoPE) -> dict[str, Any]:
    """The config; raises ValueError if it does not read back as the same rope, as for values with another meaning there."""
    back = rope_from_hf(config)
    for was, now in ((rope, back), (rope.scaling, getattr(back, "scaling", None))):
        for field in dataclasses.fields(was) if was is not None else ():
            value, read = getattr(was, field.name), getattr(now, field.name)
            if value != read and field.name != "scaling":
                raise ValueError(
                    f"a Hugging Face config cannot express {type(was).__name__} {field.name}={value!r}, which would be read back "
                    f"as {read!r}; use that value if it means the same to you"
                )
    return config
