# Everything uses the virtual environment that `make install` creates in this folder.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
# Hundreds of processes start in a run of the tests: what they import is compiled once.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install demo readme tables test check docs clean test-runtimes test-cluster cluster-demo \
  bench bench-first-answer bench-calibration bench-peer bench-refund bench-faults fuzz bench-simulation bench-intervals validate coverage reproduce \
  ablate architectures operators trend questions gpu gpu-wheels gpu-results gpu-full ray

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP) ## a virtual environment with everything; the command is .venv/bin/frameworktax

# torch first and by the constraints file: asked for by another package, pip may take a CUDA build.
# Its bytecode is made on the other processor while pip unpacks the rest; of that it is made at import.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch
	@nice $(BIN)/python -m compileall -qq -x '/tests?/|/pip/' $(VENV)/lib & compiled=$$!; \
	$(PIP) -e '.[all,dev]' || exit 1; wait $$compiled || true
	touch $(STAMP)

demo: install ## measure a small BERT in five runtimes: store, JSON and report in demo/
	$(BIN)/frameworktax measure bert-tiny --length 32 --batch 1..16 \
	  --runtimes eager,inference-mode,torchscript-frozen,onnxruntime,openvino \
	  --store demo/store --json demo/run.json --report demo/report.html

readme: install ## put the demo's output into README.md and docs/results
	$(BIN)/python benchmarks/readme.py $(wildcard demo/run.json)

tables: install ## the tables of runtimes and models in docs/, made of the registries
	$(BIN)/python benchmarks/tables.py

# What needs the processor to itself runs alone, and only its files are collected. The rest runs three
# files at a time, for one that measures waits much: in order, so that the unit tests, which are short,
# come last and no worker waits long for the others.
test: install ## every test that needs no GPU
	$(BIN)/pytest -m "not gpu and not timing" -n 3 --dist loadfile --no-loadscope-reorder --durations 30
	$(BIN)/pytest -m "timing and not gpu" $$(grep -rl --include='test_*.py' 'mark\.timing' tests)

check: install ## ruff, mypy, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: install ## the documentation as a site in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

test-runtimes: install ## the tests of the runtimes that are installed
	$(BIN)/pytest tests/integration/test_runtimes.py tests/integration/test_runtimes_apart.py

# Ray is an extra that nothing else needs; it goes into .venv when it is missing there.
ray: install
	$(BIN)/python -c "import ray" 2>/dev/null || $(PIP) -e '.[ray]'

test-cluster: ray ## the tests that need Ray: two nodes on loopback
	$(BIN)/pytest tests/integration/test_ray_nodes.py

cluster-demo: ray ## a study over two Ray nodes on loopback, within five minutes
	$(BIN)/python benchmarks/cluster_demo.py

bench: install ## cost of the tool, agreement with another timer, forked processes, stripped libraries
	$(BIN)/python benchmarks/cost.py
	$(BIN)/python benchmarks/run_cost.py
	$(BIN)/python benchmarks/agreement.py
	$(BIN)/python benchmarks/forked.py
	$(BIN)/python benchmarks/stripped.py

bench-first-answer: install ## how soon there is an answer, and the tool's own tax
	$(BIN)/python benchmarks/first_answer.py

bench-calibration: install ## how often compare is right
	$(BIN)/python benchmarks/calibration.py

bench-refund: install ## what `optimize` delivers over six models: 80 minutes on an idle machine
	$(BIN)/python benchmarks/refund.py
	$(BIN)/python benchmarks/refund.py --page

bench-peer: install ## the same grid with optimum-benchmark, in an environment of its own
	$(BIN)/python benchmarks/peer.py

bench-faults: install ## every named fault and fifty random ones at a sweep
	$(BIN)/python tests/e2e/fault_suite.py --seeds 50 \
	  --out benchmarks/results/sweep_faults.json --table docs/results/faults.md

fuzz: install ## 2,000 mutated inputs and 30 killed sessions, within 40 minutes
	$(BIN)/python tests/e2e/fuzz_suite.py --kills 30

bench-simulation: install ## 20,000 points over 200 simulated nodes
	$(BIN)/python benchmarks/sweep_simulation.py

bench-intervals: install ## whether 95 % intervals cover 95 %, on simulated hosts
	$(BIN)/python benchmarks/intervals.py

validate: install ## the errors of predictions on this machine, within twelve minutes
	$(BIN)/python benchmarks/validate.py

coverage: install ## which model runs in which runtime; resumable
	nice $(BIN)/python benchmarks/coverage.py

reproduce: install ## the paper's studies at the small scale, under 30 minutes on two cores; resumable
	$(BIN)/frameworktax reproduce all --scale small --store docs/results/paper-store \
	  --report docs/results/paper.md

ablate: install ## docs/results/ablation.md, 18 minutes
	$(BIN)/python benchmarks/ablation.py

architectures: install ## docs/results/architectures.md, 12 minutes
	$(BIN)/python benchmarks/architectures.py

operators: install ## docs/results/operators.md, 6 minutes
	$(BIN)/python benchmarks/operators.py

trend: install ## docs/results/trend.md, 1 minute: replays recorded traces
	$(BIN)/python benchmarks/trend.py

questions: trend operators architectures ablate ## these four

# The interpreter of the machine with the GPU, which may have its own torch: make gpu PYTHON=python3
MINUTES ?= 10
TARGET ?= 3.12
ARCHIVE ?= results/gpu.tar.gz
gpu: ## everything that needs a GPU, within MINUTES (10); PARTS=method,bert-base for some of it
	$(PYTHON) benchmarks/gpu_suite.py --minutes $(MINUTES) $(if $(PARTS),--parts $(PARTS))

gpu-wheels: ## what a machine without network lacks, for its Python (TARGET=3.12), into gpu-wheels/
	$(PYTHON) benchmarks/gpu_wheels.py --python $(TARGET)

gpu-results: install ## docs/results/gpu.md, stores and figures from the archive of make gpu
	$(BIN)/python benchmarks/gpu_results.py $(ARCHIVE)

# Each point is measured once: run it again to go on.
gpu-full: PARTS := full
gpu-full: gpu ## the paper's figures and table 3 at full scale on a GPU, resumable; MINUTES=60 or more

clean: ## remove the environment and everything built
	rm -rf $(VENV) demo site .pytest_cache .mypy_cache .ruff_cache .hypothesis
