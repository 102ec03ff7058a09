"""Signals as users and clusters send them: while a command imports, while compiled code runs, while it saves, twice; and never in
other programs.
"""

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import experiments
from experiments import interrupt
from looping import for_each
from rope_jax.study.stop import Stop, StopRequest

ROOT = Path(__file__).parents[2]
# a thread that waits for a mutex in C neither returns at a signal nor runs Python's handlers, like XLA when it compiles
DEAF = """
import ctypes, sys
mutex, c = ctypes.create_string_buffer(128), ctypes.CDLL(None)
c.pthread_mutex_lock(mutex)
print("deaf", file=sys.stderr, flush=True)
c.pthread_mutex_lock(mutex)
"""


# the same with times that differ from the program's
DEAF_FOR = """
import contextlib
from experiments import interrupt
interrupt.GRACE_SECONDS, interrupt.DEFERRED_SECONDS = {grace}, {deferred}
with {context}:
""" + textwrap.indent(DEAF, "    ")
WAITING = """
import sys
from experiments import interrupt
stop = interrupt._current
with stop.deferred():
    print("here", file=sys.stderr, flush=True)
    sys.stdin.readline()
    print(f"saved, {stop.requested=} {stop.signal=}", file=sys.stderr, flush=True)
print("unreachable", file=sys.stderr)
"""
SIGNALS = (signal.SIGINT, signal.SIGTERM)


def start(*command, ignore=()):
    """A process in which signals are handled, or ignored as after nohup, whatever holds here."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number in SIGNALS:
        default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, signal.SIG_IGN if number in ignore else default)
    process = subprocess.Popen(
        [sys.executable, *command], cwd=ROOT, stdin=subprocess.PIPE, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    for number, handler in before.items():
        signal.signal(number, handler)
    return process


def compare(config, folder, **options):
    """A process that runs a config of this text."""
    (folder / "config.py").write_text(config)
    return start("-m", "experiments.compare", str(folder / "config.py"), "--out", str(folder / "out"), **options)


def stopped_after(text, process, *signals, until_it_ends=()):
    """Sends signals when a line with the text is on stderr, then a line; returns exit status and what came on stderr.

    Signals that are sent in a row may reach a process as one; those of `until_it_ends` are repeated.
    """
    try:
        lines = []
        for line in process.stderr:
            lines.append(line)
            if text in line:
                break
        for number in signals:
            process.send_signal(number)
        while until_it_ends and process.poll() is None:
            for number in until_it_ends:
                process.send_signal(number)
        rest = process.communicate("" if until_it_ends else "a line\n", timeout=120)[1]
    finally:
        process.kill()
    return process.returncode, "".join(lines) + rest


@for_each("module", ["experiments.compare", "experiments.catalogue", "experiments.blocks", "benchmarks", "benchmarks.page"])
def test_a_signal_while_a_command_imports_is_one_line(module):
    for number, status, word in ((signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")):
        ended, said = stopped_after(" numpy", start("-X", "importtime", "-m", module, "--help"), number)
        assert ended == status, said
        assert "Traceback" not in said
        assert said.count(word) == 1


def test_usr2_while_importing_stops_the_command_that_asks_for_it():
    for module, status, count in (("experiments.cell", 143, 1), ("experiments.compare", -signal.SIGUSR2, 0)):
        ended, said = stopped_after(" numpy", start("-X", "importtime", "-m", module), signal.SIGUSR2)
        assert (ended, said.count("out of time")) == (status, count), said


@for_each(("number", "status", "word"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")])
def test_a_signal_ends_a_command_that_is_in_compiled_code(number, status, word, tmp_path):
    """After some seconds."""
    assert stopped_after("deaf", compare(DEAF, tmp_path), number) == (status, f"deaf\n\n{word}\n")
    assert not (tmp_path / "out").exists()


@for_each("context", ["contextlib.nullcontext()", "interrupt._current.deferred()"])
def test_a_second_interrupt_ends_compiled_code_at_once(context, tmp_path):
    """Inside `deferred` too; no time is given, so that nothing else ends it."""
    process = compare(DEAF_FOR.format(grace=3600, deferred=3600, context=context), tmp_path)
    assert stopped_after("deaf", process, until_it_ends=[signal.SIGINT]) == (130, "deaf\n\ninterrupted\n")


def test_compiled_code_that_is_deferred_has_a_time_of_its_own(tmp_path):
    process = compare(DEAF_FOR.format(grace=3600, deferred=0.1, context="interrupt._current.deferred()"), tmp_path)
    assert stopped_after("deaf", process, signal.SIGTERM) == (143, "deaf\n\nterminated\n")


def test_what_is_deferred_is_finished_before_the_command_ends(tmp_path):
    """Though clusters repeat SIGTERM."""
    done = stopped_after("here", compare(WAITING, tmp_path), signal.SIGTERM, signal.SIGTERM)
    said = f"here\nsaved, stop.requested=True stop.signal={signal.SIGTERM.value}\n\nterminated\n"
    assert done == (143, said)


def test_signals_that_are_ignored_stay_ignored(tmp_path):
    """As after nohup."""
    config = "import sys\nprint('here', file=sys.stderr, flush=True)\nsys.stdin.readline()\n"
    status, said = stopped_after("here", compare(config, tmp_path, ignore=SIGNALS), *SIGNALS)
    assert status == 2
    assert "has no function experiment()" in said


def test_other_programs_keep_their_handlers():
    """Those that import the commands, whether run as a file, a module or a text."""
    assert not interrupt._own_process  # pytest imported this package
    program = (
        "import signal as s, {0}; print(s.getsignal(s.SIGINT) is s.default_int_handler, s.getsignal(s.SIGTERM) is s.SIG_DFL)"
    )
    for name in ("experiments", "experiments.interrupt"):
        out, _ = start("-c", program.format(name), "-m", "experiments").communicate(timeout=120)
        assert out == "True True\n"
    for number in (*SIGNALS, signal.SIGUSR2):
        own = signal.signal(number, handler := lambda *_: None)
        try:
            with interrupt.interruptible(also=(signal.SIGUSR2,)):
                assert signal.getsignal(number) is handler
        finally:
            signal.signal(number, own)
    assert experiments.__doc__


@pytest.fixture
def fresh():
    """Python's own handlers, whatever holds here."""
    before = {number: signal.getsignal(number) for number in (*SIGNALS, signal.SIGUSR2)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGUSR2, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_signal_raises_and_is_recorded(fresh, capsys):
    """SIGUSR2 where it is asked for, also by an inner part; the handlers are then as before."""

    def stopped(number):
        with interrupt.interruptible() as outer, interrupt.interruptible(also=(signal.SIGUSR2,)) as stop:
            assert stop is outer
            assert not stop.requested
            stop.check()
            stop.state = lambda: " with 1 of 2 cells to do"
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(number)
            assert stop.signal == number
            signal.raise_signal(signal.SIGTERM)  # is not raised again
            stop.check()

    for number, status, word in (
        (signal.SIGINT, 130, "interrupted"),
        (signal.SIGTERM, 143, "terminated"),
        (signal.SIGUSR2, 143, "out of time"),
    ):
        with pytest.raises(SystemExit) as ended:
            stopped(number)
        assert ended.value.code == status
        assert capsys.readouterr().err == f"\n{word} with 1 of 2 cells to do\n"
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert signal.getsignal(signal.SIGTERM) is signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL


def test_deferred_raises_at_its_end(fresh, capsys):
    done = []

    def stopped(inside):
        done.clear()
        with pytest.raises(SystemExit) as ended, interrupt.interruptible() as stop:
            inside(stop)
        assert not signal.getsignal(signal.SIGTERM)
        return ended.value.code, list(done), capsys.readouterr().err

    def once(stop):
        with stop.deferred(), stop.deferred():
            signal.raise_signal(signal.SIGTERM)
            done.append("saved")
        done.append("after")

    def checked(stop):
        with stop.deferred():
            signal.raise_signal(signal.SIGTERM)
            done.append("saved")
            stop.check()
            done.append("after")

    def twice(stop):
        with stop.deferred():
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGINT)
            done.append("saved")

    def pending(stop):
        try:
            signal.raise_signal(signal.SIGTERM)
        except KeyboardInterrupt:  # as JAX drops it in a callback
            done.append("dropped")
        with stop.deferred():
            done.append("after")

    assert stopped(once) == (143, ["saved"], "\nterminated\n")
    assert stopped(checked) == (143, ["saved"], "\nterminated\n")
    assert stopped(twice) == (143, [], "\nterminated\n")
    assert stopped(pending) == (143, ["dropped"], "\nterminated\n")
    with interrupt.interruptible() as stop:
        with stop.deferred():
            done.append("no signal")
        with pytest.raises(SystemExit), interrupt.interruptible() as same:
            signal.raise_signal(signal.SIGTERM)  # after `deferred` as before it
        assert same.requested


def test_what_never_stops_has_the_same_members():
    def waits_for(stop: StopRequest):
        stop.check()
        with stop.deferred():
            return stop.requested

    assert waits_for(Stop()) is waits_for(interrupt.Interrupt()) is False


def test_errors_after_an_interrupt_are_the_interrupt(capsys):
    """And what says how to continue may fail itself; without an interrupt, errors pass."""

    def raises_inside(error, came):
        with interrupt.interruptible() as outer, interrupt.interruptible() as inner:
            assert inner is outer
            inner.signal = came
            inner.state = lambda: 1 / 0
            raise error

    came = signal.SIGINT
    for error, number in ((KeyboardInterrupt(), None), (KeyboardInterrupt(), came), (ValueError("from a callback"), came)):
        with pytest.raises(SystemExit) as ended:
            raises_inside(error, number)
        assert ended.value.code == 130
        assert capsys.readouterr().err == "\ninterrupted\n"
    with pytest.raises(ValueError, match="plain"):
        raises_inside(ValueError("plain"), None)
