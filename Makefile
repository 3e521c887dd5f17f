# The two commands of the README are `make run` and `make test`; both set up what they need.
PYTHON ?= python3
BIN := .venv/bin
comma := ,
# Two at once, a file each: what a file sets up is set up once. Not three: the host-memory test needs the room.
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadscope

.PHONY: help run test unit check format clean
help: ## list the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed: make PYTHON=python3.x")'
	$(PYTHON) -m venv .venv

.venv/installed: pyproject.toml constraints.txt $(BIN)/python
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

.venv/installed-dev: .venv/installed
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

run: .venv/installed ## train sweeps/quickstart.yaml into results.db and write its report
	$(BIN)/xsa run sweeps/quickstart.yaml
	$(BIN)/xsa report quickstart

test: .venv/installed-dev browser postgres latex namespaces ## lint, types, and every test
	$(MAKE) --no-print-directory check
	$(PYTEST)

unit: .venv/installed-dev ## the fast tests alone
	$(PYTEST) -m "not ray and not postgres and not browser and not slow"

check: .venv/installed-dev ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/installed-dev ## let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# $(1): a test whether it is there; $(2): its Debian packages; $(3): what to say where this user may not install them.
define have
@$(1) || \
if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(2) >/dev/null; \
else echo "$(3) (or fail where CI is set)."; fi
endef

.PHONY: browser postgres latex namespaces
browser: # Chromium for the browser tests, where this user may install it
	$(call have,command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null,chromium fonts-dejavu-core,Chromium is not installed; the browser tests will skip)

postgres: # PostgreSQL for the store's tests, where this user may install it
	$(call have,command -v initdb >/dev/null || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1,postgresql,PostgreSQL is not installed; its tests will skip)

latex: # LaTeX for the tables' test, where this user may install it (150 MB)
	$(call have,command -v pdflatex >/dev/null,texlive-latex-base texlive-latex-recommended,LaTeX is not installed; its test will skip)

namespaces: # the tools that make machines of network namespaces, where this user may install them
	$(call have,command -v ip >/dev/null && command -v unshare >/dev/null && command -v nsenter >/dev/null,iproute2 util-linux,ip$(comma) unshare or nsenter is not installed; the tests on several machines will skip)

clean: ## remove the environment and caches, never results
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis
