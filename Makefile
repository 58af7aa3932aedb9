# make        set up, run every experiment that this machine can run, and typeset the report
# make test   set up and run the tests
# make clean  remove what these made, but for measurements: `rm -r results` removes those too

PYTHON ?= python3
BIN := .venv/bin

# Where it is set, as in many containers, each of a run's many processes would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: report test clean
# Tests beside measurements would disturb them.
.NOTPARALLEL:

report: .venv/installed
	$(BIN)/python -m snakemake
	@cat results/*/verdict.txt

# By file: the tests of a file share what takes long to make.
test: .venv/installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses=auto --maxprocesses=4 --dist=loadfile

# Nothing is compiled here: most of what PyTorch brings is never imported.
.venv/installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; this is " + sys.version.split()[0] + ". Name another: make PYTHON=python3.12")'
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { echo "This Python cannot make virtual environments: install python3-venv (apt install python3-venv)."; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --no-compile --quiet --disable-pip-version-check --editable '.[test]'
	touch $@

# What took a machine's time: under results/<machine>/, and under results/recorded/<machine>/ none.
MEASURED := raw traces nsys artifacts

# recorded/ is not touched, and `results` may be a link.
clean:
	rm -rf .venv .snakemake build report.html *.egg-info .pytest_cache .ruff_cache .mypy_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	if [ -d results ]; then \
		find -H results -mindepth 1 $(MEASURED:%=-not -path '*/%/*') -type f -delete; \
		find -H results -name '.*.partial' -delete; \
		find -H results -mindepth 1 -depth -type d -empty -delete; \
	fi
