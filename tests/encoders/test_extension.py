"""A new encoder and a new frequency map: one file and one line, or a user's own file; and the folder under another name."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import rope_jax as rj
from experiments.compare import main
from extension import add_to_package, copy_package, run_program
from rope_jax.study.store import read_rows

ROOT = Path(__file__).parents[2]
MAP = '''
"""Frequencies without the slowest ones."""

import math
from dataclasses import dataclass

from {scaling} import FrequencyMap

__all__ = ["Clipped"]


@dataclass(frozen=True, kw_only=True)
class Clipped(FrequencyMap):
    """Sets every frequency to zero whose wavelength is above `longest` positions.

    Formula: theta_i if 2 pi / theta_i <= longest, else 0
    Extrapolates: yes in form
    Knows: nothing

    Example:
      >>> rj.rotary_frequencies(4, scaling=rj.Clipped(longest=100.0)).inv_freq
      Array([1., 0.], dtype=float32)

    Attributes:
      longest: the longest wavelength kept, in positions.
    """

    longest: float = 1000.0

    def apply(self, inv_freq, *, base, length, xp):
        return xp.where(inv_freq >= 2 * math.pi / self.longest, inv_freq, 0.0), 1.0
'''
ENCODER = '''
"""A learned slope a head."""

from dataclasses import dataclass

import jax.numpy as jnp

from {bias} import Bias

__all__ = ["LearnedSlope"]


@dataclass(frozen=True, kw_only=True)
class LearnedSlope(Bias):
    """Adds -slope_h |q - k| to the logits, with a learned slope a head.

    Formula: bias[h, q, k] = -slope_h |q - k|
    Extrapolates: yes
    Knows: nothing

    Example:
      >>> rj.LearnedSlope(start=0.5).init(jax.random.key(0), dims)["slope"]
      Array([0.5, 0.5], dtype=float32)

    Attributes:
      start: the initial slope; required, so that a sample of the class needs a value for it.
    """

    start: float

    def init(self, key, dims):
        return {{"slope": jnp.full(dims.num_heads, self.start, jnp.float32)}}

    def bias(self, tables, q, k, positions):
        positions = self.positions_of(q, k, positions)
        query, key = jnp.expand_dims(positions.query, -1), jnp.expand_dims(positions.keys, -2)
        rank = max(query.ndim, key.ndim)
        query, key = (x.reshape((1,) * (rank - x.ndim) + x.shape) for x in (query, key))
        distance = jnp.expand_dims(jnp.abs(query - key).astype(jnp.float32), -3)
        return -tables["slope"].reshape((1,) * (distance.ndim - 3) + (-1, 1, 1)) * distance
'''
EXPERIMENT = """
def experiment():
    from rope_jax import RoPE
    from rope_jax.study.config import EvaluateConfig, Experiment, Method, ModelConfig, TrainConfig, Variant
    from rope_jax.tasks import Copy

    clipped = Variant(name="clipped", encoder=RoPE(scaling=Clipped(longest=10.0)))
    return Experiment(
        name="extended",
        tasks=(Copy(alphabet=4),),
        methods=(Method(encoder=LearnedSlope(start=0.25)), Method(encoder=RoPE(), variants=(clipped,))),
        model=ModelConfig(num_layers=1, width=8, num_heads=2),
        train=TrainConfig(steps=2, batch_size=4, max_length=3),
        evaluate=EvaluateConfig(lengths=(2, 4), examples=6),
        seeds=(0,),
    )
"""


def test_in_the_package(tmp_path):
    """The lists, the catalogue and the tests' list of examples pick both up; a model trains with them."""
    package = copy_package(tmp_path)
    add_to_package(package, "encoders", "clipped", MAP.format(scaling=".rotary.scaling.base").lstrip())
    add_to_package(package, "encoders", "learned_slope", ENCODER.format(bias=".bias.base").lstrip())
    for folder in ("experiments", "tests", "docs"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    program = (
        "from rope_jax import Clipped, LearnedSlope\n"
        + EXPERIMENT
        + """
import sys
sys.path[:0] = ["tests", "tests/experiments"]
import examples, test_architecture, test_catalogue
from experiments import catalogue
assert Clipped in map(type, examples.MAPS) and LearnedSlope in map(type, examples.ENCODERS)
assert "### LearnedSlope" in catalogue.page() and "### Clipped" in catalogue.page()
for check in (test_architecture, test_catalogue):
    for name, test in vars(check).items():
        if name.startswith("test_") and "base_dependencies" not in name:
            test()
from rope_jax.training.evaluate import evaluate
from rope_jax.training.train import fit
import numpy as np
for cell in experiment().cells():
    *_, end = fit(cell)
    for rows in evaluate(cell, end.state.params, np.asarray(end.state.diverged_at)):
        print([(row["encoder"], row["variant"], row["status"]) for row in rows])
"""
    )
    lines = run_program(package, program).splitlines()
    assert lines.count("[('LearnedSlope', 'as-trained', 'ok')]") == 2
    assert lines.count("[('RoPE', 'clipped', 'ok')]") == 2


def test_in_a_users_file_that_a_config_imports(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "my_map.py").write_text(MAP.format(scaling="rope_jax").lstrip())
    (tmp_path / "my_encoder.py").write_text(ENCODER.format(bias="rope_jax").lstrip())
    config = tmp_path / "config.py"
    config.write_text("from my_map import Clipped\nfrom my_encoder import LearnedSlope\n" + EXPERIMENT)
    main([str(config), "--out", str(tmp_path / "out")])
    rows = read_rows(tmp_path / "out" / "rows.jsonl")
    assert {(row["method"], row["variant"], row["status"]) for row in rows} == {
        ("LearnedSlope(start=0.25)", "as-trained", "ok"),
        ("RoPE", "as-trained", "ok"),
        ("RoPE", "clipped", "ok"),
    }


def test_the_folder_of_encoders_works_under_another_name(tmp_path):
    shutil.copytree(ROOT / "rope_jax" / "encoders", tmp_path / "lifted", ignore=shutil.ignore_patterns("__pycache__"))
    program = """
import sys
sys.modules["rope_jax"] = None  # importing it is an error
import jax, jax.numpy as jnp, lifted
encoder = lifted.Compose(lifted.RoPE(scaling=lifted.NTK(factor=2.0)), lifted.ALiBi())
dims = lifted.Dims(width=8, num_heads=2, head_dim=4)
at = lifted.Positions(query=lifted.positions.contiguous(3))
tables = encoder.tables(encoder.prepare(encoder.init(jax.random.key(0), dims), None, dims), at)
q, k = encoder.rotate(tables, jnp.ones((3, 2, 4)), jnp.ones((3, 2, 4)))
print(float(jnp.sum(q * jnp.arange(4.0))), float(jnp.sum(encoder.bias(tables, q, k, at))))
"""
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    cos, sin = rj.rotary_tables(rj.rotary_frequencies(4, scaling=rj.NTK(factor=2.0)), jnp.arange(3))
    rotated = float(np.sum(np.asarray(rj.rotate(jnp.ones((3, 2, 4)), cos, sin)) * np.arange(4.0)))
    bias = float(jnp.sum(rj.alibi_bias(jnp.arange(3), jnp.arange(3), num_heads=2)))
    np.testing.assert_allclose([float(x) for x in done.stdout.split()], [rotated, bias], rtol=1e-6)


def test_prepare_is_the_one_place_that_decides_frequencies():
    class Halved(rj.RoPE):
        def prepare(self, params, length, dims):
            frequencies = super().prepare(params, length, dims)
            return frequencies._replace(inv_freq=frequencies.inv_freq / 2)

    np.testing.assert_allclose(Halved().frequencies(8).inv_freq, rj.RoPE().frequencies(8).inv_freq / 2)


def test_no_subclass_forgets_the_checks_of_its_base():
    """Types first, then the values of the base classes, then its own; none of these calls super().__post_init__()."""
    from dataclasses import dataclass

    from rope_jax.policies import RandomOffset
    from rope_jax.study.config import TrainConfig
    from rope_jax.tasks import Copy

    seen = []

    @dataclass(frozen=True, kw_only=True)
    class MyRoPE(rj.RoPE):
        size: int = 1

        def __post_init__(self):
            seen.append(self.size)

    @dataclass(frozen=True, kw_only=True)
    class MyCopy(Copy):
        def __post_init__(self):
            pass

    @dataclass(frozen=True, kw_only=True)
    class MyPolicy(RandomOffset):
        def __post_init__(self):
            pass

    @dataclass(frozen=True, kw_only=True)
    class MyTraining(TrainConfig):
        def __post_init__(self):
            pass

    for make, message in (
        (lambda: MyRoPE(size="1"), "MyRoPE size must be an int, got '1'"),
        (lambda: MyRoPE(base=-1.0), "MyRoPE base must be positive, got -1.0"),
        (lambda: MyRoPE(base="x"), "MyRoPE base must be a float, got 'x'"),
        (lambda: MyCopy(unique=1), "MyCopy unique must be a bool, got 1"),
        (lambda: MyCopy(alphabet=0), "MyCopy alphabet must be at least 1, got 0"),
        (lambda: MyPolicy(max_position=1.5), "MyPolicy max_position must be an int, got 1.5"),
        (lambda: MyPolicy(max_position=0), "MyPolicy max_position must be at least 1, got 0"),
        (lambda: MyTraining(steps="5"), "MyTraining steps must be an int, got '5'"),
        (lambda: MyTraining(steps=0), "train.steps must be at least 1, got 0"),
    ):
        with pytest.raises(ValueError, match=message):
            make()
    assert seen == []
    assert MyRoPE(size=3).size == 3
    assert seen == [3]
