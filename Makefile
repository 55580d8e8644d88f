# Everything that a developer, a user or CI runs. `make help` explains the targets.

SHELL := /bin/bash
BIN   := $(CURDIR)/.bin
export GOFLAGS := -buildvcs=false
# The nested modules need a newer Go than the importer does; the tools are pinned here and nowhere else.
SQLC        := github.com/sqlc-dev/sqlc/cmd/sqlc@v1.31.1
GOOSE       := github.com/pressly/goose/v3/cmd/goose@v3.29.0
GOOSE_TAGS  := no_clickhouse no_libsql no_mssql no_mysql no_sqlite3 no_vertica no_ydb
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOTESTSUM   := gotest.tools/gotestsum@v1.13.0

.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'

$(BIN)/sqlc: Makefile
	GOBIN=$(BIN) CGO_ENABLED=0 go install $(SQLC)
	@touch $@
$(BIN)/goose: Makefile
	GOBIN=$(BIN) go install -tags='$(GOOSE_TAGS)' $(GOOSE)
	@touch $@
$(BIN)/staticcheck: Makefile
	GOBIN=$(BIN) go install $(STATICCHECK)
	@touch $@
$(BIN)/gotestsum: Makefile
	GOBIN=$(BIN) go install $(GOTESTSUM)
	@touch $@

.PHONY: tools
tools: $(BIN)/sqlc $(BIN)/goose $(BIN)/staticcheck $(BIN)/gotestsum ## install the pinned tools into .bin

.PHONY: generate
generate: $(BIN)/sqlc ## make db/ from sql/schema and sql/queries
	rm -rf db && $(BIN)/sqlc generate

.PHONY: migration
migration: ## write the next migration from the functions that changed: make migration NAME=add_leases (AMEND=1: rewrite the newest)
	cd tests && go run ./cmd/migration $(if $(AMEND),-amend,-name '$(NAME)')

.PHONY: demo
demo: $(BIN)/goose ## show the locks at work, on DATABASE_URL or a server of its own (KEEP=1: leave that up)
	@cd tests && go run ./cmd/demo $(if $(KEEP),-keep)
