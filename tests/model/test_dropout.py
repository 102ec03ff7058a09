"""Dropout: the rate, the mean, independence, and that it does not depend on how a batch is cut or padded."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np

from rope_jax.model.dropout import Dropout


def dropped(keys, shape, *, rate=0.5, place=0):
    return np.asarray(Dropout(keys=jnp.asarray(keys, jnp.uint32), rate=rate)(jnp.ones(shape), place=place)) == 0


def test_the_rate_and_the_mean_are_as_stated():
    """Both generators scale what they keep, and drop at the stated rate in all and of each example, token and feature."""
    keys = jax.random.bits(jax.random.key(0), (64,))
    for generator, rate in itertools.product(("counter", "threefry"), (0.1, 0.5, 0.9)):
        out = np.asarray(Dropout(keys=keys, rate=rate)(jnp.full((64, 32, 64), 3.0), place=1, generator=generator))
        assert set(np.unique(out)) == {np.float32(0), np.float32(3.0) / np.float32(1 - rate)}
        for axes in ((0, 1, 2), (1, 2), (0, 2), (0, 1)):
            share = (out == 0).mean(axis=axes)
            count = np.prod([out.shape[axis] for axis in axes])
            assert np.abs(share - rate).max() < 5 * np.sqrt(rate * (1 - rate) / count), (generator, rate, axes)


def test_threefry_draws_by_example_and_place():
    """Whatever the leading axes, what is dropped of an example follows from its key and the place; other places draw others."""
    keys, x = jnp.arange(6, dtype=jnp.uint32), jnp.ones((6, 20, 16))

    def threefry(keys, x, place):
        return np.asarray(Dropout(keys=keys, rate=0.5)(x, place, generator="threefry")) == 0

    whole = threefry(keys, x, 3)
    np.testing.assert_array_equal(threefry(keys.reshape(2, 3), x.reshape(2, 3, 20, 16), 3).reshape(whole.shape), whole)
    np.testing.assert_array_equal(threefry(keys[4], x[4], 3), whole[4])
    for other in (threefry(keys, x, 4), np.roll(whole, 1, axis=0)):
        assert abs((other == whole).mean() - 0.5) < 5 * 0.5 / np.sqrt(whole.size)


def test_neighbours_are_independent():
    """Examples with neighbouring keys, tokens, features and places: fair coins agree half of the time."""
    shape = (256, 32, 64)
    one, other = (dropped(np.arange(256), shape, place=place) for place in (3, 4))
    pairs = {
        "examples": (one[1:], one[:-1]),
        "tokens": (one[:, 1:], one[:, :-1]),
        "features": (one[..., 1:], one[..., :-1]),
        "places": (one, other),
        "a token and the next place": (one[:, 1:], other[:, :-1]),
        "a token and the next feature": (one[:, 1:, :-1], one[:, :-1, 1:]),
    }
    for name, (a, b) in pairs.items():
        assert abs((a == b).mean() - 0.5) < 5 * 0.5 / np.sqrt(a.size), name


def test_padding_and_the_batch_around_do_not_change_what_is_dropped():
    whole = dropped([7, 8, 9], (3, 20, 16))
    np.testing.assert_array_equal(dropped([8, 9], (2, 11, 16)), whole[1:, :11])


def test_what_is_dropped_has_no_gradient():
    drop = Dropout(keys=jnp.array([5], jnp.uint32), rate=0.25)
    gradient = np.asarray(jax.grad(lambda x: jnp.sum(drop(x, place=2)))(jnp.ones((1, 6, 8))))
    kept = ~dropped([5], (1, 6, 8), rate=0.25, place=2)
    np.testing.assert_allclose(gradient, kept / 0.75, rtol=1e-6)
