# `make demo` and `make test` are all the set-up there is; both build .venv when it is missing or out of date.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: setup setup-frameworks test-frameworks test test-gpu demo docs listings pages tables format clean

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch numpy
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

test: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy & types=$$!; $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder; tests=$$?; \
		wait $$types && exit $$tests

# The frameworks of docs/howto, each in the version of constraints.txt, into the same .venv. nnU-Net comes without what
# it wants of its own accord: timm and torchvision, which would have to match torch, and unittest2, which nothing uses.
NNUNET := nnunetv2 dynamic-network-architectures acvl-utils batchgenerators batchgeneratorsv2
NNUNET_NEEDS := SimpleITK blosc2 connected-components-3d einops future graphviz imagecodecs pandas requests \
	scikit-image scikit-learn seaborn threadpoolctl tifffile tqdm yacs

setup-frameworks: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[hf,monai,lightning,dicom,onnx]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps $(NNUNET)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt $(NNUNET_NEEDS)

test-frameworks: setup-frameworks
	$(BIN)/python -m pytest -m frameworks

# On a machine with a CUDA device; elsewhere they are skipped. No second process: they would share the device.
test-gpu: setup
	$(BIN)/python -m pytest -m gpu

# The site, into build/site: strictly, and without a network once the extra is installed (in a .venv of its own).
DOCS := build/docs-venv

$(DOCS)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
		properdocs mkdocs-material mkdocstrings mkdocstrings-python griffelib pymdown-extensions ruff
	touch $@

docs: $(DOCS)/.ready
	$(DOCS)/bin/properdocs build --strict

# What lists the code and the data, in seconds: tables of registries, the page of commands, the board and the summaries.
listings: setup
	$(BIN)/python docs/tables.py
	$(BIN)/python docs/site/board.py
	$(BIN)/python -m paper.summaries

# Everything that is made from the code: also figures of the guide and outputs of the notebooks.
pages: listings
	$(BIN)/python docs/figures.py
	$(BIN)/python docs/notebooks.py

# The tables of docs/benchmarks.md that can be made here; DATA is the folder of the real ensembles, ONLY one table.
tables: setup
	$(BIN)/python -m benchmarks.tables $(if $(DATA),--data $(DATA)) $(if $(ONLY),--only $(ONLY))

demo: setup
	$(BIN)/segcal demo

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache
