"""Equal budgets: what a grid means, which settings are chosen, and what is refused."""

import math
from dataclasses import replace

import pytest

import rope_jax as rj
from looping import for_each
from rope_jax.optimizers import SGD, AdamW
from rope_jax.study import Method, TrainConfig, Tune
from rope_jax.study.plan import make_plan
from rope_jax.study.rows import completed, row
from rope_jax.study.store import Store
from rope_jax.study.tune import best_of, with_settings

GRID = {"train.learning_rate": (1e-3, 1e-2), "train.optimizer.weight_decay": (0.0, 0.1)}


def tune(**options):
    return Tune(**{"grid": GRID, "seeds": (7, 8), "lengths": (2, 3), **options})


def test_every_combination_is_tried_in_the_order_of_the_grid():
    assert tune().combinations() == [
        (("learning_rate", rate), ("optimizer.weight_decay", decay)) for rate in (1e-3, 1e-2) for decay in (0.0, 0.1)
    ]


def test_settings_reach_into_options_of_options_and_leave_the_rest():
    train = TrainConfig(steps=5)
    made = with_settings(train, (("learning_rate", 1), ("optimizer.weight_decay", 0.5), ("batch_size", 3)))
    assert made == TrainConfig(steps=5, learning_rate=1.0, optimizer=AdamW(weight_decay=0.5), batch_size=3)
    assert with_settings(train, (("optimizer", SGD()),)).optimizer == SGD()
    for settings, message in (
        (
            (("learning_rat", 1.0),),
            "'learning_rat' names no option of training: TrainConfig has no learning_rat; it has batch_size,",
        ),
        ((("optimizer.momentum", 1.0),), "'optimizer.momentum' names no option of training: AdamW has no momentum"),
        ((("steps.more", 1),), "'steps.more' names no option of training: int has no more, which has no options"),
        ((("learning_rate", -1.0),), "train.learning_rate must be positive, got -1.0"),
        ((("steps", "many"),), "TrainConfig steps must be an int, got 'many'"),
    ):
        with pytest.raises(ValueError, match=message):
            with_settings(train, settings)


@for_each(
    ("options", "message"),
    [
        ({"grid": {}}, "Tune grid must name an option"),
        ({"grid": {"learning_rate": (1.0,)}}, r'Tune grid must name options of training, such as "train.learning_rate", got'),
        ({"grid": {"train.steps": ()}}, "Tune grid train.steps must hold at least one value"),
        ({"grid": {"train.steps": (1, 1)}}, "must not name anything twice"),
        ({"seeds": ()}, "Tune seeds must name at least one"),
        ({"seeds": (-1,)}, "Tune seeds must hold numbers from 0"),
        ({"lengths": (0,)}, "Tune lengths must hold lengths of at least 1 symbol"),
        ({"best": "most"}, "Tune best must be 'highest' or 'lowest', got 'most'"),
    ],
)
def test_impossible_values_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        tune(**options)


def test_settings_are_never_chosen_beyond_the_training_range(toy):
    """Also where a method or the grid itself narrows that range."""
    replace(toy, tune=tune())
    shorter = Method(encoder=rj.NoPE(), train={"max_length": 2})
    for changed in ({"tune": tune(lengths=(2, 4))}, {"tune": tune(), "methods": (shorter,)}):
        with pytest.raises(ValueError, match=r"Tune lengths must lie within the lengths of training, 1 to [23], got [34]"):
            replace(toy, **changed)
    with pytest.raises(ValueError, match="Tune lengths must lie within"):
        replace(toy, tune=tune(grid={"train.max_length": (3, 2)}))
    with pytest.raises(ValueError, match=r"Tune metric 'bleu' is not measured on Copy.*choose one of exact_match"):
        replace(toy, tune=tune(metric="bleu"))


def test_the_best_mean_wins_the_first_of_equal_ones_and_what_diverged_comes_last():
    """Against a sort in plain Python."""
    highest, lowest = tune(), tune(best="lowest")
    values = [[0.5, 0.7], [0.6, 0.6], [0.9, None], [None, None], [0.7, 0.2]]
    assert best_of(highest, values) == 0  # equal to the next one, and before it
    assert best_of(lowest, values) == 4
    assert best_of(highest, values[2:4]) == 0  # one good seed is better than none
    for values in ([[math.sin(7 * i + j) for j in range(3)] for i in range(size)] for size in range(1, 8)):
        means = [sum(each) / 3 for each in values]
        assert best_of(highest, values) == max(range(len(means)), key=means.__getitem__)
        assert best_of(lowest, values) == min(range(len(means)), key=means.__getitem__)


def measured(cell, seed, value):
    """Rows of a training that was not run; every metric is `value`."""
    numbers = {metric.name: (value, 1.0) for metric in cell.task.metrics}
    diverged = 3 if value is None else -1
    return [
        completed(
            row(
                cell,
                variant,
                seed=seed,
                length=length,
                examples=cell.evaluate.examples_by_length[length],
                distinct=1.0,
                measured=numbers,
                diverged_at=diverged,
            ),
            commit=None,
        )
        for variant in cell.method.all_variants
        for length in cell.evaluate.lengths
    ]


def test_every_method_tries_the_same_grid_and_its_seeds_get_its_choice(toy, tmp_path):
    own = Method(name="own", encoder=rj.NoPE(), train={"steps": 6})
    experiment = replace(toy, tasks=toy.tasks[:1], methods=(*toy.methods, own), tune=tune())
    store = Store(tmp_path)
    store.begin()
    plan = make_plan(experiment, store)
    assert plan.undecided == 3
    assert [planned.trial for planned in plan.planned] == ["exact_match"] * 12
    for planned in plan.planned:
        cell = planned.cell
        assert (cell.seeds, cell.evaluate.lengths, cell.method.variants) == ((7, 8), (2, 3), ())
        assert cell.train.steps == (6 if cell.method.name == "own" else 8)
    grids = [
        {(p.cell.train.learning_rate, p.cell.train.optimizer.weight_decay) for p in plan.planned[i : i + 4]} for i in (0, 4, 8)
    ]
    assert grids[0] == grids[1] == grids[2]
    assert len(grids[0]) == 4

    # the second combination is the best for the first method, the last for the second; for the third all diverge or fail
    for index, planned in enumerate(plan.planned):
        method, combination = divmod(index, 4)
        for seed in planned.cell.seeds:
            folder = store.training(planned.cell, seed)
            if method == 2 and combination == 1:
                folder.fail("too little memory")
            else:
                value = {0: (0.1, 0.9, 0.5, 0.8), 1: (0.1, 0.2, 0.3, 0.4)}.get(method, (None,) * 4)[combination]
                folder.finish(measured(planned.cell, seed, value))
    plan = make_plan(experiment, store)
    finals = [planned for planned in plan.planned if planned.trial is None]
    assert plan.undecided == 0
    assert [(p.cell.train.learning_rate, p.cell.train.optimizer.weight_decay) for p in finals] == [
        (1e-3, 0.1),
        (1e-2, 0.1),
        (1e-3, 0.0),
    ]
    assert finals[0].settings == "learning_rate=0.001, optimizer.weight_decay=0.1"
    assert finals[2].settings == "learning_rate=0.001, optimizer.weight_decay=0.0, steps=6"
    assert all(planned.cell.seeds == toy.seeds for planned in finals)
    assert [len(planned.cell.method.variants) for planned in finals] == [0, 2, 0]


def test_settings_of_a_method_are_those_of_the_experiment_but_for_what_it_names(toy):
    whole = Method(name="whole", encoder=rj.NoPE(), train=TrainConfig(steps=3, max_length=3))
    some = Method(name="some", encoder=rj.NoPE(), train={"learning_rate": 0.5})
    experiment = replace(toy, methods=(*toy.methods, whole, some))
    by_name = {cell.method.label: cell for cell in experiment.cells()}
    assert by_name["RoPE"].train == toy.train
    assert by_name["whole"].train == whole.train
    assert by_name["some"].train == replace(toy.train, learning_rate=0.5)
    assert by_name["whole"].training(0) != by_name["some"].training(0)
    with pytest.raises(ValueError, match="'rate' names no option of training"):
        Method(encoder=rj.NoPE(), train={"rate": 0.5})
    with pytest.raises(ValueError, match="two methods train NoPE"):  # the same settings, given twice
        replace(toy, methods=(some, replace(some, name="again", train=replace(toy.train, learning_rate=0.5))))
