"""Writes docs/encoders.md, the catalogue of encoders and frequency maps, from their docstrings.

    python -m experiments.catalogue
    python -m experiments.catalogue my_encoders.py --out my_encoders.md

The second form writes a page with the classes of a Python file as well.

The docstring of a public class has the lines Formula, Extrapolates and Knows, an Example and its Attributes. The hooks of a class
are the methods that it defines. Base classes, whose docstrings begin with "Base of", have no section.
"""

import argparse
import dataclasses
import inspect
import re
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import rope_jax as rj
from experiments import command
from experiments.cli import load_module, refusing
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

An encoder acts in three hooks: `embed` adds to the input, `rotate` rotates or scales queries and keys, `bias` adds to the
attention logits. Frequency maps are the option `scaling` of RoPE and XPos. `Layers` is not an encoder but a pattern of encoders
over layers.

"Extrapolates" describes the formula beyond the training length. It does not mean that a model then does well; `results/` has
measurements. "Knows" is privileged information, which a method has beyond the text. No encoder needs to know the task. An encoder
that knows the current length also knows the length of the answer.

theta_i = base^(-2i/R) are RoPE's frequencies, R is the rotary dim, L the current length, L0 the trained length, H the number of
heads, D the head dim; m and q are positions of queries, n and k those of keys. The examples are tested. They begin with

```python
{PREAMBLE}```
"""


@dataclasses.dataclass(frozen=True)
class Card:
    """The contents of a class's docstring.

    Attributes:
      summary: the paragraphs before the formula.
      formula, extrapolates, knows: the lines with these names.
      example: the doctest, without its indent.
    """

    summary: str
    formula: str
    extrapolates: str
    knows: str
    example: str


def classes(base: type, module: ModuleType = rj) -> list[type]:
    """The public classes of a module below `base` in alphabetical order, without base classes; `Layers` is with the encoders."""
    public = {value for name, value in vars(module).items() if isinstance(value, type) and not name.startswith("_")}
    if module is not rj:
        public = {kind for kind in public if kind.__module__ == module.__name__}
    kinds = {kind for kind in public if issubclass(kind, (base, rj.Layers) if base is rj.Encoder else base)}
    return sorted((kind for kind in kinds if not (kind.__doc__ or "").startswith("Base of ")), key=_alphabetical)


def _alphabetical(kind: type) -> str:
    return kind.__name__.casefold()


def card(kind: type) -> Card:
    """Reads a class's docstring; raises ValueError with the name of what is missing."""
    text = inspect.getdoc(kind) or ""

    def line(name: str) -> str:
        match = re.search(rf"^{name}: (.*(?:\n  .*)*)", text, flags=re.MULTILINE)
        if not match:
            raise ValueError(f"the docstring of {kind.__name__} has no line '{name}: ...'; write one, as in RoPE")
        return " ".join(match[1].split())

    formula = line("Formula")
    example = re.search(r"^Example:\n((?:  .*\n?)+)", text, flags=re.MULTILINE)
    if not example:
        raise ValueError(f"the docstring of {kind.__name__} has no Example; write one, as in RoPE")
    return Card(
        summary=text[: text.index("Formula:")].strip(),
        formula=formula,
        extrapolates=line("Extrapolates"),
        knows=line("Knows"),
        example=inspect.cleandoc(example[1]),
    )


def attributes(kind: type) -> dict[str, str]:
    """The descriptions of all options, from the docstrings of a class and its bases."""
    described: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        block = re.search(r"^Attributes:\n((?:  .*\n?)+)", inspect.getdoc(base) or "", flags=re.MULTILINE)
        for names, text in re.findall(r"^  ([\w, ]+): (.*(?:\n    .*)*)", block[1] if block else "", flags=re.MULTILINE):
            described |= dict.fromkeys(names.split(", "), " ".join(text.split()))
    return described


def hooks(kind: type) -> str:
    """The hooks that an encoder defines; for a frequency map or a pattern, where it acts."""
    if issubclass(kind, rj.FrequencyMap):
        return "rotate, as `scaling` of RoPE and XPos"
    if issubclass(kind, rj.Layers):
        return "those of its encoders"
    defined = [name for name in ("embed", "rotate", "bias") if getattr(kind, name) is not getattr(rj.Encoder, name)]
    return ", ".join(defined) or "none"


def options(kind: Any) -> str:
    """A Markdown list of options with their defaults; raises ValueError for an option without a description."""
    described = attributes(kind)
    lines = []
    for field in dataclasses.fields(kind):
        if field.name not in described:
            raise ValueError(f"the docstring of {kind.__name__} does not describe the option {field.name}; add it to Attributes")
        default = "" if field.default is dataclasses.MISSING else f" = {field.default!r}"
        lines.append(f"- `{field.name}{default}`: {described[field.name]}")
    return "\n".join(lines) or "- no options"


def section(kind: type) -> str:
    """The section of a class."""
    contents = card(kind)
    papers = dict.fromkeys(re.findall(r"arXiv:(\d+\.\d+)", contents.summary))
    source = ", ".join(f"[arXiv:{paper}](https://arxiv.org/abs/{paper})" for paper in papers) or "this project"
    return f"""### {kind.__name__}

{contents.summary}

| | |
|---|---|
| formula | {contents.formula.replace("|", "&#124;")} |
| source | {source} |
| hooks | {hooks(kind)} |
| extrapolates | {contents.extrapolates} |
| knows | {contents.knows} |

{options(kind)}

```pycon
{contents.example}
```
"""


def page(encoders: Iterable[type] | None = None, maps: Iterable[type] | None = None) -> str:
    """The page in Markdown, by default of all public encoders and frequency maps."""
    encoders = classes(rj.Encoder) if encoders is None else encoders
    maps = classes(rj.FrequencyMap) if maps is None else maps
    text = [INTRODUCTION]
    for title, kinds in (("Encoders", tuple(encoders)), ("Frequency maps", tuple(maps))):
        rows = [
            f"| [{kind.__name__}](#{kind.__name__.lower()}) | {hooks(kind)} | {card(kind).extrapolates} | {card(kind).knows} |"
            for kind in kinds
        ]
        head = f"| {title.lower().removesuffix('s')} | hooks | extrapolates | knows |\n|---|---|---|---|\n"
        text.append(f"## {title}\n\n{head}" + "\n".join(rows) + "\n")
        text += [section(kind) for kind in kinds]
    return "\n".join(text)


def main(arguments: list[str]) -> None:
    """Writes the page that a command line requests."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.catalogue", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "files", nargs="*", type=command.path, metavar="FILE.py", help="files whose encoders and maps the page lists too"
    )
    parser.add_argument("--out", type=command.path, metavar="PAGE.md", help="the page; needed with files, else docs/encoders.md")
    parsed = parser.parse_args(arguments)
    if parsed.files and parsed.out is None:
        parser.error("with files, name the page to write: --out PAGE.md")
    with refusing():
        modules = [rj, *(load_module(file, "the file") for file in parsed.files)]
        encoders, maps = (
            sorted((kind for module in modules for kind in classes(base, module)), key=_alphabetical)
            for base in (rj.Encoder, rj.FrequencyMap)
        )
        text = page(encoders, maps)
    path = parsed.out or PAGE
    with command.failing(lambda: "; no page is written"):
        store.write_whole(path, text)
    command.show(f"{path} is written", f"{path} is written")


if __name__ == "__main__":
    command.run(main)
