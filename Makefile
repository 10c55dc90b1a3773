# make lab      install everything, train the first example on 1 and 2 processes, compare
# make jupyter  open your copy of the labs
# make test     check the code and run the tests

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
export VENV

# Ranks write into logs: no buffering. Open MPI asks root to say twice that it is meant.
export PYTHONUNBUFFERED := 1
# Many containers forbid Python to keep what it compiles; each rank would compile hvdlite anew.
unexport PYTHONDONTWRITEBYTECODE
ifeq ($(shell id -u),0)
export OMPI_ALLOW_RUN_AS_ROOT := 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM := 1
AS_ROOT := --allow-root
endif

.DEFAULT_GOAL := help
# 0.0.0.0 lets others reach it, as from outside of a container.
JUPYTER_IP ?= 127.0.0.1
# Tests run in lanes side by side, more than there are cores, since many of them wait.
LANES  ?= -n 4 --no-loadscope-reorder
.PHONY: help install lab jupyter test test-core test-slow test-pythons test-labs test-whole test-gpu lint format docs constraints clean

help:  ## Show this list
	@echo "Targets (make PYTHON=python3.12 ... picks another Python):"
	@sed -n 's/^\([a-z-]*\):.*## /  \1\t/p' Makefile | expand -t 16

install:  ## Make .venv and install everything into it
	@$(PYTHON) tools/install.py

lab:  ## Install, fetch the data, train on 1 and 2 processes, compare; FULL=1 trains on all images
	@echo "Install (two minutes, once), fetch the data, then train on 1 and on 2 processes and compare."
	@$(MAKE) --no-print-directory install
	@$(BIN)/hvdlab data
	@$(BIN)/hvdlab compare $(if $(FULL),,--minutes 2.3) scripts/solutions/fashion_mnist_torch.py
	@echo "Open the labs with: make jupyter"

jupyter: install  ## Open JupyterLab on your copy of the labs, in course/
	@$(BIN)/hvdlab handout course >/dev/null
	@PATH="$(abspath $(BIN)):$$PATH" \
	    JUPYTER_CONFIG_PATH="$(CURDIR)/tools/jupyter$${JUPYTER_CONFIG_PATH:+:$$JUPYTER_CONFIG_PATH}" \
	    exec jupyter lab --ip=$(JUPYTER_IP) --ServerApp.root_dir=course/labs \
	    --LabApp.default_url=/lab/tree/README.md $(AS_ROOT) $(JUPYTER_ARGS)

test: install lint  ## Check the code, then run the tests
	@$(BIN)/python -m pytest $(LANES) $(PYTEST_ARGS)

test-core: install  ## Run the tests of the runtime and of its binding to PyTorch, for a loop while working
	@$(BIN)/python -m pytest $(LANES) tests/core tests/torch $(PYTEST_ARGS)

test-slow: install  ## Run what `make test` leaves out because it takes long: labs, clusters, training
	@$(BIN)/python -m pytest $(LANES) -m slow $(PYTEST_ARGS)

test-pythons: install  ## Run the tests of the core and the launcher on the oldest and the newest Python
	@$(PYTHON) tools/pythons.py $(BIN)/uv $(PYTHONS_ARGS)

test-labs: install  ## Run every lab from top to bottom, solved and unsolved
	@$(BIN)/python -m pytest $(LANES) -m "slow or whole" tests/labs/test_notebooks.py

test-whole: install  ## Run what takes longer: training on all images, every program that the checks know
	@$(BIN)/python -m pytest -m whole $(PYTEST_ARGS)

test-gpu: install  ## Run what needs two GPUs: tests, labs, then benchmarks
	@$(BIN)/python -m pytest -m gpu -p no:xdist $(PYTEST_ARGS)
	@$(BIN)/python tests/gpu_faults.py --count 50
	@$(BIN)/python -m pytest -m "slow or whole" -p no:xdist tests/labs/test_notebooks.py \
	    -k "solved and (03 or 05 or 06 or 07 or 08 or 09)"
	@$(BIN)/hvdlab compare scripts/solutions/fashion_mnist_keras.py
	@for b in gpu_allreduce gpu_step; do $(BIN)/horovodrun -np 2 $(BIN)/python benchmarks/$$b.py || exit; done
	@$(BIN)/python benchmarks/keras_gpu.py

lint: install  ## Check style, common mistakes, and the types in scripts
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: install  ## Put the code in the house style
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

docs: install  ## Make a site of the documentation, in build/site
	@$(BIN)/python tools/docs.py

constraints: install  ## Write constraints.txt anew from pyproject.toml
	@$(PYTHON) tools/constraints.py $(BIN)/uv

clean:  ## Remove .venv and every file that is made from others
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
