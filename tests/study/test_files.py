"""Whole files or none, and JSON that somebody may have damaged."""

import os

import pytest

from looping import for_each
from rope_jax.study.files import DamagedError, lock, read_object, read_rows, temporary_folder, to_lines, write_whole


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


def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    order = []
    monkeypatch.setattr("os.fsync", lambda handle: order.append("fsync"))
    replace = __import__("os").replace
    monkeypatch.setattr("os.replace", lambda *names: (order.append("replace"), replace(*names)))
    write_whole(tmp_path / "a", "content")
    assert order == ["fsync", "replace"]


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


@for_each("content", [b'{"a": 1}\n{"a": ', b"5\n", b"[]\n", b'{"a": 1}\n\xff\n', b"null\n", b"[" * 100_000 + b"\n", None])
def test_damaged_lines_are_named_with_the_remedy(content, tmp_path):
    path = tmp_path / f"{hash(content)}" / "r"
    path.parent.mkdir()
    path.mkdir() if content is None else path.write_bytes(content)
    with pytest.raises(DamagedError, match=r"r(:\d)? (is not a line of JSON|cannot be read) \(.*; delete it"):
        read_rows(path)
    with pytest.raises(DamagedError, match=r"r (is not JSON|holds \w+ and not a JSON object|cannot be read).*; delete it"):
        read_object(path)


def test_what_a_killed_process_left_is_taken_over_and_what_another_holds_is_not(tmp_path):
    """Temporary files and folders do not grow in number, and two processes that write the same at once do not mix."""
    left, folder = tmp_path / ".a.partial", tmp_path / ".taken.partial"
    left.write_text("half of a longer fi")
    (folder / "copy").mkdir(parents=True)
    write_whole(tmp_path / "a", "whole")
    with temporary_folder(tmp_path, "taken") as mine:
        assert (mine, list(mine.iterdir())) == (folder, [])
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    left.write_text("of another process")
    folder.mkdir()
    handles = [os.open(path, os.O_RDONLY) for path in (left, folder)]
    assert all(lock(handle) for handle in handles)
    write_whole(tmp_path / "a", "anew")
    with temporary_folder(tmp_path, "taken") as mine:
        assert mine != folder
    assert left.read_text() == "of another process"
    assert (tmp_path / "a").read_text() == "anew"
    assert sorted(path.name for path in tmp_path.iterdir()) == [".a.partial", ".taken.partial", "a"]
    for handle in handles:
        os.close(handle)
