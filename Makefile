# Everything below sets itself up: `make demo` and `make test` need Python 3.11 or newer and make, nothing else.
# `make test PYTHON=python3.13` tests with another Python, in an environment of its own (.venv-3.13).
PYTHON ?= python3
ifeq ($(PYTHON),python3)
VENV := .venv
else
VENV := .venv-$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
endif
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
# One BLAS thread per test process: the processes share the cores.
ONE_THREAD := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1

# What ranks and selects.
NUMERICAL := tests/ranking tests/cca tests/fusion

.PHONY: demo reproduce test test-all test-avx2 check format clean

demo: $(VENV)/core
	$(BIN)/python -m diptych demo

# The paper's experiments, in a small version: on Flickr8k where DIPTYCH_DATA says where it is, else on drawn scenes.
reproduce: $(VENV)/core
	$(BIN)/python -m reproduction $(if $(DIPTYCH_DATA),flickr8k --data $(DIPTYCH_DATA),scenes) --quick

test: $(VENV)/test
	$(ONE_THREAD) $(BIN)/python -m pytest -n auto --dist loadgroup -m "not slow" $(PYTEST)

# The rest: what takes longer (faults and kills, damaged files by the thousand, the browser, whole fits of real
# data), and Hypothesis with more examples.
test-all: $(VENV)/test
	HYPOTHESIS_PROFILE=ci $(ONE_THREAD) $(BIN)/python -m pytest -n auto --dist loadgroup -m "slow or hypothesis" $(PYTEST)

# The numerical tests once more, with the kernels of a processor without AVX-512.
test-avx2: $(VENV)/test
	$(ONE_THREAD) $(BIN)/python tests/without_avx512.py -n auto --dist loadgroup -q -m "not slow" $(NUMERICAL) $(PYTEST)

check: $(VENV)/test $(VENV)/check
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(VENV)/check
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:
	rm -rf .venv .venv-*

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
