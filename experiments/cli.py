"""Shared by the commands: loading Python files of the user's, and reporting the user's errors."""

import difflib
import inspect
import linecache
import re
import sys
import traceback
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import experiments
import rope_jax as rj
from experiments.command import remark
from rope_jax import optimizers, policies, study, tasks

_MOST_BYTES = 10_000_000  # of a Python file


def perhaps(name: str, known: Iterable[str]) -> str:
    """' (perhaps you meant RoPE?)', or nothing if no known name is close."""
    by_fold = {candidate.casefold(): candidate for candidate in known}
    close = difflib.get_close_matches(name, by_fold.values(), n=1)
    close = close or [by_fold[fold] for fold in difflib.get_close_matches(name.casefold(), by_fold, n=1)]
    return f" (perhaps you meant {close[0]}?)" if close else ""


@contextmanager
def _naming_lines(path: Path) -> Iterator[None]:
    """Turns whatever the code of a file raises into a ValueError with the file and the line."""
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise ValueError(_where(path, error)) from error


def load_module(path: Path, what: str) -> types.ModuleType:
    """Runs a Python file of the user's. The file can import files beside it.

    Args:
      path: the file.
      what: what messages call the file, such as "config".

    Raises:
      ValueError: the file does not exist, is a folder, cannot be read, is no text in UTF-8, has a syntax error or raises; the
        message names the file, and the line where there is one.
    """
    try:
        if path.is_dir():
            raise ValueError(f"{what} {path} is a folder; name a file in it")
        if not path.exists():
            beside = sorted(other.name for other in path.parent.glob("*.py")) if path.parent.is_dir() else []
            raise ValueError(f"{what} {path} does not exist{perhaps(path.name, beside)}")
        with path.open("rb") as file:
            source = file.read(_MOST_BYTES + 1)  # a device such as /dev/zero has no end
    except OSError as error:
        raise ValueError(f"{what} {path} cannot be read ({error.strerror})") from error
    if len(source) > _MOST_BYTES:
        raise ValueError(f"{what} {path} must be a Python file of at most {_MOST_BYTES} bytes, and is longer; name another file")
    if b"\0" in source:  # in every UTF-16 or UTF-32 text, and in no UTF-8 text
        raise ValueError(f"{what} {path} must be a text in UTF-8, and has NUL bytes, as UTF-16 has; save it as UTF-8")
    if (folder := str(path.parent.resolve())) not in sys.path:
        sys.path.append(folder)  # behind all others: a file beside this one can be imported, and hides no installed module
    # a module of its own, so that classes in the file find the names that their annotations use; no bytecode is written
    module = types.ModuleType(f"{what} {path}")
    module.__file__ = str(path)  # where the help of the command line reads the docstrings of classes
    sys.modules[module.__name__] = module
    with _naming_lines(path):
        exec(compile(source, str(path), "exec"), vars(module))
    return module


def load_experiment(path: Path) -> study.Experiment:
    """Runs a config file and calls its experiment().

    Raises:
      ValueError: as `load_module`; or the file has no experiment(), or that raises or returns something else.
    """
    module = load_module(path, "config")
    make = getattr(module, "experiment", None)
    with _naming_lines(path):
        experiment = make() if callable(make) else None
    if not callable(make):
        raise ValueError(f"config {path} has no function experiment(); it must define `def experiment() -> Experiment`")
    if not isinstance(experiment, study.Experiment):
        raise ValueError(
            f"config {path}: experiment() must return an Experiment, got {type(experiment).__name__}: {experiment!r}"
        )
    return experiment


def _where(path: Path, error: BaseException) -> str:
    """The message for an error in a config file: the file, the line, the error, and a name that may have been meant."""
    if isinstance(error, SyntaxError):
        at = f":{error.lineno}" if error.lineno else ""  # a wrong encoding has no line
        return f"{error.filename or path}{at}: syntax error: {error.msg}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == path]
    location = f"{path}:{lines[-1]}" if lines else str(path)
    kind = "" if type(error) is ValueError else f"{type(error).__name__}: "
    message = re.sub(r"\. Did you mean.*", "", str(error))  # newer Pythons add a suggestion to some errors
    return f"{location}: {kind}{message}{_suggestion(error)}"


def _suggestion(error: BaseException) -> str:
    """The name that a misspelt encoder, task or option of a config may have meant."""
    if isinstance(error, AttributeError) and error.name:
        named = [name for name in dir(error.obj) if not isinstance(getattr(error.obj, name, None), types.ModuleType)]
        return perhaps(error.name, named)
    text = str(error)
    known = [
        name
        for module in (study, optimizers, policies, tasks, rj)
        for name, value in vars(module).items()
        if isinstance(value, type)
    ]
    if missing := re.search(r"cannot import name '(\w+)'|name '(\w+)' is not defined", text):
        return perhaps(missing[1] or missing[2], known)
    if unknown := re.search(r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'", text):
        for module in (rj, tasks, policies, optimizers, study):
            if hasattr(module, unknown[1]):
                return perhaps(unknown[2], inspect.signature(getattr(module, unknown[1])).parameters)
    return ""


@contextmanager
def refusing(kind: type[ValueError] = ValueError, *, when: Callable[[ValueError], bool] = lambda error: True) -> Iterator[None]:
    """Turns errors that the user can correct into one message on stderr and exit status 2.

    Args:
      kind: the class of these errors.
      when: which of its errors.
    """
    try:
        yield
    except kind as error:
        if not when(error):
            raise
        remark(f"error: {error}")
        sys.exit(2)


def is_refusal(error: ValueError) -> bool:
    """Whether this project itself raised an error, with a message that says what to change.

    An error that a user's class raises, or a library on its behalf, is a fault, whose traceback is needed.
    """
    *_, (frame, line) = traceback.walk_tb(error.__traceback__)
    file = Path(frame.f_code.co_filename)
    ours = any(file.is_relative_to(Path(module.__file__).parent) for module in (rj, experiments) if module.__file__)
    return ours and linecache.getline(str(file), line).lstrip().startswith("raise ")
