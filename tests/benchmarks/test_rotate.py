"""`python -m benchmarks`: its JSON, bad input, missing libraries, and that all contenders of `rotate` compute one function."""

import importlib
import itertools
import json

import jax.numpy as jnp
import numpy as np
import pytest

import rope_jax as rj
from benchmarks import BENCHMARKS, harness, rotate
from benchmarks.__main__ import main
from benchmarks.contenders import rotation

TINY = ["--batch", "2", "--length", "5", "--num-heads", "3", "--head-dim", "8", "--rounds", "2"]


@pytest.fixture
def bare(monkeypatch):
    """As if no other library were installed."""
    import_module = importlib.import_module

    def import_ours(name, package=None):
        if name in {module for contender in rotation.CONTENDERS for module in contender.modules}:
            raise ModuleNotFoundError(name)
        return import_module(name, package)

    monkeypatch.setattr(importlib, "import_module", import_ours)


def test_rotate_writes_json(bare, tmp_path, capsys):
    out = tmp_path / "new" / "rotate.json"
    main(["rotate", *TINY, "--out", str(out)])
    written = json.loads(out.read_text())
    assert list(written) == ["benchmark", "machine", "versions", "rows"]
    assert written["benchmark"] == "rotate"
    assert set(written["machine"]) == {"cpu", "cores", "threads", "system", "architecture", "device"}
    assert {"python", "jax", "jaxlib", "numpy"} <= set(written["versions"])
    kinds = [(row["contender"], row["layout"], row["dtype"], row["direction"]) for row in written["rows"]]
    expected = set(itertools.product(("ours", "scaling"), rotation.LAYOUTS, rotate.DTYPES, rotate.DIRECTIONS))
    expected |= set(itertools.product(("concatenate",), ("half",), rotate.DTYPES, rotate.DIRECTIONS))
    assert kinds[0] == ("ours", "half", "float32", "forward")
    assert len(kinds) == len(expected)
    assert set(kinds) == expected
    for row in written["rows"]:
        assert row["median_seconds"] > 0
        assert 0 < row["min_ratio"] <= row["ratio"] <= row["max_ratio"]
        assert (row["shape"], row["rounds"]) == ([2, 5, 3, 8], 2)
        assert row["contender"] != "scaling" or row["ratio"] == 1
    table, log = capsys.readouterr()
    assert sum(line.startswith("| half") for line in table.splitlines()) == 2 * 3
    for name in ("transformers", "rotary-embedding-torch", "equinox"):
        assert f"{name}: not installed: pip install '.[benchmark]'\n" in log


def test_a_library_that_cannot_be_imported_is_reported(monkeypatch):
    def broken(name):
        raise ImportError("it needs another NumPy")

    monkeypatch.setattr(importlib, "import_module", broken)
    assert harness.why_missing(["equinox"]) == "cannot be imported (it needs another NumPy): pip install '.[benchmark]'"
    assert harness.why_missing([]) is None


def test_contenders_compute_one_function():
    present = [contender for contender in rotation.CONTENDERS if harness.why_missing(contender.modules) is None]
    assert len(present) >= 3
    for contender, dtype, direction in itertools.product(present, rotate.DTYPES, rotate.DIRECTIONS):
        for layout in contender.layouts:
            case = rotate.RotateBenchmark(batch=2, length=300, num_heads=3, head_dim=8).case(layout, dtype)
            array, inverse = (case.x, False) if direction == "forward" else (case.w, True)
            exact = rj.rotate(array.astype(jnp.float32), case.cos, case.sin, layout=layout, inverse=inverse)
            if contender.name == rotation.BASELINE:
                exact = 1.5 * array.astype(jnp.float32)
            result = contender.to_numpy(contender.calls(case)[direction]())
            # a pair is at most 6 long here; bfloat16 has 8 bits, and rounds three times where cos and sin are bfloat16
            atol = 6 * 3 * 2**-9 if dtype == "bfloat16" else 6 * 300 * 2**-24
            np.testing.assert_allclose(result, exact, atol=atol, err_msg=f"{contender.name} {layout} {dtype} {direction}")


def test_contenders_are_timed_in_turns_without_their_first_calls():
    log = []
    ticks = itertools.count()
    contenders = {name: lambda name=name: log.append(name) for name in "abc"}
    seconds = harness.interleaved(contenders, 3, clock=lambda: next(ticks))
    assert "".join(log) == "abc" + "aabbcc" + "bbccaa" + "ccaabb"
    assert seconds == {name: [1, 1, 1] for name in "abc"}


def test_ratios_are_those_of_a_round():
    figures = harness.summary({"fast": [1.0, 10.0, 1.0], "slow": [2.0, 30.0, 4.0]}, "fast")
    assert figures["slow"] == {"median_seconds": 4.0, "ratio": 3.0, "min_ratio": 2.0, "max_ratio": 4.0}
    assert figures["fast"] == {"median_seconds": 1.0, "ratio": 1.0, "min_ratio": 1.0, "max_ratio": 1.0}


WRONG = (
    ("", "usage: python -m benchmarks {step,curve,replicas,compile,attention,rotate,store}"),
    ("--out x.json", "usage: "),
    ("rotat", "there is no benchmark rotat (perhaps you meant rotate?)"),
    ("rotate --bath 2", "--batch"),
    ("rotate --batch two", "--batch"),
    ("rotate --batch 0", "--batch must be at least 1, got 0"),
    ("rotate --head-dim 7", "--head-dim must be even, got 7"),
    ("rotate --rounds 0", "--rounds must be at least 1, got 0"),
    ("rotate --out .", "--out . is a folder"),
    ("rotate --out file/x.json", "cannot be written"),
    ("step --replicas -1", "--replicas must not be negative, got -1; 0 is one per core"),
    ("step --num-heads 7", "model.width 64 is not divisible by model.num_heads 7"),
    ("step --dropouts 1.0", "train.dropout must be at least 0 and below 1; 0.1 is usual, got 1.0"),
    ("step --lengths 0", "train.min_length must be at least 1, got 0"),
    ("replicas --counts 1", "--counts must hold numbers from 2, got 1; each is compared with 1"),
    ("curve --sample 9 --longest 8", "--sample 9 is more than the 8 lengths up to --longest; lower it"),
    ("curve --examples 0", "--examples must be at least 1, got 0"),
    ("attention --memory-length -1", "--memory-length must not be negative, got -1; 0 leaves memory out"),
    ("attention --lengths 0", "--lengths must hold lengths of at least 1, got 0"),
)


def test_a_wrong_command_exits_2_before_anything_is_measured(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(harness, "interleaved", None)
    for arguments, message in WRONG:
        with pytest.raises(SystemExit) as raised:
            main(arguments.split())
        assert raised.value.code == 2, arguments
        assert message in " ".join(capsys.readouterr().err.replace("│", "").split()), arguments


def test_help(capsys):
    for name in (None, *BENCHMARKS):
        with pytest.raises(SystemExit) as raised:
            main(["--help"] if name is None else [name, "--help"])
        assert raised.value.code == 0
        assert f"python -m benchmarks {name or 'rotate'}" in capsys.readouterr().out


def test_ctrl_c_says_so_and_exits_130(bare, tmp_path, monkeypatch, capsys):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(harness, "interleaved", interrupted)
    with pytest.raises(SystemExit) as raised:
        main(["rotate", *TINY, "--out", str(tmp_path / "rotate.json")])
    assert raised.value.code == 130
    assert "interrupted; no file is written" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
