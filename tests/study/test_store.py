"""The store: trainings and measurements with identities of their own, nothing believed unread, nothing lost by merging."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import rope_jax as rj
from looping import for_each
from rope_jax.study import EvaluateConfig, Method, Variant
from rope_jax.study.files import DamagedError, read_rows, to_lines
from rope_jax.study.gather import gather, write_rows
from rope_jax.study.plan import lacking, make_plan
from rope_jax.study.rows import completed, digest, row
from rope_jax.study.store import Session, Store, TrainingFolder, open_store, read_store
from rope_jax.tasks import Copy


def rows_of(cell, seed):
    """The rows of a training that was not run."""
    return [
        completed(
            row(
                cell,
                variant,
                seed=seed,
                length=length,
                examples=16,
                distinct=1.0,
                measured={"exact_match": (seed, 4)},
                diverged_at=-1,
            ),
            commit="c",
        )
        for variant in cell.method.all_variants
        for length in cell.evaluate.lengths
    ]


def fill(store, experiment):
    """Finishes all trainings of an experiment that are missing; how many, and how many measurements."""
    store.begin()
    counts = [0, 0]
    for one in list(lacking(make_plan(experiment, store), store)):
        cell = one.planned.cell
        wanted = {cell.measurements[pair] for pair in one.pairs}
        store.training(cell, one.seed).finish([made for made in rows_of(cell, one.seed) if made["measurement"] in wanted])
        counts = [counts[0] + 1, counts[1] + len(wanted)]
    return tuple(counts)


def report(store, experiment):
    gathered = gather(make_plan(experiment, store), store)
    write_rows(gathered, store)
    return gathered


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_study_that_grows_has_the_rows_of_one_that_was_run_at_once(toy, tmp_path):
    """Each step runs what is new, and nothing else; taking it away shows fewer rows and deletes nothing."""
    rope = toy.methods[1]
    one_variant = replace(rope, variants=rope.variants[:1])
    start = replace(toy, tasks=toy.tasks[:1], methods=(one_variant,))
    longer = replace(start, evaluate=replace(toy.evaluate, lengths=(2, 3, 5, 4)))
    steps = [  # with the numbers of trainings and of measurements that are new
        (start, (2, 12)),
        (replace(start, seeds=(0, 1, 5)), (1, 6)),
        (replace(longer, seeds=(0, 1, 5)), (3, 6)),
        (replace(longer, seeds=(0, 1, 5), methods=(rope,)), (3, 12)),
        (replace(longer, seeds=(0, 1, 5), methods=toy.methods), (3, 12)),
        (replace(longer, seeds=(0, 1, 5), methods=toy.methods, tasks=toy.tasks), (6, 48)),
    ]
    last = steps[-1][0]
    more_examples = replace(last, evaluate=replace(last.evaluate, examples=(16, 16, 16, 16)))
    grown, once = Store(tmp_path / "grown"), Store(tmp_path / "once")
    for experiment, new in steps:
        assert fill(grown, experiment) == new
        report(grown, experiment)
    assert fill(grown, more_examples) == (0, 0)  # the same numbers, written otherwise
    assert fill(once, last) == (12, 96)
    report(once, last)
    assert (grown.path / "rows.jsonl").read_bytes() == (once.path / "rows.jsonl").read_bytes()
    before = contents(grown.path / "trainings")
    assert len(report(grown, start).rows) == 12
    assert contents(grown.path / "trainings") == before
    assert fill(grown, last) == (0, 0)


def test_identities_hold_what_a_result_depends_on_and_nothing_else(toy):
    """A training: task, encoder, policy, model, settings, seed. A measurement: variant, length, examples, added metrics."""
    cell = replace(toy, methods=toy.methods[1:]).cells()[0]
    rope = cell.method
    same = (
        replace(cell, seeds=(3, 0)),
        replace(cell, method=replace(rope, name="another")),
        replace(cell, method=replace(rope, variants=())),
        replace(cell, evaluate=EvaluateConfig(lengths=(7,), examples=3)),
    )
    for other in same:
        assert other.training(0) == cell.training(0)
    different = (
        replace(cell, task=Copy(alphabet=5)),
        replace(cell, method=Method(encoder=rj.RoPE(base=500.0))),
        replace(cell, method=Method(encoder=rj.RoPE(), policy=rj.policies.Contiguous(offset=1))),
        replace(cell, model=replace(cell.model, width=32)),
        replace(cell, train=replace(cell.train, learning_rate=0.5)),
    )
    found = {other.training(0) for other in different} | {cell.training(0), cell.training(1)}
    assert len(found) == len(different) + 2
    assert len(set(cell.measurements.values())) == len(cell.measurements) == 9
    renamed = replace(rope, variants=tuple(Variant(name=f"v{i}", encoder=v.encoder) for i, v in enumerate(rope.variants)))
    assert set(replace(cell, method=renamed).measurements.values()) == set(cell.measurements.values())
    fewer = replace(cell, evaluate=replace(cell.evaluate, examples=(16, 16, 8))).measurements
    assert {pair for pair in fewer if fewer[pair] != cell.measurements[pair]} == {(v.name, 5) for v in rope.all_variants}


def test_names_are_those_of_todays_config(toy, tmp_path):
    store = Store(tmp_path)
    fill(store, toy)
    renamed = replace(toy, name="other", methods=tuple(replace(m, name=f"m{i}") for i, m in enumerate(toy.methods)))
    gathered = report(store, renamed)
    assert not gathered.missing
    assert list(dict.fromkeys(each["method"] for each in gathered.rows)) == ["m0", "m1"]
    for each in read_rows(tmp_path / "rows.jsonl"):
        assert each["digest"] == digest(each)


def test_folders_of_two_machines_are_merged_by_copying_one_into_the_other(toy, tmp_path):
    """Whatever each of them had: other seeds, other lengths of the same seeds, the same."""
    one, other = Store(tmp_path / "one"), Store(tmp_path / "other")
    fill(one, replace(toy, seeds=(0,), evaluate=replace(toy.evaluate, lengths=(2, 3))))
    fill(other, replace(toy, seeds=(0, 1), evaluate=replace(toy.evaluate, lengths=(3, 5))))
    shutil.copytree(other.path, one.path, dirs_exist_ok=True)
    assert fill(one, toy) == (4, 8)  # length 2 of seed 1
    whole = Store(tmp_path / "whole")
    fill(whole, toy)
    assert report(one, toy).rows == report(whole, toy).rows


def test_trainings_of_another_folder_are_taken_over(toy, tmp_path):
    source, alone, target = Store(tmp_path / "source"), Store(tmp_path / "alone"), Store(tmp_path / "target")
    fill(source, toy)
    report(source, toy)
    alone.path.mkdir()
    shutil.copy(source.path / "rows.jsonl", alone.path)
    shutil.copy(source.path / "study.json", alone.path)
    fill(target, replace(toy, methods=toy.methods[:1], seeds=(1,)))
    longer = replace(toy, seeds=(0, 1, 2))
    for other in (source, alone):
        shutil.rmtree(target.path)
        fill(target, replace(toy, methods=toy.methods[:1], seeds=(1,), evaluate=replace(toy.evaluate, lengths=(2,))))
        pairs = [(cell, seed) for cell in longer.cells() for seed in cell.seeds]
        assert sum(target.take(other, cell, seed) for cell, seed in pairs) == 8
        assert fill(target, toy) == (0, 0)
        assert sum(target.take(other, cell, seed) for cell, seed in pairs) == 0


def test_rows_alone_are_enough_and_stay_when_the_study_grows_or_shrinks(toy, tmp_path):
    """As in committed results: study.json and rows.jsonl."""
    first = Store(tmp_path / "first")
    fill(first, toy)
    expected = report(first, toy).rows
    path = tmp_path / "alone"
    path.mkdir()
    for name in ("study.json", "rows.jsonl"):
        shutil.copy(first.path / name, path)
    before = contents(path)
    store = open_store(path)
    assert not list(lacking(make_plan(toy, store), store))
    assert report(store, toy).rows == expected
    assert contents(path) == before
    smaller = replace(toy, seeds=(1,))
    assert {each["seed"] for each in report(open_store(path), smaller).rows} == {1}
    assert report(open_store(path), toy).rows == expected
    assert fill(open_store(path), replace(toy, seeds=(0, 1, 2))) == (4, 24)


def test_one_missing_row_is_noticed(toy, tmp_path):
    """A table never shows a mean over fewer seeds than the config requests."""
    store = Store(tmp_path)
    fill(store, toy)
    cell = toy.cells()[1]
    [path] = store.training(cell, 1).row_files()
    rows = read_rows(path)
    path.write_text(to_lines(rows[:-1]))
    [one] = lacking(make_plan(toy, store), store)
    assert (one.seed, one.pairs) == (1, {("DynamicNTK", 5)})


def test_a_training_whose_folder_is_deleted_runs_again(toy, tmp_path):
    store = Store(tmp_path)
    fill(store, toy)
    report(store, toy)
    shutil.rmtree(store.training(toy.cells()[0], 0).path)
    assert fill(open_store(tmp_path), toy) == (1, 3)


DAMAGES = {
    "a changed number": lambda path: path.write_text(path.read_text().replace('"exact_match": 0.25', '"exact_match": 0.75', 1)),
    "half a line": lambda path: path.write_bytes(path.read_bytes()[:-20]),
    "not UTF-8": lambda path: path.write_bytes(b"\xff" + path.read_bytes()),
    "another object": lambda path: path.write_text("{}\n"),
    "a number": lambda path: path.write_text("5\n"),
    "a row of another training": lambda path: path.write_bytes(next(path.parent.parent.glob("*seed0*/rows-*")).read_bytes()),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}


@for_each("damage", DAMAGES.values())
def test_damaged_rows_are_one_message_and_the_rest_goes_on(damage, toy, tmp_path):
    store = Store(tmp_path)
    fill(store, toy)
    cell = toy.cells()[0]
    [path] = store.training(cell, 1).row_files()
    damage(path)
    with pytest.raises(DamagedError, match=r"rows-\w+.jsonl.* delete the file|rows-\w+.jsonl.* delete it"):
        store.measured(cell, 1)
    gathered = report(store, toy)
    [(name, reason)] = gathered.failed.items()
    assert name == "copy, Learned(max_length=32), seed 1"
    assert str(path) in reason
    assert {each["status"] for each in gathered.rows if (each["training"], each["seed"]) == (cell.training(1), 1)} == {"failed"}
    assert len(gathered.rows) == 48
    shutil.rmtree(path.parent)
    assert fill(store, toy) == (1, 3)


def test_failures_are_recorded_shown_as_missing_and_tried_again(toy, tmp_path):
    store = Store(tmp_path)
    cell = toy.cells()[0]
    store.begin()
    store.training(cell, 1).fail("too little memory", session="s")
    assert fill(store, toy) == (7, 45)
    gathered = report(store, toy)
    assert gathered.failed == {"copy, Learned(max_length=32), seed 1": "too little memory"}
    failed = [each for each in gathered.rows if each["status"] == "failed"]
    assert [(each["length"], each["exact_match"], each["reason"]) for each in failed] == [
        (length, None, "too little memory") for length in (2, 3, 5)
    ]
    (store.training(cell, 1).path / "failed.json").write_text("[")
    assert "failed.json is not JSON" in report(store, toy).failed["copy, Learned(max_length=32), seed 1"]
    store.training(cell, 1).forgive()
    assert fill(store, toy) == (1, 3)
    assert not report(store, toy).failed


def test_a_lock_is_exclusive_and_ends_with_its_process(toy, tmp_path):
    folder = TrainingFolder(tmp_path / "a b")
    assert folder.owner() is None
    with folder.locked() as mine:
        assert mine
        assert folder.owner().endswith(f":{__import__('os').getpid()}")
        with folder.locked() as again:
            assert not again
    assert folder.owner() is None
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import pathlib, sys\nfrom rope_jax.study.store import TrainingFolder\n"
            "with TrainingFolder(pathlib.Path(sys.argv[1])).locked() as held:\n    print(held, flush=True)\n    sys.stdin.read()",
            str(folder.path),
        ],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout.readline() == "True\n"
        with folder.locked() as mine:
            assert not mine
        assert folder.owner().endswith(f":{holder.pid}")
    finally:
        holder.kill()
        holder.wait()
        holder.stdin.close()
        holder.stdout.close()
    with folder.locked() as mine:
        assert mine


def test_strays_are_left_alone(toy, tmp_path):
    store = Store(tmp_path)
    fill(store, toy)
    before = report(store, toy).rows
    folder = store.training(toy.cells()[0], 0).path
    for name in (".DS_Store", "rows-notes.jsonl", "²", "rows-0123456789.jsonl.bak"):
        (folder / name).write_text("{")
        (store.trainings / name).write_text("{")
    (store.trainings / "link").symlink_to(tmp_path / "nowhere")
    assert report(store, toy).rows == before
    assert fill(store, toy) == (0, 0)


def test_a_training_log_is_cut_back_to_where_training_goes_on(toy, tmp_path):
    cell = toy.cells()[0]
    folder = TrainingFolder(tmp_path / "t")
    folder.start(cell, 0, 0)
    for step in (4, 8, 12):
        folder.log({"step": step})
    with folder.log_path.open("ab") as log:
        log.write(b'{"step": "x"}\nnull\n\xff\n{"step": 16, "lo')  # damaged, and killed while it wrote
    assert folder.last_entry() in ({}, {"step": "x"})
    folder.start(cell, 0, 8)
    assert read_rows(folder.log_path) == [{"step": 4}, {"step": 8}]
    assert folder.last_entry() == {"step": 8}


def test_folders_that_hold_no_study_are_refused_and_left_alone(toy, tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "former").mkdir()
    (tmp_path / "former" / "run.json").write_text("{}")
    (tmp_path / "newer").mkdir()
    (tmp_path / "newer" / "study.json").write_text('{"layout": 9}')
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / ".DS_Store").write_text("")
    before = contents(tmp_path)
    for name, message in (
        ("file", "file is a file; give a folder"),
        (".", r"holds other files and no study\.json; give a new or empty folder"),
        ("file/below", "cannot be written"),
        ("x" * 300, r"cannot be written \(File name too long\)"),
        ("former", r"earlier version.*python -m experiments\.convert .*former --out NEW"),
        ("newer", "says layout 9, and this version reads layout 3"),
    ):
        with pytest.raises(ValueError, match=message):
            open_store(tmp_path / name)
    open_store(tmp_path / "new" / "deep")
    open_store(tmp_path / "hidden")
    assert contents(tmp_path) == before
    for name, message in (("nowhere", "is not a folder"), ("hidden", "holds no study"), ("former", "earlier version")):
        with pytest.raises(ValueError, match=message):
            read_store(tmp_path / name)


def test_a_session_has_one_file_that_its_first_work_makes(tmp_path):
    session = Session(tmp_path / "sessions" / "s.jsonl", {"command": "x"})
    assert not session.path.exists()
    session.note({"training": "a"})
    session.note({"training": "b"})
    assert read_rows(session.path) == [{"command": "x"}, {"training": "a"}, {"training": "b"}]
    assert json.loads(session.path.read_text().splitlines()[0]) == {"command": "x"}
