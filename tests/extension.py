"""How a test extends the package: a copy of it, one new file, one line in one list, and a program that uses both."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "rope_jax"


def copy_package(folder: Path) -> Path:
    """Copies rope_jax into a folder; returns the path of the copy."""
    return Path(shutil.copytree(PACKAGE, folder / "rope_jax", ignore=shutil.ignore_patterns("__pycache__")))


def add_to_package(package: Path, room: str, name: str, source: str) -> None:
    """Adds one file to a room of the copied package and one line to the room's list, and edits nothing else.

    Args:
      package: the copy.
      room: the dotted name of the folder, such as "tasks.metrics".
      name: the new module's name.
      source: its text; its `__all__` is what the list exports.
    """
    folder = package.joinpath(*room.split("."))
    (folder / f"{name}.py").write_text(source)
    with (folder / "__init__.py").open("a") as file:
        file.write(f"from .{name} import *\n")


def run_program(package: Path, program: str) -> str:
    """Runs a Python program that imports the copied package; returns its stdout, or fails with its stderr."""
    folder = package.parent
    done = subprocess.run(
        [sys.executable, "-c", f"import rope_jax; assert rope_jax.__file__.startswith({str(package)!r})\n{program}"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1", "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
