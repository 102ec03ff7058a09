"""Reads what a caller gives, positions, lengths and numbers: the right value, or a ValueError that names it.

Only concrete values can be checked. A value that is traced is known only while the compiled program runs; its dtype and shape are
checked. Integers are int32 from here on. Traced integers of a dtype that int32 does not hold keep it, and `arrays.distance` and
`arrays.pairwise` compute with them.
"""

import math
import reprlib
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

INT32 = np.iinfo(np.int32)
_TINY, _LARGEST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)
FLOAT32_RANGE = f"from {_TINY:.2g} to {_LARGEST:.2g} in size, which float32 holds"
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80


def is_traced(*values: Any) -> bool:
    """Whether any of the values is known only while a compiled program runs."""
    return any(isinstance(value, jax.core.Tracer) for value in values)


def known(x: Any) -> np.ndarray | None:
    """The values of an array; None if it is traced, or lies in part on devices of another process."""
    if is_traced(x) or (isinstance(x, jax.Array) and not x.is_fully_addressable):
        return None
    return np.asarray(x)


def integers(name: str, x: Any, *, lowest: int = INT32.min, highest: int = INT32.max, hint: str = "") -> jax.Array:
    """x as int32.

    Args:
      name: of x, for the message.
      x: an array, a number or a list.
      lowest, highest: the range of its values, within that of int32.
      hint: what to do about another dtype.

    Returns:
      int32 of x's shape. A traced x that is uint32, int64 or uint64 keeps its dtype.

    Raises:
      ValueError: the dtype is not that of integers, or a concrete value is outside the range.
    """
    x = _array(name, x, "integers")
    if not jnp.issubdtype(x.dtype, jnp.integer):
        raise ValueError(f"{name} must be integers, got {x.dtype}{f'; {hint}' if hint else ''}")
    return _in_range(name, x, lowest, highest)


def numbers(name: str, x: Any, *, lowest: float = -math.inf) -> jax.Array:
    """x as int32 if it holds integers, else as float32.

    Args:
      name: of x, for the message.
      x: an array, a number or a list.
      lowest: the least value.

    Returns:
      int32 or float32 of x's shape. A traced x that is uint32, int64 or uint64 keeps its dtype.

    Raises:
      ValueError: the dtype is bool, complex or none of numbers, or a concrete value is not finite, below `lowest`, or outside the
        range of its type.
    """
    x = _array(name, x, "integers or real numbers")
    if jnp.issubdtype(x.dtype, jnp.integer):
        return _in_range(name, x, int(max(lowest, INT32.min)), INT32.max)
    if not jnp.issubdtype(x.dtype, jnp.floating):
        hint = "; rj.positions.from_mask computes positions from a mask" if x.dtype == np.bool_ else ""
        raise ValueError(f"{name} must be integers or real numbers, got {x.dtype}{hint}")
    values = known(x)
    if values is not None:
        with np.errstate(over="ignore"):
            values = values.astype(np.float32)  # narrow types know no comparison; and what float32 does not hold becomes inf
        _refuse(name, x, ~np.isfinite(values), "must be finite and within the range of float32")
        _refuse(name, x, values < lowest, _at_least(lowest))
    return _as_dtype(x, jnp.float32)


def flags(name: str, x: Any) -> jax.Array:
    """x as bool: of bool, of integers that are not negative (true where they are not 0), or of 0.0 and 1.0.

    Raises:
      ValueError: x holds other values, such as -inf in a mask that is added.
    """
    x = _array(name, x, "bool")
    if x.dtype == np.bool_:
        return _as_dtype(x, jnp.bool_)
    if jnp.issubdtype(x.dtype, jnp.integer):
        return _in_range(name, x, 0, INT32.max) != 0
    values = known(x)
    if not jnp.issubdtype(x.dtype, jnp.floating) or (values is not None and not np.isin(values.astype(np.float32), (0, 1)).all()):
        raise ValueError(f"{name} must be bool, or hold 0 and 1, got {shown(x)}; compare it first, as in mask > 0")
    return jnp.asarray(x) != 0


def tokens(name: str, x: Any) -> jax.Array:
    """As `numbers`, of shape [..., T]: one for each token. ValueError for a scalar."""
    x = numbers(name, x)
    if not x.ndim:
        raise ValueError(f"{name} must have an axis of tokens, [..., T], got a single number; give an array, such as [{x}]")
    return x


def scalar(name: str, x: Any) -> jax.Array:
    """x as float32 []; ValueError if it is an array of several numbers, or as in `numbers`."""
    x = numbers(name, x)
    if x.ndim:
        raise ValueError(f"{name} must be one number, got an array of shape {x.shape}; use jax.vmap for several")
    return x.astype(jnp.float32)


def whole(
    name: str, value: Any, *, lowest: int | None = None, highest: int = INT32.max, hint: str = "", symbolic: bool = False
) -> int:
    """A Python int.

    Args:
      name: of the value, for the message.
      value: an int, or a numpy integer.
      lowest, highest: the range, both included.
      hint: what to do, behind the message.
      symbolic: whether it may also be the symbolic size of an array under `jax.export`, which is not compared with the bounds.

    Raises:
      ValueError: the value has another type, such as bool, float or a traced array, or is outside the range.
    """
    if symbolic and jax.export.is_symbolic_dim(value):
        return value  # type: ignore[return-value]
    hint = f"; {hint}" if hint else ""
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool):
        raise ValueError(f"{name} must be a Python int, got {shown(value)}{hint}")
    if lowest is not None and value < lowest:
        raise ValueError(f"{name} {_at_least(lowest)}, got {shown(value)}{hint}")
    if value > highest:
        raise ValueError(f"{name} must be at most {highest}, got {shown(value)}{hint}")
    return int(value)


def real(name: str, value: Any, *, hint: str = "") -> float:
    """A Python float that float32 holds and that is above 0. ValueError, with `hint` behind the message, for another value."""
    hint = f"; {hint}" if hint else ""
    try:
        is_number = np.asarray(value).dtype.kind in "iufO" and not isinstance(value, (bool, str))  # O: large ints
        number = float(value) if is_number and np.ndim(value) == 0 else math.nan
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not number > 0:
        raise ValueError(f"{name} must be positive, got {shown(value)}{hint}")
    if not in_float32(number):
        raise ValueError(f"{name} must be {FLOAT32_RANGE}, got {shown(value)}{hint}")
    return number


def require_not_negative(name: str, value: float) -> None:
    """Raises ValueError if the standard deviation called `name` is negative."""
    if value < 0:
        raise ValueError(f"{name} must not be negative, got {value}; the usual value is 0.02, and 0.0 starts with zeros")


def in_float32(value: float) -> bool:
    """Whether float32 holds a number: it is 0, or finite, not too large, and not so small that it would become 0."""
    return value == 0 or _TINY <= abs(value) <= _LARGEST


def shown(value: Any) -> str:
    """A value as a message shows it, without the middle if it is long."""
    try:
        return _SHORT.repr(value)
    except ValueError:  # Python writes no numbers of more than 4300 digits
        return "a number of more than 4300 digits"


def _array(name: str, x: Any, required: str) -> Any:
    """x as an array of jax or numpy; ValueError if it is none of numbers."""
    if isinstance(x, jax.Array):
        return x
    if jax.export.is_symbolic_dim(x):
        return jnp.asarray(x)
    try:
        array = np.asarray(x)
    except (TypeError, ValueError, jax.errors.TracerArrayConversionError):  # lists of unequal lengths or of traced numbers
        try:
            return jnp.asarray(x)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name} must be an array of {required}, got {shown(x)}") from error
    if array.dtype.kind in "fO" and not isinstance(x, np.ndarray):
        # of Python's integers, numpy makes objects or floats where no integer type of its own holds them all
        flat = np.asarray(x, object).flat
        if len(flat) and all(isinstance(value, int) for value in flat):
            raise ValueError(f"{name} must be within {INT32.min} .. {INT32.max}, got {shown(x)}")
    if array.dtype.kind not in "biufcV":  # V: the narrow floats of ml_dtypes
        raise ValueError(f"{name} must be {required}, got {shown(x)}")
    return array


def _as_dtype(x: Any, dtype: Any) -> jax.Array:
    """x in a dtype. What is concrete stays concrete, also while a program is traced, so that it can be checked again."""
    if x.dtype == dtype and isinstance(x, jax.Array):
        return x
    values = known(x)
    if values is None:
        return jnp.asarray(x, dtype)
    with jax.ensure_compile_time_eval():
        sharding = x.sharding if isinstance(x, jax.Array) else None
        return jax.device_put(values.astype(dtype), sharding)  # converted by numpy, so that no program is compiled


def _in_range(name: str, x: Any, lowest: int, highest: int) -> jax.Array:
    info = jnp.iinfo(x.dtype)
    if lowest <= info.min and info.max <= highest:
        return _as_dtype(x, jnp.int32)
    values = known(x)
    if values is None:
        return x if info.bits > 32 or info.max > INT32.max else _as_dtype(x, jnp.int32)
    values = values if info.bits > 32 else values.astype(np.int64)  # narrow types know no comparison
    if lowest > INT32.min:
        _refuse(name, x, values < lowest, _at_least(lowest))
    _refuse(name, x, (values < lowest) | (values > highest), f"must be within {lowest} .. {highest}")
    return _as_dtype(x, jnp.int32)


def _refuse(name: str, x: Any, wrong: Any, requirement: str) -> None:
    """Raises ValueError with the first wrong value, if there is one."""
    if np.any(wrong):
        value = np.asarray(x)[np.asarray(wrong, bool)].flat[0]
        raise ValueError(f"{name} {requirement}, got {value}")


def _at_least(lowest: float) -> str:
    return f"must be at least {lowest:g}" if lowest else "must not be negative"
