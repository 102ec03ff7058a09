# Everything sets itself up: `make test` and `make compare` need Python >= 3.11 and make, nothing else.
PYTHON ?= python3
VENV ?= .venv
RUN := $(VENV)/bin/python
STAMP := $(VENV)/.installed

.PHONY: setup test slow check compare docs accelerator lock clean

setup: $(STAMP)

$(STAMP): pyproject.toml requirements.lock
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "rope_jax needs Python 3.11 or newer, got " + sys.version.split()[0] + "; call: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet uv
	$(RUN) -m uv pip install --quiet --python $(RUN) --compile-bytecode --require-hashes -r requirements.lock
	$(RUN) -m uv pip install --quiet --python $(RUN) --no-deps --editable .
	touch $@

test: setup
	$(RUN) -m pytest -n 2 --dist loadfile

slow: setup
	$(RUN) -m pytest -n 2 -m slow

check: setup
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

compare: setup
	$(RUN) -m experiments.compare configs/quickstart.py --out out/quickstart

# what pages take from the code and from committed rows: the cards of encoders, tables, figures of speed
docs: setup
	$(RUN) -m experiments.catalogue
	$(RUN) -m experiments.blocks
	$(RUN) -m benchmarks.page

# what a GPU has that a CPU has not: correctness first, then 1 and 32 replicas, both dtypes, cuDNN's attention and ours
accelerator: setup
	$(RUN) -m uv pip install --quiet --python $(RUN) --editable '.[experiments,cuda]'
	JAX_PLATFORMS=cuda,cpu JAX_DEFAULT_MATMUL_PRECISION=float32 $(RUN) -m pytest tests/model
	$(RUN) -m benchmarks replicas --counts 32 --out out/accelerator/replicas_float32.json
	$(RUN) -m benchmarks replicas --counts 32 --compute-dtype bfloat16 --out out/accelerator/replicas_bfloat16.json
	$(RUN) -m benchmarks step --replicas 32 --compute-dtype bfloat16 --out out/accelerator/step_bfloat16.json

# the lock serves every supported Python and holds no index's address
lock: setup
	$(RUN) -m uv pip compile --quiet --universal --generate-hashes --python-version 3.11 --extra experiments --extra dev --no-emit-index-url --no-header --no-annotate --output-file requirements.lock pyproject.toml

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
