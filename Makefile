# Two commands do all the set-up: `make demo` and `make test`. Everything is installed into a venv
# of the project; nothing needs root.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
LAB := $(VENV)/.lab
PIP := $(BIN)/python -m pip install -qq

.PHONY: help demo docs test test-core test-slow test-gpu explore lint types methods tutorials bench evidence report clean

help:  ## what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(LAB): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "vasso needs Python 3.11 or newer, this is " + sys.version)'
	@echo "Installing into $(VENV), once: torch and the lab. This takes a minute or two."
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) --upgrade pip
	@$(PIP) "$$(grep '^torch==' constraints.txt)"
	@$(PIP) --constraint constraints.txt --editable '.[lab]'
	@touch $@

$(READY): $(LAB) tests/second-opinions.txt
	@echo "Installing what tests and docs need."
	@$(PIP) --constraint constraints.txt --editable '.[dev]'
	@$(PIP) --no-deps --requirement tests/second-opinions.txt
	@touch $@

demo: $(LAB)  ## train on digits with wrong labels: SGD, SAM, VaSSO (a minute or two)
	@$(BIN)/vasso demo

docs: $(READY)  ## the site, into docs/_build/html; a warning is an error, nothing is fetched
	$(BIN)/python -m sphinx -b html -q -W --keep-going docs docs/_build/html

test test-core test-slow explore: export OMP_NUM_THREADS = 1  # for each of the workers and their ranks
PYTEST := $(BIN)/python -m pytest -q
TWO := -n 2 --dist loadfile --no-loadscope-reorder
CORE := $(addprefix tests/,contract diagnostics engine numerics parts standalone) $(wildcard tests/test_*.py)

test: lint types $(READY)  ## everything that matters (about seven minutes on two cores)
	$(PYTEST) $(TWO) -m "not slow"

test-core: $(READY)  ## the optimizer and the diagnostics alone: no hosts, no ranks, no lab
	$(PYTEST) $(TWO) -m "not slow" $(CORE)

test-slow: $(READY)  ## what takes minutes, and all cases of which `test` takes a selection
	VASSO_THOROUGH=1 $(PYTEST) $(TWO) -m "(slow or thorough) and not ranks"
	VASSO_THOROUGH=1 $(PYTEST) -m "(slow or thorough) and ranks"

explore: $(READY)  ## two thousand random sequences of calls that no run has tried before
	VASSO_THOROUGH=1 VASSO_EXPLORE=1 $(PYTEST) tests/contract/test_sequences.py -k any_sequence

test-gpu: $(READY)  ## what needs a CUDA device; nobody has run it yet, reports are welcome
	$(BIN)/python -c 'import sys, torch; sys.exit(not torch.cuda.is_available() and "no CUDA device")'
	CUBLAS_WORKSPACE_CONFIG=:4096:8 $(PYTEST) -m gpu

lint: $(READY)  ## style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)  ## mypy --strict on the package
	$(BIN)/mypy

methods: $(READY)  ## the page of all methods, docs/methods.md, from the catalogue
	$(BIN)/python docs/_ext/methods_page.py > docs/methods.md

tutorials: $(READY)  ## execute the notebooks of docs/tutorials and store their outputs
	$(BIN)/python docs/_ext/execute_notebooks.py

bench: $(READY)  ## the cost of a step beyond the base, in reads and writes of the weights
	$(BIN)/python benchmarks/overhead.py

evidence: $(READY)  ## train the runs that records/ lacks, into runs/; stop and continue at any time
	$(BIN)/python records/train_missing.py

report: $(READY)  ## the page and all numbers of records/, from the runs kept there
	$(BIN)/python records/theory/run.py
	$(BIN)/python records/noisy-digits/page.py
	$(BIN)/python records/wrong-labels/page.py
	$(BIN)/python records/images/page.py
	$(BIN)/python records/translation/page.py
	$(BIN)/python records/frontier/page.py
	$(BIN)/python records/language-model/page.py
	$(BIN)/python records/lora/page.py
	$(BIN)/python records/normalisation/page.py
	$(BIN)/python records/resnet-probe/run.py --show
	$(BIN)/python records/claims/page.py
	$(BIN)/vasso report records -o report.html

clean:  ## remove the venv and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis docs/_build
