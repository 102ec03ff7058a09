"""Checkpoints: what is read is what was written, or an error with the remedy; strays are left alone."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rope_jax.training import checkpoint
from rope_jax.training.train import init_state


@pytest.fixture
def states(toy_cell):
    """Of both seeds, after 8 and after 12 steps."""
    state = jax.jit(jax.vmap(lambda seed: init_state(seed, toy_cell)))(jnp.arange(2, dtype=jnp.uint32))
    return tuple(replace(state, step=jnp.full(2, step, jnp.int32)) for step in (8, 12))


def files(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_each_seed_has_a_folder_and_only_older_checkpoints_are_removed(toy_cell, tmp_path, states):
    folders = [tmp_path / "a" / "x", tmp_path / "b"]
    assert checkpoint.load(folders, toy_cell) is None
    assert checkpoint.load_params(folders[0], toy_cell) is None
    strays = (".DS_Store", "²", "notes", "007", "1e3", "-4", "16.orbax-checkpoint-tmp", os.fsdecode(b"\xff\xfe"))
    for folder in folders:
        folder.mkdir(parents=True)
        for stray in strays[1:]:
            (folder / stray).mkdir()
        (folder / strays[0]).write_text("")
        (folder / "99").write_text("a file")
        (folder / "98").symlink_to(tmp_path)
        (folder / "97").symlink_to(tmp_path / "nowhere")
        assert checkpoint.latest_step(folder) is None
        (folder / "4").mkdir()
        (folder / "16.partial").mkdir()  # of a killed write
    for state in states:
        checkpoint.save(folders, state)
        for folder in folders:
            step = int(state.step[0])
            assert {path.name for path in folder.iterdir()} == {*strays, "99", "98", "97", str(step)}
            assert checkpoint.latest_step(folder) == step
        chex.assert_trees_all_equal(checkpoint.load(folders, toy_cell), state)
    assert tmp_path.is_dir()
    swapped = checkpoint.load(folders[::-1], toy_cell)
    chex.assert_trees_all_equal(swapped, jax.tree.map(lambda x: x[::-1], states[1]))
    chex.assert_trees_all_equal(checkpoint.load_params(folders[1], toy_cell), jax.tree.map(lambda x: x[1], states[1].params))
    checkpoint.save(folders[:1], jax.tree.map(lambda x: x[1:], states[1]))  # the same step again
    chex.assert_trees_all_equal(
        checkpoint.load([folders[0], folders[0]], toy_cell), jax.tree.map(lambda x: x[jnp.array([1, 1])], states[1])
    )


def test_seeds_at_different_steps_are_not_trained_on_together(toy_cell, tmp_path, states):
    folders = [tmp_path / "0", tmp_path / "1"]
    checkpoint.save(folders[:1], jax.tree.map(lambda x: x[:1], states[0]))
    with pytest.raises(ValueError, match=r"must have the same last step .*0: 8, .*1: none; load them apart"):
        checkpoint.load(folders, toy_cell)


def test_no_damage_is_read(toy_cell, tmp_path, states):
    """A flipped bit anywhere, a file cut short, emptied or missing: an error, and never another state."""
    one = replace(toy_cell, seeds=(0,))
    checkpoint.save([tmp_path], jax.tree.map(lambda x: x[:1], states[0]))
    draw, tried = np.random.default_rng(0), 0

    def refused():
        with pytest.raises(checkpoint.DamagedCheckpointError) as error:
            checkpoint.load([tmp_path], one)
        assert str(error.value).startswith(f"checkpoint {tmp_path / '8'} cannot be read (")
        assert str(error.value).endswith("); delete it to train again from the beginning")
        return 1

    for path in files(tmp_path / "8"):
        whole = path.read_bytes()
        for place in {0, len(whole) - 1, *draw.integers(0, len(whole), 4).tolist()}:
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << int(draw.integers(8))]) + whole[place + 1 :])
            tried += refused()
        for damaged in (whole[:-1], b"", whole + b"\n"):
            path.write_bytes(damaged)
            tried += refused()
        path.unlink()
        tried += refused()
        path.write_bytes(whole)
    assert tried > 50
    chex.assert_trees_all_equal(checkpoint.load([tmp_path], one), jax.tree.map(lambda x: x[:1], states[0]))


SAVE = """
import resource, sys
from pathlib import Path
import numpy as np
from rope_jax.training import checkpoint
from rope_jax.training.train import TrainState
draw = np.random.default_rng(0)
state = TrainState(np.array([4], np.int32), {"w": draw.normal(size=(1, 100_000))}, (), np.array([-1], np.int32))
checkpoint.save([Path(sys.argv[1])], state)
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))  # files of no more bytes
try:
    checkpoint.save([Path(sys.argv[1])], TrainState(state.step + 1, state.params, (), state.diverged_at))
except OSError as error:
    print(error)
"""


def test_a_full_disk_is_an_error_that_names_the_checkpoint_and_leaves_the_last_one(tmp_path, states, monkeypatch, capfd):
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=1_000_000))
    with pytest.raises(OSError, match=r"checkpoint .*8 cannot be written \(it needs 1,.* bytes, and the disk is full\)"):
        checkpoint.save([tmp_path] * 2, states[0])
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr().err == ""


def test_a_failed_write_is_an_error_that_names_the_checkpoint_and_leaves_the_last_one(tmp_path):
    done = subprocess.run([sys.executable, "-c", SAVE, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"checkpoint {tmp_path / '5'} cannot be written (File too large")
    assert [path.name for path in tmp_path.iterdir()] == ["4"]


def test_a_folder_that_cannot_be_made_is_named(tmp_path, states):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"checkpoint .*file/8 cannot be written"):
        checkpoint.save([tmp_path / "file"] * 2, states[0])


def test_a_write_killed_at_any_moment_leaves_the_last_checkpoint(tmp_path, states, toy_cell, monkeypatch):
    """Whatever of the next one was written."""
    folders = [tmp_path / "0", tmp_path / "1"]
    checkpoint.save(folders, jax.tree.map(lambda x: x[jnp.array([0, 0])], states[0]))

    class Killed(BaseException):
        pass

    def kill(*_, **__):
        raise Killed

    for place, name in ((checkpoint, "_digests"), (checkpoint, "_flush"), (Path, "rename")):
        with monkeypatch.context() as patch:
            patch.setattr(place, name, kill)
            with pytest.raises(Killed):
                checkpoint.save(folders, states[1])
        assert [checkpoint.latest_step(folder) for folder in folders] == [8, 8]
    chex.assert_trees_all_equal(checkpoint.load_params(folders[1], toy_cell), jax.tree.map(lambda x: x[0], states[0].params))
