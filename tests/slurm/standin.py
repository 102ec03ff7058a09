"""What a job runs in the tests: `standin.py OUT TRAINING ...` counts to twenty for each training, with a halt at ten.

A training is finished when `OUT/TRAINING.rows` is there. On SIGTERM and SIGUSR2 it saves how far it counted and exits with 143.
At ten it waits for `OUT/go_on`. `OUT/TRAINING.events` tells what happened, `OUT/TRAINING.pid` who counts.
"""

import os
import signal
import sys
import time
from pathlib import Path

STEPS, HALT = 20, 10
received: list[int] = []


def count(out, training):
    """Counts, from where it stopped."""
    rows, state = out / f"{training}.rows", out / f"{training}.state"
    if rows.exists():
        return
    (out / f"{training}.pid").write_text(str(os.getpid()))
    first = step = int(state.read_text()) if state.exists() else 0
    halted = False
    note(out, training, f"start at {step} in {os.getcwd()}")
    while step < STEPS:
        if received:
            state.write_text(str(step))
            note(out, training, f"{signal.Signals(received[0]).name} at {step}")  # SIGTERM may come twice
            sys.exit(143)
        time.sleep(0.05)
        step += step != HALT or (out / "go_on").exists()
        if step == HALT and not halted:
            note(out, training, "halt")
            halted = True
    rows.write_text(f"{first}\n")


def note(out, training, event):
    """Adds a line to the events of a training."""
    with (out / f"{training}.events").open("a") as file:
        file.write(event + "\n")


if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGUSR2):
        signal.signal(number, lambda number, frame: received.append(number))
    for name in sys.argv[2:]:
        count(Path(sys.argv[1]), name)
