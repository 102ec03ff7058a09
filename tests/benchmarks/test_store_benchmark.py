"""The benchmark of the store: it times the same work with the store and without, and looks at a study that is half finished."""

import json

import pytest

from benchmarks.__main__ import main
from benchmarks.store import half_finished, timed
from benchmarks.tiny_study import study
from rope_jax.study.status import read_status
from rope_jax.study.store import Store


def test_a_study_that_is_half_finished_has_this_status(tmp_path):
    experiment = study(120, 2)
    assert [len(cell.seeds) for cell in experiment.cells()] == [50, 50, 50]
    half_finished(experiment, tmp_path / "out")
    status = read_status(experiment, Store(tmp_path / "out"))
    assert (status.done, len(status.waiting), len(status.failed)) == (75, 75, 0)


@pytest.mark.slow
def test_every_cell_is_timed_with_the_store_and_without(tmp_path):
    experiment = study(3, 2)
    seconds, peaks = timed(experiment, tmp_path / "out")
    assert {name: len(values) for name, values in seconds.items()} == {"compute": 1, "store": 1}
    assert min(seconds["compute"] + seconds["store"]) > 0
    assert list(peaks) == [3]
    status = read_status(experiment, Store(tmp_path / "out"))
    assert status.done == 3


@pytest.mark.slow
def test_the_command_writes_a_row_for_each_contender(tmp_path, capsys):
    out = tmp_path / "store.json"
    main(["store", "--out", str(out), "--trainings", "2", "--steps", "2", "--listed", "4", "--rounds", "1"])
    rows = json.loads(out.read_text())["rows"]
    assert [row["contender"] for row in rows] == ["compute", "store", "memory", "import", "status", "dry-run"]
    assert "Peak memory: " in capsys.readouterr().out
