# Everything goes through the virtual environment that `make install` makes in this folder.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help install demo readme test check reproduce bench bench-calibration bench-peer bench-faults bench-simulation validate ablate architectures operators trend questions gpu docs cluster-demo test-cluster clean

help:
	@echo "make install   a virtual environment with everything, the command in $(BIN)/frameworktax"
	@echo "make demo      measure a BERT in several runtimes, write store, JSON and report to demo/"
	@echo "make readme    put the demo's output into the README and docs/results"
	@echo "make test      every test that needs no GPU"
	@echo "make check     ruff, mypy, import-linter"
	@echo "make bench     cost of the tool, agreement with other timers, repeatability"
	@echo "make bench-calibration   false alarms of compare, slowdowns found, coverage of intervals"
	@echo "make bench-peer   the same grid with optimum-benchmark, in an environment of its own"
	@echo "make validate   the errors of predictions on this machine, within twelve minutes"
	@echo "make coverage  which model runs in which runtime; goes on where it was interrupted"
	@echo "make runtime-env NAME=...   a runtime apart: executorch, iree, jax, litert, tract, zentorch"
	@echo "make test-runtimes   the tests of the runtimes that live apart, those that are made"
	@echo "make test-cluster    the tests that need Ray: two nodes on loopback"
	@echo "make reproduce   the paper's studies at the small scale, under 30 minutes on two cores"
	@echo "make bench-simulation   20,000 points over 200 simulated nodes: nothing lost, what it costs"
	@echo "make bench-faults   every named fault and fifty seeded shots at a sweep; writes docs/results/faults.md"
	@echo "make ablate architectures operators trend   a page each in docs/results: 18, 12, 6 and 1 min"
	@echo "make questions   all four, 37 min on a machine that does nothing else"
	@echo "make cluster-demo   a study over two Ray nodes on loopback, within five minutes"
	@echo "make gpu       everything that needs a GPU, within ten minutes"
	@echo "make docs      the documentation as a site in site/, its examples run"

install: $(STAMP)

# torch first and by the constraints file: asked for by another package, pip may take a CUDA build.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[all,dev]'
	touch $(STAMP)

demo: install
	$(BIN)/frameworktax measure bert-tiny --length 32 --batch 1..16 \
	  --runtimes eager,inference-mode,torchscript-frozen,onnxruntime,openvino \
	  --store demo/store --json demo/run.json --report demo/report.html
	@echo "store: demo/store   document: demo/run.json   report: demo/report.html"

readme: install
	$(BIN)/python benchmarks/readme.py $(wildcard demo/run.json)

# What needs the processor to itself runs alone; the rest two at a time.
test: install
	$(BIN)/pytest -m "not gpu and not timing" -n 2 --dist loadfile
	$(BIN)/pytest -m "timing and not gpu"

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: install
	$(BIN)/python benchmarks/cost.py
	$(BIN)/python benchmarks/agreement.py

bench-calibration: install
	$(BIN)/python benchmarks/calibration.py

bench-peer: install
	$(BIN)/python benchmarks/peer.py

# Predictions name these errors, and the formulas that are too far off are refused.
validate: install
	$(BIN)/python benchmarks/validate.py

coverage: install
	nice $(BIN)/python benchmarks/coverage.py

ablate: install
	$(BIN)/python benchmarks/ablation.py

architectures: install
	$(BIN)/python benchmarks/architectures.py

operators: install
	$(BIN)/python benchmarks/operators.py

# Replays recorded traces: measures nothing, and needs no GPU.
trend: install
	$(BIN)/python benchmarks/trend.py

questions: trend operators architectures ablate

runtime-env: install
	$(BIN)/frameworktax env create $(NAME)

test-runtimes: install
	$(BIN)/pytest tests/integration/test_runtimes.py tests/integration/test_runtimes_apart.py

# Run again, it goes on: what the store holds is not measured again.
reproduce: install
	$(BIN)/frameworktax reproduce all --scale small --store docs/results/paper-store \
	  --report docs/results/paper.md

bench-simulation: install
	$(BIN)/python benchmarks/sweep_simulation.py

# What needs the extra ray: a cluster of two nodes on loopback, started and stopped by the tests.
test-cluster: install
	$(BIN)/python -c "import ray" 2>/dev/null || \
	  $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[ray]'
	$(BIN)/pytest tests/integration/test_ray_nodes.py

bench-faults: install
	$(BIN)/python tests/e2e/fault_suite.py --seeds 50 \
	  --out benchmarks/results/sweep_faults.json --table docs/results/faults.md

# Ray is an extra that nothing else needs; it goes into .venv when it is missing there.
cluster-demo: install
	$(BIN)/python -c "import ray" 2>/dev/null || \
	  $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[ray]'
	$(BIN)/python benchmarks/cluster_demo.py

# The interpreter of the machine with the GPU, which may have its own torch: make gpu PYTHON=python3
gpu:
	PYTHONPATH=src $(PYTHON) benchmarks/gpu_suite.py

# Read it with: python -m http.server -d site
docs: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	$(BIN)/pytest -q tests/e2e/test_documentation.py tests/e2e/test_documentation_site.py

clean:
	rm -rf $(VENV) demo site .pytest_cache .mypy_cache .ruff_cache .hypothesis
