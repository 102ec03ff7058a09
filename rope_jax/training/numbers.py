"""Numbers of a config as arguments of compiled programs, so that configs which differ in numbers alone share one program.

JAX compiles a program for each value of a static argument. A cell is static, so its float settings are taken out of it: the
compiled program gets the cell without them and, apart, their values as arrays.
"""

import copy
import dataclasses
from typing import Any, TypeVar

import numpy as np

from rope_jax.study.config import Cell

Numbers = dict[str, Any]  # by option, float32 []; of an option that is a dataclass, again such a dict
Config = TypeVar("Config")


def split_numbers(cell: Cell) -> tuple[Cell, Numbers]:
    """Takes the numbers out of a cell's training settings: all floats, except in fields with the metadata {"static": True}.

    Returns:
      The cell with None for each number, to be a static argument; and the numbers. The cell has no seeds, no evaluation, no
      variants and no name of the method either, so that cells which differ in these share a program.
    """
    train, numbers = _split(cell.train)
    method = dataclasses.replace(cell.method, name=None, variants=(), train=())
    return _unchecked_replace(cell, train=train, method=method, seeds=(), evaluate=None), numbers


def join_numbers(cell: Cell, numbers: Numbers) -> Cell:
    """Puts numbers, which may be traced, back into a cell from `split_numbers`."""
    return _unchecked_replace(cell, train=_join(cell.train, numbers))


def _split(config: Config) -> tuple[Config, Numbers]:
    numbers: Numbers = {}
    rest: dict[str, Any] = {}
    for field in dataclasses.fields(config):  # type: ignore[arg-type]
        value = getattr(config, field.name)
        if isinstance(value, float) and not field.metadata.get("static"):
            rest[field.name], numbers[field.name] = None, np.float32(value)
        elif dataclasses.is_dataclass(value):
            rest[field.name], numbers[field.name] = _split(value)
    return _unchecked_replace(config, **rest), numbers


def _join(config: Config, numbers: Numbers) -> Config:
    values = {name: _join(getattr(config, name), value) if isinstance(value, dict) else value for name, value in numbers.items()}
    return _unchecked_replace(config, **values)


def _unchecked_replace(config: Config, **values: Any) -> Config:
    """dataclasses.replace without `__post_init__`, whose checks refuse None and cannot read traced arrays."""
    changed = copy.copy(config)
    for name, value in values.items():
        object.__setattr__(changed, name, value)
    return changed
