# The front door. `make help` lists what there is.

JOBS ?= $(shell nproc)
BIN := build/release/bin/moesaic
CXX_FILES = $(shell git ls-files '*.h' '*.cpp' '*.cu' '*.cuh')

# Quiet unless it fails.
configure = cmake --preset $(1) >/dev/null || { cmake --preset $(1); exit 1; }

.DEFAULT_GOAL := build
.PHONY: help setup build build-cuda demo test test-isa test-gpu test-gpu-interpreted mutate bench bundle deb test-deb wheel test-wheel image format hooks check-format \
        lint test-debug test-asan test-tsan \
        fuzz install clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 16
	@echo 'test-PRESET     the tests in a debug, asan or tsan build'

setup:  ## install the packages that are missing
	@scripts/setup.sh

build: setup  ## the moesaic command: build/release/bin/moesaic
	@$(call configure,release)
	@cmake --build --preset release -j $(JOBS) --target moesaic

demo: build  ## a real model answers while three quarters of its experts are on disk
	@scripts/demo.sh $(BIN)

test: setup  ## build and run all tests
	@$(call configure,release)
	@cmake --build --preset release -j $(JOBS)
	@ctest --test-dir build/release --output-on-failure -j $$(($(JOBS) + 1))
	@grep -ahs '^SKIPPED: ' build/release/Testing/Temporary/LastTest.log | sort -u || true

test-isa: setup  ## the same tests with the kernels of ISA ("avx2 avx512"), where this CPU has them
	@$(call configure,release)
	@cmake --build --preset release -j $(JOBS)
	@scripts/test_isa.sh $(ISA)

mutate: setup  ## plant defects and count what the tests find (ROOMS="cache prefetch" for some; docs/testing.md)
	@nice scripts/mutate.py --jobs $(JOBS) $(ROOMS) $(MUTATE_FLAGS)

bench: setup  ## build and run the benches (tests/bench)
	@$(call configure,release)
	@cmake --build --preset release -j $(JOBS) --target benches
	@for bench in build/release/bench/*; do echo "== $$bench"; $$bench $(BENCH_FLAGS) || exit 1; done

format:  ## format all sources
	@scripts/setup.sh --ci
	@clang-format-14 -i $(CXX_FILES)

# Runs the tree's own script, so that it is never out of date.
hooks:  ## format and check what is committed (scripts/pre-commit)
	@hook=$$(git rev-parse --git-path hooks)/pre-commit; mkdir -p $$(dirname $$hook); \
	if [ -e $$hook ] && ! grep -q scripts/pre-commit $$hook; then \
	  echo "hooks: $$hook is there already and is left alone" >&2; exit 1; fi; \
	printf '#!/bin/sh\nhook=$$(git rev-parse --show-toplevel)/scripts/pre-commit\n[ ! -x "$$hook" ] || exec "$$hook"\n' >$$hook; \
	chmod +x $$hook

check-format:  ## fail when a source is not formatted
	@scripts/setup.sh --ci
	@clang-format-14 --dry-run --Werror $(CXX_FILES)

lint:  ## clang-tidy on all sources (LINT="a.cpp b.cpp" for some)
	@scripts/setup.sh --ci
	@scripts/lint.sh $(LINT)

build-cuda: setup  ## the same with CUDA: build/cuda/bin/moesaic, and what test-gpu runs (CUDA toolkit 13)
	@$(call configure,cuda)
	@cmake --build --preset cuda -j $(JOBS) --target moesaic gpu_tests gpu_benches

test-gpu: setup  ## build and run the tests that need a GPU
	@$(call configure,cuda)
	@cmake --build --preset cuda -j $(JOBS) --target gpu_tests
	@ctest --test-dir build/cuda --output-on-failure -L gpu
	@grep -ahs 'SKIPPED: ' build/cuda/Testing/Temporary/LastTest.log | sort -u || true

# Without a GPU too: the kernels' PTX is interpreted (docs/cuda.md). LABEL=interpreted for what CI runs.
LABEL ?= interpreted
test-gpu-interpreted: setup  ## the tests for a GPU, with 1, 2 and 3 emulated GPUs whose kernels are interpreted (minutes)
	@$(call configure,cuda)
	@cmake --build --preset cuda -j $(JOBS) --target interpreted_tests
	@ctest --test-dir build/cuda --output-on-failure -j $(JOBS) -L $(LABEL)
	@grep -ahs 'SKIPPED: ' build/cuda/Testing/Temporary/LastTest.log | sort -u || true

test-debug test-asan test-tsan: test-%:
	@scripts/setup.sh --ci
	@scripts/test_preset.sh $*

fuzz:  ## run every fuzz target for FUZZ_SECONDS (20)
	@scripts/setup.sh --ci
	@scripts/fuzz.sh $(or $(FUZZ_SECONDS),20)

install: build  ## install to PREFIX (/usr/local)
	@cmake --install build/release --prefix $(or $(PREFIX),/usr/local)

# With the GPU's tests where they can be compiled; BUNDLE=release leaves them out.
BUNDLE ?= $(if $(or $(shell command -v nvcc),$(wildcard /usr/local/cuda/bin/nvcc)),cuda,release)
bundle: setup  ## a directory that runs elsewhere: build/bundle/*.tar.xz (BUNDLE=release: without CUDA)
	@scripts/bundle.sh $(BUNDLE)

deb: setup  ## a Debian package: build/deb/*.deb (docs/packaging.md)
	@scripts/build_deb.sh

test-deb:  ## install and remove it in a root of its own (as root; DEB_ROOT=FILE: a tarball of mmdebstrap)
	@scripts/test_deb.sh $(DEB_ROOT)

wheel: setup  ## a Python wheel with the module and the command: build/wheel/*.whl (docs/packaging.md)
	@scripts/build_wheel.sh

test-wheel:  ## use it in a root that has only Python and numpy (as root; WHEEL_ROOT=FILE: a tarball of mmdebstrap)
	@scripts/test_wheel.sh $(WHEEL_ROOT)

image:  ## a container image of the package that `make deb` made (IMAGE_FLAGS go to buildah, podman or docker)
	@scripts/build_image.sh $(IMAGE_FLAGS)

clean:  ## remove all builds
	@rm -rf build
