"""Every object of a config checks the types of its fields, whatever its `__post_init__` does."""

from dataclasses import dataclass

import pytest

import rope_jax as rj
from looping import for_each
from rope_jax.policies import Contiguous, PoSE
from rope_jax.policies.base import Policy
from rope_jax.study.settings import TrainConfig
from rope_jax.tasks import Copy, Reverse


def require_even(size):
    if size % 2:
        raise ValueError(f"size must be even, got {size}; add or drop one")


# classes with a __post_init__ that does not call super().__post_init__()


@dataclass(frozen=True, kw_only=True)
class EvenEncoder(rj.Encoder):
    size: int = 2

    def __post_init__(self):
        require_even(self.size)


@dataclass(frozen=True, kw_only=True)
class EvenRoPE(rj.RoPE):
    size: int = 2

    def __post_init__(self):
        require_even(self.size)


@dataclass(frozen=True, kw_only=True)
class EvenBias(rj.ALiBi):
    size: int = 2

    def __post_init__(self):
        require_even(self.size)


@dataclass(frozen=True, kw_only=True)
class EvenMap(rj.NTK):
    size: int = 2

    def __post_init__(self):
        require_even(self.size)


@dataclass(frozen=True, kw_only=True)
class EvenTask(Copy):
    size: int = 2

    def __post_init__(self):
        require_even(self.size)


@dataclass(frozen=True, kw_only=True)
class EvenPolicy(Policy):
    size: int = 2

    def __post_init__(self):
        require_even(self.size)

    def positions(self, keys, batch):
        return Contiguous().positions(keys, batch)


@dataclass(frozen=True, kw_only=True)
class EvenPoSE(PoSE):
    size: int = 2

    def __post_init__(self):
        require_even(self.size)


@dataclass(frozen=True, kw_only=True)
class EvenTraining(TrainConfig):
    size: int = 2

    def __post_init__(self):
        require_even(self.size)


@dataclass(frozen=True, kw_only=True)
class Grandchild(EvenRoPE):
    """Two checks that do not call super: one here, and one in the base class."""

    share: float = 0.5

    def __post_init__(self):
        if self.share > 1:
            raise ValueError(f"share must be at most 1, got {self.share}")


REQUIRED = {EvenMap: {"factor": 2.0}, EvenPoSE: {"max_position": 9}}


@for_each("kind", [EvenEncoder, EvenRoPE, EvenBias, EvenMap, EvenTask, EvenPolicy, EvenPoSE, EvenTraining, Grandchild])
def test_types_are_checked_before_the_values(kind):
    required = REQUIRED.get(kind, {})
    assert kind(**required, size=4).size == 4
    # were `require_even` called first, a string would be a TypeError, and 3.0 an odd number
    for wrong in ("2", 3.0, None, True):
        with pytest.raises(ValueError, match=rf"{kind.__name__} size must be an int, got {wrong!r}"):
            kind(**required, size=wrong)
    with pytest.raises(ValueError, match="size must be even, got 3"):
        kind(**required, size=3)


@for_each(
    ("make", "message"),
    [
        (lambda: EvenRoPE(base=-1.0), "EvenRoPE base must be positive, got -1.0"),
        (lambda: EvenRoPE(base="10000"), "EvenRoPE base must be a float, got '10000'"),
        (lambda: EvenRoPE(arrangement="axial"), "arrangement='axial' arranges sections, but sections is None"),
        (lambda: EvenBias(axis=-1), "EvenBias axis must not be negative, got -1"),
        (lambda: EvenBias(slope_scale=-1.0), "slope_scale must not be negative, got -1.0"),
        (lambda: EvenMap(factor=0.0), "NTK factor must be positive, got 0.0"),
        (lambda: EvenTask(alphabet=0), "alphabet must be at least"),
        (lambda: EvenPoSE(max_position=0), "EvenPoSE max_position must be at least 1, got 0"),
        (lambda: EvenPoSE(max_position=9, chunks=0), "PoSE chunks must be at least 1, got 0"),
        (lambda: EvenTraining(steps=0), "train.steps must be at least 1, got 0"),
        (lambda: EvenTraining(min_length=9, max_length=8), "train.min_length 9 is above train.max_length 8"),
        (lambda: Grandchild(share=2.0), "share must be at most 1, got 2.0"),
        (lambda: Grandchild(size=3), "size must be even, got 3"),
        (lambda: Grandchild(base=-1.0), "Grandchild base must be positive, got -1.0"),
        (lambda: Grandchild(share="1"), "Grandchild share must be a float, got '1'"),
    ],
)
def test_the_checks_of_all_base_classes_run(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_task_and_a_variant_of_it_stay_what_they_are():
    """An int where a float is declared becomes that float, in subclasses with a `__post_init__` too."""
    assert Grandchild(share=1) == Grandchild(share=1.0)
    assert type(Grandchild(share=1, base=500).base) is float
    assert type(EvenMap(factor=3).factor) is float
    assert EvenTask(alphabet=4) != Reverse(alphabet=4)
