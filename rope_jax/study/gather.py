"""From the store to the rows of a report: what the plan requests, in its order, under the names of today's config."""

from dataclasses import dataclass, field

from rope_jax.study.files import DamagedError, to_lines, write_whole
from rope_jax.study.plan import Plan, Planned
from rope_jax.study.rows import Row, completed, description, failed_row
from rope_jax.study.store import Store


@dataclass
class Gathered:
    """The rows of a plan, and what is wrong with some of its trainings.

    Attributes:
      rows: of all trainings that were measured or failed.
      failed: for each training that failed, or whose files are damaged, its title and the reason.
      diverged: the titles of the trainings of the study that diverged; trials are left out.
      missing: the titles of the trainings that are still to be run.
    """

    rows: list[Row] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    diverged: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


def title(planned: Planned, seed: int) -> str:
    """What messages call a training: "copy, RoPE, learning_rate=0.001, seed 0"."""
    cell = planned.cell
    names = [cell.task.name, cell.method.label, *([planned.settings] if planned.settings else []), f"seed {seed}"]
    return ", ".join(names)


def gather(plan: Plan, store: Store) -> Gathered:
    """Reads the rows of all cells of a plan."""
    gathered = Gathered()
    for planned in plan.planned:
        found = {seed: _rows(planned, seed, store, gathered) for seed in planned.cell.seeds}
        for variant in planned.cell.method.all_variants:
            for rows in found.values():
                gathered.rows += [row for name, row in rows if name == variant.name]
    return gathered


def write_rows(gathered: Gathered, store: Store) -> None:
    """Writes DIR/rows.jsonl. Rows that are nowhere else are filed under DIR/trainings before they leave it."""
    content = to_lines(gathered.rows).encode()
    path = store.path / "rows.jsonl"
    if not store.trainings.exists() and path.exists() and (path.is_dir() or path.read_bytes() != content):
        store.begin()
    write_whole(path, content)


def _rows(planned: Planned, seed: int, store: Store, gathered: Gathered) -> list[tuple[str, Row]]:
    """The rows of one training, each with the name of its variant; notes what is wrong with it."""
    cell, name = planned.cell, title(planned, seed)
    try:
        measured = store.measured(cell, seed)
        whole = all(measurement in measured for measurement in cell.measurements.values())
        reason = None if whole else store.training(cell, seed).failure()
    except DamagedError as error:
        measured, whole, reason = {}, False, f"damaged: {error}"
    if not whole:
        if reason is None:
            gathered.missing.append(name)
        else:
            gathered.failed[name] = reason
    rows: list[tuple[str, Row]] = []
    for variant in cell.method.all_variants:
        for length in cell.evaluate.lengths:
            row = measured.get(cell.measurements[variant.name, length])
            if row is None and reason is not None:
                row = failed_row(cell, variant, seed=seed, length=length, reason=reason)
            if row is not None:
                names = description(cell, variant) | {"settings": planned.settings, "trial": planned.trial}
                rows.append((variant.name, completed(row, **names)))
    if planned.trial is None and any(row["status"] == "diverged" for _, row in rows):
        gathered.diverged.append(name)
    return rows
