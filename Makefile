.PHONY: check coverage lint types format docs site recording screenshots peers
PYTHON ?= .venv/bin/python

# All that CI checks: tests, format, lint and types.
check:
	$(PYTHON) -m pytest -q

# The same, with the coverage gate.
coverage:
	$(PYTHON) -m pytest -q --cov=holdfast

lint:
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .

types:
	$(PYTHON) -m mypy

format:
	$(PYTHON) -m ruff check --fix .
	$(PYTHON) -m ruff format .

# Generate docs/reference: from the docstrings, the format's models, the commands.
docs:
	$(PYTHON) docs/make_stubs.py
	$(PYTHON) docs/make_reference.py
	$(PYTHON) docs/make_workflow_reference.py
	$(PYTHON) docs/make_cli_reference.py
	$(PYTHON) docs/make_requirements.py

# Build the documentation as a site in build/site; needs the extra docs.
site:
	$(PYTHON) docs/make_site.py

# Record the demo for the readme.
recording:
	$(PYTHON) docs/make_recording.py

# Run what "Coming from …" shows for the other systems, each in an environment of its own in build/peers.
peers:
	$(PYTHON) docs/try_peers.py --environments build/peers

# Make the screenshots of docs/howto/serving.md; needs Chromium.
screenshots:
	$(PYTHON) docs/make_screenshots.py
