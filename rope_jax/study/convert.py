"""Reads a folder of the former layouts, which held one experiment each (run.json and rows.jsonl), into a store."""

from pathlib import Path
from typing import Any

from rope_jax.study.config import Cell, Experiment, ResolvedVariant
from rope_jax.study.files import DamagedError, read_object, read_rows
from rope_jax.study.rows import Row, completed, description, expected_share_seen, identification
from rope_jax.study.serialization import from_json
from rope_jax.study.store import Session, Store

_SAME = ("task", "task_options", "encoder", "encoder_options", "policy", "policy_options")


def convert(old: Path, store: Store) -> int:
    """Files the rows of an old folder in a store. Checkpoints are not taken over: numbers were rounded otherwise then.

    Args:
      old: a folder with run.json and rows.jsonl; it is not changed.
      store: where they are filed. Trainings that it has keep their rows.

    Returns:
      How many rows were filed.

    Raises:
      ValueError: the folder is not one of the former layouts, or its rows do not belong to its experiment.
    """
    record = read_object(old / "run.json")
    # the identity, which leaves defaults out, also where options were renamed since
    experiment = from_json({"name": old.name, **(record.get("identity") or record.get("experiment") or {})})
    if not isinstance(experiment, Experiment):
        raise DamagedError(f"{old / 'run.json'} records no experiment; name the folder of a run of an earlier version")
    rows = read_rows(old / "rows.jsonl")
    sessions = record.get("sessions") or [{}]
    store.begin()
    filed = 0
    for cell in experiment.cells():
        found = [(variant, row) for variant in cell.method.all_variants for row in rows if _belongs(row, cell, variant)]
        for seed in cell.seeds:
            new = [_converted(row, cell, variant, sessions[-1]) for variant, row in found if row["seed"] == seed]
            folder = store.training(cell, seed)
            if new and not folder.row_files():
                folder.start(cell, seed, 0)
                folder.finish(new)
                filed += len(new)
    if filed < len(rows):
        raise ValueError(f"{len(rows) - filed} rows of {old} do not belong to its experiment, or are in {store.path} already")
    path = store.path / "sessions" / f"converted-{record.get('hash', 'unknown')[:10]}.jsonl"
    Session(path, {"converted": "from the layout before", "former": record}).note({"rows": filed})
    return filed


def _belongs(row: Row, cell: Cell, variant: ResolvedVariant) -> bool:
    described = description(cell, variant)
    return row["variant"] == variant.name and all(row[name] == described[name] for name in _SAME)


def _converted(row: Row, cell: Cell, variant: ResolvedVariant, session: dict[str, Any]) -> Row:
    """A former row under the present columns. It says how many seeds ran together, on which its last digits depend."""
    kept = {name: value for name, value in row.items() if name != "cell"}
    maker = {
        "commit": session.get("commit"),
        "jax": session.get("versions", {}).get("jax"),
        "device": session.get("machine", {}).get("cpu"),
        "together": len(cell.seeds),
    }
    known = {"distinct": row.get("distinct"), "seen": expected_share_seen(cell, row["length"])}
    return completed({**kept, **known}, **identification(cell, variant, seed=row["seed"], length=row["length"]), **maker)
