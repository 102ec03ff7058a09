"""The code of the pages runs as it stands, their tables are made from committed rows, and their links lead somewhere."""

import re
import sys
import types
from pathlib import Path

from experiments import blocks
from extension import copy_package, run_program

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


def test_the_frequency_map_of_the_page_works_in_the_package(tmp_path):
    """With the relative import that the page names, and the line of its list."""
    [source] = [block for block in code(ROOT / "docs" / "extend.md") if "class Clipped" in block]
    source = source.replace("from rope_jax import FrequencyMap", "from .base import FrequencyMap")
    package = copy_package(tmp_path)
    (package / "encoders" / "rotary" / "scaling" / "clipped.py").write_text(source)
    with (package / "encoders" / "__init__.py").open("a") as file:
        file.write("from .rotary.scaling.clipped import *\n")
    program = "import rope_jax as rj; print(rj.rotary_frequencies(4, scaling=rj.Clipped(longest=100.0)).inv_freq.tolist())"
    assert run_program(package, program).strip() == "[1.0, 0.0]"


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
