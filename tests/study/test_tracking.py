"""Trackers: what they write, what they are called, and errors, which stop no training."""

import inspect
import math
import struct
import sys

import pytest

from looping import for_each
from rope_jax.study import tracking
from rope_jax.study.tracking import TRACKERS, Tracker, require_trackers, trackers

# the calls of wandb 0.31 that are made, with its arguments; what they were given is kept in `calls`
WANDB = """
calls = []

class Run:
    def __init__(self, **given): calls.append(("init", given))
    def log(self, data, step=None, commit=None): calls.append(("log", data, step))
    def finish(self, exit_code=None): calls.append(("finish",))

def init(project=None, dir=None, id=None, name=None, config=None, mode=None, reinit=None, resume=None, settings=None):
    return Run(**locals())
"""


@pytest.fixture
def wandb(tmp_path, monkeypatch):
    """A module of this name that notes calls."""
    (tmp_path / "wandb.py").write_text(WANDB)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    for name in ("WANDB_MODE", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    import wandb

    yield wandb
    del sys.modules["wandb"]


def events(folder):
    """The events in the files of a folder, by file."""
    from tensorboardX.proto.event_pb2 import Event

    found = []
    for path in folder.glob("*tfevents*"):
        data, at = path.read_bytes(), 0
        while at < len(data):  # a record is a length, its checksum, an event and its checksum
            (length,) = struct.unpack("<Q", data[at : at + 8])
            found.append(Event.FromString(data[at + 12 : at + 12 + length]))
            at += length + 16
    return found


def test_tensorboard_files_hold_the_values_and_the_config(tmp_path):
    for start in (0, 2):
        with trackers(["tensorboard"], tmp_path, "copy, RoPE, seed 0", {"model": {"width": 8}}, start=start) as tracker:
            for step in range(start + 1, 4):
                tracker.log(step, {"loss": step / 8, "steps_per_second": math.nan})
    found = events(tmp_path / "tracking" / "tensorboard")
    values = [(e.step, v.tag, v.simple_value) for e in found for v in e.summary.value if v.HasField("simple_value")]
    assert sorted((step, value) for step, tag, value in values if tag == "loss") == [
        (1, 1 / 8),
        (2, 2 / 8),
        (3, 3 / 8),
        (3, 3 / 8),
    ]
    assert all(math.isnan(value) for _, tag, value in values if tag == "steps_per_second")
    assert sorted(event.step for event in found if event.HasField("session_log")) == [0, 2]
    [text] = {v.tensor.string_val[0].decode() for e in found for v in e.summary.value if v.tag.startswith("config")}
    assert '"width": 8' in text


def test_what_a_tensorboard_file_lags_behind_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(tracking, "FLUSH_SECONDS", 0.0)
    with trackers(["tensorboard"], tmp_path, "x", {}) as tracker:
        tracker.log(7, {"loss": 1.0})
        assert [event.step for event in events(tmp_path / "tracking" / "tensorboard")][-1] == 7


def test_wandb_is_called_offline_and_a_resumed_training_keeps_its_run(wandb, tmp_path, monkeypatch):
    for mode in ("offline", "online"):
        with trackers(["wandb"], tmp_path, "copy, RoPE, seed 0", {"width": 8}) as tracker:
            tracker.log(5, {"loss": 0.5})
        (_, given), *rest = wandb.calls
        assert rest == [("log", {"loss": 0.5}, 5), ("finish",)]
        assert given == {
            "project": "rope_jax",
            "dir": tmp_path / "tracking",  # wandb adds its name
            "id": (tmp_path / "tracking" / "wandb" / "run_id").read_text(),
            "name": "copy, RoPE, seed 0",
            "config": {"width": 8},
            "mode": mode,
            "reinit": "create_new",
            "resume": "allow",
            "settings": {"silent": True, "console": "off"},
        }
        wandb.calls.clear()
        monkeypatch.setenv("WANDB_MODE", "online")
    with trackers(["wandb"], tmp_path / "other", "x", {}):
        assert wandb.calls[0][1]["id"] != given["id"]


def test_nothing_is_written_by_default(tmp_path):
    with trackers([], tmp_path, "x", {}) as tracker:
        tracker.log(1, {"loss": 1.0})
    assert list(tmp_path.iterdir()) == []


def test_names_that_are_unknown_and_libraries_that_are_missing_are_refused(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="there is no tracker 'tensorbord'; there are tensorboard, wandb"):
        require_trackers(["tensorbord"])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for kind in TRACKERS:
        message = rf"the tracker {kind.name} needs {kind.library}, which is not installed: pip install 'rope_jax\[tracking\]'"
        with pytest.raises(ValueError, match=message), trackers([kind.name], tmp_path, "x", {}):
            pass
    assert list(tmp_path.iterdir()) == []


class Failing(Tracker):
    """A tracker that fails where its class says."""

    name = "failing"
    library = "json"
    where: str
    calls: list[str]

    def __init__(self, *_, **__):
        self._maybe("open")

    def log(self, step, values):
        self._maybe(f"log {step}")

    def close(self):
        self._maybe("close")

    def _maybe(self, call):
        self.calls.append(call)
        if call == self.where:
            raise OSError(28, "No space left on device\nsecond line")


@for_each(
    ("where", "calls"),
    [
        ("open", ["open"]),
        ("log 1", ["open", "log 1"]),
        ("log 2", ["open", "log 1", "log 2"]),
        ("close", ["open", "log 1", "log 2", "log 3", "close"]),
    ],
)
def test_an_error_is_reported_once_and_the_others_go_on(where, calls, tmp_path, monkeypatch):
    monkeypatch.setattr(tracking, "TRACKERS", (Failing, tracking.TensorBoard))
    Failing.where, Failing.calls, said = where, [], []
    folder = tmp_path / where.replace(" ", "_")
    with trackers(["tensorboard", "failing"], folder, "x", {}, report=said.append) as tracker:
        for step in (1, 2, 3):
            tracker.log(step, {"loss": 1.0})
    assert Failing.calls == calls
    reason = "[Errno 28] No space left on device"
    assert said == [f"note: tracking with failing failed ({reason}); the training goes on without it"]
    assert [event.step for event in events(folder / "tracking" / "tensorboard")][-3:] == [1, 2, 3]


def test_an_error_of_the_training_closes_trackers_and_passes(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tracking, "TRACKERS", (Failing,))
    Failing.where, Failing.calls = "close", []
    for error in (ZeroDivisionError(), KeyboardInterrupt()):
        with pytest.raises(type(error)), trackers(["failing"], tmp_path, "x", {}):
            raise error
    assert Failing.calls == ["open", "close"] * 2
    assert capsys.readouterr().err.count("note: tracking with failing failed") == 2


def test_every_tracker_is_in_the_list():
    """And takes what the base takes."""
    private = {tracking._Several}
    assert set(TRACKERS) == {kind for kind in Tracker.__subclasses__() if kind.__module__ == tracking.__name__} - private
    assert len({kind.name for kind in TRACKERS}) == len(TRACKERS)
    for kind in TRACKERS:
        for method in ("__init__", "log", "close"):
            expected = list(inspect.signature(getattr(Tracker, method)).parameters)
            assert list(inspect.signature(getattr(kind, method)).parameters) == expected
