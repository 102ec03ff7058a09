"""The run store: whole files or none, one experiment a folder, an honest record."""

import json
from dataclasses import replace

import pytest

from rope_jax.study.store import RunFolder, open_run, provenance, read_rows, to_lines, write_whole


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "rows.jsonl"
    write_whole(path, "old")

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_whole(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_equal_file_is_not_written_again(tmp_path):
    path = tmp_path / "a"
    write_whole(path, "same")
    before = path.stat()
    write_whole(path, b"same")
    after = path.stat()
    assert (after.st_mtime_ns, after.st_ino) == (before.st_mtime_ns, before.st_ino)


def test_rows_come_back_as_they_were(tmp_path):
    rows = [{"a": 1, "b": None, "c": 0.1}, {"a": "ü"}]
    write_whole(tmp_path / "r", to_lines(rows))
    assert read_rows(tmp_path / "r") == rows
    write_whole(tmp_path / "r", '{"a": 1}\n{"a": ')
    with pytest.raises(ValueError, match="r:2 is not a line of JSON"):
        read_rows(tmp_path / "r")


def test_the_same_experiment_may_come_back_and_another_may_not(toy, tmp_path):
    out = tmp_path / "deep" / "out"
    with open_run(out, toy):
        before = (out / "run.json").read_bytes()
    with open_run(out, toy):
        pass
    other = replace(toy, train=replace(toy.train, steps=9, batch_size=5), seeds=(0, 1, 2))
    with pytest.raises(
        ValueError, match=r"holds another experiment: .*seeds is \[0, 1\] there and \[0, 1, 2\] here.*Give another"
    ):
        start(out, other)
    assert (out / "run.json").read_bytes() == before


def start(out, experiment):
    with open_run(out, experiment):
        raise AssertionError("the folder was opened")


def test_two_processes_do_not_write_one_folder(toy, tmp_path):
    with open_run(tmp_path / "out", toy), pytest.raises(ValueError, match="out is being written by another process; wait for it"):
        start(tmp_path / "out", toy)
    with open_run(tmp_path / "out", toy) as folder:
        assert folder.experiment == toy


def test_names_that_the_system_refuses_are_the_users_to_mend(toy, tmp_path):
    with pytest.raises(ValueError, match=r"cannot be written \(File name too long\)"):
        start(tmp_path / ("x" * 300), toy)


def test_folders_that_are_not_runs_are_refused_and_left_alone(toy, tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match="file names a file; give a folder"):
        start(tmp_path / "file", toy)
    with pytest.raises(ValueError, match=r"holds other files and no run\.json"):
        start(tmp_path, toy)
    with pytest.raises(ValueError, match="cannot be written"):
        start(tmp_path / "file" / "below", toy)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    with pytest.raises(ValueError, match="is not a record of a run"):
        start(tmp_path / "run", toy)


def test_a_training_log_is_cut_back_to_where_training_goes_on(toy, tmp_path):
    folder = RunFolder(tmp_path, toy).cell(toy.cells()[0])
    folder.start(toy.cells()[0], 0)
    for step in (4, 8, 12):
        folder.log({"step": step})
    with (folder.path / "metrics.jsonl").open("a") as log:
        log.write('{"step": 16, "lo')  # killed while it wrote
    folder.start(toy.cells()[0], 8)
    assert read_rows(folder.path / "metrics.jsonl") == [{"step": 4}, {"step": 8}]


def test_provenance_names_what_ran(toy):
    record = provenance("python -m x", toy.cells()[:1], ["cpu:0 (cpu)"])
    assert set(record) == {"command", "date", "commit", "python", "versions", "machine", "devices", "cells"}
    assert {"jax", "flax", "optax", "numpy", "rope_jax"} <= set(record["versions"])
    assert record["cells"] == [toy.cells()[0].id]
    assert record["date"].endswith("+00:00")
    json.dumps(record)
