"""A new encoder and a new frequency map, in the package and in a user's own file, with no other edit."""

import json
import shutil
from pathlib import Path

import pytest

from experiments import catalogue
from experiments.compare import main
from extension import add_to_package, copy_package, run_program
from rope_jax.study.store import read_rows

ROOT = Path(__file__).parents[2]
ENCODER = '''
"""A window whose width is learned softly, for a test."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from rope_jax import Bias

__all__ = ["SoftWindow"]


@dataclass(frozen=True, kw_only=True)
class SoftWindow(Bias):
    """Adds -(|q - k| / width)^2 to the logits, with a learned width for each head.

    Formula: bias[h, q, k] = -(|q - k| / width_h)^2
    Extrapolates: yes, every distance has a penalty
    Knows: nothing

    Example:
      >>> rj.Bias().positions_of(q, k, positions) is positions
      True

    Attributes:
      width: the initial width, in positions.
    """

    width: float

    def __post_init__(self):
        if not self.width > 0:
            raise ValueError(f"SoftWindow width must be positive, got {self.width}; 8.0 is usual")

    def init(self, key, dims):
        return {"log_width": jnp.full(dims.num_heads, jnp.log(self.width))}

    def bias(self, tables, q, k, positions):
        positions = self.positions_of(q, k, positions)
        query, key = jnp.expand_dims(positions.query, -1), jnp.expand_dims(positions.keys, -2)
        rank = max(query.ndim, key.ndim)
        query, key = (x.reshape((1,) * (rank - x.ndim) + x.shape) for x in (query, key))
        distance = jnp.expand_dims((query - key).astype(jnp.float32), -3)
        width = jnp.exp(tables["log_width"]).reshape((1,) * (distance.ndim - 3) + (-1, 1, 1))
        return -((distance / width) ** 2)
'''
MAP = '''
"""Frequencies to a power, for a test."""

from dataclasses import dataclass

from rope_jax import FrequencyMap

__all__ = ["Power"]


@dataclass(frozen=True, kw_only=True)
class Power(FrequencyMap):
    """Raises every frequency to a power.

    Formula: theta_i^exponent
    Extrapolates: with an exponent above 1, as a larger base
    Knows: nothing

    Example:
      >>> rj.rotary_frequencies(4).inv_freq ** 2
      Array([1.e+00, 1.e-04], dtype=float32)

    Attributes:
      exponent: the power.
    """

    exponent: float

    def apply(self, inv_freq, *, base, length, xp):
        return inv_freq**self.exponent, 1.0
'''
EXPERIMENT = """
from rope_jax import Compose, NoPE, Layers, RoPE
from rope_jax.study import EvaluateConfig, Experiment, Method, ModelConfig, TrainConfig, Variant
from rope_jax.tasks import Copy


def experiment():
    return Experiment(
        name="extended",
        tasks=(Copy(alphabet=4),),
        methods=(
            Method(encoder=SoftWindow(width=3.0)),
            Method(
                encoder=Layers(Compose(SoftWindow(width=3.0), RoPE()), NoPE()),
                variants=(
                    Variant(
                        name="power",
                        encoder=Layers(Compose(SoftWindow(width=3.0), RoPE(scaling=Power(exponent=2.0))), NoPE()),
                    ),
                ),
            ),
        ),
        model=ModelConfig(num_layers=2, width=8, num_heads=2),
        train=TrainConfig(steps=2, batch_size=4, max_length=3),
        evaluate=EvaluateConfig(lengths=(2, 4), examples=6),
        seeds=(0,),
    )
"""
METHODS = {
    ("SoftWindow(width=3.0)", "as-trained"),
    ("SoftWindow(width=3.0) + RoPE / NoPE", "as-trained"),
    ("SoftWindow(width=3.0) + RoPE / NoPE", "power"),
}
# everything that a new class enters by itself, in a copy of the repository
PROGRAM = (
    """
import json
import numpy as np
import sys
sys.path.insert(0, "tests")
import examples
import rope_jax as rj
import test_architecture
from experiments import catalogue
from rope_jax import Power, SoftWindow
from rope_jax.training.evaluate import evaluate
from rope_jax.training.train import fit
"""
    + EXPERIMENT
    + """
rows = []
for cell in experiment().cells():
    *_, end = fit(cell)
    rows += [row for rows in evaluate(cell, end.state.params, np.asarray(end.state.diverged_at)) for row in rows]
before = catalogue.PAGE.read_text()
catalogue.main([])
after = catalogue.PAGE.read_text()
for name, test in vars(test_architecture).items():
    if name.startswith("test_") and "base_dependencies" not in name:
        test()
names = [[type(value).__name__ for value in values] for values in (examples.ENCODERS, examples.MAPS, examples.BIASES)]
print(json.dumps([rows, before, after, names, rj.SoftWindow(width=2).width, rj.Power(exponent=1).exponent]))
"""
)


def check_rows(rows):
    assert {(row["method"], row["variant"]) for row in rows} == METHODS
    assert {(row["length"], row["count"], row["status"], row["train_steps"]) for row in rows} == {
        (length, 6, "ok", 2) for length in (2, 4)
    }
    assert len(rows) == 6
    assert all(0 <= row["exact_match"] <= row["token_accuracy"] <= 1 for row in rows)


def check_page(page):
    assert "| [SoftWindow](#softwindow) | bias | yes, every distance has a penalty | nothing |" in page
    assert "### SoftWindow\n\nAdds -(|q - k| / width)^2 to the logits" in page
    assert "- `width`: the initial width, in positions." in page
    assert "| [Power](#power) | rotate, as `scaling` of RoPE and XPos |" in page
    assert "### Power\n" in page


def test_in_the_package_by_one_file_and_one_line(tmp_path):
    package = copy_package(tmp_path)
    for name in ("experiments", "docs", "tests"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    add_to_package(
        package, "encoders", "soft_window", ENCODER.replace("from rope_jax import Bias", "from .bias.base import Bias")
    )
    source = MAP.replace("from rope_jax import FrequencyMap", "from .rotary.scaling.base import FrequencyMap")
    add_to_package(package, "encoders", "power", source)
    rows, before, after, names, width, exponent = json.loads(run_program(package, PROGRAM).splitlines()[-1])
    check_rows(rows)
    check_page(after)
    # what the tests of the page compare: the sections of other classes are as before
    assert "SoftWindow" not in before
    assert set(before.splitlines()) < set(after.splitlines())
    encoders, maps, biases = names
    assert (encoders.count("SoftWindow"), maps.count("Power"), biases.count("SoftWindow")) == (1, 1, 1)
    assert (width, exponent) == (2.0, 1.0)


def test_an_encoder_without_a_card_makes_no_test_of_the_lists_fail(tmp_path):
    package = copy_package(tmp_path)
    for name in ("experiments", "docs", "tests"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    source = """
\"\"\"Nothing, twice.\"\"\"

from dataclasses import dataclass

from .base import Encoder

__all__ = ["Plain"]


@dataclass(frozen=True, kw_only=True)
class Plain(Encoder):
    \"\"\"The identity.\"\"\"

    size: int
"""
    add_to_package(package, "encoders", "plain", source.lstrip())
    program = """
import sys
sys.path[:0] = ["tests", "tests/experiments"]
import examples, test_architecture, test_catalogue
from rope_jax import Plain
assert Plain in map(type, examples.ENCODERS)
test_catalogue.test_the_page_is_made_from_the_code()
test_catalogue.test_the_page_of_all_classes_has_a_section_and_a_line_for_each()
for name, test in vars(test_architecture).items():
    if name.startswith("test_") and "base_dependencies" not in name:
        test()
"""
    run_program(package, program)


def test_in_a_users_own_files(tmp_path, monkeypatch):
    """The classes in a file beside the config, which imports them; through the commands."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_encoders.py").write_text(ENCODER + MAP)
    (tmp_path / "my_config.py").write_text(f"from my_encoders import Power, SoftWindow\n{EXPERIMENT}")
    main(["my_config.py", "--out", "out"])
    check_rows(read_rows(tmp_path / "out" / "rows.jsonl"))
    catalogue.main(["my_encoders.py", "--out", "page.md"])
    check_page((tmp_path / "page.md").read_text())
    # the options are a part of the experiment, and their types are checked
    source = (tmp_path / "my_config.py").read_text()
    (tmp_path / "my_config.py").write_text(source.replace("exponent=2.0", "exponent='2'"))
    with pytest.raises(SystemExit):
        main(["my_config.py", "--out", "out"])
