"""The catalogue of encoders is what the docstrings say, and their examples run."""

import doctest
import inspect

import pytest

import rope_jax as rj
from experiments import catalogue
from looping import for_each

KINDS = [kind for group in catalogue.GROUPS for kind in catalogue.members(group)]


def test_the_page_is_made_from_the_code():
    """Each section of the page, that is; a class that is not on it yet makes nothing fail."""
    written, made = catalogue.PAGE.read_text(), catalogue.page()
    sections = [f"### {section}" for section in written.split("\n### ")[1:]]
    assert len(sections) >= 20
    for section in sections:
        assert section.split("\n## ")[0].strip() in made, "run: python -m experiments.catalogue"
    assert catalogue.INTRODUCTION in written


@for_each("kind", KINDS)
def test_examples_run(kind):
    names = {}
    exec(catalogue.PREAMBLE, names)
    example = doctest.DocTestParser().get_doctest(inspect.getdoc(kind), names, kind.__name__, None, 0)
    assert 1 <= len(example.examples) <= 2
    failures = []
    doctest.DocTestRunner().run(example, out=failures.append)
    assert not failures, "".join(failures)


def test_every_encoder_and_map_has_its_card():
    def below(kind):
        return {c for sub in kind.__subclasses__() for c in {sub} | below(sub) if c.__module__.startswith("rope_jax.")}

    abstract = {rj.Bias, rj.Rotary}
    assert set(KINDS) == (below(rj.Encoder) | below(rj.FrequencyMap) | {rj.Layers}) - abstract
    for kind in KINDS:
        assert catalogue.card(kind).formula
        catalogue.options(kind)  # each option has a description


def test_what_a_docstring_lacks_is_named():
    class Bare(rj.Encoder):
        """Does something.

        Formula: x
        """

    with pytest.raises(ValueError, match="Bare has no Example"):
        catalogue.card(Bare)
