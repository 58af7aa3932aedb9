# make        set up, run every experiment that this machine can run, and typeset the report
# make install  only set up: .venv with PyTorch and the report's packages
# make test   set up and run the tests, except those marked slow
# make test-all  all tests: also whole pipelines, launches, hangs and sweeps
# make clean  remove everything that these made, except measurements: `rm -r results` also removes those
# make help   list these

PYTHON ?= python3
BIN := .venv/bin

# If it is set, as in many containers, each of a run's many processes would compile all its imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: report install test test-all clean help
# Tests during measurements would disturb them.
.NOTPARALLEL:

report: .venv/installed
	$(BIN)/python -m snakemake

install: .venv/installed

# By file: the tests of a file share slow fixtures. In the order of tests/conftest.py: the longest first.
# One more worker than cores, since one of them often waits: for hangs, for ranks, for a browser.
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

# Nothing is compiled here: most of PyTorch's modules are never imported. The library also runs with later versions of
# PyTorch; the report is made with the tested ones.
.venv/installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; this is " + sys.version.split()[0] + ". Name another: make PYTHON=python3.12")'
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { echo "This Python cannot make virtual environments: install python3-venv (apt install python3-venv)."; exit 1; }
	@echo "Installing PyTorch and the report's packages into .venv: 2.4 GB and a few minutes, without a word from pip."
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --no-compile --quiet --disable-pip-version-check --editable '.[test]' 'torch<2.14'
	touch $@

# Files that rules make in results/<machine>/, results/quick/<machine>/ and results/recorded/<machine>/. Measurements take a
# machine's time, and files with other names are a user's: both stay.
MADE := plan.json coverage.csv checks.csv verdict.txt verify.html verify.csv verify/*.html *.crate.zip writeup.pdf writeup.typ report.html charts.js \
	progress.log tables/*.csv figures/*.svg correctness/test_*.txt correctness/last.log logs/*.log kept/*.jsonl raw/*/.*.partial

# recorded/ is not touched, `results` may be a link, and no link in it is followed.
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
