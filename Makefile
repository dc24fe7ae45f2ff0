# Every target brings the environment up to date first; nothing is installed outside .venv.
#
#   make demo [PROFILE=smoke|small|full]   the whole recipe on O*NET; ends with a summary
#   make ui   [PROFILE=...] [PORT=3000]    the Dagster UI on the demo's history
#   make test | test-slow | lint | types | validate
#   make bench [QUICK=1]                   throughput and order of the demo's labeler, into benchmarks/results
#   make docs                              the documentation into site/, links checked
#   make proto                             the gRPC code from the .proto files
#   make venv | clean-demo

PYTHON  ?= python3
VENV    := .venv
BIN     := $(VENV)/bin
PROFILE ?=
CONFIG  := demo/$(if $(PROFILE),$(PROFILE),pipeline).toml
PORT    ?= 3000
# One more than there are cores: a third of the tests' time is waiting for processes to start.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
# Compiling every module of every package would take longer than installing them; Python compiles what it imports.
PIP     := $(BIN)/python -m pip --disable-pip-version-check --quiet install --no-compile -c constraints.txt

export PYTHONUNBUFFERED := 1
# What was not compiled while installing is kept once it was imported, whatever the shell says (images often forbid it):
# else every process of a demo or a test compiles torch, transformers and dagster anew, ten seconds each time.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help venv demo ui bench test test-slow lint types validate docs proto clean-demo

help:
	@sed -n '3,10s/^# *//p' Makefile

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "semlabel needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V 2>&1). Try: make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; \
	  exit 2; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: constraints.txt pyproject.toml | $(BIN)/python
	@echo "== installing the pinned packages into $(VENV) (about 2 minutes the first time)"
	$(PIP) -e .
	@touch $@

# The same with what the tests need: one installation, so that a fresh checkout is not resolved twice.
$(VENV)/.installed-dev: constraints.txt pyproject.toml | $(BIN)/python
	@echo "== installing the pinned packages and what the tests need into $(VENV) (about 2 minutes the first time)"
	$(PIP) -e ".[dev]"
	@touch $(VENV)/.installed $@

venv: $(VENV)/.installed-dev

demo: $(VENV)/.installed
	@test -f $(CONFIG) || { echo "no profile '$(PROFILE)': expected one of smoke, small, full, or none" >&2; exit 2; }
	$(BIN)/python demo/prepare.py --cache demo/cache
	$(BIN)/semlabel run --config $(CONFIG)

ui: $(VENV)/.installed
	$(BIN)/semlabel ui --config $(CONFIG) --port $(PORT)

# Hours on a quiet machine; a run that was interrupted goes on where it stopped.
bench: $(VENV)/.installed
	$(BIN)/semlabel bench throughput --config $(CONFIG) --out benchmarks/results $(if $(QUICK),--quick)
	$(BIN)/semlabel bench order --config $(CONFIG) --out benchmarks/results $(if $(QUICK),--quick)

# Neighbours stay on one worker, so that what a file's tests share is made once; the quicker worker takes from the other.
test: venv
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not slow"

test-slow: venv
	$(BIN)/python demo/prepare.py --cache demo/cache
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -m slow --timeout 3600

docs: venv
	$(BIN)/python -m mkdocs build --strict --quiet

PROTO   := semlabel/serving/proto
# Also run by a test, which compares what comes out with what is committed.
proto: venv
	$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. --grpc_python_out=. $(PROTO)/labeler.proto $(PROTO)/engine.proto

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: venv
	$(BIN)/mypy semlabel

# A Dagster home of its own, so that validating neither reads nor writes anybody's history.
validate: venv
	@mkdir -p $(VENV)/dagster-home && cp pipeline/dagster.yaml $(VENV)/dagster-home/dagster.yaml
	DAGSTER_HOME="$(abspath $(VENV)/dagster-home)" SEMLABEL_CONFIG="$(abspath demo/pipeline.toml)" \
	  $(BIN)/dagster definitions validate -w workspace.yaml

clean-demo:
	rm -rf demo/run demo/run-smoke demo/run-small demo/run-full
