"""One of every encoder and frequency map, and of the options that change what is computed; a test checks that none is missing."""

import rope_jax as rj

MAPS = (
    rj.Linear(factor=2.0),
    rj.NTK(factor=3.0),
    rj.DynamicLinear(original_length=4),
    rj.DynamicNTK(original_length=4),
    rj.YaRN(factor=4.0, original_length=64),
    rj.LongRoPE(short_factor=(1.0, 1.1, 1.2, 1.3), long_factor=(1.0, 2.0, 3.0, 4.0), original_length=4, factor=4.0),
    rj.Llama3(factor=4.0, original_length=64),
    rj.Proportional(fraction=0.5),
    rj.Resonance(of=rj.DynamicNTK(original_length=4)),
)
ROTATIONS = (  # for heads of 8 features
    rj.RoPE(),
    rj.RoPE(base=50_000.0, layout="interleaved", rotary_fraction=0.5, head_fraction=0.5, scaling=rj.NTK(factor=2.0)),
    rj.RoPE(learn_base=True, scaling=rj.DynamicNTK(original_length=4)),
    rj.RoPE(learn_angles=True, scaling=rj.DynamicLinear(original_length=4)),
    rj.RoPE(exact=True, sections=(2, 1, 1)),
    *(rj.RoPE(scaling=scaling) for scaling in MAPS if isinstance(scaling, (rj.YaRN, rj.LongRoPE, rj.Resonance))),
    rj.XPos(),
    rj.XPos(layout="interleaved", centre=8.0, scale_base=64.0),
)
BIASES = (
    rj.ALiBi(),
    rj.HardALiBi(masked_heads=1),
    rj.T5Bias(num_buckets=8, max_distance=16),
    rj.T5Bias(num_buckets=8, max_distance=16, bidirectional=True),
    rj.Kerple(),
    rj.Kerple(kernel="power"),
    rj.Fire(),
    rj.TransformerXL(init_scale=0.5),
)
CONTENT = (rj.CoPE(max_count=4, init_scale=1.0),)  # reads what tokens say, so it is no function of positions
RELATIVE = (rj.NoPE(), *ROTATIONS, *BIASES, *CONTENT, rj.SlidingWindow(size=4), rj.Compose(rj.RoPE(), rj.ALiBi(), rj.Kerple()))
ABSOLUTE = (
    rj.Sinusoidal(),
    rj.Sinusoidal(base=50.0, order="concatenated", spacing="tensor2tensor"),
    rj.Learned(max_length=64),
    rj.LogN(original_length=4),
    rj.Compose(rj.Learned(max_length=64), rj.T5Bias(), rj.LogN(original_length=4)),
)
ENCODERS = (
    *RELATIVE,
    *ABSOLUTE,
    rj.LogN(original_length=4, by="length"),
    rj.LogitScale(scale=1.5),
)
