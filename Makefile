# make           set up, run every experiment that this machine supports, and typeset the report
# make install   only set up: .venv with PyTorch and the report's packages
# make test      set up and run the tests that are not marked slow
# make test-all  run all tests, including whole pipelines, launches, hangs and sweeps
# make clean     remove everything made by these except measurements (`rm -r results` removes them)
# make help      list these targets

PYTHON ?= python3
BIN := .venv/bin

# Many containers set it, and each of a run's many processes would then compile all its imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: report install test test-all clean help
# Tests during measurements would disturb them.
.NOTPARALLEL:

report: .venv/installed
	$(BIN)/python -m snakemake

install: .venv/installed

# Distributed by file, because the tests of a file share slow fixtures; the longest first, as tests/conftest.py orders them.
# One more worker than cores, since one often waits for hangs, ranks or a browser.
WORKERS := $(or $(PYTEST_XDIST_AUTO_NUM_WORKERS),$(shell echo $$(($$(getconf _NPROCESSORS_ONLN) + 1))))
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses=$(WORKERS) --maxprocesses=4 --dist=loadfile --no-loadscope-reorder

.DEFAULT:
	@echo "The target is '$@'; allowed: report, install, test, test-all, clean or help." >&2; exit 2

help:
	@sed -n 's/^# make/make/p' Makefile

test: .venv/installed
	$(PYTEST) -m "not slow"

test-all: .venv/installed
	$(PYTEST)

# Bytecode is not compiled here, because most of PyTorch's modules are never imported. The library also runs with later
# versions of PyTorch; the report uses tested ones.
.venv/installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; this is " + sys.version.split()[0] + ". Name another: make PYTHON=python3.12")'
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { echo "This Python cannot make virtual environments: install python3-venv (apt install python3-venv)."; exit 1; }
	@echo "Installing PyTorch and the report's packages into .venv: 2.4 GB and a few minutes, during which pip prints nothing."
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --no-compile --quiet --disable-pip-version-check --editable '.[test]' 'torch<2.14'
	touch $@

# Files that rules make in results/<machine>/, results/quick/<machine>/ and results/recorded/<machine>/. Measurements
# are expensive, and files with other names belong to the user: both stay.
MADE := plan.json coverage.csv checks.csv verdict.txt verify.html verify.csv verify/*.html *.crate.zip writeup.pdf writeup.typ report.html charts.js \
	progress.log tables/*.csv figures/*.svg correctness/test_*.txt correctness/last.log logs/*.log kept/*.jsonl raw/*/.*.partial

# recorded/ is not touched. `results` may be a link, but links in it are not followed.
clean:
	rm -rf .venv .snakemake cs336_systems.egg-info .pytest_cache .ruff_cache .mypy_cache
	rm -f report.html
	find . -path '*/__pycache__/*.pyc' -type f -delete
	find . -name __pycache__ -type d -empty -delete
	for machine in results/recorded/* results/quick/* results/*; do \
		if [ -d "$$machine" ] && [ ! -L "$$machine" ]; then \
			find "$$machine" -type f \( -false $(MADE:%=-o -path "$$machine/%") \) -delete; \
			find "$$machine" -depth -type d -empty -delete; \
		fi; \
	done
