"""One seed's batch on several devices: the same training up to rounding, and the same measurements."""

from dataclasses import replace

import chex
import jax
import numpy as np
import pytest

from rope_jax.training.devices import replica_mesh
from rope_jax.training.evaluate import check_evaluation, evaluate
from rope_jax.training.train import fit


def trained(cell, devices_per_seed):
    """The state at the end, and the rows."""
    *_, end = fit(cell, devices_per_seed=devices_per_seed)
    check_evaluation(cell, devices_per_seed=devices_per_seed)
    diverged_at = np.asarray(end.state.diverged_at)
    found = evaluate(cell, end.state.params, diverged_at, devices_per_seed=devices_per_seed)
    return end.state, [row for rows in found for row in rows]


def test_two_devices_train_and_measure_a_seed_as_one_does(toy_cell):
    """More seeds than devices, batches that do not divide evenly, and all the variants."""
    cell = replace(toy_cell, seeds=(3, 4), train=replace(toy_cell.train, batch_size=5, max_length=6, dropout=0.2))
    (alone, rows), (split, rows_of_split) = trained(cell, 1), trained(cell, 2)
    assert replica_mesh(2, 2).shape == {"replica": 1, "data": 2}
    chex.assert_trees_all_close(split.params, alone.params, rtol=1e-4, atol=1e-5)
    assert len(rows) == len(rows_of_split)
    for one, other in zip(rows, rows_of_split, strict=True):
        assert one["measurement"] == other["measurement"]
        assert other["token_accuracy"] == pytest.approx(one["token_accuracy"], abs=0.05)


def test_devices_that_cannot_be_shared_out_are_refused():
    assert len(jax.devices()) == 2
    with pytest.raises(ValueError, match="devices_per_seed must divide the number of devices, which is 2, got 3"):
        replica_mesh(1, 3)
