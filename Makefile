# Everything a person or CI runs. The first target that needs them makes its own environments.
PYTHON ?= python3
VENV ?= .venv
EXTRAS := orchestrator,drafter,verifier,models,bench,test,dev
INSTALLED := $(VENV)/.installed
RUN := $(VENV)/bin/python -m

PROTOS_VENV := .venv-protos
PROTOS_INSTALLED := $(PROTOS_VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help install demo test test-faults test-docker test-browser test-bench test-lossless check bench bench-full protos docs clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(INSTALLED) ## the environment alone, in .venv; the other targets do this by themselves

demo: $(INSTALLED) ## starts all services, continues three files, compares with plain decoding
	$(RUN) benchmarks.demo

test: $(INSTALLED) ## all tests
	$(RUN) pytest

test-docker: $(INSTALLED) ## images and docker-compose.yml on a real engine; skipped where there is none
	TEST_DOCKER=1 $(RUN) pytest -rs tests/docker

test-browser: $(INSTALLED) ## the playground in Chromium; skipped where there is none
	TEST_BROWSER=1 $(RUN) pytest -rs tests/browser

test-bench: $(INSTALLED) ## the benchmarks that the pages name, made small
	TEST_BENCH=1 $(RUN) pytest -rs tests/benchmarks

test-lossless: $(INSTALLED) ## every strategy over fifty prompts of 128 tokens, against plain decoding; ten minutes
	TEST_LOSSLESS=1 $(RUN) pytest -rs tests/e2e/test_lossless.py -k fifty

test-faults: $(INSTALLED) ## every part dies, stalls and talks nonsense; half an hour
	TEST_FAULTS=1 $(RUN) pytest -rs tests/faults
	$(RUN) tests.faults.soak --kills 200

check: $(INSTALLED) ## style, types, and the rules of the house
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) mypy
	$(RUN) pytest -q tests/contract

bench: $(INSTALLED) ## speed of the main strategies in under five minutes; writes benchmarks/results/bench*
	$(RUN) benchmarks.run

bench-full: $(INSTALLED) ## as the record was made, in hours: all cells, both ablations, the oracle; full* and bench*
	$(RUN) benchmarks.run --full --resume
	$(RUN) benchmarks.run --ablation fused --profiles 300M --prompts 8 --minutes 40 --resume
	$(RUN) benchmarks.run --ablation ouroboros --profiles 300M --prompts 8 --minutes 30 --resume
	$(RUN) benchmarks.oracle --costs benchmarks/results/full.json --out benchmarks/results/full-oracle.json

docs: $(INSTALLED) ## rewrites the pages' tables of settings, metrics and results
	$(RUN) tests.contract.configuration_page
	$(RUN) tests.contract.metrics_page
	$(RUN) tests.contract.results_pages

protos: $(PROTOS_INSTALLED) ## rewrites the stubs beside the .proto files
	$(PROTOS_VENV)/bin/python -m grpc_tools.protoc -I. \
		--python_out=. --pyi_out=. --grpc_python_out=. protos/*.proto

clean: ## removes both environments and the tools' caches
	rm -rf $(VENV) $(PROTOS_VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "$(PYTHON) is older than Python 3.11; set PYTHON=python3.12, say" >&2; exit 1; }
	@echo "== setting up $(VENV): once, a few minutes, most of it the download of torch"
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(RUN) pip install --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@

# The oldest generator that serves: see docs/decisions/0001-protobuf-generator.md.
$(PROTOS_INSTALLED):
	@echo "== setting up $(PROTOS_VENV) for the stubs' generator"
	test -x $(PROTOS_VENV)/bin/python || $(PYTHON) -m venv $(PROTOS_VENV)
	$(PROTOS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check \
		grpcio-tools==1.62.3 'setuptools<81'
	@touch $@
