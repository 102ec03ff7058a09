"""Ctrl-C and other requests to stop, from the first import of a command to its end.

The signals are SIGINT (Ctrl-C), SIGTERM, and those that a command asks for, such as SIGUSR2, by which a cluster says that time is
nearly up. Imports the standard library alone, since it runs before slow imports.

A command is stopped in one of four ways:

- While it imports, a signal ends the process at once: nothing was begun.
- While it runs, a signal raises KeyboardInterrupt. It is recorded as well, since JAX drops or wraps some exceptions that are
  raised in its callbacks.
- Inside `Interrupt.deferred()` a signal is recorded and raises nothing, so that a training can finish its chunk and save it.
- Where that does not end the process, because compiled code runs or waits, a thread ends it after GRACE_SECONDS (inside
  `deferred` after DEFERRED_SECONDS), or at a Ctrl-C that follows another signal.

Files are written whole or not at all, so a process that is ended at any point loses nothing that was complete.
"""

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NoReturn

GRACE_SECONDS = 3.0  # from the first signal to the end of the process
DEFERRED_SECONDS = 15.0  # the same inside Interrupt.deferred(): for a chunk of training and its checkpoint
INTERRUPTED = 128 + signal.SIGINT  # exit status after Ctrl-C
TERMINATED = 128 + signal.SIGTERM  # after every other signal: what is left to do can be done later
_ALWAYS = (signal.SIGINT, signal.SIGTERM)
_WHILE_IMPORTING = {"experiments.cell": ("SIGUSR2",)}  # what a command asks for before it can say so itself
_SHOW_CURSOR = b"\x1b[?25h"  # a progress bar hides it


@dataclass
class Interrupt:
    """Whether the command is to stop, and what it then says. Satisfies `rope_jax.study.stop.StopRequest`.

    Attributes:
      signal: the first signal that came, such as signal.SIGTERM; None if none came.
      state: what is complete and how to continue, such as "; no file is written" or " with 1 of 4 cells to do".
    """

    signal: int | None = None
    state: Callable[[], str] = lambda: ""
    _said: bool = False
    _deferring: int = 0
    _handled: set[int] = field(default_factory=set)
    _lock: Any = field(default_factory=threading.RLock)

    @property
    def requested(self) -> bool:
        """Whether a signal came."""
        return self.signal is not None

    @property
    def status(self) -> int:
        """The exit status of the stopped command."""
        return INTERRUPTED if self.signal in (None, signal.SIGINT) else TERMINATED

    @property
    def grace(self) -> float:
        """Seconds from the first signal to the end of the process."""
        return DEFERRED_SECONDS if self._deferring else GRACE_SECONDS

    def check(self) -> None:
        """Raises KeyboardInterrupt if a signal came."""
        if self.requested:
            raise KeyboardInterrupt

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Inside it, a signal raises nothing; the end of it does. A Ctrl-C after another signal stops at once all the same.

        Use it around what takes a few seconds and is worth keeping, not around compilation.
        """
        self.check()
        self._deferring += 1
        try:
            yield
        finally:
            self._deferring -= 1
        self.check()

    def receive(self, number: int) -> None:
        """Records a signal; raises KeyboardInterrupt where it is not to wait."""
        again = self.requested
        if again and number == signal.SIGINT:
            if _own_process:
                _end(self)
            raise KeyboardInterrupt
        if not again:  # clusters repeat SIGTERM; that must not break into what the first one began
            self.signal = number
            if not self._deferring:
                raise KeyboardInterrupt

    def say(self, write: Callable[[str], object]) -> None:
        """Writes the message, once. It may be called while it runs: by another thread, or by the handler of a second Ctrl-C."""
        try:
            state = self.state()
        except Exception:  # such as a folder that cannot be read any more
            state = ""
        word = "terminated" if self.signal == signal.SIGTERM else "interrupted" if self.status == INTERRUPTED else "out of time"
        with self._lock, suppress(OSError):
            if not self._said:
                write(f"\n{word}{state}\n")
                self._said = True


_own_process = False  # whether the process is one command and no more, so that it may be ended
_current: Interrupt | None = None


def stop_while_importing() -> bool:
    """Makes signals end the process at once if Python is just importing a command of this project, as `python -m` does.

    Returns:
      Whether it is.
    """
    global _own_process
    modules = [argument.removeprefix("-m") for argument in sys.orig_argv[1:]]
    ours = any(module.split(".")[0] in ("experiments", "benchmarks") for module in modules)
    if sys.argv[:1] == ["-m"] and ours:  # sys.argv has the name of the command only after the package is imported
        _own_process = True
        asked = [getattr(signal, name) for module in modules for name in _WHILE_IMPORTING.get(module, ())]
        for number in (*_ALWAYS, *asked):
            if _is_default(number):
                signal.signal(number, _end_at_once)
    return _own_process


def _is_default(number: int) -> bool:
    """Whether a signal is neither ignored (as by nohup) nor handled by other code."""
    return signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler, _end_at_once)


@contextmanager
def interruptible(also: tuple[int, ...] = ()) -> Iterator[Interrupt]:
    """Turns Ctrl-C and SIGTERM, and any error that follows them, into one message on stderr and SystemExit.

    The exit status is 130 after Ctrl-C and 143 after any other signal. A signal is left alone where it is ignored (nohup) or
    handled by other code. Inside another `interruptible`, both are one.

    Args:
      also: further signals that stop this command, such as (signal.SIGUSR2,).
    """
    global _current
    outer = _current
    interrupt = outer or Interrupt()
    with ExitStack() as restored:
        try:
            if threading.current_thread() is threading.main_thread():  # the only one that may set handlers
                if _own_process and not outer:
                    restored.enter_context(_watched(interrupt))
                for number in (*(() if outer else _ALWAYS), *also):
                    if _is_default(number):
                        restored.enter_context(_handled(number, interrupt))
            _current = interrupt
            yield interrupt
        except (KeyboardInterrupt, Exception) as error:
            if not interrupt.requested and not isinstance(error, KeyboardInterrupt):
                raise
            interrupt.say(lambda text: print(text, end="", file=sys.stderr, flush=True))
            sys.exit(interrupt.status)
        finally:
            _current = outer


def leave(status: int) -> NoReturn:
    """Ends the process without the destructors of other libraries, which may crash after an interrupt.

    Python's own end would also give up the handlers of signals before it is over.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(status)


@contextmanager
def _handled(number: int, interrupt: Interrupt) -> Iterator[None]:
    """Handles a signal for an interrupt."""
    before = signal.getsignal(number)
    interrupt._handled.add(number)
    signal.signal(number, lambda number, _: interrupt.receive(number))
    try:
        yield
    finally:
        signal.signal(number, before)
        interrupt._handled.discard(number)


@contextmanager
def _watched(interrupt: Interrupt) -> Iterator[None]:
    """Runs the thread that ends the process where the signals of an interrupt do not."""
    # Python runs a handler in its main thread alone, and only between two of its instructions; the byte comes at once
    receiver, sender = socket.socketpair()
    sender.setblocking(False)
    before = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(interrupt, receiver), daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        sender.close()


def _watch(interrupt: Interrupt, receiver: socket.socket) -> None:
    """Ends the process when the grace of the first signal is over, or at a SIGINT that follows another signal."""
    came: list[int] = []
    began = 0.0
    while signal.SIGINT not in came[1:]:
        left = began + interrupt.grace - time.monotonic()
        if came and left <= 0:
            break
        receiver.settimeout(left if came else None)
        with suppress(TimeoutError):  # the grace may have grown meanwhile
            received = receiver.recv(64)
            if not received:  # the command is at its end
                return
            handled = [number for number in received if number in interrupt._handled]
            if handled and not came:
                began = time.monotonic()
            came += handled
    if interrupt.signal is None:  # its handler has not run
        interrupt.signal = came[0]
    _end(interrupt)


def _end(interrupt: Interrupt) -> NoReturn:
    """Ends the process from any thread: sys.stderr may be in use by another one, so that the message goes past it."""
    interrupt.say(lambda text: os.write(2, text.encode(errors="backslashreplace")))
    with suppress(OSError):
        if os.isatty(2):
            os.write(2, _SHOW_CURSOR)
    os._exit(interrupt.status)


def _end_at_once(number: int, _: object) -> NoReturn:
    _end(Interrupt(number))
