"""Estimates: every part against what it stands for, and no estimate above what the compiled programs really need."""

import math
from dataclasses import replace

import jax
import numpy as np
import pytest

import rope_jax as rj
from looping import for_each
from rope_jax.optimizers import SGD
from rope_jax.policies import Contiguous, Randomized
from rope_jax.study import cost, machine
from rope_jax.study.config import Cell, Method
from rope_jax.study.settings import EvaluateConfig, ModelConfig, TrainConfig
from rope_jax.tasks import Copy
from rope_jax.training import devices, microbatch, train
from rope_jax.training.numbers import split_numbers

SMALL = Cell(
    task=Copy(alphabet=4),
    method=Method(encoder=rj.RoPE()),
    model=ModelConfig(num_layers=1, width=16, num_heads=2, mlp_factor=2),
    train=TrainConfig(steps=4, batch_size=4, max_length=3),
    evaluate=EvaluateConfig(lengths=(2, 3), examples=4),
    seeds=(0, 1),
)
CELLS = (
    SMALL,
    replace(SMALL, method=Method(encoder=rj.Compose(rj.Learned(max_length=64), rj.T5Bias())), seeds=(0, 1, 2)),
    replace(SMALL, model=ModelConfig(num_layers=3, width=24, num_heads=4, mlp_factor=3), task=Copy(alphabet=300)),
    replace(SMALL, train=replace(SMALL.train, optimizer=SGD(), batch_size=64, max_length=40)),
    replace(SMALL, method=Method(encoder=rj.RoPE(), policy=Randomized(max_position=5000))),
)


@for_each("cell", CELLS)
def test_parameters_and_state_are_those_of_the_model(cell):
    state = jax.eval_shape(lambda: train.init_state(np.uint32(0), cell))
    assert cost.num_parameters(cell) == sum(leaf.size for leaf in jax.tree.leaves(state.params))
    state_bytes = sum(leaf.size * 4 for leaf in jax.tree.leaves((state.params, state.opt_state)))
    estimated = 4 * cost.num_parameters(cell) * (1 + cost._optimizer_share(cell.train))
    assert estimated <= state_bytes <= estimated + 100  # counters of steps are left out


@pytest.mark.slow
@for_each("cell", CELLS[3:])
def test_no_estimate_is_above_what_the_compiled_program_needs(cell):
    seeds = jax.ShapeDtypeStruct((len(cell.seeds),), np.uint32)
    plan = microbatch.microbatch_plan(cell)
    static, numbers = split_numbers(cell)
    state = jax.eval_shape(
        lambda: jax.vmap(lambda seed: train.init_state(seed, cell))(np.arange(len(cell.seeds), dtype=np.uint32))
    )
    compiled = train.train_chunk.lower(state, seeds, numbers, np.int32(0), np.int32(2), cell=static, plan=plan).compile()
    used = compiled.memory_analysis()  # of one device
    on_all_devices = (used.argument_size_in_bytes + used.temp_size_in_bytes) * devices.replica_mesh(len(cell.seeds)).size
    assert on_all_devices / 20 < cost.cell_bytes(cell) <= on_all_devices


def test_what_is_drawn_counts():
    """The sizes of the issue: a policy that draws from many positions, and strings that are permutations of a large alphabet."""
    many = 10**9
    drawn = replace(SMALL, method=Method(encoder=rj.RoPE(), policy=Randomized(max_position=many)))
    assert cost.cell_bytes(drawn) > 4 * many
    permuted = replace(SMALL, task=Copy(alphabet=many, unique=True))
    assert cost.cell_bytes(permuted) - 4 * cost.num_parameters(permuted) > 4 * many * SMALL.train.batch_size


@for_each(
    "huge",
    [
        replace(SMALL, model=replace(SMALL.model, width=200_000)),
        replace(SMALL, model=replace(SMALL.model, width=500_000_000, num_layers=2**31 - 1)),
        replace(SMALL, model=replace(SMALL.model, num_layers=2**31 - 1)),
        replace(SMALL, train=replace(SMALL.train, batch_size=2**31 - 1)),
        replace(SMALL, train=replace(SMALL.train, max_length=10**9)),
        replace(SMALL, evaluate=EvaluateConfig(lengths=(10**9,), examples=1)),
        replace(SMALL, evaluate=EvaluateConfig(examples=2**31 - 1)),
        replace(SMALL, task=Copy(alphabet=2**31 - 10)),
        replace(SMALL, method=Method(encoder=rj.Learned(max_length=2**31 - 1))),
    ],
)
def test_what_cannot_fit_is_refused_at_once(huge):
    estimate = replace(cost.estimate([huge]), memory=2**34)
    assert estimate.bytes > 2**34
    with pytest.raises(ValueError, match=r"needs at least .* of memory, and there are 17\.2 GB; use smaller sizes .*--force"):
        estimate.require_possible()


def test_what_takes_years_is_refused():
    long = replace(SMALL, train=replace(SMALL.train, steps=2**31 - 1, batch_size=2**20))
    with pytest.raises(ValueError, match=r"takes at least .* years, even at .* fewer train.steps, or --force"):
        replace(cost.estimate([long]), memory=None).require_possible()


def test_an_estimate_is_one_line_with_units():
    cells = [SMALL, replace(SMALL, method=Method(encoder=rj.NoPE(), policy=Contiguous(offset=1)))]
    estimate = cost.estimate(cells)
    assert estimate.seconds == pytest.approx(sum(map(cost.cell_seconds, cells)))
    estimate.require_possible()
    for bytes_, seconds, memory, text in (
        (1234, 59.0, None, "estimate: at least 1.23 kB of memory"),
        (10**13, 59.0, 2 * 10**9, "estimate: at least 10 TB of memory (the machine has 2 GB)"),
        (999, 86_400 * 2.5, None, "estimate: at least 999 bytes of memory; at least 2.5 days"),
    ):
        assert str(cost.Estimate(bytes=bytes_, seconds=seconds, memory=memory)) == text


def test_limits_of_control_groups_count(tmp_path):
    """Those of the group and of every group above it, in both versions; "max" is no limit."""
    mounted, groups = tmp_path / "mounted", tmp_path / "groups"
    for file, text in (
        ("memory.max", "5000"),
        ("a/memory.max", "max"),
        ("a/b/memory.max", "3000"),
        ("memory/memory.limit_in_bytes", "9223372036854771712"),
        ("memory/c/memory.limit_in_bytes", "4000"),
    ):
        (mounted / file).parent.mkdir(parents=True, exist_ok=True)
        (mounted / file).write_text(text + "\n")
    for lines, limits in (
        ("0::/a/b\n", [3000, 5000]),
        ("7:cpu:/x\n4:memory:/c\n", [4000, 9223372036854771712]),
        ("0::/elsewhere/../gone\n", [5000]),
        ("7:cpu:/x\n", []),
    ):
        groups.write_text(lines)
        assert machine._group_limits(groups, mounted) == limits
    assert machine._group_limits(tmp_path / "none", mounted) == []
    assert 2**28 < machine.memory_bytes() < 2**50
    assert math.isfinite(machine.operations_per_second(1))
