"""Files that are there whole or not at all, and JSON read from files that somebody may have damaged."""

import contextlib
import errno
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rope_jax.study.rows import Row

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


class DamagedError(ValueError):
    """A file of an earlier session cannot be used; the message names it and the remedy."""


def write_whole(path: Path, data: str | bytes) -> None:
    """Writes a file so that it is there whole or not at all; a file that already has this content is left alone.

    Raises:
      DamagedError: the path is a folder.
      OSError: it cannot be written; what was there before is still there.
    """
    content = data.encode() if isinstance(data, str) else data
    if path.is_file() and path.read_bytes() == content:
        return
    if path.is_dir():
        raise DamagedError(f"{path} is a folder where a file belongs; delete it, or move it away")
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = _temporary(path)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # else a crash of the machine may leave the new name with no content
            os.chmod(name, 0o644)
            os.replace(name, path)
    except BaseException as error:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        if isinstance(error, OSError) and error.errno is not None and error.filename is None:
            error.filename = str(path)  # an error of a write does not say of which file
        raise


def _temporary(path: Path) -> tuple[int, str]:
    """An empty file beside a file, for this process alone: its handle and name.

    A killed process leaves it there, unlocked, and the next one that writes the same file takes it over. While another process
    has it locked, or where there are no locks, it is a file of another name.
    """
    name = str(path.with_name(f".{path.name}.partial"))
    with contextlib.suppress(OSError):
        handle = os.open(name, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o644)
        try:
            if lock(handle) and os.path.samestat(os.fstat(handle), os.stat(name)):  # else it was renamed before it was locked
                os.ftruncate(handle, 0)
                return handle, name
        except OSError:
            pass
        os.close(handle)
    return tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")


@contextlib.contextmanager
def temporary_folder(parent: Path, name: str) -> Iterator[Path]:
    """An empty folder for this process alone, which is deleted in the end; a killed process leaves it to the next one."""
    path = parent / f".{name}.partial"
    handle = _claimed(path)
    if handle is None:
        with tempfile.TemporaryDirectory(dir=parent, prefix=f".{name}.") as other:
            yield Path(other)
        return
    try:
        for left in path.iterdir():
            shutil.rmtree(left)
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(handle)


def _claimed(folder: Path) -> int | None:
    """The handle of a folder, made and locked; None if another process has it, or there are no locks."""
    try:
        folder.mkdir(exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return None
    with contextlib.suppress(OSError):
        if lock(handle) and os.path.samestat(os.fstat(handle), os.stat(folder)):
            return handle
    os.close(handle)
    return None


def lock(handle: int) -> bool:
    """Locks an open file against other processes, until it is closed; False if another one has locked it.

    Raises:
      OSError: the system, or the file system, has no locks.
    """
    if fcntl is None:
        raise OSError(errno.ENOLCK, "there are no locks")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def to_lines(rows: Iterable[Row]) -> str:
    """JSON lines."""
    return "".join(json.dumps(row) + "\n" for row in rows)


def read_rows(path: Path) -> list[Row]:
    """Reads JSON lines.

    Raises:
      DamagedError: the file cannot be read, or a line is not a JSON object; the message names file and line.
    """
    rows = []
    for number, line in enumerate(_content(path).splitlines(), 1):
        try:
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError(f"it is {type(row).__name__}, not an object")
        except (ValueError, RecursionError) as error:  # wrong JSON, or bytes that are not UTF-8
            raise DamagedError(f"{path}:{number} is not a line of JSON ({error}); {_REMEDY}") from error
        rows.append(row)
    return rows


def read_object(path: Path) -> dict[str, Any]:
    """Reads a JSON object.

    Raises:
      DamagedError: the file cannot be read, or holds something else.
    """
    try:
        found = json.loads(_content(path))
    except (ValueError, RecursionError) as error:
        if isinstance(error, DamagedError):
            raise
        raise DamagedError(f"{path} is not JSON ({error}); {_REMEDY}") from error
    if not isinstance(found, dict):
        raise DamagedError(f"{path} holds {type(found).__name__} and not a JSON object; {_REMEDY}")
    return found


def misplaced(error: OSError) -> DamagedError | None:
    """What to do about an error of the system that comes of one thing in the place of another; None for any other error."""
    name = error.filename2 or error.filename
    if error.errno not in _MISPLACED or name is None:
        return None
    return DamagedError(f"{name} is not what belongs there ({error.strerror}); delete it, or move it away")


# a file where a folder belongs, a folder where a file belongs, a link to nothing or to itself
_MISPLACED = (errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENOENT, errno.ELOOP)
_REMEDY = "delete it to have it made again"


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DamagedError(f"{path} cannot be read ({error.strerror}); {_REMEDY}") from error
