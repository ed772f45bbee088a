# Everything a developer does. `make help` lists it; nothing is done again while nothing changed.
PYTHON ?= python3
# Where pip looks for torch, if not where it is configured to look: the URL of a package index, such
# as one with CPU builds only.
TORCH_INDEX ?=
PYTEST_ARGS ?=
BENCH_ARGS ?=
DEMO_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
BUILD := build/native
# Stamps: .venv with everything it needs from outside, and our own package installed into it.
DEPENDENCIES := $(VENV)/.dependencies
INSTALLED := $(VENV)/.installed
# An editable install knows the Python files by name, so a new one asks for another install.
NAMES := build/python_files.txt

NATIVE := $(shell find native -name "*.cpp" -o -name "*.h")
TORCH := $(shell grep "^torch==" constraints.txt)
PACKAGES = PYTHON=$(PYTHON) tools/system_packages.sh

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: FORCE help setup demo test test-native test-python lint fmt wire bench clean

help: ## this list
	@awk -F ":[^\#]*\#\# " "/^[a-z-]+:.*\#\# / {printf \"  make %-12s %s\n\", \$$1, \$$2}" Makefile

setup: $(INSTALLED) ## make .venv and build netfold into it

$(DEPENDENCIES): constraints.txt
	@$(PACKAGES) setup
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25"
	@$(BIN)/python -c "import torch" 2>/dev/null || \
	  echo "installing $(TORCH): its build for CPUs is enough here, about 190 MB (a build for" \
	       "GPUs is several GB; TORCH_INDEX=URL names an index of CPU builds)"
	$(BIN)/python -m pip install --quiet $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) \
	  --constraint constraints.txt $(TORCH)
	$(BIN)/python -m pip install --quiet --requirement constraints.txt
	@touch $@

$(NAMES): FORCE
	@mkdir -p $(@D)
	@find src -name "*.py" | sort | cmp -s - $@ || find src -name "*.py" | sort > $@

FORCE:

# Python sources are used where they lie; only what is compiled, or changes the metadata, is here.
$(INSTALLED): $(DEPENDENCIES) $(NAMES) pyproject.toml CMakeLists.txt README.md \
  $(filter-out native/tests/%,$(NATIVE))
	@$(PACKAGES) setup
	$(BIN)/python -m pip install --quiet --no-build-isolation --constraint constraints.txt \
	  --config-settings=build-dir=$(BUILD) \
	  --config-settings=cmake.define.NETFOLD_BUILD_TESTS=ON \
	  --config-settings=cmake.define.NETFOLD_WERROR=ON \
	  --editable ".[demo,dev]"
	@touch $@

demo: setup ## train a model through an emulated network and show what it gained
	@$(PACKAGES) lab
	$(BIN)/netfold demo $(DEMO_ARGS)

test: test-native test-python ## all tests; PYTEST_ARGS="-k wire" passes on to pytest

test-native: setup ## only the C++ tests
	cmake --build $(BUILD) --target native_tests
	ctest --test-dir $(BUILD) --output-on-failure --no-tests=ignore

# One after the other: process tests measure time, and share few cores with their own processes.
test-python: setup ## only the Python tests
	@$(PACKAGES) lab test
	$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: $(DEPENDENCIES) ## style, types, layout, generated files
	@$(PACKAGES) lint
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	clang-format-19 --dry-run -Werror $(NATIVE)
	$(BIN)/python wire/generate.py --check

fmt: $(DEPENDENCIES) wire ## repair what lint can repair
	@$(PACKAGES) lint
	$(BIN)/ruff check --fix-only --quiet
	$(BIN)/ruff format
	clang-format-19 -i $(NATIVE)

wire: $(DEPENDENCIES) ## write the files that follow from wire/wire.toml
	$(BIN)/python wire/generate.py

bench: setup ## all-reduce beside the baseline, in one run
	@$(PACKAGES) lab
	$(BIN)/netfold bench allreduce $(BENCH_ARGS)

clean: ## remove what was built, but keep .venv
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis $(INSTALLED)
	find src tests wire tools -name __pycache__ -prune -exec rm -rf {} +
