"""Examples against a naive reading of BOS x SEP y EOS."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rope_jax.tasks import BOS, EOS, FIRST_SYMBOL, PAD, SEP, Copy, Reverse

ANSWERS = {"copy": lambda x: x, "reverse": lambda x: x[::-1]}


@pytest.mark.parametrize("kind", [Copy, Reverse])
@pytest.mark.parametrize("unique", [False, True])
def test_an_example_reads_as_the_task_says(kind, unique):
    task = kind(alphabet=11, unique=unique)
    lengths = np.array([1, 2, 7, 11, 5], np.int32)
    batch = jax.jit(task.sample, static_argnames="max_length")(jax.random.key(3), lengths, max_length=11)
    assert batch.tokens.shape == batch.targets.shape == (5, 24)
    for tokens, targets, mask, length, n in zip(*(np.asarray(x) for x in batch), lengths, strict=True):
        whole = [*tokens[:length].tolist(), targets[length - 1].item()]
        x = whole[1 : n + 1]
        assert length == task.input_length(n) == 2 * n + 2
        assert whole == [BOS, *x, SEP, *ANSWERS[task.name](x), EOS]
        assert all(FIRST_SYMBOL <= symbol < task.vocabulary for symbol in x)
        assert targets[: length - 1].tolist() == tokens[1:length].tolist()
        # asked for: y and EOS, nothing else
        assert targets[mask].tolist() == [*ANSWERS[task.name](x), EOS]
        assert np.flatnonzero(mask).tolist() == list(range(n + 1, length))
        assert (tokens[length:] == PAD).all()
        if unique:
            assert len(set(x)) == n


@pytest.mark.parametrize("kind", [Copy, Reverse])
def test_with_an_end_marker_x_ends_as_y_does(kind):
    """SEP x EOS SEP y EOS, with the same x as without; y and its EOS are asked for."""
    lengths = jnp.array([1, 3, 6])
    plain, marked = (kind(end_marker=m).sample(jax.random.key(3), lengths, max_length=7) for m in (False, True))
    assert marked.tokens.shape == (3, 17)
    for i, n in enumerate(lengths.tolist()):
        tokens, targets, mask, length = (np.asarray(x)[i] for x in marked)
        x = plain.tokens[i, 1 : n + 1].tolist()
        y = ANSWERS[kind().name](x)
        assert length == kind(end_marker=True).input_length(n) == 2 * n + 3
        assert tokens[:length].tolist() == [SEP, *x, EOS, SEP, *y]
        assert (tokens[length:] == PAD).all()
        assert targets[: length - 1].tolist() == tokens[1:length].tolist()
        assert targets[mask].tolist() == [*y, EOS]
        assert np.flatnonzero(mask).tolist() == list(range(n + 2, length))
        for task, batch in ((kind(), plain), (kind(end_marker=True), marked)):
            assert set(task.markers) <= set(batch.tokens[i].tolist())
    assert kind(end_marker=True).markers == {SEP: "SEP", EOS: "EOS"}
    assert kind().markers == {SEP: "SEP"}


@pytest.mark.parametrize("unique", [False, True])
def test_what_is_drawn_does_not_depend_on_padding_or_on_the_other_examples(unique):
    task = Copy(alphabet=16, unique=unique)
    key, lengths = jax.random.key(0), jnp.array([3, 5, 4])
    short, long = (task.sample(key, lengths, max_length=n) for n in (5, 13))
    other = task.sample(key, jnp.array([3, 2, 4]), max_length=5)
    for i, n in enumerate((3, 5, 4)):
        np.testing.assert_array_equal(short.tokens[i, : 2 * n + 2], long.tokens[i, : 2 * n + 2])
    np.testing.assert_array_equal(short.tokens[2], other.tokens[2])


@pytest.mark.parametrize("unique", [False, True])
def test_symbols_are_uniform_and_independent(unique):
    batch = Copy(alphabet=5, unique=unique).sample(jax.random.key(1), jnp.full(4000, 4), max_length=4)
    x = np.asarray(batch.tokens)[:, 1:5] - FIRST_SYMBOL
    expected = 4000 / 5
    for column in x.T:  # five standard deviations
        assert np.abs(np.bincount(column, minlength=5) - expected).max() < 5 * np.sqrt(expected)
    same = (x[:, 0] == x[:, 1]).mean()
    assert same == 0 if unique else abs(same - 0.2) < 0.04


def test_keys_and_lengths_make_the_example():
    task = Reverse()
    lengths = jnp.full(64, 12)
    one, same, other = (task.sample(jax.random.key(k), lengths, max_length=12).tokens for k in (0, 0, 1))
    np.testing.assert_array_equal(one, same)
    # 16 symbols: two independent draws agree in a sixteenth of the places
    assert abs((one == other)[:, 1:13].mean() - 1 / 16) < 0.05


def test_impossible_tasks_are_refused():
    with pytest.raises(ValueError, match="Copy alphabet must be at least 1, got 0"):
        Copy(alphabet=0)
    with pytest.raises(ValueError, match="Reverse alphabet must be an int, got '16'"):
        Reverse(alphabet="16")
    with pytest.raises(ValueError, match=r"Copy\(unique=True, alphabet=4\) has no string of 5 different symbols"):
        Copy(alphabet=4, unique=True).check(5)
    Copy(alphabet=4, unique=True).check(4)
