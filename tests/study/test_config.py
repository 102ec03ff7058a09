"""Configs: every field counts in the hash, every impossible value is refused by name."""

import dataclasses
import hashlib
import json
import re
from dataclasses import replace

import pytest

import rope_jax as rj
from examples import ENCODERS, MAPS
from looping import for_each
from rope_jax.optimizers import SGD, AdamW, Constant, WarmupCosine
from rope_jax.policies import Contiguous, Grid, PoSE
from rope_jax.study.config import Cell, Experiment, Method, Variant
from rope_jax.study.serialization import content_hash, differences, from_json, identity, json_hash, options, to_json
from rope_jax.study.settings import EvaluateConfig, ModelConfig, TrainConfig
from rope_jax.tasks import Copy, Reverse
from rope_jax.tasks.metrics import ExactMatch


def rope(**options):
    return Method(encoder=rj.RoPE(), **options)


OTHER = {
    "num_layers": 3,
    "width": 32,
    "num_heads": 1,
    "mlp_factor": 3,
    "compute_dtype": "bfloat16",
    "length_draw": "batch",
    "optimizer": AdamW(weight_decay=0.5),
    "schedule": Constant(),
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
    "encoders": (rj.NoPE(),),
    "attention_factor": 3.0,
    "mscale": 3.0,
    "mscale_all_dim": 3.0,
    "short_factor": (9.0,),
    "long_factor": (9.0,),
    "centre": 1.0,
    "of": None,
    "metrics": (ExactMatch(),),
}

CHOICES = (AdamW(), SGD(), WarmupCosine(), Constant())


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
    return [cell, cell.task, cell.method, cell.model, cell.train, *CHOICES, cell.evaluate, *MAPS, *encoders]


def test_changing_any_option_changes_the_hash():
    tried = set()
    for config in objects():
        for field in dataclasses.fields(config):
            name = field.name
            if name == "arrangement" or not field.metadata.get("identity", True):  # the first goes with sections
                continue
            other = replace(config, **{name: OTHER[name] if name in OTHER else changed(getattr(config, name))})
            where = f"{type(config).__name__}.{name}"
            assert content_hash(other) != content_hash(config), where
            assert content_hash(replace(other, **{name: getattr(config, name)})) == content_hash(config), where
            assert other not in {config}, where  # hashable: they are static arguments of compiled programs
            for form in (to_json, identity):
                paths = [path for path, _, _ in differences(form(config), form(other))]
                assert paths, where
                assert all(path.startswith(name) for path in paths), where
            tried.add(where)
    assert {"Cell.seeds", "Reverse.alphabet", "Method.policy", "TrainConfig.clip_norm", "RoPE.base", "Compose.encoders"} <= tried


def test_an_option_that_is_added_with_a_default_changes_no_hash():
    """Two versions of a class, under one name, alone and within a cell."""

    def version(*more, name="Mine"):
        return dataclasses.make_dataclass(name, [("size", int), *more], bases=(rj.Encoder,), frozen=True, kw_only=True)

    added = ("steps", tuple[int, ...], dataclasses.field(default=(1, 2)))
    made = ("scale", float, dataclasses.field(default_factory=lambda: 2.0))
    old, new = version(), version(added, made)
    cell = objects()[0]
    for within in (lambda e: e, lambda e: replace(cell, method=Method(encoder=e)), lambda e: rj.Compose(rj.NoPE(), e)):
        before = content_hash(within(old(size=3)))
        for same in (new(size=3), new(size=3, steps=(1, 2), scale=2)):
            assert identity(within(same)) == identity(within(old(size=3)))
            assert content_hash(within(same)) == before
        others = (new(size=4), new(size=3, steps=(1,)), new(size=3, scale=2.5), version(name="Yours")(size=3))
        assert len({before, *(content_hash(within(other)) for other in others)}) == 5


def test_names_are_no_part_of_the_identity(toy):
    named = replace(toy, name="another", methods=tuple(replace(m, name=f"m{i}") for i, m in enumerate(toy.methods)))
    assert content_hash(named) == content_hash(toy)
    for cell, other in zip(toy.cells(), named.cells(), strict=True):
        assert cell.training_name(0) == other.training_name(0)
        assert cell.measurements == other.measurements


def test_the_hash_is_the_same_on_every_machine():
    """Finished cells are recognised by it. The literals are of these JSON forms, computed with sha256sum."""
    forms = {
        Copy(alphabet=4): '{"config": {"alphabet": 4, "type": "Copy"}, "schema": 2}',
        rj.RoPE(scaling=rj.NTK(factor=2)): (
            '{"config": {"scaling": {"factor": 2.0, "type": "NTK"}, "type": "RoPE"}, "schema": 2}'
        ),
    }
    literals = [
        "147998a0dd59f664dc7c2a36e9b3adc13ffae42ffad5a975504a7b4336c71393",
        "d28011f2aab88ba619ab42b56a804303ea9611ce5c6389669684776d4b6b4090",
    ]
    assert [content_hash(config) for config in forms] == literals
    assert [hashlib.sha256(form.encode()).hexdigest() for form in forms.values()] == literals
    assert json_hash({"b": (1, 2), "a": None}) == hashlib.sha256(b'{"a": null, "b": [1, 2]}').hexdigest()


def test_an_int_for_a_float_is_the_same_config():
    assert content_hash(rj.NTK(factor=2)) == content_hash(rj.NTK(factor=2.0))
    assert rj.NTK(factor=2).factor.__class__ is float


def test_what_is_written_as_json_is_read_back():
    for config in objects():
        assert from_json(json.loads(json.dumps(to_json(config)))) == config
        if not any(not field.metadata.get("identity", True) for field in dataclasses.fields(config)):
            assert from_json(json.loads(json.dumps(identity(config)))) == config
    for data, message in (
        ({"type": "Unheard"}, "no class 'Unheard' with the options .*import the module that defines it"),
        ({"type": "RoPE", "bass": 2.0}, "no class 'RoPE' with the options bass"),
        ({"type": "RoPE", "base": "x"}, "RoPE base must be a float, got 'x'"),
        ({"base": 2.0}, "no class None"),
    ):
        with pytest.raises(ValueError, match=message):
            from_json(data)


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
    assert len({cell.training(seed) for cell in cells for seed in cell.seeds}) == 8
    assert cells[1].training_name(1) == f"copy-rope-seed1-{cells[1].training(1)}"
    assert all(cell.seeds == toy.seeds and cell.train == toy.train for cell in cells)


def test_a_method_runs_on_the_tasks_it_is_meant_for(toy):
    copy, reverse = toy.tasks
    other = replace(toy.methods[1], tasks=(reverse,))
    cells = replace(toy, methods=(toy.methods[0], other)).cells()
    assert [(c.task, type(c.method.encoder)) for c in cells] == [
        (copy, rj.Learned), (reverse, rj.Learned), (reverse, rj.RoPE),
    ]  # fmt: skip
    assert cells[2] == toy.cells()[3]  # its folder is the same whatever else the method is meant for


def test_a_derived_name_is_short_and_says_what_the_method_is():
    window = rj.Compose(rj.RoPE(), rj.SlidingWindow(size=8))
    for method, name in (
        (rope(), "RoPE"),
        (rope(policy=Contiguous()), "RoPE"),
        (rope(policy=Contiguous(offset=3)), "RoPE, Contiguous(offset=3)"),
        (Method(encoder=rj.RoPE(base=500.0)), "RoPE(base=500.0)"),
        (Method(encoder=rj.Compose(rj.RoPE(), rj.Compose(rj.ALiBi(), rj.NoPE()))), "RoPE + ALiBi + NoPE"),
        (Method(encoder=rj.Layers(window, rj.NoPE())), "RoPE + SlidingWindow(size=8) / NoPE"),
        (rope(policy=PoSE(max_position=128)), "RoPE, PoSE(max_position=128)"),
        (rope(name="mine", policy=PoSE(max_position=128)), "mine"),
    ):
        assert method.label == name
    long = [Method(encoder=rj.Layers(window, rj.LogN(original_length=n)), policy=PoSE(max_position=64)) for n in range(9, 20)]
    many = Method(encoder=rj.Layers(*[rj.TransformerXL()] * 8))
    for method in (*long, many):
        assert len(method.label) <= 40
        assert re.search(r" #[0-9a-f]{4}$", method.label)
    assert long[0].label.startswith("RoPE + SlidingWindow / LogN, PoSE #")
    assert len({method.label for method in long}) == len(long)
    assert replace(long[0], name="x").label == "x"


def test_names_are_distinct_where_methods_meet(toy):
    copy, reverse = toy.tasks
    both = (rope(name="a"), Method(name="a", encoder=rj.NoPE()))
    with pytest.raises(ValueError, match=r"two methods are called 'a' on Copy\(alphabet=4\): RoPE.*Method\(name=\.\.\.\)"):
        replace(toy, methods=both)
    apart = replace(toy, methods=(replace(both[0], tasks=(copy,)), replace(both[1], tasks=(reverse,))))
    assert [cell.method.label for cell in apart.cells()] == ["a", "a"]


def test_privileged_information_is_that_of_policy_and_encoder(toy):
    dynamic = rj.RoPE(scaling=rj.DynamicNTK(original_length=8))
    method = Method(
        encoder=rj.RoPE(),
        policy=Grid(order="snake"),
        variants=(Variant(name="dynamic", encoder=dynamic), Variant(name="plain", policy=Contiguous())),
    )
    assert [variant.privileged for variant in method.all_variants] == [
        ("separators", "direction"), ("length", "separators", "direction"), (),
    ]  # fmt: skip


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


IMPOSSIBLE_VALUES = (
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
    (lambda: TrainConfig(learning_rate=float("nan")), "TrainConfig learning_rate must be finite, got nan"),
    (lambda: TrainConfig(clip_norm=0), "train.clip_norm must be positive, got 0.0"),
    (lambda: AdamW(weight_decay=-1.0), "AdamW weight_decay must not be negative, got -1.0"),
    (lambda: AdamW(b2=1.0), "AdamW b2 must be at least 0 and below 1, got 1.0"),
    (lambda: SGD(momentum=float("nan")), "SGD momentum must be finite, got nan"),
    (lambda: WarmupCosine(warmup_steps=-1), "WarmupCosine warmup_steps must not be negative, got -1"),
    (lambda: TrainConfig(optimizer="adam"), "TrainConfig optimizer must be an object of class Optimizer, got 'adam'"),
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
    (lambda: rope(name=" "), "Method name must not be blank, got ' '; leave it out"),
    (
        lambda: Method(encoder="RoPE"),
        "Method encoder must be an object of class Encoder or an object of class Layers, got 'RoPE'",
    ),
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
)


def test_impossible_values_are_refused_by_name():
    for make, message in IMPOSSIBLE_VALUES:
        with pytest.raises(ValueError, match=message):
            make()


IMPOSSIBLE_EXPERIMENTS = (
    ({"tasks": ()}, r"tasks must hold something, such as \(Copy\(\),\)"),
    ({"tasks": (Copy(), Copy())}, "tasks must not name anything twice"),
    (
        {"methods": (rope(), rope())},
        r"two methods train RoPE\(\) with Contiguous\(\) on Copy\(alphabet=4\); make them one",
    ),
    ({"methods": (rope(tasks=(Copy(alphabet=4),)),)}, r"no method is for Reverse\(alphabet=4\); leave the task out"),
    ({"seeds": ()}, "seeds must name at least one seed"),
    ({"seeds": (0, -1)}, "seeds must hold numbers from 0 to 2147483647, got -1"),
    ({"seeds": (1, 1)}, "seeds must not name anything twice, got 1"),
    (
        {"methods": (Method(encoder=rj.Learned(max_length=11)),)},
        r"Learned\(max_length=11\) has no row for position 11; raise",
    ),
    ({"tasks": (Copy(unique=True, alphabet=4),)}, r"Copy\(unique=True, alphabet=4\) has no string of 5 different symbols"),
    (
        {"methods": (rope(tasks=(Copy(alphabet=5),)),)},
        r"the method 'RoPE' is for Copy\(alphabet=5\), which is not among the tasks of",
    ),
    (
        {"methods": (Method(encoder=rj.Layers(rj.RoPE(), rj.NoPE())),)},
        "num_layers 1 is not a multiple of the 2 encoders of Layers",
    ),
    ({"model": ModelConfig(width=12)}, r"int\(head_dim 3 \* rotary_fraction 1.0\) = 3"),
    ({"methods": (Method(encoder=rj.RoPE(head_fraction=0.2)),)}, "head_fraction 0.2 of 2 heads gives no head"),
)


def test_impossible_experiments_are_refused_before_anything_runs(toy):
    for change, message in IMPOSSIBLE_EXPERIMENTS:
        with pytest.raises(ValueError, match=message):
            replace(toy, **change)


def test_the_committed_configs_are_experiments():
    from pathlib import Path

    from experiments.cli import load_experiment

    paths = sorted((Path(__file__).parents[2] / "configs").glob("*.py"))
    assert "quickstart.py" in {path.name for path in paths}
    for path in paths:
        assert isinstance(load_experiment(path), Experiment)


ODD_TEXTS = ("", " ", "\n", "a\nb", "\t", "\x00", "a\x1b[1mb", "\ud800", "a\udcffb", "\u200b", "\u2028", "x" * 201)


@for_each("text", ODD_TEXTS)
def test_names_are_printable_text(text):
    """Else tables and figures would fail, or show something else, after training."""
    for what, make in (
        ("Method name", lambda: rope(name=text)),
        ("Variant name", lambda: Variant(name=text, encoder=rj.NoPE())),
        ("Experiment name", lambda: Experiment(name=text, tasks=(Copy(),), methods=(rope(),))),
    ):
        with pytest.raises(ValueError, match=f"^{what} must (not be blank|be printable|be text that UTF-8|have at most 200)"):
            make()


@for_each("name", ("", "a/b", "../a", "a b", "\ud800", "a\nb", "a\\b", "-x", "con:x"))
def test_names_of_metrics_and_tasks_are_names_of_files(name):
    class Named(ExactMatch):
        @property
        def name(self):
            return name

    with pytest.raises(ValueError, match=r"evaluate\.metrics: the name of Named must consist of letters, digits and"):
        EvaluateConfig(metrics=(Named(),))

    class Task(Copy):
        @property
        def name(self):
            return name

    with pytest.raises(ValueError, match=r"^the name of Task must consist of letters, digits and"):
        Experiment(name="x", tasks=(Task(),), methods=(rope(),))


@for_each(
    ("field", "make"),
    [
        ("ModelConfig num_layers", lambda n: ModelConfig(num_layers=n)),
        ("ModelConfig width", lambda n: ModelConfig(width=n)),
        ("ModelConfig num_heads", lambda n: ModelConfig(num_heads=n)),
        ("ModelConfig mlp_factor", lambda n: ModelConfig(mlp_factor=n)),
        ("model.width * model.mlp_factor", lambda n: ModelConfig(width=2**20, mlp_factor=2**20)),
        ("TrainConfig steps", lambda n: TrainConfig(steps=n)),
        ("TrainConfig batch_size", lambda n: TrainConfig(batch_size=n)),
        ("TrainConfig max_length", lambda n: TrainConfig(max_length=n)),
        ("EvaluateConfig lengths", lambda n: EvaluateConfig(lengths=(n,))),
        ("EvaluateConfig examples", lambda n: EvaluateConfig(examples=n)),
        ("Copy alphabet", lambda n: Copy(alphabet=n)),
        (
            "the vocabulary of copy",
            lambda n: Experiment(name="x", tasks=(Copy(alphabet=2**31 - 1),), methods=(rope(),)),
        ),
        (
            "the input positions of copy",
            lambda n: Experiment(name="x", tasks=(Copy(),), methods=(rope(),), evaluate=EvaluateConfig(lengths=(2**31 - 1,))),
        ),
        ("Experiment seeds", lambda n: Experiment(name="x", tasks=(Copy(),), methods=(rope(),), seeds=(n,))),
    ],
)
def test_counts_fit_int32(field, make):
    for count in (2**31, 10**30, 10**5000):
        with pytest.raises(
            ValueError, match=f"^{re.escape(field)} must be (at most|within the range of int32, -2147483648 \\.\\.) 2147"
        ):
            make(count)
