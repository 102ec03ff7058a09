"""Frozen dataclasses that check the types of their fields."""

import dataclasses
import functools
import types
import typing
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class TypedDataclass:
    """Base of everything that a config holds. A field whose value is not of the declared type is a ValueError that names it.

    A subclass checks values in `__post_init__`. The checks of its base classes have run by then, those of types first. There is
    no need to call `super().__post_init__()`, and no way to forget it.

    An int where a float is declared becomes that float, so that NTK(factor=2) equals NTK(factor=2.0) everywhere.
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
            value = getattr(self, field.name)
            if not _fits(value, declared[field.name]):
                raise ValueError(f"{type(self).__name__} {field.name} must be {_described(declared[field.name])}, got {value!r}")
            object.__setattr__(self, field.name, _coerced(value, declared[field.name]))


@functools.cache
def _declared_types(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _fits(value: Any, declared: Any) -> bool:
    origin, arguments = typing.get_origin(declared), typing.get_args(declared)
    if declared is Any:
        return True
    if origin is typing.Literal:
        return value in arguments
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, argument) for argument in arguments)
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(item, arguments[0]) for item in value)
    if declared in (int, float):
        return isinstance(value, (int, declared)) and not isinstance(value, bool)
    return isinstance(value, declared)


def _coerced(value: Any, declared: Any) -> Any:
    """The value, with an int converted to float where a float is declared; also within tuples."""
    origin, arguments = typing.get_origin(declared), typing.get_args(declared)
    if origin is tuple:
        return tuple(_coerced(item, arguments[0]) for item in value)
    if origin in (typing.Union, types.UnionType) and float in arguments and int not in arguments:
        return value if value is None else float(value)
    return float(value) if declared is float else value


def _described(declared: Any) -> str:
    origin, arguments = typing.get_origin(declared), typing.get_args(declared)
    if origin is typing.Literal:
        return " or ".join(repr(argument) for argument in arguments)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_described(argument) for argument in arguments)
    if origin is tuple:
        return f"a tuple, of which each is {_described(arguments[0])}"
    return {int: "an int", float: "a float", str: "a str", bool: "a bool", type(None): "None"}.get(
        declared, f"an object of class {declared.__name__}"
    )
