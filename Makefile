# What a developer types. Everything is installed into .venv; nothing outside this folder is changed but the model cache.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready-test

.PHONY: venv demo test check peers clean clean-kernels
.DEFAULT_GOAL := demo

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[server,plot]'
	touch $@

$(READY): $(VENV)/.ready
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	touch $@

venv: $(READY)

demo: $(VENV)/.ready
	$(BIN)/ghostkv demo

test: $(READY)
	$(BIN)/pytest -n auto --dist loadfile

check: $(READY)
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/deptry src

peers: $(READY)
	$(BIN)/python benchmarks/engine.py
	$(BIN)/python benchmarks/engine_vs_peers.py
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/clients.py
	$(BIN)/python benchmarks/ray_serve.py
	$(BIN)/python benchmarks/upstreams.py
	$(BIN)/python benchmarks/vllm_backend.py

clean-kernels:
	find src tests -name '*.nb[ci]' -delete
	rm -rf .pytest_cache/kernels

clean: clean-kernels
	rm -rf $(VENV) demo build dist
