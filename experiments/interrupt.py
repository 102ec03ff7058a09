"""Ctrl-C, from the first import of a command to its end. Imports the standard library alone, since it runs before slow imports.

A command is stopped in one of three ways:

- While it imports, Ctrl-C ends the process at once: nothing was begun.
- While it runs, Ctrl-C raises KeyboardInterrupt. It is recorded as well, since JAX drops or wraps some exceptions that are raised
  in its callbacks.
- Where that does not end the process, because compiled code runs or waits, a thread ends it after GRACE_SECONDS, or at the second
  Ctrl-C.

Files are written whole or not at all, so a process that is ended at any point loses nothing that was complete.
"""

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NoReturn

GRACE_SECONDS = 3.0  # from the first Ctrl-C to the end of the process
STATUS = 130  # of a process that was interrupted: 128 + SIGINT
_SHOW_CURSOR = b"\x1b[?25h"  # a progress bar hides it


@dataclass
class Interrupt:
    """Whether Ctrl-C was pressed, and what a stopped command says.

    Attributes:
      pressed: whether it was.
      state: what is complete and how to continue, such as "; no file is written" or " with 1 of 4 cells to do".
    """

    pressed: bool = False
    state: Callable[[], str] = lambda: ""
    _said: bool = False
    _lock: Any = field(default_factory=threading.RLock)

    def check(self) -> None:
        """Raises KeyboardInterrupt if it was."""
        if self.pressed:
            raise KeyboardInterrupt

    def say(self, write: Callable[[str], object]) -> None:
        """Writes the message, once. It may be called while it runs: by another thread, or by the handler of a second Ctrl-C."""
        try:
            state = self.state()
        except Exception:  # such as a folder that cannot be read any more
            state = ""
        with self._lock, suppress(OSError):
            if not self._said:
                write(f"\ninterrupted{state}\n")
                self._said = True


_own_process = False  # whether the process is one command and no more, so that it may be ended
_current: Interrupt | None = None


def stop_while_importing() -> None:
    """Makes Ctrl-C end the process at once if Python is just importing a command of this project, as `python -m` does."""
    global _own_process
    ours = any(argument.removeprefix("-m").split(".")[0] in ("experiments", "benchmarks") for argument in sys.orig_argv[1:])
    if sys.argv[:1] == ["-m"] and ours:  # sys.argv has the name of the command only after the package is imported
        _own_process = True
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, _end_at_once)


@contextmanager
def interruptible() -> Iterator[Interrupt]:
    """Turns Ctrl-C, and any error that follows it, into one message on stderr and SystemExit(130).

    Ctrl-C is left alone where it is ignored (nohup) or handled by other code. Inside another `interruptible`, both are one.
    """
    global _current
    outer, before = _current, signal.getsignal(signal.SIGINT)
    interrupt = outer or Interrupt()
    in_main_thread = threading.current_thread() is threading.main_thread()  # the only one that may set handlers
    handled = outer is None and in_main_thread and before in (signal.default_int_handler, _end_at_once)
    stop_watching = _handle(interrupt) if handled else lambda: None
    _current = interrupt
    try:
        yield interrupt
    except (KeyboardInterrupt, Exception) as error:
        if not interrupt.pressed and not isinstance(error, KeyboardInterrupt):
            raise
        interrupt.say(lambda text: print(text, end="", file=sys.stderr, flush=True))
        sys.exit(STATUS)
    finally:
        _current = outer
        if handled:
            signal.signal(signal.SIGINT, before)
            stop_watching()


def leave(status: int) -> NoReturn:
    """Ends the process without the destructors of other libraries, which may crash after an interrupt.

    Python's own end would also give up the handler of Ctrl-C before it is over.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(status)


def _handle(interrupt: Interrupt) -> Callable[[], None]:
    """Handles SIGINT for an interrupt; what it returns ends the thread that watches over it."""

    def on_signal(*_: object) -> None:
        if interrupt.pressed and _own_process:
            _end(interrupt)
        interrupt.pressed = True
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, on_signal)
    if not _own_process:
        return lambda: None
    # Python runs a handler in its main thread alone, and only between two of its instructions; the byte comes at once
    receiver, sender = socket.socketpair()
    sender.setblocking(False)
    before = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
    hook = sys.unraisablehook
    sys.unraisablehook = lambda what: None if isinstance(what.exc_value, KeyboardInterrupt) else hook(what)  # it is recorded
    threading.Thread(target=_watch, args=(interrupt, receiver), daemon=True).start()

    def stop() -> None:
        signal.set_wakeup_fd(before)
        sender.close()
        sys.unraisablehook = hook

    return stop


def _watch(interrupt: Interrupt, receiver: socket.socket) -> None:
    """Ends the process GRACE_SECONDS after the first SIGINT, or at the second."""
    presses = 0
    with suppress(TimeoutError):
        while presses < 2:
            received = receiver.recv(64)
            if not received:  # the command is at its end
                return
            presses += received.count(signal.SIGINT)
            receiver.settimeout(GRACE_SECONDS if presses else None)
    _end(interrupt)


def _end(interrupt: Interrupt) -> NoReturn:
    """Ends the process from any thread: sys.stderr may be in use by another one, so that the message goes past it."""
    interrupt.say(lambda text: os.write(2, text.encode(errors="backslashreplace")))
    with suppress(OSError):
        if os.isatty(2):
            os.write(2, _SHOW_CURSOR)
    os._exit(STATUS)


def _end_at_once(*_: object) -> NoReturn:
    _end(Interrupt())
