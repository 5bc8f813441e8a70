# Everything below sets itself up: `make demo` and `make test` need Python 3.11 and make, nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
# One BLAS thread per test process: the processes share the cores.
ONE_THREAD := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1

.PHONY: demo test check format clean

demo: $(VENV)/core
	$(BIN)/python -m diptych demo

test: $(VENV)/test
	$(ONE_THREAD) $(BIN)/python -m pytest -n auto $(PYTEST)

check: $(VENV)/test $(VENV)/check
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(VENV)/check
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:
	rm -rf $(VENV)

$(VENV)/core: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --upgrade "pip>=25.1"
	$(PIP) install --editable ".[report,serve]"
	touch $@

$(VENV)/test: $(VENV)/core
	$(PIP) install --editable ".[all]" --group test
	touch $@

$(VENV)/check: $(VENV)/core
	$(PIP) install --group check
	touch $@
