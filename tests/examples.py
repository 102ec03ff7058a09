"""One of every encoder, frequency map and policy, for all tests that hold for every one of them.

The classes are the public ones of `rope_jax`. Those with options that change what is computed are listed here with such options;
every other class enters by itself, built with its defaults and with samples in place of what has none.
"""

import dataclasses
import itertools
import types
import typing
from collections.abc import Callable, Iterable
from typing import Any

import jax

import rope_jax as rj
from rope_jax import policies, tasks

DIMS = rj.Dims(width=16, num_heads=2, head_dim=8)  # what the listed options fit
NUMBERS = ((64, 2.0), (16, 0.5), (4, 1.0), (2, 0.25), (1, 0.0))  # an int and a float, tried in this order


def public(module: Any, base: type) -> list[type]:
    """The public classes below `base`, without the bases of others, whose docstrings begin with "Base of"."""
    kinds = {value for value in vars(module).values() if isinstance(value, type) and issubclass(value, base)}
    return sorted(
        (kind for kind in kinds if not (kind.__doc__ or "").startswith("Base of ")), key=lambda kind: kind.__name__.casefold()
    )


def sample(kind: type, accepts: Callable[[Any], object]) -> Any:
    """An object of a class: its defaults, and samples for the options without one, such that `accepts` raises nothing."""
    hints, errors = typing.get_type_hints(kind), []
    required = [
        field
        for field in dataclasses.fields(kind)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    for numbers, size in itertools.product(NUMBERS, (1, DIMS.head_dim // 2)):
        try:
            made = kind(**{field.name: sample_value(hints[field.name], numbers, size) for field in required})
            accepts(made)
        except ValueError as error:
            errors.append(str(error))
        else:
            return made
    raise ValueError(f"no sample of {kind.__name__} is accepted: {errors[0]}; list an example of it in tests/examples.py")


def sample_value(declared: Any, numbers: tuple[int, float], size: int) -> Any:
    """A value of a declared type; a tuple has `size` items."""
    origin, arguments = typing.get_origin(declared), typing.get_args(declared)
    if origin is typing.Literal:
        return arguments[0]
    if origin in (typing.Union, types.UnionType):
        return sample_value(next(argument for argument in arguments if argument is not type(None)), numbers, size)
    if origin is tuple:
        return (sample_value(arguments[0], numbers, size),) * size
    if issubclass(declared, rj.Encoder):
        return rj.RoPE()
    if issubclass(declared, rj.FrequencyMap):
        return rj.Linear(factor=2.0)
    return {bool: True, int: numbers[0], float: numbers[1], str: "sample"}[declared]


def complete(listed: Iterable[Any], kinds: Iterable[type], accepts: Callable[[Any], object]) -> tuple[Any, ...]:
    """The listed objects, and a sample of every class that none of them is an object of."""
    listed = tuple(listed)
    return (*listed, *(sample(kind, accepts) for kind in kinds if kind not in {type(value) for value in listed}))


def accepts_encoder(encoder: Any) -> None:
    rj.check_requirements(encoder, DIMS, max_position=40)


def accepts_map(scaling: Any) -> None:
    rj.check_requirements(rj.RoPE(scaling=scaling), DIMS)


def accepts_policy(policy: Any) -> None:
    policy.check(tasks.Copy(alphabet=4, end_marker=True), 15)


MAPS = complete(
    (
        rj.Linear(factor=2.0),
        rj.NTK(factor=3.0),
        rj.DynamicLinear(original_length=4),
        rj.DynamicNTK(original_length=4),
        rj.YaRN(factor=4.0, original_length=64),
        rj.LongRoPE(short_factor=(1.0, 1.1, 1.2, 1.3), long_factor=(1.0, 2.0, 3.0, 4.0), original_length=4, factor=4.0),
        rj.Llama3(factor=4.0, original_length=64),
        rj.Proportional(fraction=0.5),
        rj.Resonance(of=rj.DynamicNTK(original_length=4)),
    ),
    public(rj, rj.FrequencyMap),
    accepts_map,
)

_RELATIVE = (  # functions of key position minus query position
    rj.NoPE(),
    rj.RoPE(),
    rj.RoPE(base=50_000.0, layout="interleaved", rotary_fraction=0.5, head_fraction=0.5, scaling=rj.NTK(factor=2.0)),
    rj.RoPE(learn_base=True, scaling=rj.DynamicNTK(original_length=4)),
    rj.RoPE(learn_angles=True, scaling=rj.DynamicLinear(original_length=4)),
    rj.RoPE(exact=True, sections=(2, 1, 1)),
    *(rj.RoPE(scaling=scaling) for scaling in MAPS if isinstance(scaling, (rj.YaRN, rj.LongRoPE, rj.Resonance))),
    rj.XPos(),
    rj.XPos(layout="interleaved", centre=8.0, scale_base=64.0),
    rj.ALiBi(),
    rj.HardALiBi(masked_heads=1),
    rj.T5Bias(num_buckets=8, max_distance=16, init_scale=0.5),
    rj.T5Bias(num_buckets=8, max_distance=16, bidirectional=True, init_scale=0.5),
    rj.Kerple(),
    rj.Kerple(kernel="power"),
    rj.Fire(),
    rj.TransformerXL(init_scale=0.5),
    rj.CoPE(max_count=4, init_scale=1.0),
    rj.SlidingWindow(size=4),
    rj.Compose(rj.RoPE(), rj.ALiBi(), rj.Kerple()),
)
_ABSOLUTE = (  # functions of the positions themselves
    rj.Sinusoidal(),
    rj.Sinusoidal(base=50.0, order="concatenated", spacing="tensor2tensor"),
    rj.Learned(max_length=64),
    rj.LogN(original_length=4),
    rj.Compose(rj.Learned(max_length=64), rj.T5Bias(), rj.LogN(original_length=4), rj.CoPE(max_count=3, init_scale=1.0)),
)
_NEITHER = (rj.LogN(original_length=4, by="length"), rj.LogitScale(scale=1.5))

ENCODERS = complete((*_RELATIVE, *_ABSOLUTE, *_NEITHER), public(rj, rj.Encoder), accepts_encoder)
RELATIVE, ABSOLUTE = _RELATIVE, _ABSOLUTE  # an encoder that entered by itself may be either
ROTATIONS = tuple(encoder for encoder in ENCODERS if isinstance(encoder, rj.Rotary))
BIASES = tuple(encoder for encoder in ENCODERS if isinstance(encoder, rj.Bias))
CONTENT = tuple(encoder for encoder in ENCODERS if isinstance(encoder, rj.CoPE))  # reads q and k and no positions
ONE_OF_EACH = tuple({type(encoder): encoder for encoder in reversed(ENCODERS)}.values())  # the first of each class

POLICIES = complete(
    (
        policies.Contiguous(),
        policies.Contiguous(offset=7),
        policies.RandomOffset(max_position=40),
        policies.Randomized(max_position=40),
        policies.RandomFloat(max_position=40.0),
        policies.PoSE(max_position=40),
        policies.PoSE(max_position=40, chunks=3),
        policies.Grid(),
        policies.Grid(order="snake"),
    ),
    public(policies, policies.Policy),
    accepts_policy,
)


def tables_of_first_layer(encoder: rj.Encoder, params: Any, positions: rj.Positions, length: Any = None) -> Any:
    """What the hooks of an encoder take in the first layer of a model of sizes DIMS; the length is by default the positions'."""
    length = positions.length if length is None else length
    tables = encoder.tables(encoder.prepare(params, length, DIMS), positions)
    return jax.tree.map(lambda x: x[0], tables) if encoder.requirements.per_layer else tables
