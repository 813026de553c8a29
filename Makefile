# Two commands are all a newcomer needs: `make demo` and `make test`. Both set up what they use.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test test-fast real vllm litellm contact render programs lint types docs site house cover dashboards \
	bench bench-load bench-accuracy bench-compare bench-streams bench-collector bench-boards bench-triage bench-demo crash extras matrix soak \
	properties fuzz clean

demo: $(VENV)/.ready            ## the main job on an embedded engine: no GPU, key or server
	$(BIN)/llmtrace demo

test: $(VENV)/.ready            ## everything, the real-vLLM tests included; half an hour on two cores
	$(MAKE) --jobs=2 --output-sync=line --no-print-directory vllm litellm contact render programs
	$(BIN)/python scripts/run_tests.py

test-fast: $(VENV)/.ready       ## the same without the real parts
	$(BIN)/python -m pytest -m "not real"

real: $(VENV)/.ready vllm litellm render programs ## only what needs a real vLLM and real network delays
	LLMTRACE_REAL=1 $(BIN)/python -m pytest tests/real

vllm: $(VENV)/.ready            ## a real vLLM for the CPU, in a virtual environment of its own
	$(BIN)/python scripts/install_vllm.py

litellm: $(VENV)/.ready         ## a real LiteLLM proxy, in a virtual environment of its own
	$(BIN)/python scripts/install_litellm.py

contact: $(VENV)/.ready         ## the SDKs, frameworks and instrumentations of others, for tests/contact
	$(BIN)/python scripts/install_contact.py

render: $(VENV)/.ready programs ## Grafana's own packages, to draw dashboards with
	$(BIN)/python scripts/install_render.py

programs:                       ## prometheus, nginx, chromium, ...: the real programs of the tests
	sh scripts/install_debian.sh

lint: $(VENV)/.ready            ## ruff: rules and formatting
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: $(VENV)/.ready           ## mypy, strict
	$(BIN)/mypy

docs: $(VENV)/.ready            ## regenerate what is generated in docs/, and check its links
	$(BIN)/python scripts/docs.py

site: $(VENV)/.ready            ## the documentation as a site in docs/_build, warnings being errors
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group docs
	$(BIN)/python -m sphinx -q -W --keep-going docs docs/_build

house: $(VENV)/.ready           ## the figures of the layout and the language, beside their bounds
	$(BIN)/python scripts/house.py

cover: $(VENV)/.ready           ## coverage of what only computes by its own tests, with a floor; two minutes
	rm -f .coverage*
	$(BIN)/python -m coverage run --source=llmtrace.core,llmtrace.budget,llmtrace.semconv,llmtrace.stats,llmtrace.kv_cache,llmtrace.engines,llmtrace.dataset \
		-m pytest tests/core tests/budget tests/semconv tests/stats tests/agents tests/kv_cache tests/engines tests/dataset
	$(BIN)/python -m coverage combine -q
	$(BIN)/python -m coverage report

bench: $(VENV)/.ready           ## what llmtrace costs, and five others do; half an hour
	$(BIN)/python tests/bench/client_cost.py
	$(BIN)/python -m tests.bench.peers

bench-load: $(VENV)/.ready vllm  ## the load test beside vllm bench serve and GuideLLM; a quarter of an hour
	$(BIN)/python scripts/install_load_tools.py
	$(BIN)/python -m tests.bench.side_by_side

bench-accuracy: $(VENV)/.ready  ## every figure of the load test beside its truth; three minutes
	$(BIN)/python -m tests.bench.load_accuracy

bench-compare: $(VENV)/.ready   ## is chance called a difference, and a tenth found? a few minutes
	$(BIN)/python -m tests.bench.bench_compare

bench-streams: $(VENV)/.ready   ## ten thousand open streams, bare and traced
	$(BIN)/python -m tests.bench.many_streams

dashboards: $(VENV)/.ready      ## make the dashboards' JSON and the rules anew
	$(BIN)/python scripts/dashboards.py
	$(BIN)/llmtrace slo rules --out dashboards/rules
	$(BIN)/llmtrace slo rules --format prometheusrule --out dashboards/rules
	$(BIN)/llmtrace slo engines --out dashboards/rules

bench-collector: $(VENV)/.ready ## pages read, spans received and stored, rows queried; memory under overload
	$(BIN)/python -m tests.bench.bench_pages
	$(BIN)/python -m tests.bench.bench_receive
	$(BIN)/python -m tests.bench.bench_store
	$(BIN)/python -m tests.bench.bench_join
	$(BIN)/python -m tests.bench.few_requests
	$(BIN)/python -m tests.bench.connections
	$(BIN)/python -m tests.bench.serve_cost
	$(BIN)/python -m tests.bench.request_pages
	$(BIN)/python -m tests.bench.scrape_hour

bench-demo: $(VENV)/.ready      ## does the demo name its fault? all faults, twice; 40 minutes
	$(BIN)/python -m tests.bench.bench_demo --runs 2

bench-boards: $(VENV)/.ready    ## what each panel's query costs at 500 label sets and six hours
	$(BIN)/python -m tests.bench.bench_boards

bench-triage: $(VENV)/.ready    ## is the cause found? some 2,200 simulated incidents; and how fast
	$(BIN)/python -m tests.bench.bench_triage --seeds 20 --jobs 2
	$(BIN)/python -m tests.bench.bench_worlds --jobs 2 --store
	$(BIN)/python -m tests.bench.bench_other --jobs 2
	$(BIN)/python -m tests.bench.bench_search
	$(BIN)/python -m tests.bench.bench_halves
	$(BIN)/python -m tests.bench.bench_intervals
	$(BIN)/python -m tests.bench.bench_recordings --store
	$(BIN)/python -m tests.bench.bench_recordings --searched
	$(BIN)/python -m tests.bench.bench_analysis

crash: $(VENV)/.ready           ## kill -9 the collector a hundred times: is an acknowledged row lost?
	$(BIN)/python -m tests.bench.crash --rounds 100

soak: $(VENV)/.ready            ## restarts, clock steps, repeats and a full disk: is a row lost or doubled?
	$(BIN)/python -m tests.bench.soak

properties: $(VENV)/.ready      ## every property with a thousand examples; `make test` looks at 40
	$(BIN)/python -m pytest tests -m "hypothesis and not real" --hypothesis-profile=properties

fuzz: $(VENV)/.ready            ## the parsers, for as long as it takes
	$(BIN)/python -m pytest tests/fuzz tests/browser/test_beacon.py --hypothesis-profile=fuzz

extras: $(VENV)/.ready          ## each extra alone in a clean environment, and its commands
	$(BIN)/python scripts/extras.py

matrix: $(VENV)/.ready          ## the wrappers against old and new SDK versions
	$(BIN)/python tests/instrumentation/matrix.py

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage*

$(VENV)/.ready: pyproject.toml scripts/set_up.sh
	sh scripts/set_up.sh $(PYTHON) $(VENV)
