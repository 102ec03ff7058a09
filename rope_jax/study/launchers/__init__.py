"""Who runs the work: a new launcher is one module with a function `launch(Launch) -> bool`, and one line here."""

import importlib
from collections.abc import Callable
from typing import Any

LAUNCHERS: dict[str, str] = {  # modules, imported when they are needed: the work itself imports much
    "here": "rope_jax.study.launchers.here",
    "processes": "rope_jax.study.launchers.processes",
    "slurm": "rope_jax.study.launchers.slurm",
}


def launcher(name: str) -> Callable[[Any], bool]:
    """The function that launches work: it takes a `launchers.base.Launch` and returns whether the work is over."""
    return importlib.import_module(LAUNCHERS[name]).launch
