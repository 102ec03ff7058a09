"""Files that are there whole or not at all, and JSON read from files that somebody may have damaged."""

import contextlib
import json
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rope_jax.study.rows import Row


class DamagedError(ValueError):
    """A file of an earlier session cannot be used; the message names it and the remedy."""


def write_whole(path: Path, data: str | bytes) -> None:
    """Writes a file so that it is there whole or not at all; a file that already has this content is left alone."""
    content = data.encode() if isinstance(data, str) else data
    if path.is_file() and path.read_bytes() == content:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
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


_REMEDY = "delete it to have it made again"


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DamagedError(f"{path} cannot be read ({error.strerror}); {_REMEDY}") from error
