"""The notes below tables: how to read them."""

import itertools
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from rope_jax.report import labels
from rope_jax.report.statistics import LENGTH_AT_METRIC, Curve, Trial, all_lengths

_SHARE_WORTH_A_NOTE = 0.005  # a smaller share of test examples that were seen in training is not mentioned
_LISTED = 5  # so many places are named in a sentence
_WITHOUT_VALUE = {"diverged": "diverged", "failed": "failed", "missing": "have no row (“missing”)"}


def notes(curves: Mapping[str, list[Curve]]) -> list[str]:
    """How to read the tables, in sentences that hold for all of their rows; then what the marks mean."""
    lines = [line for of_metric in curves.values() for line in of_metric]
    trained = _either({line.train_length for line in lines})
    seeds = list(dict.fromkeys(seed for line in lines for seed in line.seeds))
    counts = {len(line.seeds) for line in lines}
    sentences = [
        f"A column is a test length as a multiple of the training length ({trained}), with the symbols of x in brackets."
        if trained.isdigit()
        else f"A column is a test length in symbols of x; the training length is {trained}.",
        f"Models were trained for {_either({line.train_steps for line in lines})} steps.",
        f"A cell is the mean over {_either(counts)} seed{'' if counts == {1} else 's'} ({', '.join(map(str, seeds))}), with the "
        "smallest and the largest value in brackets where they differ in three digits.",
        f"There are {_examples(lines)}; they are the same for all rows of a task.",
    ]
    if LENGTH_AT_METRIC in curves:
        sentences.append(
            "L@0.9 is the longest tested length up to which a seed's exact match stays at 0.9 or above, from the worst seed to "
            "the best; 0 means that there is none."
        )
    sentences += _repeated(lines) + _seen(lines)
    statuses = {status for of_metric in curves.values() for status in _statuses(of_metric)}
    without_value = [text for status, text in _WITHOUT_VALUE.items() if status in statuses]
    if without_value:
        sentences.append(f"“1 of 2” means that one of two seeds has a value; the others {' or '.join(without_value)}.")
    if any(line.unmeasured.any() for line in lines):
        sentences.append("An empty cell means that the metric did not exist yet when its rows were measured.")
    return [" ".join(sentences), *_settings(lines), *labels.legend(name for line in lines for name in line.privileged)]


def _settings(lines: Sequence[Curve]) -> list[str]:
    """What the training settings of each task and method are, where they differ, and what was tried to choose them."""
    by_method = {(line.task, line.method): line for line in lines if line.settings or line.trials}
    if not by_method:
        return []
    notes = []
    rules = {(trial.metric, trial.seeds, trial.lengths) for line in by_method.values() for trial in line.trials}
    for metric, seeds, lengths in sorted(rules):
        shared = sorted({seed for line in lines for seed in line.seeds} & set(seeds))
        notes.append(
            f"Training settings were chosen for each task and method by the best mean {labels.axis(metric)} over "
            f"seeds {', '.join(map(str, seeds))} at lengths {', '.join(map(str, lengths))}"
            + (
                f"; of these seeds, {', '.join(map(str, shared))} are in the table too."
                if shared
                else ", which are not in the table."
            )
        )
    for (task, method), line in by_method.items():
        tried = [f"{trial.settings or 'as in the experiment'} ({_mean(trial)})" for trial in line.trials]
        chosen = line.settings or "as in the experiment"
        notes.append(f"{task}, {method}: {chosen}" + (f"; tried: {', '.join(tried)}." if tried else "."))
    return notes


def _mean(trial: Trial) -> str:
    """The mean of a trial, and how many of its seeds have no value."""
    without = f", {trial.without_value} of {len(trial.seeds)} seeds without a value" if trial.without_value else ""
    return ("no value" if np.isnan(trial.mean) else f"{trial.mean:.3f}") + without


def _repeated(lines: Sequence[Curve]) -> list[str]:
    """A sentence on the lengths at which some test examples are equal; none if all differ."""
    different = {
        (line.task, length): round(share * count)
        for line in lines
        for length, share, count in zip(line.lengths, line.distinct, line.examples, strict=True)
        if share is not None and share < 1
    }
    if not different:
        return []
    places = [f"{task} at length {length} ({number} different ones)" for (task, length), number in different.items()]
    return [f"Some test examples are equal: {_listed(places)}."]


def _seen(lines: Sequence[Curve]) -> list[str]:
    """Sentences on the lengths at which training has drawn, or may have drawn, some of the test examples; none if it has not."""
    shares: dict[tuple[str, int], float] = {}
    not_known: dict[str, None] = {}
    for line in lines:
        for length, share, distinct in zip(line.lengths, line.seen, line.distinct, strict=True):
            place = line.task, length
            if share is not None and share >= _SHARE_WORTH_A_NOTE:
                shares[place] = max(share, shares.get(place, 0.0))
            elif share is None and distinct is not None:  # rows of earlier versions have neither
                not_known[f"{line.task} at length {length}"] = None
    sentences = []
    if shares:
        places = [f"{share:.1%} of {task} at length {length}" for (task, length), share in shares.items()]
        sentences.append(f"Training is expected to have drawn some of the test examples too: {_listed(places)}.")
    if not_known:
        sentences.append(f"Training may have drawn some of the test examples too: {_listed(list(not_known))}.")
    return sentences


def _listed(places: list[str]) -> str:
    """Up to five texts, and how many more there are."""
    more = len(places) - _LISTED
    return "; ".join(places[:_LISTED]) + (f"; and {more} more" if more > 0 else "")


def _statuses(lines: Sequence[Curve]) -> set[str]:
    """The statuses of all seeds at all lengths of a table."""
    return {status for line in lines for length in all_lengths(lines) for status in line.at(length)[1]}


def _either(values: Iterable[int]) -> str:
    """Numbers as words join them: "2", "2 or 3", "1, 2 or 3"."""
    *first, last = map(str, sorted(values))
    return f"{', '.join(first)} or {last}" if first else last


def _examples(lines: Sequence[Curve]) -> str:
    """How many test examples there are: "512 test examples of each length, 64 from length 600 on"."""
    counts = {
        length: _either({line.examples[line.lengths.index(length)] for line in lines if length in line.lengths})
        for length in all_lengths(lines)
    }
    lengths = list(counts)
    changes = [now for before, now in itertools.pairwise(lengths) if counts[now] != counts[before]]
    later = "".join(f", {counts[length]} from length {length} on" for length in changes)
    return f"{counts[lengths[0]]} test examples of each length{later}"
