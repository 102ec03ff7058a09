"""Ctrl-C as a user presses it: while a command imports, while compiled code runs, twice; and never in other programs."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import experiments
from experiments import interrupt
from looping import for_each

ROOT = Path(__file__).parents[2]
# a thread that waits for a mutex in C neither returns at a signal nor runs Python's handlers, like XLA when it compiles
DEAF = """
import ctypes, sys
mutex, c = ctypes.create_string_buffer(128), ctypes.CDLL(None)
c.pthread_mutex_lock(mutex)
print("deaf", file=sys.stderr, flush=True)
c.pthread_mutex_lock(mutex)
"""


def start(*command, ignore=False):
    """A process in which Ctrl-C is handled, or ignored as after nohup, whatever holds here."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN if ignore else signal.default_int_handler)
    process = subprocess.Popen([sys.executable, *command], cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    signal.signal(signal.SIGINT, before)
    return process


def interrupted_after(text, process, presses=1):
    """Sends SIGINT when a line with the text is on stderr; returns the exit status and what came on stderr."""
    try:
        lines = []
        for line in process.stderr:
            lines.append(line)
            if text in line:
                break
        for _ in range(presses):
            process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=120)[1]
    finally:
        process.kill()
    return process.returncode, "".join(lines) + rest


@for_each("module", ["experiments.compare", "experiments.catalogue", "experiments.blocks", "benchmarks", "benchmarks.page"])
def test_an_interrupt_while_a_command_imports_is_one_line(module):
    status, said = interrupted_after(" numpy", start("-X", "importtime", "-m", module, "--help"))
    assert status == 130, said
    assert "Traceback" not in said
    assert said.count("interrupted") == 1


@for_each("presses", [1, 2])
def test_an_interrupt_ends_a_command_that_is_in_compiled_code(presses, tmp_path):
    """At the second press at once, else after some seconds."""
    config = tmp_path / "deaf.py"
    config.write_text(DEAF)
    status, said = interrupted_after(
        "deaf", start("-m", "experiments.compare", str(config), "--out", str(tmp_path / "out")), presses
    )
    assert (status, said) == (130, "deaf\n\ninterrupted\n")
    assert not (tmp_path / "out").exists()


def test_an_interrupt_that_is_ignored_stays_ignored(tmp_path):
    """As after nohup."""
    config = tmp_path / "slow.py"
    config.write_text("import sys\nprint('here', file=sys.stderr, flush=True)\nsys.stdin.read()\n")
    read, write = os.pipe()
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    command = [sys.executable, "-m", "experiments.compare", str(config), "--out", str(tmp_path / "out")]
    process = subprocess.Popen(command, cwd=ROOT, stdin=read, stderr=subprocess.PIPE, text=True)
    signal.signal(signal.SIGINT, before)
    assert process.stderr.readline() == "here\n"
    process.send_signal(signal.SIGINT)
    os.close(read)
    os.close(write)  # the config then goes on to its end
    assert "has no function experiment()" in process.communicate(timeout=120)[1]
    assert process.returncode == 2


def test_other_programs_keep_their_handlers():
    """Those that import the commands, whether run as a file, a module or a text."""
    assert not interrupt._own_process  # pytest imported this package
    program = "import signal, {0}; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    for name in ("experiments", "experiments.interrupt"):
        out, _ = start("-c", program.format(name), "-m", "experiments").communicate(timeout=120)
        assert out == "True\n"
    own = signal.signal(signal.SIGINT, handler := lambda *_: None)
    try:
        with interrupt.interruptible():
            assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, own)
    assert experiments.__doc__


def test_errors_after_an_interrupt_are_the_interrupt(capsys):
    """And what says how to continue may fail itself; without an interrupt, errors pass."""

    def raises_inside(error, pressed):
        with interrupt.interruptible() as outer, interrupt.interruptible() as inner:
            assert inner is outer
            inner.pressed = pressed
            inner.state = lambda: 1 / 0
            raise error

    for error, pressed in ((KeyboardInterrupt(), False), (KeyboardInterrupt(), True), (ValueError("from a callback"), True)):
        with pytest.raises(SystemExit) as ended:
            raises_inside(error, pressed)
        assert ended.value.code == 130
        assert capsys.readouterr().err == "\ninterrupted\n"
    with pytest.raises(ValueError, match="plain"):
        raises_inside(ValueError("plain"), False)
