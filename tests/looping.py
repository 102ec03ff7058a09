"""A property is one test over many values: every value runs, and a failure names each value that fails."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from rope_jax.study.serialization import described


def for_each(names: str | tuple[str, ...], values: Iterable[Any], label: Callable[[Any], str] | None = None) -> Callable:
    """Makes one test of a function of a value: it runs for every value, then fails if any value failed.

    It is written like `pytest.mark.parametrize` and may be stacked, but the test is collected once.

    Args:
      names: the argument of the test, or a tuple of arguments, of which every value is then a tuple.
      values: at least one.
      label: how a failure calls a value; by default as a config writes it, without functions, cut to a line.
    """
    arguments = (names,) if isinstance(names, str) else tuple(names)
    every = tuple(values)
    if not every:
        raise ValueError(f"for_each({names!r}) has no values, so that the test would prove nothing")

    def decorate(test: Callable) -> Callable:
        def looped(*args: Any, **kwargs: Any) -> None:
            failures: list[BaseException] = []
            labels: list[str] = []
            for value in every:
                try:
                    test(*args, **kwargs, **dict(zip(arguments, (value,) if isinstance(names, str) else value, strict=True)))
                except (Exception, pytest.fail.Exception, BaseExceptionGroup) as error:
                    labels.append((label or shown)(value))
                    error.add_note(f"with {', '.join(arguments)}: {labels[-1]}")
                    failures.append(error)
            if failures:
                raise BaseExceptionGroup(f"{len(failures)} of {len(every)} values failed: {'; '.join(labels)}", failures)

        # what a test that hypothesis draws for carries is left out: pytest calls this loop, and the loop calls hypothesis
        functools.update_wrapper(looped, test, updated=())
        del looped.__wrapped__
        looped.pytestmark = list(getattr(test, "pytestmark", []))
        kept = [parameter for name, parameter in inspect.signature(test).parameters.items() if name not in arguments]
        looped.__signature__ = inspect.Signature(kept)
        return looped

    return decorate


def shown(value: Any) -> str:
    """A value in a line of at most 120 characters."""
    if isinstance(value, tuple):
        text = ", ".join(shown(item) for item in value if not inspect.isfunction(item))
    else:
        text = described(value) if dataclasses.is_dataclass(value) else getattr(value, "__name__", repr(value))
    return text if len(text) <= 120 else f"{text[:117]}..."
