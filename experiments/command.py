"""What every command does around its work: its streams, its exit status, and errors of files and streams.

Exit status: 0 done; 1 a fault, such as a full disk or a fault in a class of the user's; 2 refused, the command or the config has
to change; 130 interrupted by Ctrl-C; 141 the reader of the output went away, as in `| head -1`; 143 stopped by another
signal, such as SIGTERM.
"""

import atexit
import errno
import io
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Annotated, Any, NoReturn

import jax
import tyro

from experiments.interrupt import INTERRUPTED, TERMINATED, interruptible, leave
from experiments.threads import FULL

_FAULT = 1
_BROKEN_PIPE = 141  # 128 + SIGPIPE, as of a program that is killed by it


def run(main: Callable[[list[str]], None]) -> NoReturn:
    """Runs a command on the arguments of the process, then exits."""
    _prepare_streams()
    _drop_echoes()
    status: Any = None
    try:
        with failing(lambda: ""), interruptible():
            main(sys.argv[1:])
    except SystemExit as ended:
        status = ended.code
    except BrokenPipeError:
        status = _BROKEN_PIPE
    status = _flushed(status)
    if status not in (_FAULT, INTERRUPTED, TERMINATED):
        atexit._run_exitfuncs()
    leave(status or 0)


def _flushed(status: Any) -> Any:
    """Writes what is still in the buffers of the streams; the exit status after that."""
    try:
        sys.stdout.flush()
    except OSError as error:
        _discard(sys.stdout)
        if isinstance(error, BrokenPipeError):
            status = _BROKEN_PIPE
        elif not status:
            remark(f"error: standard output cannot be written ({error.strerror})")
            status = _FAULT
    return status


def _prepare_streams() -> None:
    """Makes every text printable, and replaces streams that are closed."""
    for descriptor in (0, 1, 2):  # else the next file that is opened would get the number, and what libraries print there
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stdout is None:  # it is closed
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    bytes_, encoding = (open(os.devnull, "wb"), "utf-8") if sys.stderr is None else (sys.stderr.buffer, sys.stderr.encoding)  # noqa: SIM115
    sys.stderr = _Remarks(bytes_, encoding, errors="backslashreplace", line_buffering=True)


def _drop_echoes() -> None:
    """Drops errors that Python would show since nobody can catch them, and that are known otherwise."""
    hook = sys.unraisablehook

    def show_others(what: "sys.UnraisableHookArgs") -> None:
        error = what.exc_value
        interrupted = isinstance(error, KeyboardInterrupt)  # in a callback of JAX, say; `Interrupt` has recorded it
        # Orbax gives up at the first of many writes that fail, and raises it; the others then find nobody to tell
        unheard = isinstance(error, RuntimeError) and str(error) == "Event loop is closed"
        if not (interrupted or unheard):
            hook(what)

    sys.unraisablehook = show_others


class _Remarks(io.TextIOWrapper):
    """A stderr that stops no work where nobody can read it: it is full, or a pipe without a reader."""

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError:
            _discard(self)
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError:
            _discard(self)


def remark(text: str) -> None:
    """Prints a line on stderr."""
    print(text, file=sys.stderr, flush=True)


def silence_libraries() -> None:
    """Drops what libraries say of errors that they raise as well, or that change no result."""
    for name in ("absl", "asyncio", "concurrent.futures"):  # Orbax and the libraries below it
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    # a full disk, and what it left in JAX's cache of programs, would have one of these for every program
    entry = "persistent compilation cache entry"
    warnings.filterwarnings("ignore", f"Error writing {entry} .*(No space left on|too large|quota)")
    warnings.filterwarnings("ignore", f"Error reading {entry} .*truncated stream")


def show(text: str, state: str) -> None:
    """Prints the result of a command on stdout.

    Args:
      text: the result.
      state: what an error says is complete all the same, such as "all files are in out/quickstart".
    """
    try:
        print(text, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        _discard(sys.stdout)
        remark(f"error: standard output cannot be written ({error.strerror}); {state}")
        sys.exit(_FAULT)


@contextmanager
def failing(state: Callable[[], str]) -> Iterator[None]:
    """Turns errors of files, memory, threads and processes into one message on stderr and exit status 1.

    Args:
      state: what is complete and how to continue, such as "; no file is written".
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except (OSError, MemoryError, RuntimeError) as error:
        reason = _reason(error)
        if reason is None:
            raise
        remark(f"error: {reason}{state()}")
        sys.exit(_FAULT)


def _reason(error: BaseException) -> str | None:
    """An error of files, memory, threads or processes in words; None for any other error."""
    if isinstance(error, OSError):
        names = [str(name) for name in (error.filename, error.filename2) if name is not None]
        hint = "; is the limit of processes (`ulimit -u`) reached?" if error.errno == errno.EAGAIN else ""
        return (f"{names[-1]}: {error.strerror}" if names else error.strerror or str(error)) + hint
    text = str(error).splitlines()[0] if str(error) else ""
    if text == "can't start new thread":
        return FULL
    if isinstance(error, MemoryError) or (isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" in text):
        return f"there is not enough memory ({text or type(error).__name__}); use smaller sizes"
    return None


def _discard(stream: IO[str]) -> None:
    """Sends what is still to be written to a stream to nowhere."""
    with suppress(OSError):  # a stream of a test or a notebook has no file
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def require_no_arguments(arguments: list[str], help_text: str | None) -> None:
    """Prints the help of a command that has no arguments, and exits, if it is given any."""
    if arguments:
        wants_help = arguments in (["-h"], ["--help"])
        print(help_text, file=sys.stdout if wants_help else sys.stderr)
        sys.exit(0 if wants_help else 2)


def require_config(arguments: list[str], help_text: str | None, program: str) -> None:
    """Prints the usage of a command whose first argument is a config, and exits, unless there is one."""
    if arguments and not arguments[0].startswith("-"):
        return
    help_asked = bool({"-h", "--help"} & set(arguments))
    usage = f"usage: python -m {program} CONFIG --out DIR [--train.steps N ...]   (CONFIG first; CONFIG --help lists all)"
    print(*([help_text] if help_asked else []), usage, sep="\n", file=sys.stdout if help_asked else sys.stderr)
    sys.exit(0 if help_asked else 2)


def path(text: str) -> Path:
    """A path of the command line; raises ValueError for a text that names none."""
    try:
        possible = bool(text.strip()) and b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        possible = False
    if not possible:
        raise ValueError(f"a path must be text that is not blank, got {text!r}; name a file or folder, such as out/first")
    return Path(text)


PathArgument = Annotated[
    Path,
    tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="PATH",
        instance_from_str=lambda texts: path(texts[0]),
        is_instance=lambda value: isinstance(value, Path),
        str_from_instance=lambda value: [str(value)],
    ),
]
"""A path as a field of a class of arguments for tyro."""
