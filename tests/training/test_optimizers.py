"""Optimisers and schedules: values from outside the package, and choices that a user adds."""

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from experiments.compare import parse
from extension import add_to_package, copy_package, run_program
from rope_jax.optimizers import SGD, AdamW, Constant, WarmupCosine
from rope_jax.study.settings import TrainConfig
from rope_jax.training.train import fit, learning_rate, optimizer

ROOT = Path(__file__).parents[2]
PARAMS = {"matrix": np.array([[0.5, -2.0], [1.5, 3.0]]), "vector": np.array([0.25, -1.0])}
RATES = (0.02, 0.05, 0.01)


def gradients():
    """Three steps' gradients of PARAMS."""
    generator = np.random.default_rng(0)
    return [{name: generator.normal(size=value.shape) for name, value in PARAMS.items()} for _ in RATES]


def steps_of(choice):
    """PARAMS after each of three steps of an optimiser, at the learning rates RATES."""
    transform = choice.transformation(lambda count: jnp.array(RATES)[count])
    params = jax.tree.map(jnp.float32, PARAMS)
    state = transform.init(params)
    for gradient in gradients():
        updates, state = transform.update(jax.tree.map(jnp.float32, gradient), state, params)
        params = optax.apply_updates(params, updates)
        yield params


def test_adamw_is_algorithm_2_of_its_paper():
    """Loshchilov and Hutter 2019, in float64; vectors are not decayed."""
    for choice in (AdamW(), AdamW(b1=0.8, b2=0.95, eps=1e-3, weight_decay=0.3)):
        params = dict(PARAMS)
        m, v = ({name: np.zeros_like(value) for name, value in PARAMS.items()} for _ in range(2))
        for t, (rate, gradient, got) in enumerate(zip(RATES, gradients(), steps_of(choice), strict=True), 1):
            for name, g in gradient.items():
                m[name] = choice.b1 * m[name] + (1 - choice.b1) * g
                v[name] = choice.b2 * v[name] + (1 - choice.b2) * g**2
                m_hat, v_hat = m[name] / (1 - choice.b1**t), v[name] / (1 - choice.b2**t)
                decay = choice.weight_decay if name == "matrix" else 0.0
                params[name] = params[name] - rate * (m_hat / (np.sqrt(v_hat) + choice.eps) + decay * params[name])
                np.testing.assert_allclose(got[name], params[name], rtol=3e-6)


def test_sgd_is_momentum_as_published():
    """Polyak 1964, and Sutskever et al. 2013 in the form where the parameters are those of the look-ahead; in float64."""
    for choice in (SGD(), SGD(momentum=0.5, nesterov=True), SGD(momentum=0.0)):
        params, sums = dict(PARAMS), {name: np.zeros_like(value) for name, value in PARAMS.items()}
        for rate, gradient, got in zip(RATES, gradients(), steps_of(choice), strict=True):
            for name, g in gradient.items():
                sums[name] = choice.momentum * sums[name] + g
                params[name] = params[name] - rate * (choice.momentum * sums[name] + g if choice.nesterov else sums[name])
                np.testing.assert_allclose(got[name], params[name], rtol=3e-6)


def test_schedules_by_hand():
    for schedule, steps, expected in (
        (WarmupCosine(warmup_steps=10), 100, {0: 0, 5: 0.25, 10: 0.5, 55: 0.25, 99: 0.25 * (1 + np.cos(np.pi * 89 / 90))}),
        (WarmupCosine(warmup_steps=0), 8, {0: 0.5, 4: 0.25, 6: 0.25 * (1 - np.sqrt(0.5))}),
        (WarmupCosine(), 20, {0: 0, 5: 0.25, 10: 0.5, 15: 0.25}),  # at most half of the steps are warm-up
        (WarmupCosine(), 1, {0: 0.5}),
        (Constant(), 100, {0: 0.5, 1: 0.5, 99: 0.5}),
        (Constant(warmup_steps=10), 100, {0: 0, 5: 0.25, 10: 0.5, 99: 0.5}),
        (Constant(warmup_steps=10), 8, {0: 0, 2: 0.25, 4: 0.5, 7: 0.5}),
    ):
        rates = learning_rate(TrainConfig(steps=steps, learning_rate=0.5, schedule=schedule))
        for step, rate in expected.items():
            np.testing.assert_allclose(rates(jnp.int32(step)), rate, rtol=1e-5, atol=1e-7)


def test_the_gradient_is_clipped_before_every_optimizer():
    gradient = {"a": jnp.array([3.0]), "b": jnp.array([4.0])}
    config = TrainConfig(clip_norm=0.5, learning_rate=1.0, optimizer=SGD(momentum=0.0), schedule=Constant())
    transform = optimizer(config)
    updates, _ = transform.update(gradient, transform.init(gradient), gradient)
    np.testing.assert_allclose([updates["a"][0], updates["b"][0]], [-0.3, -0.4], rtol=1e-6)


CHOICES = '''
from dataclasses import dataclass

import optax

from rope_jax.optimizers.base import Optimizer, Schedule

__all__ = ["Halving", "Signs"]


@dataclass(frozen=True, kw_only=True)
class Signs(Optimizer):
    """The step is the sign of the gradient times `size`."""

    size: float = 1.0

    def transformation(self, learning_rate):
        return optax.chain(optax.scale_by_sign(), optax.scale(self.size), optax.scale_by_learning_rate(learning_rate))


@dataclass(frozen=True, kw_only=True)
class Halving(Schedule):
    """Half the rate after each period."""

    period: int = 2
    factor: float = 0.5

    def learning_rate(self, peak, steps):
        return lambda count: peak * self.factor ** (count // self.period)
'''
CONFIG = """
from toy_study import toy_experiment
from dataclasses import replace
from rope_jax.study.settings import TrainConfig
from {module} import Halving, Signs

def experiment():
    train = TrainConfig(
        steps=4, batch_size=4, max_length=3, learning_rate=0.5, clip_norm=10.0, optimizer=Signs(), schedule=Halving()
    )
    toy = toy_experiment()
    return replace(toy, tasks=toy.tasks[:1], methods=toy.methods[1:], train=train)
"""


def test_an_optimizer_and_a_schedule_from_a_users_file(tmp_path, monkeypatch, compiled):
    """A config imports them: the command line changes their options, and their numbers are arguments of the program."""
    (tmp_path / "my_choices.py").write_text(CHOICES)
    (tmp_path / "config.py").write_text(CONFIG.format(module="my_choices"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    flags = ("--train.optimizer.size", "0.25", "--train.schedule.factor", "1", "--train.learning-rate", "0.125")
    plain, changed = (
        parse([str(tmp_path / "config.py"), "--out", str(tmp_path / "out"), *chosen])[1].cells()[0] for chosen in ((), flags)
    )
    assert (changed.train.optimizer.size, changed.train.schedule.factor, changed.train.learning_rate) == (0.25, 1.0, 0.125)
    assert changed.training(0) != plain.training(0)
    jax.clear_caches()
    compiled.clear()
    # each step moves a parameter by its size, up or down, or not at all where the gradient is zero
    for cell, sizes in ((plain, (0.5, 0.5, 0.25, 0.25)), (changed, (0.03125,) * 4)):
        *_, end = fit(cell)
        *_, begin = fit(replace(cell, train=replace(cell.train, learning_rate=1e-30)))
        moved = np.concatenate(
            [
                np.ravel(np.subtract(*pair))
                for pair in zip(*(jax.tree.leaves(now.state.params) for now in (end, begin)), strict=True)
            ]
        )
        possible = [np.dot(signs, sizes) for signs in np.stack(np.meshgrid(*[[-1, 0, 1]] * 4), -1).reshape(-1, 4)]
        assert np.abs(moved[:, None] - possible).min(axis=1).max() < 1e-5
        assert np.abs(moved).max() > 1.9 * sizes[0]
    assert compiled.count("jit(train_chunk)") == 1


def test_help_lists_the_options_of_classes_that_a_config_defines(tmp_path, capsys):
    config = CONFIG.replace("from {module} import Halving, Signs\n", CHOICES)
    (tmp_path / "config.py").write_text(config)
    with pytest.raises(SystemExit) as stop:
        parse([str(tmp_path / "config.py"), "--help"])
    assert stop.value.code == 0
    assert "--train.optimizer.size" in capsys.readouterr().out
    with pytest.raises(SystemExit) as stop:
        parse([str(tmp_path / "config.py"), "--out", "x", "--train.stepz", "3"])
    assert stop.value.code == 2
    assert "--train.steps" in capsys.readouterr().err


def test_an_optimizer_and_a_schedule_in_the_package_take_one_file_and_one_line(tmp_path):
    package = copy_package(tmp_path)
    add_to_package(package, "optimizers", "signs", '"""More choices."""\n' + CHOICES)
    (tmp_path / "config.py").write_text(CONFIG.format(module="rope_jax.optimizers"))
    for folder in ("experiments", "tests"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    program = """
import sys
sys.path.insert(0, "tests")
from pathlib import Path
import test_architecture as checks
checks.test_imports_point_one_way()
checks.test_every_encoder_and_task_is_in_its_list()
checks.test_every_public_name_has_a_docstring()
from experiments.compare import main
main(["config.py", "--out", "out", "--train.optimizer.size", "0.5", "--evaluate.examples", "4"])
from rope_jax.study.store import read_rows
assert {row["status"] for row in read_rows(Path("out/rows.jsonl"))} == {"ok"}
"""
    run_program(package, program)
