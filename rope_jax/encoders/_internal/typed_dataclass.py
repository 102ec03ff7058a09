"""Frozen dataclasses that check the types of their fields."""

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from .inputs import FLOAT32_RANGE, INT32, in_float32, shown

V = TypeVar("V")


@dataclass(frozen=True, kw_only=True)
class TypedDataclass:
    """Base of everything that a config holds. A field whose value is not of the declared type is a ValueError that names it.

    A subclass checks values in `__post_init__`. The checks of its base classes have run by then, those of types first. There is
    no need to call `super().__post_init__()`, and no way to forget it.

    Values are hashable and can be written as JSON, since they identify what was trained: numbers, strings, None, frozen
    dataclasses, and tuples of these. Programs compute in int32 and float32, so an int is within int32, and a float is finite and
    within the range of float32.

    An int where a float is declared becomes that float, so that NTK(factor=2) equals NTK(factor=2.0) everywhere. A dict becomes
    the tuple of its items; a field that may be one is declared `Mapping[str, V] | tuple[tuple[str, V], ...]`.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__post_init__" not in vars(cls):
            return
        check_values = vars(cls)["__post_init__"]

        @functools.wraps(check_values)
        def check(self: TypedDataclass) -> None:
            super(cls, self).__post_init__()  # type: ignore[misc]
            check_values(self)

        type.__setattr__(cls, "__post_init__", check)

    def __post_init__(self) -> None:
        declared = _declared_types(type(self))  # type: ignore[arg-type]
        for field in dataclasses.fields(self):
            value, name = getattr(self, field.name), f"{type(self).__name__} {field.name}"
            if isinstance(value, Mapping):
                value = pairs_of(value)
            if not _fits(value, declared[field.name]):
                raise ValueError(f"{name} must be {_described(declared[field.name])}, got {shown(value)}")
            if not _is_plain(value):
                raise ValueError(
                    f"{name} must hold Python numbers, strings, None, frozen dataclasses or tuples of these, got {shown(value)}; "
                    "a config identifies what was trained, so it must be hashable and writable as JSON"
                )
            value = _coerced(value, declared[field.name])
            _require_range(name, value)
            object.__setattr__(self, field.name, value)


def pairs_of(value: Mapping[str, V] | tuple[tuple[str, V], ...]) -> tuple[tuple[str, V], ...]:
    """The items of a dict, or of the tuple that a field holds in its place."""
    return tuple(value.items()) if isinstance(value, Mapping) else value


@functools.cache
def _declared_types(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _is_plain(value: Any) -> bool:
    """Whether a value is hashable and can be written as JSON."""
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    if isinstance(value, TypedDataclass):
        return True  # its fields were checked when it was made
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        frozen = value.__dataclass_params__.frozen  # type: ignore[attr-defined]
        return frozen and all(_is_plain(getattr(value, field.name)) for field in dataclasses.fields(value))
    return value is None or isinstance(value, (int, float, str))


def _require_range(name: str, value: Any) -> None:
    """Raises ValueError if a number does not fit into int32 or float32, or a string cannot be written as UTF-8."""
    for one in value if isinstance(value, tuple) else (value,):
        if isinstance(one, tuple):
            _require_range(name, one)
        elif isinstance(one, float) and not math.isfinite(one):
            raise ValueError(f"{name} must be finite, got {one}")
        elif isinstance(one, float) and not in_float32(one):
            raise ValueError(f"{name} must be 0, or {FLOAT32_RANGE}, got {one}")
        elif isinstance(one, int) and not INT32.min <= one <= INT32.max:
            raise ValueError(f"{name} must be within the range of int32, {INT32.min} .. {INT32.max}, got {shown(one)}")
        elif isinstance(one, str) and not one.isascii():
            _require_text(name, one)


def _require_text(name: str, value: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{name} must be text that UTF-8 can write, got {value!a}; remove half of a pair of characters"
        ) from error


def _fits(value: Any, declared: Any) -> bool:
    origin, arguments = typing.get_origin(declared), typing.get_args(declared)
    if declared is Any:
        return True
    if origin is typing.Literal:
        return any(type(value) is type(argument) and value == argument for argument in arguments)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, argument) for argument in arguments)
    if origin is tuple:
        items = _types_of_items(value, arguments) if isinstance(value, tuple) else None
        return items is not None and all(map(_fits, value, items))
    if declared in (int, float):
        return isinstance(value, (int, declared)) and not isinstance(value, bool)
    kind = origin or declared
    return isinstance(value, kind) if isinstance(kind, type) else True


def _types_of_items(value: tuple[Any, ...], arguments: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """The declared type of each item of a tuple; None if it has another number of items than tuple[int, str] declares."""
    if arguments[1:] == (...,):
        return arguments[:1] * len(value)
    return arguments if len(arguments) == len(value) else None


def _coerced(value: Any, declared: Any) -> Any:
    """The value, with an int converted to float where a float is declared; also within tuples."""
    origin, arguments = typing.get_origin(declared), typing.get_args(declared)
    if origin is tuple:
        return tuple(map(_coerced, value, _types_of_items(value, arguments) or ()))
    if origin in (typing.Union, types.UnionType):
        fitting = [argument for argument in arguments if _fits(value, argument)]
        return value if int in fitting else _coerced(value, fitting[0])
    return _to_float(value) if declared is float else value


def _to_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf  # an int that no float holds; refused with the other numbers out of range


def _described(declared: Any) -> str:
    origin, arguments = typing.get_origin(declared), typing.get_args(declared)
    if origin is typing.Literal:
        return " or ".join(repr(argument) for argument in arguments)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_described(argument) for argument in arguments)
    if origin is Mapping:
        return "a dict"
    if origin is tuple and arguments[1:] == (...,):
        return f"a tuple, of which each is {_described(arguments[0])}"
    if origin is tuple:
        return f"a tuple of {', '.join(map(_described, arguments))}"
    return {int: "an int", float: "a float", str: "a str", bool: "a bool", type(None): "None"}.get(
        declared, f"an object of class {getattr(declared, '__name__', declared)}"
    )
