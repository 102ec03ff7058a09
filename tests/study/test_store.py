"""The run store: whole files or none, one experiment a folder, an honest record."""

import json
import shutil
from dataclasses import replace

import pytest

from rope_jax.study.provenance import provenance
from rope_jax.study.store import RunFolder, open_run, read_rows, to_lines, write_whole


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
        pass
    assert not out.parent.exists()  # nothing was written in it
    with open_run(out, toy) as folder:
        folder.note_session({})
        before = (out / "run.json").read_bytes()
    with open_run(out, toy):
        pass
    other = replace(toy, train=replace(toy.train, steps=9, batch_size=5), seeds=(0, 1, 2))
    with pytest.raises(
        ValueError, match=r"out holds a different experiment: .*seeds is \[0, 1\] there and \[0, 1, 2\] here.*Give another folder"
    ):
        start(out, other)
    assert (out / "run.json").read_bytes() == before


def test_a_folder_of_an_older_version_is_opened_again(toy, tmp_path):
    """Options were added since, with defaults, and names given; what differs then is still named, and nothing else."""
    with open_run(tmp_path / "out", toy) as folder:
        folder.note_session({})
    record = tmp_path / "out" / "run.json"
    run = json.loads(record.read_text())
    del run["experiment"]["train"]["dropout"], run["experiment"]["methods"][0]["name"], run["experiment"]["tasks"][1]["unique"]
    record.write_text(json.dumps(run))
    named = replace(toy, name="other", methods=tuple(replace(m, name=f"m{i}") for i, m in enumerate(toy.methods)))
    for same in (toy, named):
        with open_run(tmp_path / "out", same):
            assert json.loads(record.read_text()) == run
    with pytest.raises(ValueError, match=r"experiment: train.batch_size is 4 there and 5 here\. Give"):
        start(tmp_path / "out", replace(named, train=replace(toy.train, batch_size=5)))
    with pytest.raises(ValueError, match=r"experiment: train.dropout is None there and 0.5 here\. Give"):
        start(tmp_path / "out", replace(toy, train=replace(toy.train, dropout=0.5)))
    record.write_text(json.dumps(run | {"schema": 1}))
    with pytest.raises(ValueError, match="was written under schema 1, and this version continues schema 2 only"):
        start(tmp_path / "out", toy)


def rows_of(cell):
    return [
        {"method": "old", "variant": variant.name, "cell": cell.hash, "seed": seed, "length": length, "count": 1}
        for variant in cell.method.all_variants
        for seed in cell.seeds
        for length in cell.evaluate.lengths
    ]


def test_a_cell_is_finished_when_its_rows_are_in_its_folder(toy, tmp_path):
    """Or, where the folders of cells are gone, when all its rows are in DIR/rows.jsonl."""
    cells = toy.cells()
    with open_run(tmp_path, toy) as folder:
        folder.note_session({})
        assert folder.unfinished() == list(cells)
        with pytest.raises(ValueError, match="is not finished; run it before its rows are gathered"):
            folder.rows()
        partly = rows_of(cells[2])[:-1]
        write_whole(tmp_path / "rows.jsonl", to_lines([*rows_of(cells[0]), *rows_of(cells[1]), *partly, *rows_of(cells[3])]))
        assert folder.unfinished() == [cells[2]]
        for cell in cells:
            folder.cell(cell).finish(rows_of(cell))
        gathered = [row | {"method": cell.method.label} for cell in cells for row in rows_of(cell)]
        assert folder.rows() == gathered == read_rows(tmp_path / "rows.jsonl")
        shutil.rmtree(folder.cell(cells[1]).path)  # to have it run again
        assert folder.unfinished() == [cells[1]]
    renamed = replace(toy, methods=(replace(toy.methods[0], name="another"), *toy.methods[1:]))
    shutil.rmtree(tmp_path / "cells")
    with open_run(tmp_path, renamed) as folder:
        assert folder.unfinished() == []
        assert [row["method"] for row in folder.rows()] == [cell.method.label for cell in renamed.cells() for _ in rows_of(cell)]


def start(out, experiment):
    with open_run(out, experiment):
        raise AssertionError("the folder was opened")


def test_two_processes_do_not_write_one_folder(toy, tmp_path):
    with open_run(tmp_path / "out", toy), pytest.raises(ValueError, match="out is in use by another process; wait for it"):
        start(tmp_path / "out", toy)
    with open_run(tmp_path / "out", toy) as folder:
        assert folder.experiment == toy


def test_names_that_the_system_refuses_are_the_users_to_mend(toy, tmp_path):
    with pytest.raises(ValueError, match=r"cannot be written \(File name too long\)"):
        start(tmp_path / ("x" * 300), toy)


def test_folders_that_are_not_runs_are_refused_and_left_alone(toy, tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match="file is a file; give a folder"):
        start(tmp_path / "file", toy)
    with pytest.raises(ValueError, match=r"holds other files and no run\.json"):
        start(tmp_path, toy)
    with pytest.raises(ValueError, match="cannot be written"):
        start(tmp_path / "file" / "below", toy)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    (tmp_path / "run").mkdir()
    for broken in ("{}", "{", "[]"):
        (tmp_path / "run" / "run.json").write_text(broken)
        with pytest.raises(ValueError, match="is not the record of a run"):
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
