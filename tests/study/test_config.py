"""Configs: every field counts in the hash, every impossible value is refused by name."""

import dataclasses
import json
from dataclasses import replace

import pytest

import rope_jax as rj
from examples import ENCODERS, MAPS
from rope_jax.policies import Contiguous
from rope_jax.study.config import Cell, EvaluateConfig, Experiment, Method, ModelConfig, TrainConfig, Variant
from rope_jax.study.serialization import content_hash, differences, options, to_json
from rope_jax.tasks import Copy, Reverse
from rope_jax.tasks.metrics import ExactMatch

OTHER = {
    "num_layers": 3,
    "width": 32,
    "num_heads": 1,
    "mlp_factor": 3,
    "compute_dtype": "bfloat16",
    "length_draw": "batch",
    "dropout": 0.1,
    "lengths": (2, 3),
    "seeds": (4,),
    "name": "another",
    "task": Copy(alphabet=5),
    "tasks": (Copy(alphabet=5),),
    "policy": Contiguous(offset=1),
    "method": Method(encoder=rj.NoPE()),
    "model": ModelConfig(num_layers=3),
    "train": TrainConfig(steps=3),
    "evaluate": EvaluateConfig(examples=3),
    "encoder": rj.RoPE(base=2.0),
    "variants": (Variant(name="x", encoder=rj.RoPE(base=3.0)),),
    "layout": "interleaved",
    "scaling": rj.NTK(factor=2.0),
    "order": "concatenated",
    "spacing": "tensor2tensor",
    "min_length": 2,
    "sections": (4, 4),
    "kernel": "power",
    "axis": 1,
    "by": "length",
    "parts": (rj.NoPE(),),
    "attention_factor": 3.0,
    "mscale": 3.0,
    "mscale_all_dim": 3.0,
    "short_factor": (9.0,),
    "long_factor": (9.0,),
    "centre": 1.0,
    "of": None,
    "metrics": (ExactMatch(),),
}


def changed(value):
    if isinstance(value, bool):
        return not value
    return value / 2 if isinstance(value, float) else value + 1


def objects():
    cell = Cell(
        task=Reverse(),
        method=Method(encoder=rj.RoPE()),
        model=ModelConfig(),
        train=TrainConfig(),
        evaluate=EvaluateConfig(lengths=(2, 4)),
        seeds=(0,),
    )
    encoders = {type(encoder): encoder for encoder in reversed(ENCODERS)}.values()
    return [cell, cell.task, cell.method, cell.model, cell.train, cell.evaluate, *MAPS, *encoders]


FIELDS = [
    (config, field.name)
    for config in objects()
    for field in dataclasses.fields(config)
    if field.name != "arrangement"  # goes with sections
    and (type(config), field.name) != (rj.XPos, "sections")  # refused: one axis alone
]


@pytest.mark.parametrize(("config", "name"), FIELDS, ids=[f"{type(c).__name__}.{n}" for c, n in FIELDS])
def test_changing_any_field_changes_the_hash(config, name):
    other = replace(config, **{name: OTHER[name] if name in OTHER else changed(getattr(config, name))})
    assert content_hash(other) != content_hash(config)
    assert content_hash(replace(other, **{name: getattr(config, name)})) == content_hash(config)
    assert other not in {config}  # hashable: they are static arguments of compiled programs
    paths = [path for path, _, _ in differences(to_json(config), to_json(other))]
    assert paths
    assert all(path.startswith(name) for path in paths)


def test_the_hash_is_the_same_on_every_machine():
    """Folders of finished cells are found by it. This literal is of the JSON form, computed once by hand with sha256sum."""
    form = '{"alphabet": 16, "end_marker": false, "type": "Copy", "unique": false}'
    assert json.dumps(to_json(Copy()), sort_keys=True) == form
    assert content_hash(Copy()) == "e11c6c65fe215d8d9212bc27c63bade72664805049b6c34b379f94cfb936c1de"


def test_an_int_for_a_float_is_the_same_config():
    assert content_hash(rj.NTK(factor=2)) == content_hash(rj.NTK(factor=2.0))
    assert rj.NTK(factor=2).factor.__class__ is float


def test_a_class_counts_in_the_hash():
    assert content_hash(Copy()) != content_hash(Reverse())
    assert content_hash(rj.Linear(factor=2.0)) != content_hash(rj.NTK(factor=2.0))


def test_an_experiment_is_every_task_with_every_method(toy):
    cells = toy.cells()
    assert [(cell.task.name, type(cell.method.encoder).__name__) for cell in cells] == [
        ("copy", "Learned"),
        ("copy", "RoPE"),
        ("reverse", "Learned"),
        ("reverse", "RoPE"),
    ]
    assert len({cell.id for cell in cells}) == 4
    assert cells[1].id.startswith("copy-rope-")
    assert all(cell.seeds == toy.seeds and cell.train == toy.train for cell in cells)


def test_a_method_runs_on_the_tasks_it_is_meant_for(toy):
    copy, reverse = toy.tasks
    other = replace(toy.methods[1], tasks=(reverse,))
    cells = replace(toy, methods=(toy.methods[0], other)).cells()
    assert [(c.task, type(c.method.encoder)) for c in cells] == [
        (copy, rj.Learned), (reverse, rj.Learned), (reverse, rj.RoPE),
    ]  # fmt: skip
    assert cells[2] == toy.cells()[3]  # its folder is the same whatever else the method is meant for


def test_examples_by_length():
    assert EvaluateConfig(lengths=(5, 3), examples=7).examples_by_length == {5: 7, 3: 7}
    assert EvaluateConfig(lengths=(5, 3), examples=(7, 9)).examples_by_length == {5: 7, 3: 9}


def test_options_are_what_differs_from_the_default():
    assert options(rj.RoPE()) == ""
    assert options(rj.Learned(max_length=4)) == "max_length=4"
    assert options(rj.RoPE(base=5.0, scaling=rj.NTK(factor=2.0))) == "base=5.0, scaling=NTK(factor=2.0)"


def test_differences_name_the_path():
    old = {"train": {"steps": 1}, "seeds": [0, 1], "tasks": [{"a": 1}]}
    new = {"train": {"steps": 2}, "seeds": [0], "tasks": [{"a": 3}]}
    assert list(differences(old, new)) == [("seeds", [0, 1], [0]), ("tasks[0].a", 1, 3), ("train.steps", 1, 2)]
    assert list(differences(old, old)) == []
    assert list(differences({"tasks": [{"a": 1}, {"a": 2}]}, {"tasks": [{"a": 1}]})) == [("tasks", "2 of them", "1 of them")]


def rope(**options):
    return Method(encoder=rj.RoPE(), **options)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ModelConfig(width=30), "model.width 30 is not divisible by model.num_heads 4; use a width such as 32"),
        (lambda: ModelConfig(num_layers=0), "model.num_layers must be at least 1, got 0"),
        (
            lambda: ModelConfig(compute_dtype="float16"),
            "ModelConfig compute_dtype must be 'float32' or 'bfloat16', got 'float16'",
        ),
        (lambda: TrainConfig(steps=0), "train.steps must be at least 1, got 0"),
        (lambda: TrainConfig(steps=1.5), "TrainConfig steps must be an int, got 1.5"),
        (lambda: TrainConfig(steps=True), "TrainConfig steps must be an int, got True"),
        (lambda: TrainConfig(batch_size=-1), "train.batch_size must be at least 1, got -1"),
        (lambda: TrainConfig(min_length=0), "train.min_length must be at least 1, got 0"),
        (lambda: TrainConfig(min_length=9, max_length=3), "train.min_length 9 is above train.max_length 3"),
        (lambda: TrainConfig(learning_rate=float("nan")), "train.learning_rate must be positive and finite, got nan"),
        (lambda: TrainConfig(clip_norm=0), "train.clip_norm must be positive and finite, got 0.0"),
        (lambda: TrainConfig(weight_decay=-1.0), "train.weight_decay must be finite and not negative, got -1.0"),
        (lambda: EvaluateConfig(lengths=()), "evaluate.lengths must name at least one length"),
        (lambda: EvaluateConfig(lengths=(3, 0)), "evaluate.lengths must hold lengths of at least 1 symbol, got 0"),
        (lambda: EvaluateConfig(lengths=(3, -2)), "evaluate.lengths must hold lengths of at least 1 symbol, got -2"),
        (lambda: EvaluateConfig(lengths=[3]), r"EvaluateConfig lengths must be a tuple, of which each is an int, got \[3\]"),
        (lambda: EvaluateConfig(lengths=(3, 3)), "evaluate.lengths must not name anything twice, got 3"),
        (lambda: EvaluateConfig(examples=0), "evaluate.examples must be at least 1, got 0"),
        (lambda: EvaluateConfig(lengths=(1, 2), examples=(4, 0)), "evaluate.examples must be at least 1, got 0"),
        (
            lambda: EvaluateConfig(lengths=(1, 2), examples=(4, 4, 4)),
            "evaluate.examples has 3 numbers for 2 lengths; give one for each, or one number for all",
        ),
        (lambda: Method(encoder="RoPE"), "Method encoder must be an object of class Encoder, got 'RoPE'"),
        (
            lambda: rope(variants=(Variant(name="v", encoder=rj.RoPE(layout="interleaved", base=3.0)),)),
            "variant 'v' changes layout of the trained RoPE; options that may change after training: base, scaling",
        ),
        (
            lambda: rope(variants=(Variant(name="v", encoder=rj.NoPE()),)),
            "variant 'v' changes the class of the trained RoPE",
        ),
        (
            lambda: Method(
                encoder=rj.RoPE(learn_base=True), variants=(Variant(name="v", encoder=rj.RoPE(learn_base=True, base=2.0)),)
            ),
            "variant 'v' changes base of the trained RoPE; options that may change after training: scaling",
        ),
        (
            lambda: rope(variants=(Variant(name="as-trained", encoder=rj.RoPE()),)),
            "variant must have a name other than that of the trained model, got 'as-trained'",
        ),
        (
            lambda: rope(variants=(Variant(name="v", policy=Contiguous()),)),
            "variant 'v' changes nothing of the trained method; give it encoder= or policy=",
        ),
        (
            lambda: rope(variants=(Variant(name="v", policy=Contiguous(offset=1)), Variant(name="v", encoder=rj.RoPE(base=2.0)))),
            "Method variants must not name anything twice, got 'v'",
        ),
    ],
)
def test_impossible_values_are_refused_by_name(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tasks": ()}, r"tasks must hold something, such as \(Copy\(\),\)"),
        ({"tasks": (Copy(), Copy())}, "tasks must not name anything twice"),
        (
            {"methods": (rope(), rope())},
            r"two methods train RoPE\(\) with Contiguous\(\) on Copy\(alphabet=4\); make them one",
        ),
        ({"methods": (rope(tasks=(Copy(alphabet=4),)),)}, r"no method is meant for Reverse\(alphabet=4\); leave the task out"),
        ({"seeds": ()}, "seeds must name at least one seed"),
        ({"seeds": (0, -1)}, "seeds must hold numbers from 0 to 2147483647, got -1"),
        ({"seeds": (1, 1)}, "seeds must not name anything twice, got 1"),
        (
            {"methods": (Method(encoder=rj.Learned(max_length=11)),)},
            r"Learned\(max_length=11\) has no row for position 11; raise",
        ),
        ({"tasks": (Copy(unique=True, alphabet=4),)}, r"Copy\(unique=True, alphabet=4\) has no string of 5 different symbols"),
        ({"methods": (rope(tasks=(Copy(alphabet=5),)),)}, r"meant for Copy\(alphabet=5\), which is not among the tasks of"),
        ({"methods": (Method(encoder=rj.Layers(rj.RoPE(), rj.NoPE())),)}, "num_layers 1 is not a multiple of the 2 layers that"),
        ({"model": ModelConfig(width=12)}, r"int\(head_dim 3 \* rotary_fraction 1.0\) = 3"),
        ({"methods": (Method(encoder=rj.RoPE(head_fraction=0.2)),)}, "head_fraction 0.2 of 2 heads gives no head"),
    ],
)
def test_impossible_experiments_are_refused_before_anything_runs(toy, change, message):
    with pytest.raises(ValueError, match=message):
        replace(toy, **change)


def test_the_committed_configs_are_experiments():
    from pathlib import Path

    from experiments.cli import load_experiment

    paths = sorted((Path(__file__).parents[1] / "configs").glob("*.py"))
    assert "quickstart.py" in {path.name for path in paths}
    for path in paths:
        assert isinstance(load_experiment(path), Experiment)
