"""Writes docs/encoders.md, the catalogue of encoders and frequency maps, from their docstrings.

    python -m experiments.catalogue

Each public class has in its docstring the lines Formula, Extrapolates and Knows, an Example and its Attributes. The hooks are
read off the methods that it defines.
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

Each encoder acts through one of three hooks: `embed` adds to the input, `rotate` rotates or scales queries and keys, `bias`
adds to the attention logits. A frequency map is RoPE's option `scaling`. `Layers` is a pattern of encoders over the layers of a
model.

- **Extrapolates** describes the formula beyond the training length. Whether a model then works is measured: see
  [results](results.md).
- **Knows** is the privileged information that a method needs besides the text. No encoder needs to know the task. An encoder
  that knows the current length knows the length of the answer.

theta_i = base^(-2i/R) are RoPE's frequencies, R its rotary dim, L the current length, L0 the trained one, H the number of
heads, D the head dim; m and q are positions of queries, n and k of keys. The examples are tested. They start from

```python
{PREAMBLE}```
"""
HOOKS = ("embed", "rotate", "bias")


@dataclasses.dataclass(frozen=True)
class Card:
    """The contents of a class's docstring.

    Attributes:
      summary: the first paragraph, and the prose that follows it.
      formula, extrapolates, knows: the lines of those names.
      example: the doctest, without its indent.
    """

    summary: str
    formula: str
    extrapolates: str
    knows: str
    example: str


def classes(base: type) -> list[type]:
    """The public classes below `base`, or `base` itself, that have a card, in alphabetical order."""
    public = {value for value in vars(rj).values() if isinstance(value, type) and issubclass(value, base)}
    return sorted((kind for kind in public if "Formula:" in (kind.__doc__ or "")), key=lambda kind: kind.__name__.casefold())


GROUPS: dict[str, tuple[type, ...]] = {"Encoders": (rj.Encoder, rj.Layers), "Frequency maps": (rj.FrequencyMap,)}


def members(group: str) -> list[type]:
    """The classes of a group of the page, in alphabetical order."""
    kinds = [kind for base in GROUPS[group] for kind in classes(base)]
    return sorted(kinds, key=lambda kind: kind.__name__.casefold())


def card(kind: type) -> Card:
    """Reads a class's docstring; ValueError names what is missing."""
    text = inspect.getdoc(kind) or ""

    def line(name: str) -> str:
        match = re.search(rf"^{name}: (.*(?:\n  .*)*)", text, flags=re.MULTILINE)
        if not match:
            raise ValueError(f"the docstring of {kind.__name__} has no line '{name}: ...'; see another encoder's")
        return " ".join(match[1].split())

    example = re.search(r"^Example:\n((?:  .*\n?)+)", text, flags=re.MULTILINE)
    if not example:
        raise ValueError(f"the docstring of {kind.__name__} has no Example; see another encoder's")
    return Card(
        summary=text[: text.index("Formula:")].strip(),
        formula=line("Formula"),
        extrapolates=line("Extrapolates"),
        knows=line("Knows"),
        example=inspect.cleandoc(example[1]),
    )


def attributes(kind: type) -> dict[str, str]:
    """The descriptions of the options of a class, by name, from its docstring and those of its bases."""
    descriptions: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        block = re.search(r"^Attributes:\n((?:  .*\n?)+)", inspect.getdoc(base) or "", flags=re.MULTILINE)
        for names, text in re.findall(r"^  ([\w, ]+): (.*(?:\n    .*)*)", block[1] if block else "", flags=re.MULTILINE):
            descriptions |= dict.fromkeys(names.split(", "), " ".join(text.split()))
    return descriptions


def hooks(kind: type) -> str:
    """The hooks that an encoder defines, or what else a class is."""
    if issubclass(kind, rj.FrequencyMap):
        return "rotate, as RoPE's `scaling`"
    if not issubclass(kind, rj.Encoder):
        return "those of its encoders"
    return ", ".join(name for name in HOOKS if getattr(kind, name) is not getattr(rj.Encoder, name)) or "none"


def options(kind: Any) -> str:
    """A list of options with their defaults."""
    descriptions = attributes(kind)
    lines = []
    for field in dataclasses.fields(kind):
        default = "" if field.default is dataclasses.MISSING else f" = {field.default!r}"
        lines.append(f"- `{field.name}{default}`: {descriptions[field.name]}")
    return "\n".join(lines) or "- no options"


def section(kind: type) -> str:
    """A class's section of the page."""
    content = card(kind)
    papers = dict.fromkeys(re.findall(r"arXiv:(\d+\.\d+)", content.summary))
    source = ", ".join(f"[arXiv:{paper}](https://arxiv.org/abs/{paper})" for paper in papers) or "none"
    return f"""### {kind.__name__}

{content.summary}

| | |
|---|---|
| formula | {content.formula.replace("|", "&#124;")} |
| source | {source} |
| hooks | {hooks(kind)} |
| extrapolates | {content.extrapolates} |
| knows | {content.knows} |

{options(kind)}

```pycon
{content.example}
```
"""


def page() -> str:
    """The whole page, Markdown."""
    parts = [INTRODUCTION]
    for title in GROUPS:
        rows = [
            f"| [{kind.__name__}](#{kind.__name__.lower()}) | {hooks(kind)} | {card(kind).extrapolates} | {card(kind).knows} |"
            for kind in members(title)
        ]
        head = f"| {title.lower().removesuffix('s')} | hooks | extrapolates | knows |\n|---|---|---|---|\n"
        parts.append(f"## {title}\n\n{head}" + "\n".join(rows) + "\n")
        parts += [section(kind) for kind in members(title)]
    return "\n".join(parts)


if __name__ == "__main__":
    if sys.argv[1:]:
        print(__doc__)
        sys.exit(0 if sys.argv[1:] in (["-h"], ["--help"]) else 2)
    store.write_whole(PAGE, page())
    print(f"{PAGE} is written")
