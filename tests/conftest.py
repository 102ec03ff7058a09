"""Two virtual CPU devices, so that replicas spread as they do on a real machine; strict shapes; a compilation cache."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# of the checkout, not of the user; commands that tests start use it as well
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".cache" / "compiled"))
# compiling takes most of the time of small programs; this halves it, and programs only run slower
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")

import jax

from rope_jax.study.config import Experiment
from rope_jax.training import devices
from toy_study import toy_experiment

devices.configure(cores=2)
jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture(scope="module", autouse=True)
def _compiled_programs_are_let_go():
    """Each holds memory maps, of which a process may have 65,530."""
    yield
    jax.clear_caches()


@pytest.fixture(scope="session")
def _names_of_programs() -> list[str]:
    names: list[str] = []

    def note(event: str, seconds: float, **about: object) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            names.append(str(about["fun_name"]))

    jax.monitoring.register_event_duration_secs_listener(note)
    return names


@pytest.fixture
def compiled(_names_of_programs: list[str]) -> list[str]:
    """The names of the programs compiled since the test cleared it."""
    _names_of_programs.clear()
    return _names_of_programs


@pytest.fixture
def fused_calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The implementations that attention asks of `jax.nn.dot_product_attention`, on a machine that seems to have cuDNN's kernel.

    There is no GPU here, so XLA's form of that function stands in for the kernel.
    """
    fused, calls = jax.nn.dot_product_attention, []

    def stand_in(*args, implementation, **options):
        calls.append(implementation)
        return fused(*args, implementation="xla", **options)

    monkeypatch.setattr(jax.nn, "dot_product_attention", stand_in)
    monkeypatch.setattr("rope_jax.model.attention.has_fused_kernel", lambda: True)
    return calls


@pytest.fixture
def toy() -> Experiment:
    return toy_experiment()


@pytest.fixture
def toy_cell(toy: Experiment):
    """Copy with RoPE and its variants."""
    return replace(toy, tasks=toy.tasks[:1], methods=toy.methods[1:]).cells()[0]
