"""Programs in the place of others, for tests of launchers."""

import os

import pytest


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Makes programs that come first on PATH: `programs(name, text)` makes one of bash. No variable of a job is set."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)

    def make(name, text):
        (folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / name).chmod(0o755)

    return make
