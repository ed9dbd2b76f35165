# What a person types. Each target says what it does; `make` alone lists them.
# The interpreter of .venv; none: scripts/setup.sh chooses.
PYTHON ?=
PORT ?= 8000
VAR ?= $(CURDIR)/var
ONCE ?=
# Arguments for pytest, such as TESTS="tests/plan -k fit".
TESTS ?=
# Test processes: one a core. Two a core starve the tests that start whole stacks.
JOBS ?= $(shell nproc 2>/dev/null || echo 2)

bin := .venv/bin
manage := $(bin)/python manage.py
# The pretend world: how many times faster than true (72), and how many shards its model has (39).
FACTOR ?=
SHARDS ?=
world := $(if $(FACTOR),--factor $(FACTOR)) $(if $(SHARDS),--shards $(SHARDS))
once := $(if $(filter-out 0 no false,$(ONCE)),--once)
# Schedules that `make chaos` plays, and the seed that makes them (a new one each time unless given).
N ?= 40
SEED ?=
# Where the real nodes are built and kept.
INSTALL ?=
nodes := $(or $(SPARKWEB_CACHE),$(VAR))/nodes

# Python keeps what it compiled: without it each command of ours costs twice the processor time.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-real up test check lock screenshots lab-test lab-full lab-build lab-needs bench chaos clean runtime engine test-systems test-postgres test-long wheelhouse

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read -r name text; do printf '  make %-14s %s\n' "$$name" "$$text"; done

setup: ## make .venv with everything for tests and checks, by hash
	@PYTHON="$(PYTHON)" sh scripts/setup.sh requirements-dev.lock

runtime:
	@PYTHON="$(PYTHON)" sh scripts/setup.sh requirements.lock

# The settings read these two; tests and checks must not see a person's own.
demo demo-real up engine: export PORT := $(PORT)
demo demo-real up engine: export VAR := $(VAR)

demo: runtime ## the whole story on two pretend Sparks, then the dashboard (PORT, VAR, FACTOR; ONCE=1 ends after the story)
	@exec $(manage) demo $(once) $(world)

engine: runtime
	@$(bin)/python scripts/real_engine.py

demo-real: engine ## a real vLLM on CPU over a real OpenSSH server, through the product
	@exec $(manage) demo --real $(once)

up: runtime ## the product without pretend Sparks (PORT, VAR); the first page makes the administrator
	@exec $(manage) up

test: setup ## every test but the long ones; what can't run on this machine is skipped and named at the end
	@sh scripts/missing.sh
	@$(bin)/python -m pytest -n $(JOBS) --dist worksteal $(TESTS)

test-long: setup ## the tests that make test leaves out for their length: whole demos, each network program (minutes)
	@SPARKWEB_LONG=1 $(bin)/python -m pytest -n 0 -m long $(TESTS)

check: setup ## style, types, import contracts, spelling, templates, migrations, deployment settings
	@sh scripts/check.sh

lock: ## write the lock files anew (UPGRADE=1 takes newer versions)
	@sh scripts/lock.sh

screenshots: setup ## every page, desktop and phone, light and dark, into var/screenshots/
	@$(bin)/python -m pytest -n 0 tests/browser -m browser -k screenshots

test-systems: setup ## every system of the shipped recipes by a person in a browser, and how a load may be ended, on pretend machines (minutes)
	@SPARKWEB_SYSTEMS=1 $(bin)/python -m pytest -n 0 -s tests/browser/test_systems.py tests/story/test_ends.py $(TESTS)

test-postgres: setup ## the tests that use the database, on a PostgreSQL of their own (Debian's, started and ended here)
	@JOBS=$(JOBS) sh scripts/postgres.sh $(TESTS)

wheelhouse: setup ## fetch the wheels that the image is built from (deploy/wheelhouse, by hash)
	@sh deploy/wheelhouse.sh

lab-test: lab-needs ## two real nodes: systemd, sshd, Docker, Ray, vLLM (root; docs/real-nodes.md)
	@SPARKWEB_REAL="$(nodes)" $(bin)/python -m pytest -n 0 -m real --durations=0 --durations-min=5 tests/real $(TESTS)

lab-full: lab-needs ## the same with what takes longer
	@SPARKWEB_REAL="$(nodes)" SPARKWEB_REAL_FULL=1 $(bin)/python -m pytest -n 0 -m real --durations=0 --durations-min=5 tests/real $(TESTS)

lab-build: setup ## what the real nodes are made of (engine, file systems), made before they are needed
	@$(bin)/python scripts/real_nodes.py --folder "$(nodes)" build

# Says what this machine lacks and fails; INSTALL=1 gets it with apt-get first.
lab-needs: setup
	@[ -z "$(INSTALL)" ] || $(bin)/python scripts/real_nodes.py install
	@$(bin)/python scripts/real_nodes.py --folder "$(nodes)" missing
	@$(bin)/python scripts/real_engine.py --folder "$(dir $(nodes))real"

chaos: setup ## random schedules of kills, cuts, reboots and cancels on the whole stack; the last line is JSON (N, SEED)
	@$(bin)/python -m tests.chaos -n $(N) $(if $(SEED),--seed $(SEED))

bench: setup ## the measurements in bench/
	@$(bin)/python -m bench

clean: ## remove .venv, state and caches (also an engine that was installed into var/)
	rm -rf .venv var .mypy_cache .ruff_cache .import_linter_cache .hypothesis staticfiles
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
