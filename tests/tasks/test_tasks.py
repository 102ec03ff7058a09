"""Examples against a naive reading of BOS x SEP y EOS, tasks that users write, and what is refused."""

import re
from dataclasses import dataclass, replace
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rope_jax.tasks import BOS, EOS, FIRST_SYMBOL, PAD, SEP, Batch, Copy, Reverse, StringTask, Task, decoder


@dataclass(frozen=True, kw_only=True)
class Twice(StringTask):
    """y = x x."""

    def answer_length(self, length):
        return 2 * length

    def answer(self, x, length):
        return x[jnp.arange(2 * x.shape[0]) % length]


@dataclass(frozen=True, kw_only=True)
class LastSymbol(StringTask):
    """y = the last symbol of x."""

    def answer_length(self, length):
        return 1 + 0 * length

    def answer(self, x, length):
        return x[length - 1][None]


ANSWERS = {Copy: lambda x: x, Reverse: lambda x: x[::-1], Twice: lambda x: x + x, LastSymbol: lambda x: x[-1:]}
TASKS = [
    kind(alphabet=11, unique=unique, end_marker=end_marker)
    for kind in ANSWERS
    for unique in (False, True)
    for end_marker in (False, True)
]


def test_an_example_is_what_the_docstring_shows():
    lengths = np.array([1, 2, 7, 11, 5], np.int32)
    for task in TASKS:
        batch = jax.jit(task.sample, static_argnames="max_length")(jax.random.key(3), lengths, max_length=11)
        assert batch.tokens.shape == batch.targets.shape == (5, task.input_length(11))
        plain = replace(task, end_marker=False).sample(jax.random.key(3), lengths, max_length=11)
        np.testing.assert_array_equal(batch.loss_mask, batch.answer_mask)
        for i, n in enumerate(lengths.tolist()):
            tokens, targets, scored = (np.asarray(x[i]) for x in (batch.tokens, batch.targets, batch.answer_mask))
            length = batch.lengths[i].item()
            x = plain.tokens[i, 1 : n + 1].tolist()  # an end marker changes the format and not x
            y = ANSWERS[type(task)](x)
            whole = [SEP, *x, EOS, SEP, *y, EOS] if task.end_marker else [BOS, *x, SEP, *y, EOS]
            assert [*tokens[:length].tolist(), targets[length - 1].item()] == whole
            assert length == task.input_length(n) == len(whole) - 1
            assert all(FIRST_SYMBOL <= symbol < task.vocabulary for symbol in x)
            assert not task.unique or len(set(x)) == n
            assert targets[: length - 1].tolist() == tokens[1:length].tolist()
            assert targets[scored].tolist() == [*y, EOS]
            assert np.flatnonzero(scored).tolist() == list(range(length - len(y) - 1, length))
            assert (tokens[length:] == PAD).all()
            assert set(task.markers) <= set(tokens[:length].tolist())
    assert Copy(end_marker=True).markers == {SEP: "SEP", EOS: "EOS"}
    assert Copy().markers == {SEP: "SEP"}


def test_what_is_drawn_does_not_depend_on_padding_or_on_the_other_examples():
    key, lengths = jax.random.key(0), jnp.array([3, 5, 4])
    for task in TASKS:
        short, long = (task.sample(key, lengths, max_length=n) for n in (5, 11))
        other = task.sample(key, jnp.array([3, 2, 4]), max_length=5)
        chosen = long.cut_to(task.input_length(5))
        for name in Batch._fields:
            if name != "targets":  # targets past an example are not counted
                np.testing.assert_array_equal(getattr(short, name), getattr(chosen, name))
            np.testing.assert_array_equal(getattr(short, name)[2], getattr(other, name)[2])
        np.testing.assert_array_equal(short.targets[short.loss_mask], chosen.targets[chosen.loss_mask])


def test_symbols_are_uniform_and_independent():
    for unique in (False, True):
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


def test_names_are_snake_case():
    assert [kind().name for kind in (Copy, Reverse, LastSymbol)] == ["copy", "reverse", "last_symbol"]


@dataclass(frozen=True, kw_only=True)
class Labels(Task):
    """Every token is its own answer; a general task, without strings."""

    causal: ClassVar[bool] = False
    classes: int = 3

    @property
    def vocabulary(self):
        return self.classes

    def input_length(self, length):
        return length

    def sample(self, key, lengths, *, max_length):
        keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, jnp.arange(max_length))
        tokens = jax.vmap(lambda key: jax.random.randint(key, lengths.shape, 0, self.classes), out_axes=1)(keys)
        mask = jnp.arange(max_length)[None] < lengths[:, None]
        return Batch(tokens=tokens, targets=tokens, loss_mask=mask, answer_mask=mask, lengths=lengths)


@dataclass(frozen=True, kw_only=True)
class DelimitedCopy(Copy):
    """An option that determines no string."""

    delimiter: int = 0


def test_a_task_declares_what_determines_its_strings():
    assert Labels(classes=5).string_options == {"classes": 5}  # all fields, where nothing is declared
    for task in (Copy(end_marker=True), Reverse(), DelimitedCopy(delimiter=7)):
        assert task.string_options == {"alphabet": 16, "unique": False}
    assert Copy(alphabet=4, unique=True).string_options == {"alphabet": 4, "unique": True}
    assert [metric.name for metric in Labels().metrics] == ["exact_match", "token_accuracy"]
    assert [metric.name for metric in Copy().metrics] == ["exact_match", "token_accuracy", "content_error", "end_error"]
    assert (Labels().causal, Copy().causal) == (False, True)
    assert Labels().markers == {}


class Shrinking(Copy):
    def answer_length(self, length):
        return 5 - length


class TooShort(Copy):
    def answer(self, x, length):
        return x[:1]


class Unfinished(Task):
    pass


def test_impossible_tasks_are_refused():
    lengths = jnp.array([2])
    cases = [
        (lambda: Copy(alphabet=0), "Copy alphabet must be at least 1, got 0"),
        (lambda: Reverse(alphabet="16"), "Reverse alphabet must be an int, got '16'"),
        (lambda: Copy(alphabet=4, unique=True).check(5), "Copy(unique=True, alphabet=4) has no string of 5 different symbols"),
        (lambda: Shrinking().check(3), "Shrinking.answer_length must not decrease as x grows, got 4 for 1 symbols and 3 for 2"),
        (
            lambda: TooShort().sample(jax.random.key(0), lengths, max_length=3),
            "TooShort.answer(x, length) must return 3 symbols for x of shape (3,), got shape (1,); return an array of",
        ),
        (lambda: decoder(lengths, 1, lengths[:0], 0), "decoder needs arrays x and y with at least 1 entry, got shapes (1,)"),
    ]
    for make, message in cases:
        with pytest.raises(ValueError, match=re.escape(message)):
            make()
    Copy(alphabet=4, unique=True).check(4)
    with pytest.raises(TypeError, match=r"abstract class Unfinished .*input_length.*sample.*vocabulary"):
        Unfinished()
