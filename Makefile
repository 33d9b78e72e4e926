# Everything that developers and CI run. A target that needs an environment creates it first.
PYTHON ?= python3
VENV ?= .venv
EXTRAS := orchestrator,drafter,verifier,models,bench,test,dev
INSTALLED := $(VENV)/.installed
RUN := $(VENV)/bin/python -m

PROTOS_VENV := .venv-protos
PROTOS_INSTALLED := $(PROTOS_VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help install demo test test-faults test-docker test-browser test-bench test-lossless check bench bench-full protos docs clean

help: ## lists the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(INSTALLED) ## creates the environment in .venv; the other targets do this themselves

demo: $(INSTALLED) ## starts all services, continues three files and compares with plain decoding
	$(RUN) benchmarks.demo

test: $(INSTALLED) ## runs all tests but the long ones and those for Docker and Chromium
	$(RUN) pytest

test-docker: $(INSTALLED) ## tests the images and docker-compose.yml with a Docker engine; skipped without one
	TEST_DOCKER=1 $(RUN) pytest -rs tests/docker

test-browser: $(INSTALLED) ## tests the playground in Chromium; skipped without it
	TEST_BROWSER=1 $(RUN) pytest -rs tests/browser

test-bench: $(INSTALLED) ## runs the benchmarks that the documents name, at small sizes
	TEST_BENCH=1 $(RUN) pytest -rs tests/benchmarks

test-lossless: $(INSTALLED) ## compares every strategy with plain decoding: fifty prompts, 128 tokens each; ten minutes
	TEST_LOSSLESS=1 $(RUN) pytest -rs tests/e2e/test_lossless.py -k fifty

test-faults: $(INSTALLED) ## kills and stalls every part and makes it send invalid answers; half an hour
	TEST_FAULTS=1 $(RUN) pytest -rs tests/faults
	$(RUN) tests.faults.soak --kills 200

check: $(INSTALLED) ## checks style, types and the house rules
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) mypy
	$(RUN) pytest -q tests/contract

bench: $(INSTALLED) ## measures the main strategies in under five minutes; writes benchmarks/results/bench*
	$(RUN) benchmarks.run

bench-full: $(INSTALLED) ## measures the full record, in hours: all cells, both ablations, the oracle; writes full* and bench*
	$(RUN) benchmarks.run --full --resume
	$(RUN) benchmarks.run --ablation fused --profiles 300M --prompts 8 --minutes 40 --resume
	$(RUN) benchmarks.run --ablation ouroboros --profiles 300M --prompts 8 --minutes 30 --resume
	$(RUN) benchmarks.oracle --costs benchmarks/results/full.json --out benchmarks/results/full-oracle.json

docs: $(INSTALLED) ## rewrites the documents' tables of settings, metrics and results
	$(RUN) tests.contract.configuration_page
	$(RUN) tests.contract.metrics_page
	$(RUN) tests.contract.results_pages

protos: $(PROTOS_INSTALLED) ## regenerates the stubs beside the .proto files
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

# An old generator, so that the stubs work with old and new runtimes of protobuf and grpcio: see
# docs/decisions/0001-protobuf-generator.md.
$(PROTOS_INSTALLED):
	@echo "== setting up $(PROTOS_VENV) for the stubs' generator"
	test -x $(PROTOS_VENV)/bin/python || $(PYTHON) -m venv $(PROTOS_VENV)
	$(PROTOS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check \
		grpcio-tools==1.62.3 'setuptools<81'
	@touch $@
