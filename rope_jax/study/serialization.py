"""How a config is written: as code, as a short name, as JSON, and as the hash that identifies it.

Two JSON forms exist. `to_json` writes every option, for people who read the record of a run. `identity` writes only the options
that differ from the defaults of their class, and is what `content_hash` hashes: an option that a later version adds, with a
default, changes no hash, so results that are already there stay valid. Whoever changes a default, or what an option computes,
must raise SCHEMA.
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterator
from typing import Any

from rope_jax.encoders import Compose, Layers
from rope_jax.encoders._internal.typed_dataclass import TypedDataclass

SCHEMA = 2  # of `identity`; 1 hashed every option, defaults included
_LONGEST_NAME = 40  # characters of a derived name
_JOINED_BY = {Compose: " + ", Layers: " / "}


def options(config: Any) -> str:
    """The options of a dataclass that differ from its class's defaults, such as "max_length=128"; "" if none does."""
    written: list[str] = []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.metadata.get("positional"):
            written += map(described, value)
        elif not _is_default(field, value):
            written.append(f"{field.name}={described(value)}")
    return ", ".join(written)


def label(config: Any) -> str:
    """A config as `described` writes it, without empty brackets: "RoPE", "RoPE(base=500.0)"."""
    written = options(config)
    return f"{type(config).__name__}({written})" if written else type(config).__name__


def described(value: Any) -> str:
    """A value as a config would write it, without what is the default: "RoPE(scaling=NTK(factor=2.0))"."""
    if dataclasses.is_dataclass(value):
        return f"{type(value).__name__}({options(value)})"
    if isinstance(value, tuple) and any(map(dataclasses.is_dataclass, value)):
        return f"({', '.join(map(described, value))}{',' if len(value) == 1 else ''})"
    return repr(value)


def short_name(*configs: Any) -> str:
    """A name of at most 40 characters for several configs together, such as an encoder and a position policy.

    Compose(a, b) is written "a + b", and Layers(a, b) "a / b". If the result is too long, the options are left out, and the first
    four hex digits of the hash follow: "RoPE / NoPE, PoSE #1f3a".
    """
    name = ", ".join(_joined(config, with_options=True) for config in configs)
    if len(name) <= _LONGEST_NAME:
        return name
    mark = f" #{content_hash(configs)[:4]}"
    classes = ", ".join(_joined(config, with_options=False) for config in configs)
    room = _LONGEST_NAME - len(mark)
    return (classes if len(classes) <= room else classes[: room - 1] + "…") + mark


def _joined(config: Any, *, with_options: bool) -> str:
    for kind, joint in _JOINED_BY.items():
        if isinstance(config, kind):
            [field] = (field for field in dataclasses.fields(config) if field.metadata.get("positional"))
            return joint.join(_joined(value, with_options=with_options) for value in getattr(config, field.name))
    return label(config) if with_options else type(config).__name__


def to_json(config: Any) -> Any:
    """Every option: dataclasses as dicts with their class under "type", tuples as lists."""
    if dataclasses.is_dataclass(config):
        fields = {field.name: to_json(getattr(config, field.name)) for field in dataclasses.fields(config)}
        return {"type": type(config).__name__, **fields}
    if isinstance(config, (tuple, list)):
        return [to_json(value) for value in config]
    return config


def from_json(data: Any) -> Any:
    """Undoes `to_json`: dicts with a "type" become objects of the class of that name, lists become tuples.

    Classes are found by their names among those that are imported: a class of the user's own must be imported before.

    Raises:
      ValueError: no imported class has the name and these options, or an option has an impossible value.
    """
    if isinstance(data, (list, tuple)):
        return tuple(map(from_json, data))
    if not isinstance(data, dict):
        return data
    options = {name: from_json(value) for name, value in data.items() if name != "type"}
    kinds = [kind for kind in _below(TypedDataclass) if kind.__name__ == data.get("type")]
    for kind in reversed(kinds):  # of several of one name, the last one that was defined with these options
        if options.keys() <= {field.name for field in dataclasses.fields(kind)}:
            return kind(**options)
    raise ValueError(
        f"there is no class {data.get('type')!r} with the options {', '.join(options) or 'of none'}; import the module that "
        "defines it first, or use the version of rope_jax that wrote this"
    )


def _below(kind: type[Any]) -> Iterator[type[Any]]:
    """All classes below a class, each after its base."""
    subclass: type[Any]
    for subclass in kind.__subclasses__():
        yield subclass
        yield from _below(subclass)


def identity(config: Any) -> Any:
    """What distinguishes a config from others: as `to_json`, but only with the options that differ from the class's defaults.

    A field with the metadata {"identity": False}, such as the name of a method, is left out.
    """
    if dataclasses.is_dataclass(config):
        kept = [field for field in dataclasses.fields(config) if field.metadata.get("identity", True)]
        values = {field.name: getattr(config, field.name) for field in kept}
        differing = {field.name: identity(values[field.name]) for field in kept if not _is_default(field, values[field.name])}
        return {"type": type(config).__name__, **differing}
    if isinstance(config, (tuple, list)):
        return [identity(value) for value in config]
    return config


def _is_default(field: "dataclasses.Field[Any]", value: Any) -> bool:
    if field.default_factory is not dataclasses.MISSING:
        return bool(value == field.default_factory())
    return bool(field.default is not dataclasses.MISSING and value == field.default)


def content_hash(config: Any) -> str:
    """SHA-256 of SCHEMA and the identity, in hex: equal for equal configs, on every machine."""
    return json_hash({"schema": SCHEMA, "config": identity(config)})


def json_hash(value: Any) -> str:
    """SHA-256 of a value's `to_json` with sorted keys, in hex; of dataclasses, every option counts."""
    return hashlib.sha256(json.dumps(to_json(value), sort_keys=True).encode()).hexdigest()


def differences(old: Any, new: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Where two JSON forms differ: ("train.steps", 1500, 50), depth first."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            yield from differences(old.get(key), new.get(key), f"{path}.{key}" if path else key)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for i, pair in enumerate(zip(old, new, strict=True)):
            yield from differences(*pair, f"{path}[{i}]")
    elif isinstance(old, list) and isinstance(new, list) and any(isinstance(value, dict) for value in (*old, *new)):
        yield path, f"{len(old)} of them", f"{len(new)} of them"
    elif old != new:
        yield path, old, new
