"""The committed results: tables are what their rows say, and every folder can be opened again with its config."""

from pathlib import Path

from experiments.arguments import METRICS
from experiments.cli import load_experiment
from rope_jax.report import statistics, tables
from rope_jax.study.files import read_rows
from rope_jax.study.gather import gather, write_rows
from rope_jax.study.plan import make_plan
from rope_jax.study.store import open_store

ROOT = Path(__file__).parents[2]
FOLDERS = sorted(path.parent for path in (ROOT / "results").glob("*/rows.jsonl"))


def test_tables_are_what_the_rows_say():
    """Figures differ by the version of matplotlib, so they are not compared."""
    for folder in FOLDERS:
        rows = read_rows(folder / "rows.jsonl")
        curves = {metric: statistics.curves(rows, metric) for metric in METRICS}
        assert (folder / "table.md").read_text() == tables.markdown(curves), folder.name
        assert (folder / "table.tex").read_text() == tables.latex(curves), folder.name
        for metric in statistics.metrics(rows):  # every metric can be shown, also where older rows lack it
            tables.markdown({metric: statistics.curves(rows, metric)})


def test_every_folder_is_finished_under_its_config():
    """Nothing is run, and nothing is written, when the command is given with the folder."""
    assert len(FOLDERS) >= 9
    for folder in FOLDERS:
        experiment = load_experiment(ROOT / "configs" / f"{folder.name}.py")
        before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
        store = open_store(folder)
        plan = make_plan(experiment, store)
        gathered = gather(plan, store)
        write_rows(gathered, store)
        assert (gathered.missing, gathered.failed) == ([], {}), folder.name
        assert gathered.rows == read_rows(folder / "rows.jsonl"), folder.name
        assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before, folder.name


def test_the_index_names_every_folder():
    index = (ROOT / "results" / "README.md").read_text()
    for folder in FOLDERS:
        assert f"[{folder.name}]({folder.name}/table.md)" in index
        assert (ROOT / "configs" / f"{folder.name}.py").exists()
