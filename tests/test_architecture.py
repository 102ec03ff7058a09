"""Imports point one way (docs/architecture.md), read off the source."""

import ast
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
FLOORS = {  # a module imports from its own room, or from rooms on lower floors
    "encoders": 0,
    "interop": 1,
    "tasks": 1,
    "optimizers": 1,
    "policies": 2,
    "study.config": 3,  # plain data, read by model and training
    "study.settings": 3,
    "study.rows": 3,
    "study.serialization": 3,
    "study.tune": 3,
    "model": 4,
    "training": 5,
    "report": 5,
    "study": 6,
}
ONLY = {  # which modules may import a library
    "flax": {"model.transformer"},
    "optax": {"optimizers", "training.train"},
    "orbax": {"training.checkpoint"},
    "matplotlib": {"report.plots"},
    "tabulate": {"report.tables", "study.dry_run"},
    "tensorboardX": {"study.tracking"},
    "wandb": {"study.tracking"},
}


def modules():
    """Every module of the package as (dotted name within it, path)."""
    for path in sorted((ROOT / "rope_jax").rglob("*.py")):
        yield ".".join(path.relative_to(ROOT / "rope_jax").with_suffix("").parts).removesuffix(".__init__"), path


def imports(path):
    """The absolute names of all modules that a file imports anywhere, relative imports resolved."""
    package = path.relative_to(ROOT).parent.parts
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = (*package[: len(package) - node.level + 1], node.module) if node.level else (node.module,)
            module = ".".join(filter(None, base))
            found |= {f"{module}.{alias.name}" for alias in node.names}
    return found


def floor(name):
    """The floor of a module, by the longest prefix of its name that has one."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        if ".".join(parts[:end]) in FLOORS:
            return FLOORS[".".join(parts[:end])]
    raise AssertionError(f"{name} has no floor; add its room to FLOORS")


def test_imports_point_one_way():
    for name, path in modules():
        if not name or name == "__init__":
            continue
        for imported in imports(path):
            if imported.startswith("rope_jax.") and imported.split(".")[1][0].islower():
                other = imported.removeprefix("rope_jax.")
                same_room = other.split(".")[0] == name.split(".")[0]
                assert floor(other) < floor(name) or (same_room and floor(other) <= floor(name)), f"{name} imports {other}"
            package = imported.split(".")[0]
            assert package not in ONLY or {name, name.split(".")[0]} & ONLY[package], f"{name} imports {imported}"
            assert package not in ("experiments", "benchmarks", "configs", "tests"), f"{name} imports {imported}"


def test_encoders_import_jax_and_numpy_alone_and_relatively():
    for name, path in modules():
        room = name.split(".")[0]
        others = {module.split(".")[0] for module in imports(path)} - set(sys.stdlib_module_names)
        if room in ("encoders", "interop"):
            assert others <= {"jax", "numpy", "rope_jax"}, name
        if room == "encoders":
            assert "rope_jax." not in path.read_text().replace("import rope_jax", ""), f"{name} names rope_jax"
        if name.startswith("report"):
            assert "jax" not in others, name


def test_every_draw_goes_through_one_module():
    """JAX's own functions depend on flags; `encoders/_internal/random.py` does not."""
    for name, path in modules():
        if name == "encoders._internal.random":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                assert (node.value.id, node.attr) != ("jax", "random"), f"{name}:{node.lineno} draws with jax.random"


def test_the_base_dependencies_are_enough_for_import_rope_jax():
    """pyproject.toml names JAX and NumPy alone; nothing of the extra `experiments` is loaded."""
    program = "import sys, rope_jax as rj; rj.RoPE().frequencies(8); print(*{name.split('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    extra = {"flax", "optax", "orbax", "tyro", "rich", "matplotlib", "tabulate", "platformdirs"}
    assert not extra & set(done.stdout.split())


def test_every_encoder_and_task_is_in_its_list():
    import rope_jax as rj
    from rope_jax import optimizers, policies, tasks
    from rope_jax.tasks import metrics

    def below(kind):
        return {c for sub in kind.__subclasses__() for c in ({sub} | below(sub)) if c.__module__.startswith("rope_jax.")}

    for name, _ in modules():  # every file is read, so that what the lists leave out is found as well
        if name.split(".")[0] in ("encoders", "tasks", "policies", "optimizers"):
            importlib.import_module(f"rope_jax.{name}")
    for base, place in (
        (rj.Encoder, rj),
        (rj.FrequencyMap, rj),
        (tasks.Task, tasks),
        (metrics.Metric, metrics),
        (policies.Policy, policies),
        (optimizers.Optimizer, optimizers),
        (optimizers.Schedule, optimizers),
    ):
        kinds = {kind for kind in below(base) if not kind.__name__.startswith(("_", "Drawn"))}
        assert len(kinds) >= 2
        for kind in kinds:
            assert getattr(place, kind.__name__) is kind


def test_every_public_name_has_a_docstring():
    for name, _ in modules():
        module = importlib.import_module(f"rope_jax.{name}" if name and name != "__init__" else "rope_jax")
        assert module.__doc__, name
        for attribute, value in vars(module).items():
            if attribute.startswith("_") or getattr(value, "__module__", None) != module.__name__ or not callable(value):
                continue
            assert inspect.getdoc(value), f"{name}.{attribute}"
