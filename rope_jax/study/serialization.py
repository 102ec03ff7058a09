"""What a config looks like from outside: as code and tables call it, as JSON, and as the hash that names a cell's folder."""

import dataclasses
import hashlib
import json
from collections.abc import Iterator
from typing import Any


def options(config: Any) -> str:
    """The options of a dataclass that differ from its class's defaults, such as "max_length=128"; "" if none does."""
    said: list[str] = []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.metadata.get("positional"):
            said += map(described, value)
        elif field.default is dataclasses.MISSING or value != field.default:
            said.append(f"{field.name}={described(value)}")
    return ", ".join(said)


def label(config: Any) -> str:
    """Its class, and in brackets the options that differ from the defaults, if any: what tables call it."""
    said = options(config)
    return f"{type(config).__name__}({said})" if said else type(config).__name__


def described(value: Any) -> str:
    """A value as a config would write it, without what is the default: "RoPE(scaling=NTK(factor=2.0))"."""
    if dataclasses.is_dataclass(value):
        return f"{type(value).__name__}({options(value)})"
    if isinstance(value, tuple) and any(map(dataclasses.is_dataclass, value)):
        return f"({', '.join(map(described, value))}{',' if len(value) == 1 else ''})"
    return repr(value)


def to_json(config: Any) -> Any:
    """Dataclasses as dicts with their class under "type", tuples as lists."""
    if dataclasses.is_dataclass(config):
        fields = {field.name: to_json(getattr(config, field.name)) for field in dataclasses.fields(config)}
        return {"type": type(config).__name__, **fields}
    if isinstance(config, (tuple, list)):
        return [to_json(value) for value in config]
    return config


def content_hash(config: Any) -> str:
    """SHA-256 of the JSON form, in hex: equal for equal configs, on every machine."""
    return hashlib.sha256(json.dumps(to_json(config), sort_keys=True).encode()).hexdigest()


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
