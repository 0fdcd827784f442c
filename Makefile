# Two commands do all the set-up: `make demo` and `make test`. Everything is installed into a venv
# of the project; nothing needs root.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help demo docs test test-slow lint types bench report clean

help:  ## what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(READY): pyproject.toml constraints.txt tests/second-opinions.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "vasso needs Python 3.11 or newer, this is " + sys.version)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet "$$(grep '^torch==' constraints.txt)"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	$(BIN)/python -m pip install --quiet --no-deps --requirement tests/second-opinions.txt
	touch $@

demo: $(READY)  ## train on digits with wrong labels: SGD, SAM, VaSSO (about two minutes)
	$(BIN)/vasso demo

docs: $(READY)  ## the site, into docs/_build/html; a warning is an error, nothing is fetched
	$(BIN)/python -m sphinx -b html -q -W --keep-going docs docs/_build/html

test test-slow: export OMP_NUM_THREADS = 1  # one thread for each of the workers and their ranks

test: lint types $(READY)  ## everything that matters
	$(BIN)/python -m pytest -q -n 2 --dist loadfile -m "not slow"

test-slow: $(READY)  ## what takes minutes
	$(BIN)/python -m pytest -q -m slow

lint: $(READY)  ## style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)  ## mypy --strict on the package
	$(BIN)/mypy

bench: $(READY)  ## the cost of a step beyond the base, in reads and writes of the weights
	$(BIN)/python benchmarks/overhead.py

report: $(READY)  ## the page and all numbers of records/, from the runs kept there
	$(BIN)/python records/theory/run.py
	$(BIN)/python records/noisy-digits/page.py
	$(BIN)/python records/wrong-labels/page.py
	$(BIN)/python records/once/page.py
	$(BIN)/python records/translation/page.py
	$(BIN)/python records/resnet-probe/run.py --show
	$(BIN)/vasso report records -o report.html

clean:  ## remove the venv and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis docs/_build
