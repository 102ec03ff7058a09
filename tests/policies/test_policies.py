"""Position policies against their functions, example by example; with every encoder; in training and evaluation."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rope_jax as rj
from examples import ONE_OF_EACH, POLICIES
from looping import for_each
from rope_jax.encoders.layers import as_layers
from rope_jax.model.transformer import functional
from rope_jax.optimizers import WarmupCosine
from rope_jax.policies import Contiguous, Grid, Policy, PoSE, RandomFloat, Randomized, RandomOffset
from rope_jax.report.labels import PRIVILEGED
from rope_jax.report.statistics import curves
from rope_jax.report.tables import markdown
from rope_jax.study.config import Experiment, Method, Variant
from rope_jax.study.settings import EvaluateConfig, ModelConfig, TrainConfig
from rope_jax.tasks import EOS, SEP, Copy, Reverse
from rope_jax.training.evaluate import evaluate, fixed_batch
from rope_jax.training.microbatch import microbatch_plan
from rope_jax.training.train import draw_lengths, fit, init_replicas, init_state, loss, train_step

TASK = Copy(alphabet=4, end_marker=True)
LENGTHS = jnp.array([3, 1, 5])
# policies that draw, and the function of (key, length, size) that gives the positions of one example
DRAWN = {
    RandomOffset(max_position=40): functools.partial(rj.positions.random_offset, max_position=40),
    Randomized(max_position=40): functools.partial(rj.positions.randomized, max_position=40),
    RandomFloat(max_position=40.0): functools.partial(rj.positions.random_float, max_position=40.0),
    PoSE(max_position=40): functools.partial(rj.positions.pose, max_position=40),
    PoSE(max_position=40, chunks=3): functools.partial(rj.positions.pose, max_position=40, chunks=3),
}
LISTED = (Contiguous(), Contiguous(offset=7), *DRAWN, Grid(), Grid(order="snake"))  # what is expected of these is known


def keys_of(seed, count):
    return jax.random.split(jax.random.key(seed), count)


def batch_of(lengths=LENGTHS, max_length=5, task=TASK):
    return task.sample(jax.random.key(0), lengths, max_length=max_length)


@for_each("policy", DRAWN)
def test_a_drawn_policy_is_its_function_for_every_example(policy):
    """From the key and length of the example, in a batch as alone, with any padding."""
    keys, batch, wide = keys_of(1, 3), batch_of(), batch_of(max_length=9)
    positions, padded = policy.positions(keys, batch), policy.positions(keys, wide)
    assert positions.axes is None
    np.testing.assert_array_equal(positions.length, batch.lengths)
    for row, length in enumerate(batch.lengths):
        alone = DRAWN[policy](keys[row], length, int(length))
        np.testing.assert_array_equal(positions.query[row, :length], alone)
        np.testing.assert_array_equal(padded.query[row, :length], alone)
        assert jnp.issubdtype(positions.query.dtype, jnp.floating) == policy.real
        assert 0 <= float(alone[0]) <= float(alone[-1]) < policy.reach(int(length))


def test_a_drawn_policy_differs_between_examples_and_keys():
    batch = batch_of(jnp.full(64, 5))
    for policy in DRAWN:
        draw = jax.jit(policy.positions)
        one, other = (np.asarray(draw(keys_of(seed, 64), batch).query) for seed in (0, 1))
        assert len({tuple(row) for row in one.tolist()}) > 10
        assert (one != other).any(axis=1).mean() > 0.8


def test_contiguous_positions_are_the_same_for_all():
    positions = Contiguous(offset=3).positions(keys_of(0, 3), batch_of())
    assert positions.query.tolist() == list(range(3, 16))  # [T]: tables are computed once a batch
    assert positions.length.tolist() == [9, 5, 13]
    assert Contiguous(offset=3).reach(13) == 16


def test_the_grid_puts_the_answer_beside_the_question():
    """Copy: a token of y has the column of the same symbol in x, one row on. Reversal: likewise with the snake."""
    batch = batch_of()
    rows, columns = np.asarray(Grid().positions(keys_of(0, 3), batch).query)
    for i, n in enumerate(LENGTHS.tolist()):
        x, y = slice(0, n + 2), slice(n + 2, 2 * n + 3)  # SEP x EOS, and SEP y
        assert rows[i, x].tolist() == [1] * (n + 2)
        assert rows[i, y].tolist() == [2] * (n + 1)
        assert columns[i, x].tolist() == list(range(n + 2))
        assert columns[i, y].tolist() == list(range(n + 1))
        # what follows a column of y stands in the next column of x
        assert batch.targets[i, y].tolist() == batch.tokens[i, 1 : n + 2].tolist()
    reverse = batch_of(task=Reverse(alphabet=4, end_marker=True))
    rows, columns = np.asarray(Grid(order="snake").positions(keys_of(0, 3), reverse).query)
    for i, n in enumerate(LENGTHS.tolist()):
        y = slice(n + 2, 2 * n + 3)
        assert columns[i, : n + 2].tolist() == list(range(n + 2))
        assert columns[i, y].tolist() == list(range(n + 1, 0, -1))
        # what follows a column of y stands in the column before it in x; at the beginning there is the end
        beside = [reverse.tokens[i, c - 1].item() for c in columns[i, y].tolist()]
        assert reverse.targets[i, y].tolist() == [EOS if token == SEP else token for token in beside]


@for_each("policy", POLICIES)
def test_a_policy_fits_under_jit(policy):
    keys, batch = keys_of(2, 3), batch_of()
    traced = jax.jit(policy.positions)(keys, batch)
    for ours, theirs in zip(jax.tree.leaves(traced), jax.tree.leaves(policy.positions(keys, batch)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    traced.require_fit(jnp.ones((3, 13, 1, 1)), None)


# with every encoder

SEVERAL_AXES = (
    rj.RoPE(sections=(2, 2), arrangement="axial"),
    rj.ALiBi(axis=1),
    rj.Layers(rj.RoPE(sections=(2, 2)), rj.NoPE()),
)
# why a pair is refused: the axes that the encoder reads, or the type of the positions
REASONS = (
    r" does not fit .* and the model: .*"
    r"(reads positions of one axis, but these have 2|needs integer positions, but these are real numbers)"
)


def model_of(encoder):
    return ModelConfig(num_layers=len(as_layers(encoder).encoders), width=16, num_heads=2, mlp_factor=1)


def cell(encoder, policy, **changes):
    return Experiment(
        name="pair",
        tasks=(TASK,),
        methods=(Method(encoder=encoder, policy=policy),),
        train=TrainConfig(steps=3, batch_size=3, max_length=5, schedule=WarmupCosine(warmup_steps=0), learning_rate=0.1),
        evaluate=EvaluateConfig(lengths=(5, 6), examples=4),
        **{"model": model_of(encoder)} | changes,
    ).cells()[0]


@functools.partial(jax.jit, static_argnums=0)
def descend(encoder, params, batch, positions):
    _, apply = functional(model_of(encoder), TASK.vocabulary, encoder)
    value, gradient = jax.value_and_grad(loss)(params, batch, positions, apply=apply)
    return value, jax.tree.map(lambda p, g: p - 0.3 * g, params, gradient)


READ_NO_POSITIONS = {rj.NoPE, rj.CoPE, rj.SlidingWindow, rj.LogitScale}
READ_INTEGERS = {rj.Learned, rj.T5Bias}
READ_ONE_AXIS = READ_INTEGERS | {
    *(rj.ALiBi, rj.Compose, rj.Fire, rj.HardALiBi, rj.Kerple, rj.LogN, rj.RoPE, rj.Sinusoidal, rj.TransformerXL, rj.XPos)
}


QUICK = {rj.NoPE, rj.RoPE, rj.Learned, rj.T5Bias, rj.Sinusoidal}  # of each way to read positions, one or two


@pytest.mark.slow
@for_each("encoder", [*(encoder for encoder in ONE_OF_EACH if type(encoder) in QUICK), *SEVERAL_AXES[:1]])
def test_every_policy_trains_three_steps_with_an_encoder_or_is_refused(encoder):
    require_training_or_refusal(encoder)


@pytest.mark.slow
@for_each("encoder", [*(encoder for encoder in ONE_OF_EACH if type(encoder) not in QUICK), *SEVERAL_AXES[1:]])
def test_every_policy_trains_three_steps_with_every_other_encoder_or_is_refused(encoder):
    require_training_or_refusal(encoder)


def require_training_or_refusal(encoder):
    """Three steps on one batch lower the loss. A refused pair has a reason, and would fail if it were run."""
    init, _ = functional(model_of(encoder), TASK.vocabulary, encoder)
    batch = batch_of()
    refused = set()
    for policy in POLICIES:
        positions = policy.positions(keys_of(0, 3), batch)
        try:
            cell(encoder, policy)
        except ValueError:
            refused.add(policy)
            with pytest.raises(ValueError, match=REASONS):
                cell(encoder, policy)
            with pytest.raises(ValueError, match=r"one axis|integer positions"):
                descend(encoder, init(jax.random.key(1)), batch, positions)
            continue
        params, losses = init(jax.random.key(1)), []
        for _ in range(4):
            value, params = descend(encoder, params, batch, positions)
            losses.append(float(value))
        assert losses[3] < losses[0] - 0.01, policy
    if type(encoder) in READ_NO_POSITIONS or encoder in SEVERAL_AXES:
        assert not refused & set(LISTED)
    elif type(encoder) in READ_ONE_AXIS:
        real = {RandomFloat(max_position=40.0)} if type(encoder) in READ_INTEGERS else set()
        assert refused & set(LISTED) == {Grid(), Grid(order="snake")} | real


@for_each(
    ("encoder", "policy", "message"),
    [
        (rj.RoPE(), Randomized(max_position=14), r"Randomized max_position=14 is below the 15 input positions .* copy; raise it"),
        (rj.Learned(max_length=20), Randomized(max_position=40), r"Learned\(max_length=20\) has no row for position 39"),
        (rj.Learned(max_length=20), Contiguous(offset=6), r"Learned\(max_length=20\) has no row for position 20; raise"),
        (
            rj.Learned(max_length=40),
            RandomFloat(max_position=40.0),
            "Learned needs integer positions, but these are real",
        ),
        (
            rj.Compose(rj.RoPE(), rj.T5Bias()),
            RandomFloat(max_position=40.0),
            "T5Bias needs integer positions, but these are real",
        ),
        (
            rj.RoPE(),
            Grid(),
            r"RoPE\(\) does not fit Grid\(\) .*: RoPE reads positions of one axis, but these have 2; use",
        ),
        (rj.ALiBi(axis=2), Grid(), "ALiBi reads positions of at least 3 axes, but these have 2; use"),
        (rj.RoPE(sections=(4,)), Grid(), "RoPE reads positions of one axis, but these have 2"),
        (rj.NoPE(), Grid(separator=1), "separator=1 is not a separator of copy; .* in every example are SEP=2, EOS=3"),
        (rj.NoPE(), Grid(separator=5), "separator=5 is not a separator of copy"),
        (
            rj.RoPE(),
            Contiguous(offset=2**31 - 3),
            "would give positions up to 2147483659, which is too large for int32",
        ),
        (rj.RoPE(), RandomFloat(max_position=2.0**32), "RandomFloat would give positions up to 4294967295"),
        (rj.RoPE(), RandomFloat(max_position=1e38), "RandomFloat would give positions up to 99999"),
    ],
)
def test_impossible_pairs_are_refused_before_anything_runs(encoder, policy, message):
    with pytest.raises(ValueError, match=message):
        cell(encoder, policy)


@for_each(
    ("make", "message"),
    [
        (
            lambda: Randomized(max_position=40).positions(keys_of(0, 2), batch_of()),
            r"keys must be one for each of the 3 examples, got the shape \(2,\); use jax.random.split\(key, 3\)",
        ),
        (
            lambda: Randomized(max_position=12).positions(keys_of(0, 3), batch_of()),
            "max_position 12 is below the padded length 13",
        ),
        (lambda: Policy(), r"Policy defines no positions; use a policy that does, such as Contiguous\(\)"),
        (
            lambda: cell(
                rj.Layers(rj.NoPE(), rj.RoPE(), rj.NoPE()), Contiguous(), model=model_of(rj.Layers(rj.NoPE(), rj.NoPE()))
            ),
            r"num_layers 2 is not a multiple of the 3 .*; use 3 layers",
        ),
        (lambda: Contiguous(offset=-1), "Contiguous offset must not be negative, got -1"),
        (lambda: Randomized(max_position=0), "Randomized max_position must be at least 1, got 0"),
        (lambda: Randomized(max_position=2.5), "Randomized max_position must be an int, got 2.5"),
        (lambda: PoSE(max_position=9, chunks=0), "PoSE chunks must be at least 1, got 0"),
        (lambda: RandomFloat(max_position=0.0), "RandomFloat max_position must be positive, got 0.0"),
        (lambda: RandomFloat(max_position=float("inf")), "RandomFloat max_position must be finite, got inf"),
        (lambda: Grid(order="spiral"), "Grid order must be 'forward' or 'snake', got 'spiral'"),
        (lambda: Method(encoder=rj.RoPE(), policy="grid"), "Method policy must be an object of class Policy, got 'grid'"),
    ],
)
def test_impossible_policies_are_refused_by_name(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_what_privileged_information_a_policy_uses():
    assert all(set(policy.privileged) <= set(PRIVILEGED) for policy in POLICIES)
    assert {policy: policy.privileged for policy in LISTED} == {
        Contiguous(): (),
        Contiguous(offset=7): (),
        Grid(): ("separators",),
        Grid(order="snake"): ("separators", "direction"),
        **dict.fromkeys(DRAWN, ("length",)),  # for the whole example at once, which includes its answer
    }


# in training and evaluation


def test_a_training_step_draws_positions_from_its_seed_and_step():
    """Its loss is that of its batch at positions drawn here, by the key of the seed, the purpose and the step."""
    drawn = cell(rj.RoPE(), Randomized(max_position=400))
    run = jax.jit(train_step, static_argnames=("cell", "plan"))
    state = init_state(jnp.uint32(0), drawn)
    _, apply = functional(drawn.model, drawn.task.vocabulary, drawn.method.encoder)
    value_of = jax.jit(functools.partial(loss, apply=apply))
    seen = set()
    for seed in (0, 5):
        for step in (0, 1):
            before = replace(state, step=jnp.int32(step))
            value = float(run(before, jnp.uint32(seed), before.step, cell=drawn, plan=microbatch_plan(drawn))[1])
            data, place = (jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), purpose), step) for purpose in (1, 2))
            batch = drawn.task.sample(data, draw_lengths(jnp.int32(step), drawn.train), max_length=5)
            positions = drawn.method.policy.positions(jax.random.split(place, 3), batch)
            assert value == pytest.approx(float(value_of(state.params, batch, positions)), rel=1e-5)
            seen.add(tuple(np.asarray(positions.query)[:, 0].tolist()))
    assert len(seen) == 4


@pytest.fixture(scope="module")
def trained():
    """A model trained with drawn positions, which its variant replaces, and its rows."""
    method = Method(
        encoder=rj.RoPE(),
        policy=Randomized(max_position=40),
        variants=(Variant(name="contiguous", policy=Contiguous()),),
    )
    made = replace(
        cell(rj.RoPE(), Contiguous(), seeds=(0, 1)), method=method, evaluate=EvaluateConfig(lengths=(2, 5), examples=(9, 16))
    )
    state = list(fit(made))[-1].state

    def rows(cell=made):
        return [row for rows in evaluate(cell, state.params, np.asarray(state.diverged_at)) for row in rows]

    return made, state, rows


@pytest.mark.slow
def test_evaluation_is_a_naive_count_with_the_policys_positions(trained):
    made, state, rows = trained
    _, apply = functional(made.model, made.task.vocabulary, made.method.encoder)
    apply, seen = jax.jit(apply), set()
    draw = jax.jit(functools.partial(rj.positions.randomized, max_position=40), static_argnums=2)
    for row in rows():
        length, count = row["length"], {2: 9, 5: 16}[row["length"]]
        size = made.task.input_length(length)
        params = jax.tree.map(lambda x, row=row: x[row["seed"]], state.params)
        batch = fixed_batch(made.task, length, examples=count, max_length=length)
        drawn = jax.random.fold_in(jax.random.key(230_516), size)
        right, content, end = [], [], []
        for i in range(count):
            query = jnp.arange(size)
            if row["variant"] == "as-trained":
                query = draw(jax.random.fold_in(drawn, i), jnp.int32(size), size)
            logits = apply(params, batch.tokens[i], rj.Positions(query=query, length=size))
            predicted, target = np.asarray(logits.argmax(-1))[length + 2 :].tolist(), batch.targets[i, length + 2 :].tolist()
            pairs = list(zip(predicted, target, strict=True))
            right.append([a == b for a, b in pairs])
            content.append(any(a != b and EOS not in (a, b) for a, b in pairs))
            end.append(any((a == EOS) != (b == EOS) for a, b in pairs))
        right = np.array(right)
        assert row["count"] == count
        assert row["token_accuracy"] == pytest.approx(right.mean())
        assert row["exact_match"] == right.all(axis=1).mean()
        assert row["content_error"] == np.mean(content)
        assert row["end_error"] == np.mean(end)
        assert (row["policy"], row["policy_options"]) == ("Randomized", "max_position=40")  # trained with
        seen.add((row["variant"], row["variant_policy"], *row["privileged"]))
    assert seen == {("as-trained", None, "length"), ("contiguous", "Contiguous()")}


def test_variants_of_one_name_stay_apart():
    """Two policies, each with a variant called the same: four curves, four lines of the table."""
    methods = tuple(
        Method(encoder=rj.NoPE(), policy=policy, variants=(Variant(name="contiguous", policy=Contiguous()),))
        for policy in (Randomized(max_position=20), RandomOffset(max_position=20))
    )
    rows = []
    for method in methods:
        made = replace(cell(rj.NoPE(), Contiguous()), method=method)
        params = init_replicas(jnp.zeros(2, jnp.uint32), {}, cell=made).params
        rows += [row for group in evaluate(made, params, np.array([-1, -1])) for row in group]
    lines = curves(rows)
    assert [(curve.method, curve.variant, curve.privileged) for curve in lines] == [
        ("NoPE, Randomized(max_position=20)", "as-trained", ("length",)),
        ("NoPE, Randomized(max_position=20)", "contiguous", ()),
        ("NoPE, RandomOffset(max_position=20)", "as-trained", ("length",)),
        ("NoPE, RandomOffset(max_position=20)", "contiguous", ()),
    ]
    assert markdown({"exact_match": lines}).count("| NoPE, ") == 4
    with pytest.raises(ValueError, match=r"two rows have the same task, method and variant .*, seed and length"):
        curves([*rows, rows[0]])


@pytest.mark.slow
def test_test_positions_do_not_depend_on_passes_or_on_other_lengths(trained, monkeypatch):
    made, _, rows = trained
    whole = rows()
    jax.clear_caches()
    monkeypatch.setattr("rope_jax.training.microbatch.micro_batch_size", lambda length, **_: max(1, 40 // length))
    assert rows() == whole
    jax.clear_caches()
    wider = rows(replace(made, evaluate=EvaluateConfig(lengths=(5, 4, 6), examples=16)))

    def of_length_5(rows):
        """Without the name of the cell, which changes with the lengths."""
        return [{name: value for name, value in row.items() if name != "cell"} for row in rows if row["length"] == 5]

    assert of_length_5(wider) == of_length_5(whole)


@pytest.mark.slow
def test_rows_and_columns_copy_three_times_further():
    """configs/hundredfold.py at small size: trained on 1 to 4 symbols, exact at 12; contiguous positions are not."""
    from pathlib import Path

    from experiments.cli import load_experiment

    whole = load_experiment(Path(__file__).parents[2] / "configs" / "hundredfold.py")
    small = replace(
        whole,
        tasks=whole.tasks[:1],
        methods=(
            replace(whole.methods[0], tasks=()),
            Method(encoder=whole.methods[0].encoder),
        ),
        train=replace(whole.train, max_length=4),
        evaluate=EvaluateConfig(lengths=(4, 12), examples=512),
        seeds=(0, 1),
    )
    exact = {}
    for each in small.cells():
        state = list(fit(each))[-1].state
        for rows in evaluate(each, state.params, np.asarray(state.diverged_at)):
            exact[type(each.method.policy), rows[0]["length"]] = [row["exact_match"] for row in rows]
    assert min(exact[Grid, 4] + exact[Grid, 12]) > 0.99
    assert max(exact[Contiguous, 12]) < 0.1
