# Names for scripts/, which CI runs too. `make` alone lists them.
#   make test TORCH_INDEX=URL     takes torch from another package index
#   make soak REPEAT=3            three passes
#   make test WITH=tensorflow     with TensorFlow beside torch, from now on (scripts/setup --without tensorflow: back)

TORCH_INDEX ?=
REPEAT ?= 1
WITH ?=
export TORCH_INDEX REPEAT WITH
# Set-up, a direct child of make, ends when make is killed.
export HVD_DIE_WITH_PARENT = 1

.DEFAULT_GOAL := help
.PHONY: help setup demo test soak matrix matrix-tensorflow matrix-training lint check bench clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /make \1\t/p' Makefile | expand -t 24

setup: ## make or update .venv, Horovod included
	@scripts/setup

demo: setup ## train a real model on real data while hosts come, crash and return
	@scripts/demo

test: setup ## set up, then run the tests
	@scripts/test

soak: setup ## set up, then the slow tests: real time, repeats, random kills (REPEAT=N)
	@scripts/soak

matrix: ## tests of API server clients, with each version of the client on each installed Python; matrix-tensorflow
	@scripts/matrix
	@scripts/matrix-tensorflow

matrix-tensorflow: ## build for the earlier TensorFlow, and run its tests
	@scripts/matrix-tensorflow

matrix-training: ## install and train on each installed Python, as a user does
	@scripts/matrix-training

lint: setup ## set up, then ruff
	@scripts/lint

check: setup ## set up, then ruff, mypy, import-linter, shellcheck, hadolint
	@scripts/check

bench: setup ## set up, then measure beside stock Horovod
	@scripts/bench

clean: ## remove what was made in the tree (not the cache of wheels)
	@scripts/clean
