"""The page about speed shows the committed rows."""

import json

from benchmarks import page

ROWS = [
    {"contender": "ours", "length": 4, "median_seconds": 0.5, "ratio": 1.0},
    {"contender": "ours:plain", "length": 4, "median_seconds": 1.0, "ratio": 2.0},
    {"contender": "ours", "length": 8, "median_seconds": 2.0, "ratio": 1.0},
    {"contender": "ours:plain", "length": 8, "median_seconds": 5.0, "ratio": 2.5},
    {"contender": "torch", "length": 8, "median_seconds": 3.0, "ratio": 1.5},
]


def test_the_tables_are_made_from_the_committed_rows():
    text = page.PAGE.read_text()
    assert text == page.rewritten(text), "run python -m benchmarks.page"
    for path in page.ROWS.glob("*.json"):
        assert f"<!-- benchmark: {path.stem} -->" in text


def test_a_table_holds_the_time_of_ours_and_ratios_to_it():
    """Other libraries come first; a contender that did not take part has an empty cell."""
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in page.ratios(ROWS, {"length": "symbols"}).splitlines()
    ]
    assert lines[0] == ["symbols", "ours", "torch", "plain"]
    assert lines[2:] == [["4", "500 ms", "", "2.00"], ["8", "2 s", "1.50", "2.50"]]


def test_committed_steps_meet_their_targets():
    rows = json.loads((page.ROWS / "step.json").read_text())["rows"]
    for name, target in page.step.TARGETS.items():
        assert max(1 / row["ratio"] for row in rows if row["contender"] == name) <= target
