"""The code of the pages runs as it stands, their tables are made from committed rows, and their links lead somewhere."""

import re
import sys
import types
from pathlib import Path

from experiments import blocks

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md")), ROOT / "results" / "README.md"]


def code(page):
    """The blocks of Python on a page."""
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def test_every_block_of_python_runs(monkeypatch):
    count = 0
    for page in PAGES:
        if page.name == "encoders.md":  # its examples are doctests
            continue
        for number, block in enumerate(code(page)):
            module = types.ModuleType(f"{page.stem}_{number}")  # a module of its own, so that its classes find their annotations
            monkeypatch.setitem(sys.modules, module.__name__, module)
            exec(compile(block, f"{page.name}, block {number}", "exec"), vars(module))
            if hasattr(module, "experiment"):
                assert module.experiment().cells(), page.name
            count += 1
    assert count >= 10


def test_tables_are_made_from_the_committed_rows():
    count = 0
    for page in map(ROOT.joinpath, blocks.PAGES):
        text = page.read_text()
        assert text == blocks.rewritten(text), f"{page.name}: run python -m experiments.blocks"
        count += text.count("<!-- table: ")
    assert count >= 6


def test_links_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_front_page_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150
