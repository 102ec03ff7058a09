"""Writes docs/encoders.md, the catalogue of encoders and frequency maps, from their docstrings.

    python -m experiments.catalogue

Every public class has in its docstring the lines Formula, Extrapolates and Knows, an Example and its Attributes; the doors are
read off the methods it defines. A test compares the page with what this makes.
"""

import dataclasses
import inspect
import re
import sys
from pathlib import Path
from typing import Any

import rope_jax as rj
from rope_jax.study import store

PAGE = Path(__file__).parents[1] / "docs" / "encoders.md"
PREAMBLE = """import jax
import jax.numpy as jnp
import rope_jax as rj

dims = rj.Dims(width=16, num_heads=2, head_dim=8)
q = k = jnp.ones((3, dims.num_heads, dims.head_dim))
positions = rj.Positions(query=jnp.arange(3))
"""
INTRODUCTION = f"""<!-- made by `python -m experiments.catalogue` -->
# The encoders

Every encoder acts through one of three doors: `embed` adds to the input, `rotate` turns (or scales) queries and keys, `bias` adds
to the attention logits. Frequency maps are RoPE's option `scaling`. "Extrapolates" says what the formula does beyond the training
length, not that a model then does well; that is measured in `results/`. "Knows" is what a method must be told besides the text.
None of these needs to know the task (none is an oracle of it); those that know the current length presume that of the answer.

theta_i = base^(-2i/R) are RoPE's frequencies, R its rotary dim, L the current length, L0 the trained one, H the heads, D the head
dim; m and q are positions of queries, n and k of keys. The examples, which are tested, start from

```python
{PREAMBLE}```
"""


@dataclasses.dataclass(frozen=True)
class Card:
    """What a class's docstring says of it.

    Attributes:
      summary: the first paragraph and what follows it in prose.
      formula, extrapolates, knows: the lines of those names.
      example: the doctest, without its indent.
    """

    summary: str
    formula: str
    extrapolates: str
    knows: str
    example: str


def classes(base: type) -> list[type]:
    """The public classes below `base` that have a card, in alphabetical order."""
    found = {value for value in vars(rj).values() if isinstance(value, type) and issubclass(value, base)}
    return sorted((kind for kind in found if "Formula:" in (kind.__doc__ or "")), key=lambda kind: kind.__name__.casefold())


def card(kind: type) -> Card:
    """Reads a class's docstring; ValueError names what is missing."""
    text = inspect.getdoc(kind) or ""

    def line(name: str) -> str:
        found = re.search(rf"^{name}: (.*(?:\n  .*)*)", text, flags=re.MULTILINE)
        if not found:
            raise ValueError(f"the docstring of {kind.__name__} has no line '{name}: ...'")
        return " ".join(found[1].split())

    example = re.search(r"^Example:\n((?:  .*\n?)+)", text, flags=re.MULTILINE)
    if not example:
        raise ValueError(f"the docstring of {kind.__name__} has no Example")
    return Card(
        summary=text[: text.index("Formula:")].strip(),
        formula=line("Formula"),
        extrapolates=line("Extrapolates"),
        knows=line("Knows"),
        example=inspect.cleandoc(example[1]),
    )


def attributes(kind: type) -> dict[str, str]:
    """What the docstrings of a class and its bases say of each option."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        block = re.search(r"^Attributes:\n((?:  .*\n?)+)", inspect.getdoc(base) or "", flags=re.MULTILINE)
        for names, text in re.findall(r"^  ([\w, ]+): (.*(?:\n    .*)*)", block[1] if block else "", flags=re.MULTILINE):
            found |= dict.fromkeys(names.split(", "), " ".join(text.split()))
    return found


def doors(kind: type) -> str:
    """The doors that an encoder defines, or what a map is."""
    if issubclass(kind, rj.FrequencyMap):
        return "rotate, as RoPE's `scaling`"
    own = [name for name in ("embed", "rotate", "bias") if getattr(kind, name) is not getattr(rj.Encoder, name)]
    return ", ".join(own) or "none"


def options(kind: Any) -> str:
    """A list of options with their defaults."""
    said = attributes(kind)
    lines = []
    for field in dataclasses.fields(kind):
        default = "" if field.default is dataclasses.MISSING else f" = {field.default!r}"
        lines.append(f"- `{field.name}{default}`: {said[field.name]}")
    return "\n".join(lines) or "- no options"


def section(kind: type) -> str:
    """A class's part of the page."""
    found = card(kind)
    papers = dict.fromkeys(re.findall(r"arXiv:(\d+\.\d+)", found.summary))
    source = ", ".join(f"[arXiv:{paper}](https://arxiv.org/abs/{paper})" for paper in papers) or "this project"
    return f"""### {kind.__name__}

{found.summary}

| | |
|---|---|
| formula | {found.formula.replace("|", "&#124;")} |
| source | {source} |
| door | {doors(kind)} |
| extrapolates | {found.extrapolates} |
| knows | {found.knows} |

{options(kind)}

```pycon
{found.example}
```
"""


def page() -> str:
    """The whole page, Markdown."""
    parts = [INTRODUCTION]
    for title, base in (("Encoders", rj.Encoder), ("Frequency maps", rj.FrequencyMap)):
        rows = [
            f"| [{kind.__name__}](#{kind.__name__.lower()}) | {doors(kind)} | {card(kind).extrapolates} | {card(kind).knows} |"
            for kind in classes(base)
        ]
        head = f"| {title.lower().removesuffix('s')} | door | extrapolates | knows |\n|---|---|---|---|\n"
        parts.append(f"## {title}\n\n{head}" + "\n".join(rows) + "\n")
        parts += [section(kind) for kind in classes(base)]
    return "\n".join(parts)


if __name__ == "__main__":
    if sys.argv[1:]:
        print(__doc__)
        sys.exit(0 if sys.argv[1:] in (["-h"], ["--help"]) else 2)
    PAGE.parent.mkdir(exist_ok=True)
    store.write_whole(PAGE, page())
    print(f"{PAGE} is written")
