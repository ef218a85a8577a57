# demo: run the main job   test: the whole suite   check: format, lint, types   fix: repair what tools can
# docs: write again what is generated in docs/   bench: measure speed   pocket: train pocket from nothing, hours
# Each makes .venv if it is missing and installs again only when pyproject.toml or constraints.txt changed.

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
CODE := armillary tests examples benchmarks docs/api.py docs/commands.py docs/card.py
WORKERS ?= 2

.PHONY: demo test check fix docs bench bench-memory full-size pocket

demo: .venv/.demo
	$(BIN)/python examples/demo.py

test: .venv/.test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(ARGS)

check: .venv/.test
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/ruff check $(CODE)
	$(BIN)/pyright --pythonpath $(BIN)/python

fix: .venv/.test
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)

docs: .venv/.demo
	$(BIN)/python docs/commands.py docs/commands.md
	$(BIN)/python docs/api.py docs/api.md
	$(BIN)/python docs/card.py docs/pocket.json armillary/pocket/checkpoint/README.md
	$(BIN)/armillary explain generate "a red disc slides right and hits the wall" --image docs/pictures/clip.png \
		--sound --guidance 1 -o docs/pictures/sequence.svg
	$(BIN)/python examples/demo.py
	cp out/clip.png docs/pictures/clip.png

pocket: .venv/.demo
	$(BIN)/armillary train recipes/pocket.toml

bench: .venv/.demo
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/interactive.py

bench-memory: .venv/.demo
	$(BIN)/python benchmarks/memory.py

full-size: .venv/.demo
	$(BIN)/python benchmarks/full_size.py

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed; set PYTHON=/path/to/python3" >&2; exit 1; }
	$(PYTHON) -m venv .venv

.venv/.demo: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing into .venv (about 1.5 GB, a few minutes)"
	@$(INSTALL) -e '.[sim,serve]'
	@touch $@

.venv/.test: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing into .venv (about 1.5 GB, a few minutes)"
	@$(INSTALL) -e '.[test]'
	@$(INSTALL) --no-deps openpi-client # it asks for numpy 1 and works with 2
	@touch $@ .venv/.demo
