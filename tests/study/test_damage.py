"""Damaged folders: what does not matter changes nothing; all else is one message with file and remedy, and the rest goes on.

Every damage is done to a copy of a finished study of two trainings. Whatever it is: no number is ever wrong, no command shows a
traceback, and nothing is deleted. After what a message says to delete is deleted, the same command gives the undamaged rows.
"""

import contextlib
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import smallest
from experiments.compare import main
from looping import for_each
from rope_jax.study import load, trained
from rope_jax.study.files import read_rows, to_lines


def flip(path: Path) -> None:
    """Changes one bit in the second half of a file: of a digit where there is one, so that JSON stays JSON."""
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[next((i for i in range(middle, len(content)) if chr(content[i]).isdigit()), middle)] ^= 1
    path.write_bytes(content)


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)


def replace_by_folder(path: Path) -> None:
    remove(path)
    path.mkdir()


def replace_by_link(path: Path) -> None:
    """To nothing."""
    remove(path)
    path.symlink_to(path.parent / "nowhere" / "at all")


def link_to_itself(path: Path) -> None:
    remove(path)
    path.symlink_to(path)


def swap(path: Path) -> None:
    """Puts the rows of the other seed, which are whole, in the place of these."""
    [other] = [one for one in path.parent.parent.glob("*/rows-*.jsonl") if one != path]
    shutil.copy(other, path)


def content(text: bytes) -> Callable[[Path], None]:
    return lambda path: (remove(path), path.write_bytes(text))


def of_rows(change: Callable[[list], list]) -> Callable[[Path], None]:
    return lambda path: path.write_text(to_lines(change(read_rows(path))))


def number(text: str) -> Callable[[Path], None]:
    """Another number in the place of the last one of a JSON text; Python's JSON reads NaN."""
    return lambda path: path.write_text(re.sub(r"(.*: )[-0-9.e]+", lambda m: m[1] + text, path.read_text(), count=1, flags=re.S))


HOWS: dict[str, Callable[[Path], object]] = {
    "truncated": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3]),
    "empty": content(b""),
    "flipped": flip,
    "not UTF-8": lambda path: path.write_bytes(path.read_bytes() + b"\xff\n"),
    "{}": content(b"{}\n"),
    "5": content(b"5\n"),
    "null": content(b"null\n"),
    "[]": content(b"[]\n"),
    "deep": content(b"[" * 100_000),
    "NaN": number("NaN"),
    "infinite": number("-Infinity"),
    "huge": number("1" + "0" * 400),
    "folder": replace_by_folder,
    "file": content(b"a file\n"),
    "link": replace_by_link,
    "loop": link_to_itself,
    "deleted": remove,
    "first row": of_rows(lambda rows: rows[:1]),  # a length is gone
    "last row": of_rows(lambda rows: rows[1:]),
    "turned": of_rows(lambda rows: rows[::-1]),
    "twice": of_rows(lambda rows: rows + rows),
    "value": of_rows(lambda rows: [{**rows[0], "exact_match": 0.0625}, *rows[1:]]),  # the digest stays
    "swapped": swap,
}


@dataclass(frozen=True)
class Damage:
    """A damage, and what becomes of the command.

    Attributes:
      what: where, as a pattern in the folder of the study; T is the training of seed 0.
      how: what is done there, of HOWS.
      outcome: "same" rows; or "named" in a message, exit 1, and the other training is in the rows; or "refused", exit 2.
      unmeasured: the seeds whose rows are deleted as well, so that there is work to do.
    """

    what: str
    how: str
    outcome: str
    unmeasured: str = ""


def several(what: str, hows: str, outcome: str, unmeasured: str = "") -> list[Damage]:
    return [Damage(what, how, outcome, unmeasured) for how in hows.split(", ")]


JSON = "truncated, empty, not UTF-8, 5, null, [], deep, folder"
DAMAGES = (
    # the record of the layout
    *several("study.json", f"{JSON}, {{}}, huge, NaN, flipped", "refused"),
    *several("study.json", "deleted, link", "same"),
    # records on which no number depends
    *several("sessions/*", f"{JSON}, {{}}, deleted, link", "same"),
    *several("T/training.json", f"{JSON}, {{}}, NaN, deleted", "same"),
    *several("T/training.json", "truncated, 5, link", "same", "0"),
    *several("T/log.jsonl", f"{JSON}, {{}}, huge, deleted, loop", "same"),
    *several("T/log.jsonl", "truncated, not UTF-8, 5, null, {}, deep, NaN, huge, link, loop", "same", "0"),
    *several("T/lock", "not UTF-8, folder, link, deleted", "same"),
    *several("T/lock", "not UTF-8, deleted", "same", "0"),
    # rows
    *several("T/rows-*", "truncated, not UTF-8, 5, null, [], {}, deep, flipped, folder, link, loop", "named"),
    *several("T/rows-*", "NaN, infinite, huge, value, swapped", "named"),
    *several("T/rows-*", "empty, deleted, first row, last row, turned, twice", "same"),
    # failures: of a training that has all rows, and of one that has none
    *several("T/failed.json", "5, deep, folder, {}", "same"),
    *several("T/failed.json", "empty, 5, null, deep, folder, {}", "named", "0"),
    # checkpoints
    *several("T/checkpoint/*/SHA256SUMS", "truncated, deleted", "same"),
    *several("T/checkpoint/*/SHA256SUMS", "truncated, not UTF-8, folder, deleted", "named", "01"),
    *several("T/checkpoint/*/state/_METADATA", "truncated, flipped, {}, folder, link", "named", "01"),
    *several("T/checkpoint/*/state/d/*", "truncated, empty, flipped, deleted", "named", "01"),
    *several("T/checkpoint/*/state", "file, deleted", "named", "01"),
    *several("T/checkpoint", "file, deleted", "same"),
    *several("T/checkpoint", "file, link", "named", "01"),
    *several("T/checkpoint", "deleted", "same", "0"),
    # something in the place of something else
    *several("T", "file, link, loop", "named"),
    *several("T/training.json", "folder", "named", "01"),
    *several("T/log.jsonl", "folder", "named", "01"),
    *several("T/lock", "folder, link, loop", "named", "01"),
    *several("trainings", "file, link", "refused"),
    *several("sessions", "file, link", "refused"),
    # the report, which is made of the rows
    *several("rows.jsonl", "truncated, empty, not UTF-8, 5, deep, value, deleted, link", "same"),
    *several("rows.jsonl", "folder", "refused"),
    *several("table.md", "folder", "refused"),
    # strays
    *(
        Damage(folder + name, how, "same", unmeasured)
        for folder, unmeasured in (("", ""), ("sessions/", ""), ("trainings/", ""), ("T/", "0"), ("T/checkpoint/", "0"))
        for name, how in ((".DS_Store", "5"), ("\u00b2", "folder"), ("99", "file"), ("stray", "link"), ("9", "loop"))
    ),
    *several("T/checkpoint/7.partial", "folder, file", "same", "0"),
    *several("T/rows-0123456789.jsonl.orig", "5", "same"),
    *several("T/rows-0123456789.jsonl", "5, folder, link", "named"),
)
# where it is all that is left
ALONE = several("rows.jsonl", "truncated, not UTF-8, 5, null, [], {}, deep, folder, flipped, NaN, huge, value", "refused")


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    path = tmp_path_factory.mktemp("configs") / "damage.py"
    path.write_text(smallest.CONFIG)
    return path


@pytest.fixture(scope="module")
def finished(config, tmp_path_factory):
    out = tmp_path_factory.mktemp("finished") / "out"
    main([str(config), "--out", str(out)])
    return out


@pytest.fixture(autouse=True)
def _no_figures(monkeypatch):
    """They take most of the time."""
    monkeypatch.setattr("rope_jax.report.plots.by_length", lambda lines: {})


def names(folder: Path) -> dict[str, bytes | None]:
    """Everything in a folder, with the content of what is a file."""
    found = {}
    for path in sorted(folder.rglob("*")):
        found[str(path.relative_to(folder))] = path.read_bytes() if path.is_file() else None
    return found


def ended(arguments: list[str], capsys) -> tuple[int, str]:
    """The exit status of a command and what it said on stderr."""
    capsys.readouterr()
    try:
        main(arguments)
        status = 0
    except SystemExit as end:
        status = end.code
    said = capsys.readouterr().err
    assert "Traceback" not in said
    return status, said


def apply(damage: Damage, out: Path) -> Path:
    """Does the damage; where it was done."""
    for seed in damage.unmeasured:
        for path in out.glob(f"trainings/*seed{seed}*/rows-*"):
            path.unlink()
    [training] = out.glob("trainings/*seed0*")
    what = re.sub(r"^T\b", f"trainings/{training.name}", damage.what)
    path = next(iter(sorted(out.glob(what))), out / what)
    HOWS[damage.how](path)
    return path


def check(damage: Damage, config: Path, reference: bytes, out: Path, capsys) -> None:
    """Runs the commands on a damaged folder, does what their messages say, and runs them again."""
    command = [str(config), "--out", str(out)]
    path = apply(damage, out)
    before = names(out)
    for flag in ("--status", "--dry-run", "--list"):
        status, said = ended([*command, flag], capsys)
        assert status == 0 or (status == 2 and damage.outcome == "refused"), (flag, said)
    assert names(out) == before  # they write nothing
    if "checkpoint" in damage.what or "training.json" in damage.what:
        with contextlib.suppress(ValueError):
            trained(out, method="RoPE", seed=0)
    status, said = ended(command, capsys)
    gone = before.keys() - names(out).keys()
    assert not {name for name in gone if "checkpoint" not in name}  # a checkpoint replaces older ones
    if status != 2:
        rows = load(out)
        assert {json.dumps(row).encode() for row in rows if row["status"] == "ok"} <= set(reference.splitlines())
    if damage.outcome == "same":
        assert status == 0, said
        assert (out / "rows.jsonl").read_bytes() == reference
        return
    assert status == (1 if damage.outcome == "named" else 2), said
    assert len(said.splitlines()) <= 6, said
    if damage.outcome == "named":
        assert [(row["seed"], row["length"]) for row in rows if row["status"] == "ok"] == [(1, 2), (1, 3)], said
    [named] = {Path(place) for place in re.findall(r"(/[^\s:]+)[^;\n]*; (?:delete|give|move)", said)}
    assert path == named or named in path.parents, said
    remove(named)
    status, said = ended(command, capsys)
    assert status == 0, said
    assert (out / "rows.jsonl").read_bytes() == reference


def check_copy(damage: Damage, config: Path, finished: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "out"
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(finished, out)
    check(damage, config, (finished / "rows.jsonl").read_bytes(), out, capsys)


@for_each("damage", DAMAGES[::9])
def test_a_damage_is_named_or_does_not_matter(damage, config, finished, tmp_path, capsys):
    """Some of them, of all kinds."""
    check_copy(damage, config, finished, tmp_path, capsys)


@pytest.mark.slow
@for_each("damage", DAMAGES)
def test_every_damage_is_named_or_does_not_matter(damage, config, finished, tmp_path, capsys):
    check_copy(damage, config, finished, tmp_path, capsys)


@for_each("damage", ALONE)
def test_rows_without_trainings_are_not_believed_unread(damage, config, finished, tmp_path, capsys):
    out = tmp_path / "out"
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(finished, out, ignore=shutil.ignore_patterns("trainings"))
    HOWS[damage.how](path := out / "rows.jsonl")
    before = names(out)
    for flag in ([], ["--status"], ["--dry-run"], ["--list"]):
        status, said = ended([str(config), "--out", str(out), *flag], capsys)
        if status != 0 or not flag:
            assert status in (1, 2), said
            assert str(path) in said
            assert "delete" in said
    with pytest.raises(ValueError, match=r"rows.jsonl.*; delete"):
        load(out)
    assert names(out) == before
