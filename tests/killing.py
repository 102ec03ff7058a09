"""Sends a signal to the process that a config is loaded in, at a chosen moment of its work.

A config calls `arm(path)`. If the file exists, it describes a moment, as `Moment.write` writes it. The first process
that comes to this moment removes the file and gets the signal. So the same command, called again, is left alone.
"""

import dataclasses
import functools
import importlib
import json
import os
import re
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

COMPILING = "/jax/core/compile/jaxpr_to_mlir_module_duration"  # what JAX reports just before it compiles a program


@dataclass(frozen=True)
class Moment:
    """A moment of a process: before its `count`th event of a kind.

    Attributes:
      kind: an audit event of Python, such as "os.rename" or "open", whose path is then looked at; "call" of a function;
        "compile" of a program of JAX, some milliseconds after it began; "load" of the config.
      what: a regular expression for the path or the name of the program, or a function as "module:Class.name".
      count: from 1.
      number: the signal.
    """

    kind: str
    what: str = ""
    count: int = 1
    number: int = 9

    def write(self, path: Path) -> None:
        """Writes the file that `arm` reads."""
        path.write_text(json.dumps(dataclasses.asdict(self)))


def arm(path: Path) -> None:
    """Waits for the moment that a file describes, if it exists."""
    if not path.exists():
        return
    moment = Moment(**json.loads(path.read_text()))
    fire = _Fire(path, moment)
    if moment.kind == "load":
        fire()
    elif moment.kind == "call":
        _before_calls(moment.what, fire)
    elif moment.kind == "compile":
        _while_compiling(moment.what, fire)
    else:
        _before_events(moment, fire)


class _Fire:
    """Counts calls; the last one that is counted sends the signal."""

    def __init__(self, path: Path, moment: Moment) -> None:
        self.path, self.moment, self.calls = path, moment, 0

    def __call__(self) -> None:
        self.calls += 1
        if self.calls == self.moment.count:
            try:
                self.path.unlink()
            except FileNotFoundError:  # another process was first
                return
            os.kill(os.getpid(), self.moment.number)


def _before_calls(name: str, fire: _Fire) -> None:
    module, _, path = name.partition(":")
    *owners, last = path.split(".")
    owner: Any = functools.reduce(getattr, owners, importlib.import_module(module))
    function = getattr(owner, last)

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        fire()
        return function(*args, **kwargs)

    setattr(owner, last, called)


def _while_compiling(what: str, fire: _Fire) -> None:
    def heard(event: str, _: float, **about: Any) -> None:
        if event == COMPILING and re.search(what, str(about.get("fun_name"))):
            threading.Timer(0.005, fire).start()

    jax.monitoring.register_event_duration_secs_listener(heard)


def _before_events(moment: Moment, fire: _Fire) -> None:
    def heard(event: str, args: tuple[Any, ...]) -> None:
        if event == moment.kind:
            path = args[1] if event == "os.rename" else args[0]  # the new name
            if isinstance(path, (str, os.PathLike)) and re.search(moment.what, os.fspath(path)):
                fire()

    sys.addaudithook(heard)
