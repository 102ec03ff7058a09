"""The README's code runs as it stands, and its table is the committed one."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rope_jax.report.statistics import curves
from rope_jax.study.store import read_rows

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_python_blocks_run(number, tmp_path):
    path = tmp_path / "block.py"
    path.write_text(BLOCKS[number])
    names = {"__name__": "block"}
    exec(compile(BLOCKS[number], str(path), "exec"), names)
    if "experiment" in names:
        assert len(names["experiment"]().cells()) == 4
    if "ClippedRoPE" in names:
        frequencies = names["ClippedRoPE"](longest=10.0).frequencies(8)
        assert frequencies.inv_freq.shape == (4,)


def test_an_encoder_is_added_by_one_file_and_one_line(tmp_path):
    """The README's diff, applied to a copy of the package, and the new encoder in the model of that copy."""
    shutil.copytree(ROOT / "rope_jax", tmp_path / "rope_jax", ignore=shutil.ignore_patterns("__pycache__"))
    [block] = [block for block in BLOCKS if "class ClippedRoPE" in block]
    (tmp_path / "rope_jax/encoders/clipped.py").write_text(block)
    [diff] = re.findall(r"^```diff\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)
    [line] = [line for line in diff.splitlines() if line.startswith("+")]
    with (tmp_path / "rope_jax/encoders/__init__.py").open("a") as file:
        file.write(line.removeprefix("+") + "\n")
    script = """
import jax, jax.numpy as jnp, numpy as np, rope_jax as rj
from rope_jax.study.config import ModelConfig
from rope_jax.model.transformer import functional
tokens, positions = jnp.array([1, 2, 3, 4]), rj.Positions(query=jnp.arange(4))
def logits(encoder):
    init, apply = functional(ModelConfig(num_layers=1, width=16, num_heads=2), 5, encoder)
    return apply(init(jax.random.key(0)), tokens, positions)
np.testing.assert_allclose(logits(rj.ClippedRoPE(longest=1.0)), logits(rj.NoPE()), atol=1e-6)  # every wavelength is longer
np.testing.assert_allclose(logits(rj.ClippedRoPE(longest=1e9)), logits(rj.RoPE()), atol=1e-6)
"""
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)}, check=True)


def test_the_table_is_the_committed_one():
    [shown] = re.findall(r"<!-- results/quickstart/table.md: exact match -->\n(.*?)<!-- end -->", README, flags=re.DOTALL)
    committed = (ROOT / "results/quickstart/table.md").read_text()
    assert shown.strip() in committed
    assert shown.count("\n| ") > 10


def benchmark_rows(name):
    return json.loads((ROOT / "results" / "benchmarks" / f"{name}.json").read_text())["rows"]


def test_figures_of_speed_are_those_committed():
    [shown] = re.findall(r"^## Speed\n(.*?)^## ", README, flags=re.DOTALL | re.MULTILINE)
    header, _, *lines = [line.strip("| ").split(" | ") for line in shown.splitlines() if line.startswith("|")]
    assert len(lines) == 4
    for length, dropout, ours, *ratios in lines:
        rows = {r["contender"]: r for r in benchmark_rows("step") if (r["length"], r["dropout"]) == (int(length), float(dropout))}
        assert ours == f"{rows['ours']['median_seconds'] * 1e3:.0f} ms"
        for name, ratio in zip(header[3:], ratios, strict=True):
            row = rows.get(name) or rows.get(f"ours:{name}")
            assert ratio.strip() == (f"{row['ratio']:.2f}" if row else "")
    assert all(row["ratio"] >= 1 / 0.5 for row in benchmark_rows("step") if row["contender"] == "torch")
    assert all(row["ratio"] >= 1 / 0.45 for row in benchmark_rows("step") if row["contender"] == "plain-jax")
    text = " ".join(shown.split())
    ratios_of = {(r["contender"], r["length"], r["dropout"]): r["ratio"] for r in benchmark_rows("step")}
    for name in ("torch", "plain-jax"):
        alone = [ratio / ratios_of[name, *case] for (of, *case), ratio in ratios_of.items() if of == "ours:one-replica"]
        assert f"{max(alone):.2f} of {'the time of ' if name == 'torch' else ''}{name}" in text
    one_bucket = next(row for row in benchmark_rows("step_mixed") if row["contender"] == "ours:one-bucket")
    assert f"padded to 40 take {one_bucket['ratio']:.2f} times as long" in text
    two = next(row for row in benchmark_rows("replicas") if row["replicas"] == 2)
    assert f"2 take {two['ratio']:.2f} times as long as one alone" in text
    growth = max(row["growth"] for row in benchmark_rows("attention") if "growth" in row)
    assert f"Twice 8,192 positions take at most {growth:.2f} times the memory" in text
    ours, single = benchmark_rows("curve")
    assert (
        f"1 to {ours['lengths']} symbols takes {ours['programs']} programs and {ours['median_seconds_a_length']:.2f} s a length"
        in text
    )
    assert f"a program for each length, {single['ratio']:.2f} times that" in text
    scanned = next(row for row in benchmark_rows("compile") if row["contender"] == "ours:scanned-layers")
    assert f"({scanned['ratio']:.2f} times as long with 5 layers)" in text


def test_figures_of_the_encoders_are_those_committed():
    committed = (ROOT / "results/encoders/table.md").read_text()
    [shown] = re.findall(r"^## What the encoders do\n(.*?)^## ", README, flags=re.DOTALL | re.MULTILINE)
    rows = re.findall(r"^\| ((?:RoPE|Kerple|ALiBi|Fire|CoPE).*) \|$", shown, flags=re.MULTILINE)
    assert len(rows) == 8
    for row in rows:
        name, *figures = [cell.strip() for cell in row.split("|")]
        encoder, variant = name.split(", ") if ", " in name else (name, "as-trained")
        [line] = re.findall(rf"^\| copy +\| {re.escape(encoder)} +\| {re.escape(variant)} +\| (.*)$", committed, re.MULTILINE)[:1]
        cells = [cell.strip() for cell in line.split("|")]
        assert figures == [cells[i] for i in (1, 4, 5, 6, 7)]


def test_figures_of_hundredfold_are_those_committed():
    """A line's label says which methods of the config it is; its figures are theirs, and what is called exact is exact."""
    [shown] = re.findall(r"^## A hundred times further\n(.*?)^\*\*Without separators", README, flags=re.DOTALL | re.MULTILINE)
    lines = [
        [cell.strip() for cell in row.split("|")]
        for row in re.findall(r"^\| ((?:copy|reverse).*) \|$", shown, flags=re.MULTILINE)
    ]
    found = {(c.task, c.encoder, c.policy): c for c in curves(read_rows(ROOT / "results/hundredfold/rows.jsonl"))}
    whole, no_decay = "RoPE(base=3.0, sections=(4, 4), arrangement='axial')", "ALiBi(axis=1, slope_scale=16.0)"
    encoders = {
        "whole": f"Compose({whole}, {no_decay})",
        "no ALiBi": whole,
        "no row axis": f"Compose(RoPE(base=3.0, sections=(0, 8)), {no_decay})",
        "contiguous positions": f"Compose({whole}, {no_decay})",
        "plain RoPE, contiguous": "RoPE",
    }
    tasks = {
        "copy": "copy(end_marker=True)",
        "copy, 2 symbols": "copy(alphabet=2, end_marker=True)",
        "reverse": "reverse(end_marker=True)",
    }
    assert len(lines) == len(found)
    for task, method, *figures in lines:
        name = method.replace(" ‡", "").replace(" §", "").replace("§", "").replace(", forward", "")
        kind = "Contiguous" if "contiguous" in name else "Grid(order='snake')" if "§" in method else "Grid"
        plain = name == "no end marker"
        curve = found[task if plain else tasks[task], encoders["whole" if plain else name], kind]
        values = {length: curve.values[:, i] for i, length in enumerate(curve.lengths)}
        for length, figure in zip((12, 24, 48, 120, 240, 1200), figures, strict=True):
            low, high = (f"{edge(values[length]):.3f}" for edge in (min, max))
            assert figure == (low if low == high else f"{values[length].mean():.3f} ({low}-{high})")
        if name == "whole" and "forward" not in method:
            assert curve.values.min() >= 0.99
            assert curve.seeds == (0, 1, 2)


def test_figures_of_positions_are_those_committed():
    committed = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in (ROOT / "results/policies/table.md").read_text().split("### Token")[0].splitlines()
        if line.startswith("| copy") and "| RoPE " in line
    ]
    [shown] = re.findall(r"^## What positions do\n(.*?)^## ", README, flags=re.DOTALL | re.MULTILINE)
    lines = [[cell.strip() for cell in line.split("|")] for line in re.findall(r"^\| ([A-Z].*) \|$", shown, re.MULTILINE)]
    assert len(lines) == 1 + 4 * 2
    for (policy, *figures), (_, _, positions, _, *cells) in zip(lines, committed, strict=True):
        assert (policy, figures) == (positions, [cells[i] for i in (1, 2, 4, 5, 6)])


def test_what_is_said_of_the_furthest_lengths():
    rows = read_rows(ROOT / "results/hundredfold_far/rows.jsonl")
    assert {row["length"]: row["count"] for row in rows} == {12: 512, 1200: 64, 2400: 16, 4800: 4, 12000: 2}
    assert len(rows) == 3 * 3 * 5
    assert {row["exact_match"] for row in rows} == {1.0}


def test_figures_of_what_was_chosen_are_those_committed():
    committed = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in (ROOT / "results/chosen/table.md").read_text().split("### Token")[0].splitlines()
        if line.startswith("| copy")
    ]
    [shown] = re.findall(r"^\*\*Without separators\*\*(.*?)^## ", README, flags=re.DOTALL | re.MULTILINE)
    lines = [
        [cell.strip() for cell in line.split("|")] for line in re.findall(r"^\| ((?:Layers|ALiBi).*) \|$", shown, re.MULTILINE)
    ]
    assert lines == [[encoder, *figures] for _, encoder, _, *figures, _ in committed]
    tried = sum(len(curves(read_rows(ROOT / "results" / f"search{kind}" / "rows.jsonl"))) for kind in ("", "_windows", "_narrow"))
    assert f" {tried} combinations" in shown


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target
