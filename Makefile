# rocmlab: every target is one call of the command line. `make` alone explains them.
.DEFAULT_GOAL := help
SHELL := /bin/sh

PYTHON ?= python3
ROCMLAB = PYTHONPATH=src $(PYTHON) -m rocmlab
export NOTEBOOKS ?=
export PARAMS ?=
export RUN ?=
export BENCH ?=
export ENGINE ?=
export HEAD ?=
export FORCE ?=
export TO ?=
export FROM ?=
export ALL ?=
export RUNS ?=
export WHEN ?=
export RUN_FOLDER ?=
# These count only after the target: shells and compilers' environments have a HOST of their own.
typed = $(if $(findstring command,$(origin $(1))),$(value $(1)))
export ROCMLAB_URL_HOST := $(call typed,HOST)
export ROCMLAB_HUB_TEXT := $(call typed,TEXT)
export ROCMLAB_HUB_USER := $(call typed,HUB_USER)
# All that is given after the target arrives as it was typed: make would expand a `$`, and so run what is in $(shell …).
$(foreach name,$(.VARIABLES),$(if $(findstring command,$(origin $(name))),$(eval override $(name) := $$(value $(name)))$(eval export $(name))))
unexport TEXT HUB_USER
TESTS ?= tests

.PHONY: help up run run-notebooks nvitop url status logs shell down build upgrade rollback clean backup restore devices smi top leases kernels packages demo doctor monitoring monitoring-down cluster-up cluster-join cluster-status cluster-down hub-up hub-status hub-message hub-stop hub-drain hub-undrain hub-down bench test test-fast test-hermetic test-long test-rocm lint docs docs-serve lock sbom dist pin

help: ## Explain the targets
	@awk 'BEGIN {FS = ":.*## "; print "rocmlab: the Jupyter workstation for AMD GPUs\n"} \
	/^# --/ {printf "%s\n", substr($$0, 6)} \
	/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))
	@echo; echo 'Settings go behind the target and are remembered in .env, for example: make up PORT=9000 GPUS=0,2'
	@echo 'BACKEND RUNTIME GPUS PORT SHARE BASE_IMAGE and the others are explained in docs/settings.md'

# -- Everyday
up: ## Start the lab and print its URL (builds it the first time)
	@$(ROCMLAB) up
run-notebooks: ## Run notebooks headless (NOTEBOOKS="01_mnist_fc" PARAMS="learning_rate=0.01,0.001" RUN="--retries 2" ENGINE=ray)
	@$(ROCMLAB) run
url: ## Print the URL again, token included (HOST=name: also the ssh command for another computer)
	@$(ROCMLAB) url
status: ## Say what runs, on which devices
	@$(ROCMLAB) status
devices: ## List the devices of this host
	@$(ROCMLAB) devices
smi: ## Show what the GPUs do, and whose notebook is on them (scripts/rocmlab smi --watch)
	@$(ROCMLAB) smi
top: ## Watch the GPUs with nvitop, AMD's too
	@$(ROCMLAB) nvitop
leases: ## Say which kernel holds which GPU
	@$(ROCMLAB) leases
kernels: ## List what JupyterLab's launcher offers, and who has the GPUs
	@$(ROCMLAB) kernels
packages: ## List your own packages (scripts/rocmlab packages add NAME…, remove, sync)
	@$(ROCMLAB) packages list
demo: ## Show all of it on four SIMULATED GPUs, until Ctrl-C
	@$(ROCMLAB) demo
doctor: ## Say what is wrong and how to fix it
	@$(ROCMLAB) doctor
monitoring: ## Start Prometheus and Grafana next to the running lab
	@$(ROCMLAB) monitoring
monitoring-down: ## Stop them; what they recorded stays
	@$(ROCMLAB) monitoring down
logs: ## Print the server's log
	@$(ROCMLAB) logs
shell: ## Open a shell inside the lab
	@$(ROCMLAB) shell
down: ## Stop the lab; the share is kept
	@$(ROCMLAB) down

run: run-notebooks
nvitop: top

# -- Several machines
cluster-up: ## Make this machine the head of a Ray cluster; prints the line that others join with
	@$(ROCMLAB) cluster up
cluster-join: ## Join a cluster: HEAD=host:port CLUSTER_TOKEN=…, as the head printed it
	@$(ROCMLAB) cluster join
cluster-status: ## Show the nodes, their GPUs and versions, and what runs where
	@$(ROCMLAB) cluster status
cluster-down: ## Leave the cluster; on the head: end it (FORCE=1 even if notebooks run)
	@$(ROCMLAB) cluster down

# -- Several users
hub-up: ## Start JupyterHub, with a lab for each user (HUB_ADMINS=name HUB_USERS=name,name)
	@$(ROCMLAB) hub up
hub-status: ## Show whether it runs, all labs, GPUs and who waits, and what each user has taken
	@$(ROCMLAB) hub status
hub-message: ## Show all users a message (TEXT="back at noon"); without TEXT it is withdrawn
	@$(ROCMLAB) hub message
hub-stop: ## Stop the lab of a user, and its kernels (HUB_USER=name)
	@$(ROCMLAB) hub stop
hub-drain: ## Start no lab and lease no GPU; what runs continues (TEXT="new disk")
	@$(ROCMLAB) hub drain
hub-undrain: ## Start labs and lease GPUs again
	@$(ROCMLAB) hub undrain
hub-down: ## Stop it; the users' labs run on
	@$(ROCMLAB) hub down

# -- Now and then
build: ## Build the image (or make the environment) without starting
	@$(ROCMLAB) build
upgrade: ## Get, build and start a newer version; switch back automatically if it fails (WHEN=idle)
	@$(ROCMLAB) upgrade
rollback: ## Go back to the version before
	@$(ROCMLAB) rollback
clean: ## Stop, and remove the image or the environment; the share is kept (RUNS=30d removes old runs instead)
	@$(ROCMLAB) clean
backup: ## Save share, notebooks and settings (TO=/folder; ALL=1 with caches and data sets)
	@$(ROCMLAB) backup
restore: ## Restore a backup; nothing is overwritten (FROM=/folder)
	@$(ROCMLAB) restore
bench: ## Measure training, and the notebooks on GPU and CPU (BENCH="train --quick", BENCH=up)
	@$(ROCMLAB) bench

# -- For those who work on rocmlab
test: .venv-test/ready ## Run all tests; says why any is skipped (TESTS=tests/stack for some)
	@scripts/test .venv-test/bin/python $(TESTS)
test-fast: .venv-test/ready ## Run those that start no kernel, server or lab (a minute)
	@scripts/test --fast .venv-test/bin/python $(TESTS)
test-hermetic: .venv-test/ready ## Run those that need no container, browser, Ray or framework (5 to 10 minutes)
	@scripts/test --hermetic .venv-test/bin/python $(TESTS)
test-long: .venv-test/ready ## Run variants, and what tests by chance at its full number, before a release
	@scripts/test --long .venv-test/bin/python $(TESTS)
	@CHAOS_KILLS=240 BROKEN_TREES=10000 LEASE_KILLS=200 LEASE_STEPS=50000 RUN_FOLDERS=50 PYTEST_TIMEOUT=0 PYTHONPATH=src \
	  .venv-test/bin/python -m pytest -p no:random_order -rP -m "not frameworks" \
	  tests/runs/test_runner_chaos.py tests/devices/test_broken_trees.py tests/kernels/test_host_leases.py \
	  tests/runs/test_runner_leases.py tests/runs/test_runner_untrusted.py
	@RANDOM_MASKS=20000 PYTEST_TIMEOUT=0 scripts/test .venv-test/bin/python tests/oracle/test_oracle_masks.py
	@MNIST_EPOCHS=10 LONG_PART=all scripts/test .venv-test/bin/python tests/native/test_native_lab.py tests/native/test_native_notebooks.py
test-rocm: .venv-test/ready ## Build on AMD's real TensorFlow (3 GB) and run it on SIMULATED GPUs (root, Docker)
	@PYTHONPATH=src .venv-test/bin/python -m pytest -p no:random_order -v --durations 10 -m rocm tests/container/test_rocm_tensorflow.py
lint: .venv-test/ready ## Check style, types, words and workflows
	@.venv-test/bin/ruff check . && .venv-test/bin/ruff format --check . && .venv-test/bin/mypy && scripts/check-words && scripts/check-workflows
	@.venv-test/bin/shellcheck --severity warning $$(git grep -lE '^#!/(usr/bin/env |bin/)(ba)?sh$$' -- ':!*.py' ':!*.md')
docs: .venv-docs/ready ## Build the documentation in site/ (RUN_FOLDER=share/runs/… with executed notebooks)
	@NO_MKDOCS_2_WARNING=1 .venv-docs/bin/python -m mkdocs build --strict && echo "open site/index.html, or make docs-serve, which has the search"
docs-serve: .venv-docs/ready ## Show it at http://127.0.0.1:8000 while you write
	@NO_MKDOCS_2_WARNING=1 .venv-docs/bin/python -m mkdocs serve --strict
lock: ## Renew the locked requirements (needs uv)
	@scripts/lock --upgrade
sbom: .venv-sbom/ready ## Write what is in the lab's image: CycloneDX and SPDX
	@scripts/sbom
dist: .venv-test/ready ## Build wheel and source distribution in dist/
	@.venv-test/bin/python -m hatchling build --directory dist
pin: ## Renew the digests of the base images (needs Docker's client)
	@scripts/pin

# With --clear: an interrupted installation leaves packages that look installed. A link leads to another clone's.
.venv-test/ready: requirements/test.txt
.venv-docs/ready: requirements/docs.txt
.venv-sbom/ready: requirements/sbom.txt
.venv-test/ready .venv-docs/ready .venv-sbom/ready:
	@echo "making $(@D) (once)"
	@[ -L $(@D) ] || $(PYTHON) -m venv --clear $(@D)
	@{ $(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes \
	  -r requirements/uv.txt || true; ROCMLAB_UV=$(@D) $(@D)/bin/python docker/build/install.py --quiet \
	  --disable-pip-version-check --no-compile --no-deps --require-hashes -r $<; } \
	  >$(@D)/install.log 2>&1 || { tail -n 20 $(@D)/install.log; exit 2; }
	@[ $(@D) != .venv-test ] || echo 'import gc; gc.set_threshold(20_000, 20, 20)' \
	  >"$$(echo $(@D)/lib/python3*/site-packages)/late_gc.pth" # thousands of processes start, and most of them soon end
	@touch $@
