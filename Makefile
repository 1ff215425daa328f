# One word per job; `make` alone lists them.

PYTHON := .venv/bin/python
PYTEST := $(PYTHON) -m pytest
# Tests that share servers stay on one worker, long ones begin (tests/conftest.py). Many wait: four workers keep two
# cores busy.
WORKERS := 4
PARALLEL = -n $(WORKERS) --dist loadgroup --no-loadscope-reorder
CODE := $(wildcard src tests benchmarks examples scripts fuzz)
# Parts that their own tests must cover.
COVERED := model protocol store
# Seconds for each cell of `make figures`; parts of `make figures-others`, and what `make figures-peers` compares.
CELL_S := 3
LAKE_TOPICS := 1 10 100 500 1000 2000
OTHERS := store clients python spark lake whole apache security peers
PARTS := $(OTHERS) soak growth
PEERS := apache,kafka,nats
COMPARED := java-async-1-128B java-async-64-128B java-batch-128B consume-* latency-5000 topics-* start stop memory recover
COMPARED_AT = $(shell date -u +%Y%m%d-%H%M)
# What a program prints, kept only if it came to its end.
printed = $(PYTHON) -m $(2) > build/figures/$(1).part && mv build/figures/$(1).part build/figures/$(1).json
# Programs of the parts; the commands of `python -m benchmarks` have targets of their own below.
BENCHMARKS := cli store filters broker client python_clients replication spark

# pytest keeps the assertions that it has rewritten in .pyc files: the next run starts sooner.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup ready demo serve quick test test-nightly coverage check bench figures figures-page figures-others \
  $(PARTS:%=figures-%) docs build clean \
  console-screenshots

help:
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 16

setup: ## tools, .venv, pinned packages; fast when nothing changed
	@bash scripts/setup.sh
	@$(PYTHON) -m scripts.accelerator

ready: # as setup, without what only tests need
	@bash scripts/setup.sh run
	@$(PYTHON) -m scripts.accelerator

demo: ready ## see it work
	@rm -rf build/demo
	@$(PYTHON) -m skylark demo --keep build/demo

serve: ready ## a name server and a broker in one process
	@$(PYTHON) -m skylark serve

# Hardly any of these waits, and each worker collects all tests first: two workers.
quick: WORKERS = 2
quick: setup ## the inner loop: unit and property tests, the rules of the house (under 2 minutes on two cores)
	$(PYTEST) -q $(PARALLEL) --hypothesis-profile quick -m "not nightly" tests/unit tests/property tests/test_house.py

test: setup ## everything that is not marked nightly (12 minutes on two cores)
	$(PYTEST) -q $(PARALLEL) -m "not nightly" tests

test-nightly: setup ## what takes long: all torture modes, soak, growth, peers, other clients, Spark clusters
	$(PYTEST) -q $(PARALLEL) -m nightly tests

coverage: setup ## branch coverage of model, protocol and store, each by its own tests
	@$(foreach part,$(COVERED),$(PYTEST) -q -n 2 -m "not nightly" --cov=skylark.$(part) --cov-fail-under=90 \
	  tests/unit/$(part) $(wildcard tests/property/$(part)) &&) true

check: setup docs ## lint, format, types, the rules of the house
	$(PYTHON) -m ruff check $(CODE)
	$(PYTHON) -m ruff format --check $(CODE)
	$(PYTHON) -m mypy --strict $(CODE)
	$(PYTEST) -q tests/test_house.py

bench: setup ## benchmarks, each printing JSON: parts beside what they cannot avoid, then all of `skylark bench`
	@$(foreach benchmark,$(BENCHMARKS),$(PYTHON) -m benchmarks.$(benchmark) &&) true
	@$(PYTHON) -m benchmarks survey --json

figures: setup ## measure what docs/performance.md says of ours: 9 minutes of a machine that does nothing else
	@mkdir -p build/figures
	-$(PYTHON) -m benchmarks survey --seconds $(CELL_S) --out build/figures/survey.json --svg docs/charts
	-$(PYTHON) -m benchmarks costs src/skylark/bench/costs.json
	$(PYTHON) -m scripts.performance_page build/figures/*.json

figures-others: $(OTHERS:%=figures-%) ## what it says beside others, of clients and of Spark: an hour, or in parts
	$(PYTHON) -m scripts.performance_page build/figures/*.json

figures-page: setup ## its tables from what was measured before
	$(PYTHON) -m scripts.performance_page build/figures/*.json

$(PARTS:%=figures-%): setup
	@mkdir -p build/figures
	-$($@)
figures-store = $(call printed,store,benchmarks.store --gib 4)
figures-clients = $(call printed,client,benchmarks.client)
figures-python = $(call printed,python-clients,benchmarks.python_clients)
figures-spark = $(call printed,spark,benchmarks.spark --body 200)
figures-lake = $(call printed,lake,benchmarks.lake --peer kafka); \
  $(call printed,lake-memory,benchmarks.lake --backlog 1 --backlog 8); \
  $(call printed,lake-topics,benchmarks.lake $(LAKE_TOPICS:%=--topics %) --svg docs/charts)
figures-soak = $(PYTHON) -m benchmarks soak --out build/figures/soak.json
figures-growth = $(PYTHON) -m benchmarks growth --out build/figures/growth.json --svg docs/charts
figures-apache = $(call printed,broker,benchmarks.broker --peer apache --seconds 3)
figures-whole = $(call printed,broker-whole,benchmarks.broker --peer apache --broker-cpus all --seconds 3)
figures-security = $(call printed,security,benchmarks.security --peer apache)
# A file of its own each time: what was measured before, and not now, stays on the page.
figures-peers = $(PYTHON) -m benchmarks compare --peer $(PEERS) --seconds 2 --warm-up 20 \
  $(foreach cell,$(COMPARED),--cell '$(cell)') --out build/figures/compare-$(COMPARED_AT).json

console-screenshots: setup ## pictures of every page of the console, in both themes, in build/console
	$(PYTHON) -m scripts.console_screenshots build/console

docs: setup ## check the documentation's links, build the site into build/site; warnings are errors
	$(PYTHON) scripts/check_links.py
	NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --strict

build: setup ## wheel and source archive in dist, checked
	rm -rf dist
	$(PYTHON) -m build --no-isolation --outdir dist
	$(PYTHON) -m twine check --strict dist/*

clean: ## remove what was built and cached; .venv stays
	rm -rf build dist .coverage .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +
