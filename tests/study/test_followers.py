"""Processes that follow the main one: they find what it names, and write nothing."""

import json
from dataclasses import replace

import pytest

from rope_jax.study import followers
from rope_jax.study.plan import lacking, make_plan
from rope_jax.study.provenance import Maker
from rope_jax.study.store import open_store
from rope_jax.study.tune import Tune


def test_a_follower_finds_the_group_that_the_main_process_names(toy, tmp_path):
    """Of a study whose trials train what the study trains, too: measurements tell them apart."""
    tune = Tune(grid={"train.learning_rate": (1e-3, 2e-3)}, seeds=(0, 1), lengths=(2,), examples=8)
    for experiment in (toy, replace(toy, tune=tune)):
        store = open_store(tmp_path)
        for one in lacking(make_plan(experiment, store), store):
            told = json.loads(json.dumps(followers.order([one])))
            assert followers.ordered(told, experiment, store) == [one]


def test_a_study_without_what_is_named_is_refused(toy, tmp_path, monkeypatch):
    monkeypatch.setattr(followers, "_SECONDS_BETWEEN_LOOKS", 0)
    store = open_store(tmp_path)
    [one, *_] = lacking(make_plan(toy, store), store)
    with pytest.raises(ValueError, match="start all processes with the same config and flags"):
        followers.ordered(followers.order([one]), replace(toy, seeds=(5,)), store)


def test_a_silent_store_reads_and_writes_nothing(toy_cell, tmp_path):
    folder = followers.SilentStore(tmp_path).training(toy_cell, 0)
    folder.start(toy_cell, 0, 0)
    folder.log({"step": 1})
    folder.finish([{"measurement": "a"}])
    folder.fail("a reason")
    followers.SilentSession(tmp_path / "session", {}).note({})
    assert list(tmp_path.iterdir()) == []
    open_store(tmp_path).training(toy_cell, 0).fail("another reason")
    assert folder.failure() == "another reason"


def test_a_row_says_how_many_seeds_or_devices_computed_together():
    maker = Maker(commit=None, device="cpu", exact=True)
    assert maker.columns(1)["together"] is None
    assert "devices_per_seed" not in maker.columns(1)
    assert maker.columns(1, 4)["devices_per_seed"] == 4
    assert replace(maker, exact=False).columns(3)["together"] == 3
