"""Rows for the tests of this folder, and the curves of each metric from them."""

from rope_jax.report.statistics import curves


def row(seed, length, exact, **other):
    made = {
        "task": "copy",
        "task_options": "",
        "method": "RoPE",
        "variant": "as-trained",
        "privileged": [],
        "cell": "0123456789",
        "seed": seed,
        "train_steps": 2000,
        "train_length": 12,
        "length": length,
        "status": "ok" if exact is not None else "diverged",
        "count": 512,
        "exact_match": exact,
        "token_accuracy": None if exact is None else (1 + exact) / 2,
    }
    return made | other


def of_metrics(rows, *metrics):
    return {metric: curves(rows, metric) for metric in metrics or ("exact_match", "token_accuracy")}


ROWS = [
    *(
        row(seed, length, value)
        for seed, values in ((0, (1.0, 0.95, 0.25)), (1, (1.0, 0.85, 0.5)))
        for length, value in zip((6, 12, 24), values, strict=True)
    ),
    *(
        row(seed, length, value, variant="NTK_2", privileged=["length"])
        for seed, value in ((0, None), (1, 0.5))
        for length in (6, 12, 24)
    ),
    *(row(0, length, None, task="reverse", method="Learned(max_length=64)") for length in (6, 12, 24)),
]

# names that figures, tables or terminals could take for markup, cannot draw, or draw wider than a letter
ODD_NAMES = (
    *("$\\foo$", "\\foo", "$", "a$b$c_{", "a_b%c#d&e{f}g^h~i", "_hidden", "a|b"),
    *("*x* `y` <b>", "\\", "中文方法", "😀", "x" * 200),
)
