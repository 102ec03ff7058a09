"""Whether the system lets a command start its threads. Imports the standard library alone, since it runs before slow imports."""

import _thread
import os
import sys

FULL = "no further thread can be started; end other programs, or raise the limit of processes (`ulimit -u`)"
_FEWEST = 16  # with _PER_CORE a little more than was counted in a run: XLA, the checkpoints' writer and OpenBLAS have pools
_PER_CORE = 8


def require_threads() -> None:
    """Exits with status 1 and one message if the threads of a run cannot be started.

    Where the system refuses a thread later, XLA aborts the process with a page of C++ frames, and NumPy's OpenBLAS sends SIGINT.
    """
    over = _thread.allocate_lock()  # 20 times as fast as threading.Thread, which waits for each to begin

    def wait() -> None:
        with over:
            pass

    try:
        with over:
            for _ in range(_FEWEST + _PER_CORE * (os.cpu_count() or 1)):
                _thread.start_new_thread(wait, ())
    except RuntimeError:
        print(f"error: {FULL}", file=sys.stderr)
        sys.exit(1)
