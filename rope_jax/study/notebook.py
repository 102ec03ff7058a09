"""Studies from a notebook: run one, load its rows, and call a trained model."""

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from rope_jax.encoders._internal import random
from rope_jax.encoders.base import Encoder, Params
from rope_jax.encoders.layers import Layers
from rope_jax.encoders.positions import Positions
from rope_jax.model.transformer import functional
from rope_jax.policies import Policy
from rope_jax.study.config import Cell, Experiment, Method, training_name
from rope_jax.study.files import DamagedError, read_object, read_rows
from rope_jax.study.gather import gather, write_rows
from rope_jax.study.launchers import launcher
from rope_jax.study.launchers.base import Launch
from rope_jax.study.options import Options, Watch
from rope_jax.study.plan import make_plan
from rope_jax.study.rows import Row
from rope_jax.study.serialization import from_json
from rope_jax.study.settings import EvaluateConfig, ModelConfig
from rope_jax.study.store import TrainingFolder, open_store, read_store, require_intact
from rope_jax.tasks.base import Task
from rope_jax.tasks.batch import Batch
from rope_jax.training import checkpoint, devices
from rope_jax.training.token_positions import token_positions


class Rows(list[Row]):
    """Rows, as a list of dicts."""

    def frame(self) -> Any:
        """The rows as a data frame of pandas.

        Raises:
          ValueError: pandas is not installed.
        """
        if importlib.util.find_spec("pandas") is None:
            raise ValueError("a data frame needs pandas, which is not installed; pip install pandas, or use the list of dicts")
        import pandas

        return pandas.DataFrame(self)


def run(experiment: Experiment, out: str | Path, *, options: Options = Options(), watch: Watch | None = None) -> Rows:
    """Runs what is missing of a study in this process, and returns its rows.

    Args:
      experiment: what is trained and measured.
      out: the folder of the study, which need not exist. What is there is not run again.
      options: how work is done.
      watch: is told how it goes.

    Returns:
      The rows, which are also in out/rows.jsonl: those of trainings that failed have the status "failed" and a reason.

    Raises:
      ValueError: the folder holds something else or cannot be written.
    """
    store = open_store(Path(out))
    devices.configure()
    launcher("here")(
        Launch(
            experiment=experiment,
            store=store,
            arguments=(),
            command="rope_jax.study.run",
            options=options,
            watch=watch or Watch(),
        )
    )
    gathered = gather(make_plan(experiment, store), store)
    write_rows(gathered, store)
    return Rows(gathered.rows)


def load(out: str | Path) -> Rows:
    """The rows of the last report of a study.

    Raises:
      ValueError: the folder holds no study, no report was made, or a row was changed since.
    """
    store = read_store(Path(out))
    path = store.path / "rows.jsonl"
    if not path.exists():
        raise ValueError(f"{path} does not exist: no report was made yet; run the study to its end")
    rows = read_rows(path)
    for row in rows:
        require_intact(row, str(path))
    return Rows(rows)


@dataclass(frozen=True, kw_only=True)
class Model:
    """A trained model as a function: model(params, tokens) are its logits.

    Attributes:
      task, encoder, policy: what it was trained on, and with.
      config: its sizes.
    """

    task: Task
    encoder: Encoder | Layers
    policy: Policy
    config: ModelConfig

    def __call__(self, params: Params, tokens: jax.Array, positions: Positions | None = None) -> jax.Array:
        """The logits of the token that follows each token.

        Args:
          params: from `trained`.
          tokens: int32 [B, T].
          positions: None are those of the policy; where it draws them, from a fixed key.

        Returns:
          float32 [B, T, vocabulary].
        """
        tokens = jnp.asarray(tokens, jnp.int32)
        if positions is None:
            no_mask = jnp.zeros(tokens.shape, jnp.bool_)
            batch = Batch(tokens, tokens, no_mask, no_mask, jnp.full(tokens.shape[:1], tokens.shape[1], jnp.int32))
            positions = token_positions(self.task, self.policy, random.keys_of(random.key(0), tokens.shape[0]), batch)
        _, apply = functional(self.config, self.task.vocabulary, self.encoder)
        return apply(params, tokens, positions)


def trained(out: str | Path, *, method: str, seed: int, task: str | None = None) -> tuple[Params, Model]:
    """The parameters of a trained model, and the model as a function.

    Args:
      out: the folder of a study.
      method: its name, as rows have it.
      seed: as rows have it.
      task: the name of the task; may be left out where the rows have one task only.

    Raises:
      ValueError: the rows have no such training, or its checkpoint is not in the folder or damaged.
    """
    rows = [row for row in load(out) if not row["trial"]]
    names = list(dict.fromkeys(row["task"] for row in rows))
    if task is None and len(names) > 1:
        raise ValueError(f"trained needs task=, one of {', '.join(names)}")
    wanted = {"task": names[0] if task is None else task, "method": method, "seed": seed}
    for name, value in wanted.items():
        there = dict.fromkeys(row[name] for row in rows)
        if value not in there:
            raise ValueError(f"the rows of {out} have no {name} {value!r}; they have {', '.join(map(str, there))}")
    found = [row for row in rows if all(row[name] == value for name, value in wanted.items())]
    if not found:
        raise ValueError(f"the rows of {out} have no training with {wanted}")
    cell, folder = _training(read_store(Path(out)).path / "trainings", found[0])
    params = checkpoint.load_params(folder.checkpoints, cell)
    if params is None:
        raise ValueError(f"{folder.checkpoints} holds no checkpoint; run the study with this folder to train the model again")
    return params, Model(task=cell.task, encoder=cell.method.encoder, policy=cell.method.policy, config=cell.model)


def _training(trainings: Path, row: Row) -> tuple[Cell, TrainingFolder]:
    """The training of a row, as its folder describes it."""
    folder = TrainingFolder(trainings / training_name(row["task"], row["encoder"], row["policy"], row["seed"], row["training"]))
    if not folder.path.is_dir():
        raise ValueError(
            f"{folder.path} does not exist; only rows are kept there. Run the study with this folder to train the model again"
        )
    record = folder.path / "training.json"
    made = {name: from_json(value) for name, value in read_object(record).items()}
    if missing := [name for name in ("task", "encoder", "policy", "model", "train", "seed") if name not in made]:
        raise DamagedError(f"{record} names no {missing[0]}; copy it from another folder of this training, or delete the folder")
    cell = Cell(
        task=made["task"],
        method=Method(encoder=made["encoder"], policy=made["policy"]),
        model=made["model"],
        train=made["train"],
        evaluate=EvaluateConfig(lengths=(made["train"].max_length,)),
        seeds=(made["seed"],),
    )
    if cell.training(made["seed"]) != row["training"]:
        raise DamagedError(f"{record} describes another training than that of the rows; delete the folder to train it again")
    return cell, folder
