# Everything goes through tools/setup, which is quick when nothing changed.
#
#   make test ARGS="-m 'not cluster' -x"     ARGS goes to the command that is run

.DEFAULT_GOAL := help
SHELL := /bin/bash
ARGS ?=
SEEDS ?= 200
EXAMPLES ?= 1000
BIN := .venv/bin

# Read when a recipe runs, because setup, run just before, may have written it.
with_java = if [ -s .venv/java_home ]; then JAVA_HOME="$$(cat .venv/java_home)"; export JAVA_HOME; fi;

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: ## make .venv and find (or install) Java
	@tools/setup

.PHONY: demo
demo: setup ## see it run
	@$(with_java) $(BIN)/millstream demo $(ARGS)

# The suites with targets of their own: servers that are started, processes that are killed, pages
# and examples that run as they stand, a browser, and Spark's own stateful queries, which are slow.
stores := tests/contract tests/stores
monitoring := tests/monitoring
chaos := tests/chaos tests/spark/test_kills.py tests/spark/test_speculation.py \
	tests/spark/test_window_kills.py
docs := tests/test_docs.py tests/test_examples.py tests/test_notebooks.py tests/cli/test_command.py \
	tests/spark/test_spark_log.py tests/spark/test_benchmarks.py
processors := tests/spark/test_processors.py
browser := tests/browser
side_by_side := -n 2 --dist worksteal

.PHONY: test
test: setup ## run the tests; ARGS="-m 'not spark and not cluster'" for the quick ones
	@tools/setup servers
	@$(with_java) $(BIN)/pytest $(side_by_side) \
		$(addprefix --ignore=,$(stores) $(monitoring) $(chaos) $(docs) $(processors) $(browser)) $(ARGS)

.PHONY: test-docs
test-docs: setup ## run examples, docs, the demo and small benchmarks as users do
	@$(with_java) $(BIN)/pytest $(side_by_side) $(docs) $(ARGS)

.PHONY: test-processors
test-processors: setup ## run Spark's stateful processors on Spark and on nodes, and compare
	@$(with_java) $(BIN)/pytest $(processors) $(ARGS)

.PHONY: test-stores
test-stores: setup ## real servers: hold all stores to their contract, scrape a run with Prometheus
	@tools/setup servers
	@$(with_java) $(BIN)/pytest $(stores) $(monitoring) $(ARGS)

.PHONY: test-browser
test-browser: setup ## drive the dashboard in a real browser, on a simulated and on a real run
	@tools/setup browser
	@$(with_java) $(BIN)/pytest $(browser) $(ARGS)

.PHONY: screenshots
screenshots: setup ## write pictures of the dashboard to docs/images
	@tools/setup browser
	@$(BIN)/python -m tests.browser.screenshots docs/images

.PHONY: dashboard
dashboard: setup ## serve the dashboard of a simulated run, to work on it; ARGS="--nodes 200"
	@$(BIN)/python -m tests.browser.serve $(ARGS)

.PHONY: test-chaos
test-chaos: setup ## kill processes: a small sample of make chaos, chaos-driver and chaos-elastic
	@tools/setup servers
	@$(with_java) $(BIN)/pytest $(chaos) $(ARGS)

.PHONY: check
check: setup ## check format, lint, security, types, layers, unused code and pinned packages
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/vulture
	$(BIN)/python tools/audit.py

.PHONY: format
format: setup ## format the code and fix what can be fixed safely
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

.PHONY: sim
sim: setup ## simulate runs with faults; SEEDS=1000, or ARGS="--seed 17" for the story of one
	@$(BIN)/python -m millstream.sim --seeds $(SEEDS) $(ARGS)

.PHONY: search
search: setup ## try the properties on examples that nobody tried before; EXAMPLES=1000
	@EXAMPLES=$(EXAMPLES) $(BIN)/pytest $(side_by_side) --hypothesis-profile=search \
		-m "hypothesis and not spark and not cluster" $(ARGS)

.PHONY: peers
peers: setup ## install the engines to compare with; ARGS="duckdb flink" for some of them
	@tools/setup peers $(ARGS)

.PHONY: bench
bench: setup ## compare with all peers, an hour or so; ARGS="--part latency --json FILE"
	@tools/setup peers
	@$(with_java) $(BIN)/python benchmarks/compare.py $(ARGS)

.PHONY: bench-quick
bench-quick: setup ## the goals of the comparison with less data, in ten minutes
	@tools/setup peers
	@$(with_java) $(BIN)/python benchmarks/compare.py --quick $(ARGS)

.PHONY: bench-check
bench-check: setup ## fail if a ratio is 15 % worse than in benchmarks/results/compare_quick.json
	@tools/setup peers
	@$(with_java) $(BIN)/python benchmarks/compare.py --quick \
		--against benchmarks/results/compare_quick.json $(ARGS)

.PHONY: bench-page
bench-page: setup ## write docs/benchmarks.md from the results of compare.py
	@$(BIN)/python -m benchmarks.page

.PHONY: bench-recovery
bench-recovery: setup ## kill nodes and see how long it takes to go on
	@$(with_java) $(BIN)/python benchmarks/recovery.py $(ARGS)

.PHONY: bench-overhead
bench-overhead: setup ## see what copies and checkpoints cost; ARGS="--part b" for one part
	@$(with_java) $(BIN)/python benchmarks/overhead.py $(ARGS)

.PHONY: bench-stores
bench-stores: setup ## write to all stores and read from them, side by side
	@tools/setup servers
	@$(BIN)/python benchmarks/stores.py $(ARGS)

.PHONY: bench-durability
bench-durability: setup ## see what durable epochs cost, beside Spark's own state
	@$(with_java) $(BIN)/python benchmarks/durability.py $(ARGS)

.PHONY: bench-windows
bench-windows: setup ## see what sliding windows cost, recomputed and from shared panes
	@$(with_java) $(BIN)/python benchmarks/windows.py $(ARGS)

.PHONY: bench-processor
bench-processor: setup ## run one of Spark's processors on Spark and here; ARGS="--part row" for one form
	@$(with_java) $(BIN)/python benchmarks/processor.py $(ARGS)

.PHONY: bench-rescale
bench-rescale: setup ## change the number of nodes of a run, live and otherwise
	@$(with_java) $(BIN)/python benchmarks/rescale.py $(ARGS)

.PHONY: bench-skew
bench-skew: setup ## see how policies balance repeated words and hot keys
	@$(with_java) $(BIN)/python benchmarks/skew.py $(ARGS)

.PHONY: bench-heterogeneous
bench-heterogeneous: setup ## see what the latency policy gains on nodes of different speed
	@$(with_java) $(BIN)/python benchmarks/heterogeneous.py $(ARGS)

.PHONY: bench-autoscale
bench-autoscale: setup ## let policies scale with a load; ARGS="--plots docs/images" to draw it
	@$(with_java) $(BIN)/python benchmarks/autoscale.py $(ARGS)

.PHONY: bench-observe
bench-observe: setup ## see what reads of state and the HTTP API cost; ARGS="--part reads"
	@$(with_java) $(BIN)/python benchmarks/observe.py $(ARGS)

.PHONY: bench-pauses
bench-pauses: setup ## see how long nodes are silent, and whether they grow; ARGS="--part memory"
	@$(BIN)/python -m benchmarks.pauses $(ARGS)

# The options of the runner: how many runs, how many copies, the seed of the first run.
chaos_options = $(if $(RUNS),--runs $(RUNS)) $(if $(REPLICAS),--replicas $(REPLICAS)) \
	$(if $(SEED),--seed $(SEED))

.PHONY: chaos
chaos: setup ## kill and stop processes; RUNS=20 REPLICAS=1 SEED=0 ARGS="--stops --keys 1000000"
	@$(with_java) $(BIN)/python -m tests.chaos.runner $(chaos_options) $(ARGS)

.PHONY: chaos-driver
chaos-driver: setup ## kill drivers and start them again; RUNS=20 SEED=0 ARGS="--verbose"
	@tools/setup servers
	@$(with_java) $(BIN)/python -m tests.chaos.driver_runner $(chaos_options) $(ARGS)

.PHONY: chaos-elastic
chaos-elastic: setup ## scale, move, drain and kill during runs; RUNS=20 SEED=0 ARGS="--verbose"
	@$(with_java) $(BIN)/python -m tests.chaos.elastic_runner $(chaos_options) $(ARGS)

.PHONY: bench-large
bench-large: setup ## see what a thousand simulated nodes cost the coordinator
	@$(BIN)/python -m benchmarks.large $(ARGS)

.PHONY: clean
clean: ## remove caches and what Spark leaves behind
	@find . -path ./.venv -prune -o -path ./.git -prune -o \
		-type d -name __pycache__ -prune -exec rm -rf {} +
	@rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache \
		build dist spark-warehouse metastore_db derby.log

.PHONY: distclean
distclean: clean ## clean, and remove .venv and .peers
	@rm -rf .venv .peers src/*.egg-info
