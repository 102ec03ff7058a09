"""Equal budget: every method tries the same settings on seeds set apart, and one rule chooses among them."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from rope_jax.encoders._internal.inputs import shown
from rope_jax.encoders._internal.typed_dataclass import TypedDataclass, pairs_of
from rope_jax.study.settings import TrainConfig, require, require_distinct

Settings = tuple[tuple[str, Any], ...]  # pairs of an option of TrainConfig, such as "optimizer.weight_decay", and its value
Config = TypeVar("Config")

_PREFIX = "train."  # how a grid names the options of TrainConfig, as the command line does


@dataclass(frozen=True, kw_only=True)
class Tune(TypedDataclass):
    """Chooses training settings for every task and method, by one rule, before the seeds of the study are trained.

    Every method tries every combination of the grid, as trained (without variants). The combination with the best mean of the
    metric over all seeds and lengths is chosen; of equal ones, the first in the order of the grid. A combination in which a seed
    diverged or failed is chosen only if no other is left; of several such ones, that with the most good seeds.

    Attributes:
      grid: {"train.learning_rate": (1e-3, 2e-3)}: options of TrainConfig, as the command line names them, and their values.
      seeds: trained for each combination. Seeds that the study does not report keep the choice apart from the result.
      lengths: what the metric is measured at, in symbols of x; all within the lengths of training.
      metric: the column of the rows that decides.
      best: whether the highest or the lowest mean is chosen.
      examples: test examples of each length.
    """

    grid: Mapping[str, tuple[Any, ...]] | tuple[tuple[str, tuple[Any, ...]], ...]
    seeds: tuple[int, ...]
    lengths: tuple[int, ...]
    metric: str = "exact_match"
    best: Literal["highest", "lowest"] = "highest"
    examples: int = 512

    def __post_init__(self) -> None:
        require(len(self.grid) > 0, "Tune grid", self.grid, 'must name an option, such as {"train.learning_rate": (1e-3, 2e-3)}')
        require_distinct("Tune grid", [path for path, _ in pairs_of(self.grid)])
        for path, values in pairs_of(self.grid):
            require(path.startswith(_PREFIX), "Tune grid", path, 'must name options of training, such as "train.learning_rate"')
            require(len(values) > 0, f"Tune grid {path}", values, "must hold at least one value")
            require_distinct(f"Tune grid {path}", values)
        for name in ("seeds", "lengths"):
            require(len(getattr(self, name)) > 0, f"Tune {name}", getattr(self, name), "must name at least one")
            require_distinct(f"Tune {name}", getattr(self, name))
        for seed in self.seeds:
            require(seed >= 0, "Tune seeds", seed, "must hold numbers from 0 to 2147483647")
        for length in self.lengths:
            require(length >= 1, "Tune lengths", length, "must hold lengths of at least 1 symbol")
        require(self.examples >= 1, "Tune examples", self.examples, "must be at least 1")

    def combinations(self) -> list[Settings]:
        """All combinations, the last option of the grid changing fastest; each option without the "train."."""
        grid = pairs_of(self.grid)
        names = [path.removeprefix(_PREFIX) for path, _ in grid]
        return [tuple(zip(names, values, strict=True)) for values in itertools.product(*(values for _, values in grid))]

    def check(self, train: TrainConfig) -> None:
        """Raises ValueError unless each combination fits the training settings, and the lengths lie in their range."""
        for settings in self.combinations():
            tried = with_settings(train, settings)
            for length in self.lengths:
                if not tried.min_length <= length <= tried.max_length:
                    raise ValueError(
                        f"Tune lengths must lie within the lengths of training, {tried.min_length} to {tried.max_length}, got "
                        f"{length}; settings are never chosen on lengths that the study tests beyond training"
                    )


def with_settings(config: Config, settings: Settings) -> Config:
    """A config with other values for some options.

    Args:
      config: a dataclass, such as a TrainConfig.
      settings: pairs of an option and its value; "optimizer.weight_decay" is an option of the option `optimizer`.

    Raises:
      ValueError: there is no such option, or it refuses the value.
    """
    for path, value in settings:
        config = _with(config, path.split("."), value, path)
    return config


def _with(config: Config, names: list[str], value: Any, path: str) -> Config:
    known = {option.name for option in dataclasses.fields(config)} if dataclasses.is_dataclass(config) else set()
    if names[0] not in known:
        there = f"; it has {', '.join(sorted(known))}" if known else ", which has no options"
        raise ValueError(f"{path!r} names no option of training: {type(config).__name__} has no {names[0]}{there}")
    if len(names) > 1:
        value = _with(getattr(config, names[0]), names[1:], value, path)
    try:
        return dataclasses.replace(config, **{names[0]: value})  # type: ignore[type-var]
    except TypeError as error:
        raise ValueError(f"{path!r} cannot be {shown(value)} ({error})") from error


def best_of(tune: Tune, values: Sequence[Sequence[float | None]]) -> int:
    """The index of the best combination.

    Args:
      tune: the rule.
      values: for each combination, the metric of every seed at every length; None where a seed has no value.
    """

    def score(of_combination: Sequence[float | None]) -> tuple[int, float]:
        good = [value for value in of_combination if value is not None]
        mean = sum(good) / len(good) if good else 0.0
        return len(good), mean if tune.best == "highest" else -mean

    scores = [score(of_combination) for of_combination in values]
    return scores.index(max(scores))
