"""Imports point one way (README, "Where things are"), read off the source."""

import ast
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LAYERS = {  # what each module of ours may import of ours
    "encoders": {"encoders"},
    "interop": {"encoders", "interop"},
    "positions": set(),
    "tasks": {"encoders", "tasks"},
    "policies": {"encoders", "positions", "tasks"},
    "forms": set(),
    "config": {"encoders", "forms", "policies", "tasks"},
    "devices": {"sizes"},
    "sizes": set(),
    "dropout": set(),
    "attention": {"encoders", "sizes"},
    "metrics": {"tasks"},
    "model": {"attention", "config", "dropout", "encoders"},
    "train": {"config", "devices", "dropout", "encoders", "model", "sizes", "tasks"},
    "evaluate": {"config", "devices", "encoders", "forms", "metrics", "model", "policies", "sizes", "tasks"},
    "checkpoint": {"config", "devices", "runs", "train"},
    "runs": {"config", "forms"},
    "statistics": set(),
    "tables": {"statistics"},
    "plots": {"statistics"},
    "__init__": {"encoders", "interop", "positions", "tasks"},
}
ONLY = {"flax": "model", "orbax": "checkpoint", "matplotlib": "plots", "tabulate": "tables", "optax": "train"}


def imports(path):
    """Module names imported anywhere in a file, "rope_jax.x" shortened to ".x"."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names} if node.module == "rope_jax" else {node.module}
    return {name.replace("rope_jax.", ".", 1) if name.startswith("rope_jax.") else name for name in found}


def modules():
    return [
        pytest.param(path, path.relative_to(ROOT / "rope_jax").parts[0].removesuffix(".py"), id=str(path.relative_to(ROOT)))
        for path in sorted((ROOT / "rope_jax").rglob("*.py"))
    ]


@pytest.mark.parametrize(("path", "name"), modules())
def test_imports_point_one_way(path, name):
    found = imports(path)
    ours = {module.split(".")[1] for module in found if module.startswith(".")}
    assert ours <= LAYERS[name] | {name}
    others = {module.split(".")[0] for module in found if not module.startswith(".")}
    for package, owner in ONLY.items():
        assert package not in others or name == owner
    if name in ("encoders", "interop", "positions"):
        assert others - set(__import__("sys").stdlib_module_names) <= {"jax", "numpy"}
    if name in ("statistics", "tables", "plots", "runs"):
        assert "jax" not in others


def test_the_package_does_not_import_the_experiments():
    for path in (ROOT / "rope_jax").rglob("*.py"):
        assert not {name for name in imports(path) if name.split(".")[0] in ("experiments", "configs", "tests")}


def test_every_encoder_and_task_is_in_its_list():
    import rope_jax as rj
    from rope_jax import tasks
    from rope_jax.encoders.base import Encoder
    from rope_jax.encoders.scaling import FrequencyMap

    def below(kind):
        return {c for sub in kind.__subclasses__() for c in ({sub} | below(sub)) if c.__module__.startswith("rope_jax.")}

    # every file is read, so that what the lists leave out is found as well
    for path in (*(ROOT / "rope_jax" / "encoders").glob("*.py"), *(ROOT / "rope_jax" / "tasks").glob("*.py")):
        importlib.import_module(f"rope_jax.{path.parent.name}.{path.stem}")
    for kinds, place in ((below(Encoder) | below(FrequencyMap), rj), (below(tasks.Task), tasks)):
        assert len(kinds) >= 2
        for kind in kinds:
            assert getattr(place, kind.__name__) is kind


def test_every_public_name_has_a_docstring():
    import inspect

    for path in (ROOT / "rope_jax").rglob("*.py"):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        module = importlib.import_module(name)
        assert module.__doc__, name
        for attribute, value in vars(module).items():
            if attribute.startswith("_") or getattr(value, "__module__", None) != name or not callable(value):
                continue
            assert inspect.getdoc(value), f"{name}.{attribute}"
