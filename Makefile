# `make quickstart` runs the whole pipeline, `make test` tests it, `make bench` measures it.
# Everything is installed into $(VENV) from python3 and cargo; nothing else is touched.

PYTHON ?= python3
VENV   ?= .venv
WORKERS ?= 2
TESTS  ?= tests
BENCH  ?= target/bench

BIN := $(VENV)/bin
RUST_SOURCES := Cargo.toml Cargo.lock $(shell find rust -name '*.rs' -o -name Cargo.toml)

.PHONY: quickstart install test test-rust test-python test-slow bench lint docs format clean
.DELETE_ON_ERROR:

quickstart: $(VENV)/.built
	$(BIN)/marin quickstart

install: $(VENV)/.built
	@echo "installed; to have \`marin\` on the path: source $(VENV)/bin/activate"

test: test-rust test-python

test-rust:
	@command -v cargo >/dev/null || { echo "marin: cargo is missing; install Rust 1.88 or newer (package rustup)" >&2; exit 2; }
	cargo test --release --locked --workspace

# A file's tests stay together, so that what they share is made once and not in every worker; files
# begin in the order of tests/conftest.py, the longest first.
test-python: $(VENV)/.built
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder -m 'not slow' $(TESTS)

# The cases that would make `make test` too long.
test-slow: $(VENV)/.built
	$(BIN)/python -m pytest --numprocesses $(WORKERS) -m slow $(TESTS)

# What this machine does, without other libraries, into $(BENCH); `marin bench compare` holds it
# against benches/results. The whole data side and training have scripts of their own in benches/.
bench: $(VENV)/.built
	mkdir -p $(BENCH)
	$(BIN)/marin bench dedup --make-corpus --packages 4 --versions 3 --cache $(BENCH)/corpus --save $(BENCH)/dedup.json
	for part in mixture pack stream dispatch balance; do \
		$(BIN)/marin bench $$part --save $(BENCH)/$$part.json || exit; \
	done

lint: $(VENV)/.built
	cargo fmt --all --check
	cargo clippy --release --locked --workspace --all-targets -- --deny warnings
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The site; open target/site/index.html. A warning is an error.
docs: $(VENV)/.built
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir target/site

format: $(VENV)/.built
	cargo fmt --all
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) target python/marin/_native.abi3.so

# The environment: dependencies when pyproject.toml changes, the Rust module when its sources do.
$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "marin: $(PYTHON) is missing or older than 3.11; install Python 3.11+ or set PYTHON=/path/to/python3" >&2; exit 2; }
	@command -v cargo >/dev/null || { echo "marin: cargo is missing; install Rust 1.88 or newer (package rustup)" >&2; exit 2; }
	@command -v cc >/dev/null || { echo "marin: cc is missing; install a C linker (package gcc)" >&2; exit 2; }
	@$(PYTHON) -m venv $(VENV) || { echo "marin: $(PYTHON) cannot make a virtual environment; install its venv module (package python3-venv)" >&2; exit 2; }
	$(BIN)/python -m pip install --quiet --upgrade pip 'maturin>=1.9,<2'
	@touch $@

$(VENV)/.built: $(VENV)/.python pyproject.toml $(RUST_SOURCES)
	VIRTUAL_ENV=$(abspath $(VENV)) $(BIN)/maturin develop --release --locked --extras dev,docs
	@touch $@
