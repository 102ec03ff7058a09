"""What tables and figures call metrics and privileged information."""

from collections.abc import Iterable

TITLES = {
    "exact_match": "Exact match: the fraction of test examples whose answer (y and EOS) is right in every token",
    "token_accuracy": "Token accuracy: the fraction of the tokens of the answers (y and EOS) that are right",
    "content_error": "Content error: the fraction of test examples with a wrong symbol where a symbol is due",
    "end_error": "End error: the fraction of test examples in which EOS is missed, or predicted where a symbol is due",
}

PRIVILEGED = {  # a mark, and what it means
    "length": (
        "†",
        "uses the length of the answer: what it computes depends on the length of the whole example, which is not known before "
        "the answer is generated.",
    ),
    "separators": ("‡", "reads positions off the separators: it is given which token separates the sections of a text."),
    "direction": ("§", "an oracle: its positions depend on the direction in which the task reads the text."),
}


def title(metric: str) -> str:
    """The heading of a table of a metric: the metric's name in words, and what it is where that is known."""
    return TITLES.get(metric, axis(metric).capitalize())


def axis(metric: str) -> str:
    """A metric's name in words: "exact match"."""
    return metric.replace("_", " ")


def marks(privileged: Iterable[str]) -> str:
    """The marks of privileged information, such as "‡§"; in brackets the name of any that has no mark."""
    return "".join(PRIVILEGED[name][0] if name in PRIVILEGED else f"[{name}]" for name in privileged)


def marked(text: str, privileged: Iterable[str]) -> str:
    """A text with the marks of privileged information behind it."""
    return f"{text} {marks(privileged)}".strip()


def legend(privileged: Iterable[str]) -> list[str]:
    """A sentence for each mark that is used, in a fixed order."""
    used = set(privileged)
    known = [f"{mark} {meaning}" for name, (mark, meaning) in PRIVILEGED.items() if name in used]
    return [*known, *(f"[{name}] uses privileged information called {name}." for name in sorted(used - PRIVILEGED.keys()))]
