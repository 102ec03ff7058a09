"""The catalogue of encoders is made from the docstrings, and their examples run."""

import doctest
import inspect
import re

import pytest

import rope_jax as rj
from experiments import catalogue
from looping import for_each

# a class without a card is not on the page, and makes nothing fail; one that is on the committed page must keep its card
ENCODERS, MAPS = (
    [kind for kind in catalogue.classes(base) if "Formula:" in (kind.__doc__ or "")] for base in (rj.Encoder, rj.FrequencyMap)
)


def test_the_page_is_made_from_the_code():
    """Of the classes that are on it, so that a new class does not need the page to be written anew for the tests to pass."""
    text = catalogue.PAGE.read_text()
    written = set(re.findall(r"^### (\w+)$", text, flags=re.MULTILINE))
    on_the_page = [[kind for kind in kinds if kind.__name__ in written] for kinds in (ENCODERS, MAPS)]
    assert {kind.__name__ for kinds in on_the_page for kind in kinds} == written
    assert text == catalogue.page(*on_the_page), "run: python -m experiments.catalogue"


def test_the_page_of_all_classes_has_a_section_and_a_line_for_each():
    text = catalogue.page(ENCODERS, MAPS)
    for kind in (*ENCODERS, *MAPS):
        assert text.count(f"\n### {kind.__name__}\n") == 1
        assert text.count(f"\n| [{kind.__name__}](#{kind.__name__.lower()}) |") == 1
    assert {rj.NoPE, rj.Compose, rj.Layers, rj.Learned, rj.SlidingWindow, rj.XPos} <= set(ENCODERS)
    assert not {rj.Encoder, rj.Bias, rj.Rotary, rj.FrequencyMap} & {*ENCODERS, *MAPS}
    assert catalogue.hooks(rj.RoPE) == "rotate"
    assert catalogue.hooks(rj.Compose) == "embed, rotate, bias"
    assert catalogue.hooks(rj.NoPE) == "none"
    assert "1705.03122" in catalogue.section(rj.Learned)


@for_each("kind", [*ENCODERS, *MAPS])
def test_examples_run(kind):
    names = {}
    exec(catalogue.PREAMBLE, names)
    example = doctest.DocTestParser().get_doctest(inspect.getdoc(kind), names, kind.__name__, None, 0)
    assert 1 <= len(example.examples) <= 2
    failures = []
    doctest.DocTestRunner().run(example, out=failures.append)
    assert not failures, "".join(failures)


def test_what_a_docstring_lacks_is_named(tmp_path, capsys):
    path = tmp_path / "bare.py"
    body = '''
from dataclasses import dataclass
import rope_jax as rj

@dataclass(frozen=True, kw_only=True)
class Bare(rj.Encoder):
    """Does something."""
    size: int = 1
'''
    example = "\n\n    Example:\n      >>> 1\n      1\n"
    wanted = {
        "": "the docstring of Bare has no line 'Formula: ...'",
        "Formula: x": "the docstring of Bare has no Example",
        f"Formula: x\n    Extrapolates: y{example}": "has no line 'Knows: ...'",
        f"Formula: x\n    Extrapolates: y\n    Knows: nothing{example}": "does not describe the option size",
    }
    for more, message in wanted.items():
        path.write_text(body.replace("Does something.", f"Does something.\n\n    {more}\n    "))
        with pytest.raises(SystemExit):
            catalogue.main([str(path), "--out", str(tmp_path / "page.md")])
        assert message in capsys.readouterr().err
    for arguments, message in (
        ([str(path)], "name the page to write: --out PAGE.md"),
        ([str(tmp_path / "no.py"), "--out", "page.md"], "no.py does not exist"),
    ):
        with pytest.raises(SystemExit):
            catalogue.main(arguments)
        assert message in capsys.readouterr().err
    assert list(tmp_path.glob("*.md")) == []
