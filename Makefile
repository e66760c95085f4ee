.PHONY: check test lint types format docs
PYTHON ?= .venv/bin/python

# All that CI checks: tests, format, lint, types and coverage.
check:
	$(PYTHON) -m pytest -q --cov=holdfast

# The tests alone, without coverage.
test:
	$(PYTHON) -m pytest -q

lint:
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .

types:
	$(PYTHON) -m mypy

format:
	$(PYTHON) -m ruff check --fix .
	$(PYTHON) -m ruff format .

# Write docs/reference anew: from the docstrings, the format's models, the commands.
docs:
	$(PYTHON) docs/make_reference.py
	$(PYTHON) docs/make_workflow_reference.py
	$(PYTHON) docs/make_cli_reference.py
