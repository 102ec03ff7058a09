"""A new task, metric and policy, in the package and in a user's own file: one file, one line in one list, and no other edit.

Encoders and frequency maps are in encoders/test_new_encoder.py, optimizers and schedules in training/test_optimizers.py.
"""

import json

import numpy as np
import pytest

from experiments.compare import main
from extension import add_to_package, copy_package, run_program
from rope_jax.study.store import read_rows
from rope_jax.tasks import EOS, FIRST_SYMBOL

TASK = '''
from dataclasses import dataclass
import jax.numpy as jnp
from rope_jax.tasks.strings import StringTask

__all__ = ["RepeatTwice"]

@dataclass(frozen=True, kw_only=True)
class RepeatTwice(StringTask):
    """y = x x."""

    def answer_length(self, length):
        return 2 * length

    def answer(self, x, length):
        return x[jnp.arange(2 * x.shape[0]) % length]
'''
METRIC = '''
from dataclasses import dataclass
import jax.numpy as jnp
from rope_jax.tasks.metrics.base import Metric

__all__ = ["MeanTarget"]

@dataclass(frozen=True, kw_only=True)
class MeanTarget(Metric):
    """The mean of the answer tokens, times a factor."""

    factor: float = 1.0

    def measure(self, logits, batch):
        total = self.factor * jnp.sum(batch.targets * batch.answer_mask).astype(jnp.float32)
        return total, jnp.sum(batch.answer_mask, dtype=jnp.int32)
'''
POLICY = '''
from dataclasses import dataclass
from rope_jax import Positions, positions
from rope_jax.policies.base import Policy

__all__ = ["Stretched"]

@dataclass(frozen=True, kw_only=True)
class Stretched(Policy):
    """Positions 0, step, 2 step, ..."""

    step: int = 2

    def positions(self, keys, batch):
        return Positions(query=self.step * positions.contiguous(batch.tokens.shape[-1]), length=batch.lengths)

    def reach(self, length):
        return self.step * (length - 1) + 1
'''
EXPERIMENT = """
def experiment():
    from rope_jax import RoPE
    from rope_jax.study.config import Experiment, Method
    from rope_jax.study.settings import EvaluateConfig, ModelConfig, TrainConfig

    return Experiment(
        name="extended",
        tasks=(RepeatTwice(alphabet=4),),
        methods=(Method(encoder=RoPE(), policy=Stretched(step=3)),),
        model=ModelConfig(num_layers=1, width=8, num_heads=2),
        train=TrainConfig(steps=2, batch_size=4, max_length=3),
        evaluate=EvaluateConfig(lengths=(2, 4), examples=6, metrics=(MeanTarget(factor=2.0),)),
        seeds=(0,),
    )
"""
PROGRAM = '''
import json
import numpy as np
from rope_jax.policies import Stretched
from rope_jax.tasks import RepeatTwice
from rope_jax.tasks.metrics import MeanTarget
from rope_jax.training.evaluate import evaluate, fixed_batch
from rope_jax.training.train import fit
''' + EXPERIMENT + '''
[cell] = experiment().cells()
*_, end = fit(cell)
tokens = {n: np.asarray(fixed_batch(cell.task, n, examples=6, max_length=n).tokens).tolist() for n in cell.evaluate.lengths}
rows = [row for rows in evaluate(cell, end.state.params, np.asarray(end.state.diverged_at)) for row in rows]
print(json.dumps([tokens, rows]))
'''  # fmt: skip


def check(rows, tokens):
    """The rows of the toy experiment: input lengths, and the metric against plain Python."""
    assert [(row["task"], row["length"], row["count"], row["status"]) for row in rows] == [
        ("repeat_twice", n, 6, "ok") for n in (2, 4)
    ]
    assert {(row["policy"], row["policy_options"], row["method"]) for row in rows} == {
        ("Stretched", "step=3", "RoPE, Stretched(step=3)")
    }
    for row in rows:
        n = row["length"]
        answers = [[*example[1 : n + 1] * 2, EOS] for example in tokens[str(n)]]
        assert [example[n + 2 :] for example in tokens[str(n)]] == [answer[:-1] for answer in answers]
        assert row["mean_target"] == pytest.approx(2 * np.mean(answers))
        assert row["mean_target"] > FIRST_SYMBOL
        assert 0 <= row["exact_match"] <= row["token_accuracy"] <= 1


def test_a_task_a_metric_and_a_policy_in_the_package(tmp_path):
    package = copy_package(tmp_path)
    add_to_package(package, "tasks", "repeat_twice", TASK)
    add_to_package(package, "tasks.metrics", "mean_target", METRIC)
    add_to_package(package, "policies", "stretched", POLICY)
    tokens, rows = json.loads(run_program(package, PROGRAM).splitlines()[-1])
    check(rows, tokens)


def test_a_task_a_metric_and_a_policy_in_a_users_config(tmp_path):
    """Through the command, whose flags leave the config's metrics as they are."""
    from experiments.cli import load_experiment
    from rope_jax.training.evaluate import fixed_batch

    config = tmp_path / "extended.py"
    config.write_text(TASK + METRIC + POLICY + EXPERIMENT)
    main([str(config), "--out", str(tmp_path / "out"), "--train.steps", "1"])
    [task] = load_experiment(config).tasks
    tokens = {str(n): fixed_batch(task, n, examples=6, max_length=n).tokens.tolist() for n in (2, 4)}
    check(read_rows(tmp_path / "out" / "rows.jsonl"), tokens)
    # a metric is a part of what a measurement is: with another factor it is measured again, of the same training
    [training] = (tmp_path / "out" / "trainings").iterdir()
    config.write_text(config.read_text().replace("factor=2.0", "factor=3.0"))
    before = read_rows(tmp_path / "out" / "rows.jsonl")
    main([str(config), "--out", str(tmp_path / "out"), "--train.steps", "1"])
    after = read_rows(tmp_path / "out" / "rows.jsonl")
    assert list((tmp_path / "out" / "trainings").iterdir()) == [training]
    assert [row["mean_target"] for row in after] == pytest.approx([1.5 * row["mean_target"] for row in before])
