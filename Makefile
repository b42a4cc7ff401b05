# Needs Go and make; `make race` a C compiler too, `make e2e` what .ci/install
# names. Everything else comes through the Go module proxy.

GO       ?= go
BIN      := bin
DIST     ?= dist

# These sources' own repository: an unpacked archive may be in a folder of another.
GIT      := GIT_CEILING_DIRECTORIES='$(abspath $(CURDIR)/..)' git
VERSION  ?= $(shell $(GIT) describe --tags --always --dirty 2>/dev/null || echo devel)
COMMIT   ?= $(shell $(GIT) rev-parse HEAD 2>/dev/null || echo unknown)
EPOCH    ?= $(shell $(GIT) log -1 --format=%ct 2>/dev/null || echo 1)
FUZZTIME ?= 5s
IMAGE    ?= konnectivity:$(VERSION)

PKG     := konnectivity/internal/version

# gRPC's request traces link html/template, which calls methods by name: the
# linker then keeps every method there is, a quarter of server and agent.
TAGS := grpcnotrace

LDFLAGS := -s -w -X $(PKG).version=$(VERSION) -X $(PKG).commit=$(COMMIT)

# Every target compiles as build does, tests and linters too: half the time of a
# cold start is compiling, and so it is done once. (CGO_ENABLED alone changes
# net and all that imports it.) Only the race detector is apart: it needs cgo.
# Vetting, which reads every dependency again, is lint's alone.
export CGO_ENABLED := 0
export GOFLAGS := $(shell $(GO) env GOFLAGS) -trimpath -tags=$(TAGS) -vet=off

# With less garbage collection, the compiler, the linker and the analysers take a fifth to a
# third less processor time, and half as much memory again. Tests run as they do elsewhere: only
# their compiler has the variable. (With -exec, which could unset it, no result is cached.)
LESS_GC := GOGC=400
COMPILE  = $(LESS_GC) $(GO)
QUICKLY := -toolexec 'env $(LESS_GC)'

# Tests wait more than they compute: twice as many packages at once as there are
# processors, and many of the tests that say so, keep these busy.
TESTS := -p $(shell echo $$((2 * $$(getconf _NPROCESSORS_ONLN)))) -parallel 16

# Everything but the black-box tests, which need programs of the system.
UNITS = $(shell $(GO) list ./... | grep -v '^konnectivity/e2e')

# Fences read the sources and run nothing of them: the race detector would find nothing there.
RACY = $(filter-out konnectivity/internal/fences,$(UNITS))

# Modules of their own that have code. All are vetted; staticcheck would take a
# minute of processor time for what release imports.
NESTED := manifests/check e2e/kube e2e/apiserver release release/man

# Where Kubernetes' programs and etcd are built for e2e-apiserver and e2e-cluster, and the module
# that pins them. KUBERNETES=1.36 is for those of the minor before.
KUBE     := .cache/kube$(KUBERNETES)
PROGRAMS := e2e/apiserver/programs$(if $(KUBERNETES),/$(KUBERNETES))

# What the programs are built for.
SYSTEMS := linux/amd64 linux/arm64 linux/arm linux/s390x linux/ppc64le linux/riscv64 darwin/amd64 darwin/arm64 windows/amd64 windows/arm64

# What runs arm64's and arm's programs on a machine of another kind.
QEMU     ?= $(if $(filter aarch64 arm64,$(shell uname -m)),,qemu-aarch64-static)
QEMU_ARM ?= $(if $(filter armv7l,$(shell uname -m)),,qemu-arm-static)

# The version is pinned so that a new check fails a change, not a rerun. Installed, for each
# version of Go that it must know: go run would ask the module proxy each time.
STATICCHECK_VERSION := v0.8.2
STATICCHECK          = $(CURDIR)/.cache/staticcheck-$(STATICCHECK_VERSION)-$(shell $(GO) env GOVERSION)/staticcheck

# What make bench runs. Benchmarks over a wire of 50 ms take their time and are
# left out unless BENCHSKIP= is given.
BENCH     ?= .
BENCHSKIP ?= /wire=50ms|//wire=50ms
BENCHTIME ?= 0.3s
COUNT     ?= 6
BENCHOUT  ?= $(BIN)/bench.txt
BASELINE  ?= docs/bench/baseline.txt

BENCHSTAT := golang.org/x/perf/cmd/benchstat@v0.0.0-20260908200009-22c9c6c9d4da

RELEASE = $(GO) run -C release . -root='$(CURDIR)' -version='$(VERSION)' -commit='$(COMMIT)' -time='$(EPOCH)' \
	-tags='$(TAGS)' -ldflags='$(LDFLAGS)' -systems='$(SYSTEMS)' $(if $(KEY),-key='$(abspath $(KEY))') $(if $(DOWNLOADS),-downloads='$(DOWNLOADS)') $(if $(FIPS),-fips='$(FIPS)') $(if $(VULNDB),-vulndb='$(if $(findstring ://,$(VULNDB)),$(VULNDB),$(abspath $(VULNDB)))')

.DEFAULT_GOAL := help

.PHONY: help
help: ## Show this list. Times are on two cores, once all has been compiled; where none is given, less than a minute
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build static binaries of all programs into bin/
	$(GO) build -ldflags '$(LDFLAGS)' -o $(BIN)/ ./cmd/...

# What black-box tests start, linked once for all of them: the go command links again only
# what has changed.
.PHONY: programs
programs:
	$(COMPILE) build -ldflags '-s -w' -o $(BIN)/programs/ ./cmd/...

test alerts chart e2e hostile e2e-page e2e-kube e2e-apiserver e2e-cluster e2e-install: \
	export KONNECTIVITY_PROGRAMS := $(CURDIR)/$(BIN)/programs

# The go command keeps results, and does not see that files outside a module have changed, such
# as the manifests and the programs: -count=1 keeps none.
.PHONY: test
test: programs ## Run all tests that need nothing but Go (2 min)
	$(GO) test $(QUICKLY) $(TESTS) -timeout 10m $(UNITS)
	$(GO) test -C manifests/check $(QUICKLY) -count=1 -timeout 5m ./...

# Short: what is simulated on one goroutine has no races, and a hundred rounds of
# the same show what a thousand would.
.PHONY: race
race: ## Run the unit tests with the race detector; needs a C compiler (3 min)
	CGO_ENABLED=1 $(GO) test $(QUICKLY) $(TESTS) -race -short -timeout 10m $(RACY)

.PHONY: e2e
e2e: programs ## Run the black-box tests: real programs, real clients (5 min); .ci/install installs what these need
	$(GO) test $(QUICKLY) -parallel 8 -count=1 -timeout 18m $(filter-out %/e2e/page %/e2e/hostile,$(shell $(GO) list ./e2e/...))
	$(GO) test $(QUICKLY) -count=1 -timeout 5m ./e2e/hostile

.PHONY: hostile
hostile: programs ## Attack the built programs, a minute for each attack, and print what it costs them: make hostile ARGS='-for=10s -run=Silence'
	$(GO) test -count=1 -timeout 1h -v ./e2e/hostile -for=60s $(ARGS)

.PHONY: e2e-page
e2e-page: programs ## Look at the status page in Chromium (2 min): make e2e-page ARGS=-pictures=/tmp
	$(GO) test $(QUICKLY) -count=1 -timeout 10m -v ./e2e/page $(ARGS)

.PHONY: e2e-kube
e2e-kube: programs ## Run kube-apiserver's own egress selector against the programs (1 min)
	$(GO) test -C e2e/kube $(QUICKLY) -count=1 -timeout 10m ./...

.PHONY: e2e-apiserver
e2e-apiserver: kube programs ## Run a real kube-apiserver and etcd through the programs; the first time compiles both (10 min): make e2e-apiserver KUBERNETES=1.36
	$(GO) test -C e2e/apiserver -count=1 -timeout 20m $(ARGS) . -programs='$(CURDIR)/$(KUBE)'

.PHONY: e2e-cluster
e2e-cluster: kube $(KUBE)/node programs ## Install a release in two real clusters by the README, and take the time; as root on Debian; compiles Kubernetes first (some minutes)
	$(MAKE) release UNCOMMITTED=yes VERSION=v1.0.0 DIST=$(BIN)/cluster SYSTEMS='$(shell $(GO) env GOOS)/$(shell $(GO) env GOARCH)'
	$(GO) test -C e2e/apiserver -count=1 -timeout 30m -v $(ARGS) ./cluster -programs='$(CURDIR)/$(KUBE)' -dist='$(CURDIR)/$(BIN)/cluster'

.PHONY: e2e-install
e2e-install: kube programs ## Install by Helm and by kustomize in a real kube-apiserver, by the README's commands (1 min; the first time, 10 to compile)
	$(GO) test -C e2e/apiserver $(QUICKLY) -count=1 -timeout 15m -run '^TestInstall$$' $(ARGS) . -programs='$(CURDIR)/$(KUBE)'

.PHONY: kube
kube: $(KUBE)/built $(KUBE)/helm ## Compile kube-apiserver, etcd and Helm, for e2e-apiserver, e2e-cluster and e2e-install (10 min)

.PHONY: conformance
conformance: $(KUBE)/conformance ## Run Kubernetes' own tests of what goes through the tunnel, in the clusters of e2e-cluster; as root (30 min)
	$(MAKE) e2e-cluster ARGS='-run=TestConformance -timeout=90m'

# That every package is there which they are compiled from.
.PHONY: kube-sources
kube-sources: ## Download what make kube compiles; takes as long as the network does
	$(GO) list -C $(PROGRAMS) -deps tool >/dev/null

$(KUBE)/built: $(PROGRAMS)/go.mod
	mkdir -p $(@D)
	version=$$($(GO) list -C $(<D) -m -f '{{.Version}}' k8s.io/kubernetes) && \
	$(COMPILE) build -C $(<D) -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$$version" \
		-o '$(CURDIR)/$(@D)/' $(addprefix k8s.io/kubernetes/cmd/,kube-apiserver kubectl kubeadm)
	$(COMPILE) build -C $(<D) -ldflags '-s -w' -o '$(CURDIR)/$(@D)/etcd' go.etcd.io/etcd/server/v3
	touch $@

$(KUBE)/node: $(PROGRAMS)/go.mod
	mkdir -p $(@D)
	$(COMPILE) build -C $(<D) -ldflags '-s -w' -o '$(CURDIR)/$(@D)/' $(addprefix k8s.io/kubernetes/cmd/,kubelet kube-controller-manager kube-scheduler kube-proxy)
	touch $@

$(KUBE)/conformance: e2e/apiserver/programs/go.mod
	mkdir -p $(@D)
	$(COMPILE) test -C $(<D) -c -o '$(CURDIR)/$@' ./conformance
	$(COMPILE) build -C $(<D) -ldflags '-s -w' -o '$(CURDIR)/$(@D)/' k8s.io/kubernetes/test/images/agnhost k8s.io/sample-apiserver
	install -m 644 "$$($(GO) list -C $(<D) -m -f '{{.Dir}}' k8s.io/kubernetes)"/test/images/agnhost/porter/localhost.* $(@D)/

$(KUBE)/helm: manifests/check/go.mod
	$(COMPILE) build -C $(<D) -ldflags '-s -w' -o '$(CURDIR)/$@' helm.sh/helm/v3/cmd/helm

.PHONY: alerts
alerts: programs ## Test the alert rules and the dashboard with promtool
	$(GO) test -C manifests/check $(QUICKLY) -count=1 -run TestPromtool . -promtool=promtool

.PHONY: chart
chart: programs ## Test the Helm chart by Helm itself, whose libraries are compiled first
	$(GO) test -C manifests/check $(QUICKLY) -tags='$(TAGS),helm' -count=1 -timeout 5m -run Chart . $(ARGS)

.PHONY: lint
lint: fmt-check vet staticcheck ## Check format, go vet and staticcheck (1 min)

.PHONY: fmt-check
fmt-check:
	@files=$$(git ls-files -co --exclude-standard '*.go' | xargs -r gofmt -l); \
	if [ -n "$$files" ]; then echo "gofmt these files: $$files" >&2; exit 1; fi

.PHONY: vet
vet:
	$(COMPILE) vet ./...
	for m in $(NESTED); do $(COMPILE) vet -C "$$m" -tags='$(TAGS),helm' ./... || exit; done

.PHONY: staticcheck
staticcheck: $(STATICCHECK)
	$(LESS_GC) $(STATICCHECK) -tags=$(TAGS) ./...
	for m in $(filter-out release,$(NESTED)); do (cd "$$m" && $(LESS_GC) $(STATICCHECK) -tags='$(TAGS),helm' ./...) || exit; done

$(STATICCHECK): # tried twice, as the proxy may not answer in time
	install() { GOBIN=$(@D) $(COMPILE) install honnef.co/go/tools/cmd/staticcheck@$(STATICCHECK_VERSION); }; \
	install || { sleep 10; install; }

.PHONY: systems
systems: ## Type-check everything for every system (2 min)
	$(GO) test -count=1 -timeout 20m -v -run 'TestSystems|TestTypeCheck' ./internal/fences -systems='$(SYSTEMS)'

.PHONY: cross
cross: ## Compile and vet everything for every system; takes long the first time
	for s in $(SYSTEMS); do echo "$$s"; \
		GOOS=$${s%/*} GOARCH=$${s#*/} $(GO) build -ldflags '$(LDFLAGS)' -o "$(BIN)/$$s/" ./cmd/... && \
		GOOS=$${s%/*} GOARCH=$${s#*/} $(GO) vet ./... || exit; done

.PHONY: arm64
arm64: ## Make a release for arm64 and use its archive, elsewhere by qemu-aarch64-static (1 min)
	$(MAKE) release-bare VERSION=v0.0.0-test DIST=$(BIN)/arm64 SYSTEMS=linux/arm64
	$(GO) test -C release $(QUICKLY) -count=1 -run '^TestArchive$$' . -dist='$(CURDIR)/$(BIN)/arm64' -arch=arm64 -emulator='$(QEMU)'

.PHONY: arm
arm: ## Test the arithmetic of links as a 32-bit program, elsewhere by qemu-arm-static (1 min)
	GOOS=linux GOARCH=arm $(GO) test $(if $(QEMU_ARM),-exec '$(QEMU_ARM)') -short -count=1 -timeout 5m \
		-run '^Fuzz|Budget|Credit|Frame|Message|Outgoing|Plan' ./tunnel/link ./tunnel/resume ./tunnel/lanes

.PHONY: fences
fences: ## Check which folder imports what, calls that nobody may make, and how wide documents are
	$(GO) test -count=1 ./internal/fences

.PHONY: fuzz
fuzz: ## Run every fuzz target for FUZZTIME (5s), as many at once as there are processors (2 min)
	GO='$(GO)' FUZZTIME='$(FUZZTIME)' .ci/fuzz

FOR ?= 1h
SEED ?= 0
.PHONY: simulate
simulate: ## Simulate connections that outlive their links, for FOR (1h), from SEED (random)
	$(GO) test -count=1 -timeout 0 -run '^TestSimulate' -v ./tunnel/resume -simulate $(FOR) -seed $(SEED)

.PHONY: soak
soak: ## Do harm of all kinds to the built programs while transfers run, for FOR (1h), from SEED (random); a picture into bin/soak.svg
	$(GO) test -count=1 -timeout 0 -run '^TestSoak$$' -v ./e2e -soak $(FOR) -seed $(SEED) -picture $(CURDIR)/bin/soak.svg

.PHONY: flakes
flakes: ## Hunt tests that fail now and then, some hours: make flakes PKGS=./tunnel MODES='busy race' RUNS=5
	@GO='$(GO)' PKGS='$(PKGS)' MODES='$(MODES)' RUNS='$(RUNS)' JOBS='$(JOBS)' SPIN='$(SPIN)' RUN='$(RUN)' TIMEOUT='$(TIMEOUT)' .ci/flakes

.PHONY: bench
bench: ## Run the micro-benchmarks COUNT times (6), into bin/bench.txt (4 min): make bench BENCH=Relay
	@mkdir -p $(dir $(BENCHOUT))
	$(GO) test -run '^$$' -bench '$(BENCH)' -skip '$(BENCHSKIP)' -benchmem -benchtime $(BENCHTIME) -count $(COUNT) \
		-timeout 1h $(UNITS) | tee $(BENCHOUT)
	@! grep '^FAIL' $(BENCHOUT)

.PHONY: bench-compare
bench-compare: bench ## Run make bench, and compare with BASELINE by benchstat (4 min)
	$(GO) run $(BENCHSTAT) -ignore cpu $(BASELINE) $(BENCHOUT)

.PHONY: bench-beside
bench-beside: ## Compare ours in bin/bench.txt with io.Copy, yamux and protobuf
	$(GO) run $(BENCHSTAT) -col /by -filter '/by:/./' $(BENCHOUT)

.PHONY: bench-baseline
bench-baseline: ## Make bin/bench.txt the new BASELINE
	grep -E '^(goos|goarch|pkg|cpu|Benchmark)' $(BENCHOUT) > $(BASELINE)

.PHONY: bench-e2e
bench-e2e: ## Measure the built programs beside a plain relay chain, into docs/performance.md (15 min)
	$(GO) run ./e2e/bench -write docs/performance.md $(ARGS)

.PHONY: bench-line
bench-line: ## Measure the built programs over lines that are far, narrow or lossy, into docs/performance.md; as root (3 h): make bench-line ARGS='-rate=200 -loss=1'
	$(GO) run ./e2e/bench line -write docs/performance.md $(ARGS)

.PHONY: bench-tenants
bench-tenants: ## Measure a server that 1,000 clusters share (3 min)
	$(GO) run ./e2e/bench scale -servers=1 -tenants=1000 -agents=0 -links=0 -connections=0 $(ARGS)

.PHONY: bench-noise
bench-noise: ## Measure what a cluster that makes noise leaves to a quiet one on the same server (5 min)
	$(GO) run ./e2e/bench noise $(ARGS)

.PHONY: scale
scale: ## Measure what thousands of tenants, agents, sidecars and connections cost, into docs/scale.md; as root (30 min)
	$(GO) run ./e2e/bench scale -write docs/scale.md $(ARGS)

.PHONY: quickstart
quickstart: build ## Try everything in one process, until Ctrl-C: make quickstart ARGS=--once
	$(BIN)/konnectivity quickstart $(ARGS)

.PHONY: image
image: ## Build the container image (docker or a command in DOCKER); compiles in it (some minutes)
	$(or $(DOCKER),docker) build --build-arg VERSION='$(VERSION)' --build-arg COMMIT='$(COMMIT)' -t '$(IMAGE)' .

# What the Dockerfile puts into the image: the same as a release does.
.PHONY: image-files
image-files:
	mkdir -p $(BIN)
	$(RELEASE) -image-files='$(CURDIR)/$(BIN)/image.tar'

# A release says which commit it is of; what is not committed nobody can find again.
.PHONY: committed
committed:
	@[ '$(COMMIT)' != unknown ] || { echo "make release: no commit is known here: release a clone, or give COMMIT and EPOCH" >&2; exit 1; }
	@changed=$$($(GIT) status --porcelain 2>/dev/null); [ -z "$$changed" ] || \
		{ printf 'make release: commit these files first, or remove them:\n%s\n' "$$changed" >&2; exit 1; }

.PHONY: release
release: $(if $(UNCOMMITTED),,committed) ## Make everything of a release into dist/, the same bytes each time (some minutes): make release VERSION=v1.2.3 KEY=cosign.key
	release/busybox .cache/busybox $(patsubst linux/%,%,$(filter linux/%,$(SYSTEMS)))
	$(RELEASE) -out='$(CURDIR)/$(DIST)' -busybox='$(CURDIR)/.cache/busybox'

# One without HyperShift's image, which takes Debian's busybox.
.PHONY: release-bare
release-bare:
	$(RELEASE) -out='$(CURDIR)/$(DIST)'

.PHONY: release-test
release-test: ## Make the release of this system, into bin/dist, and install and use each part of it; as root (2 min)
	release/test-needs
	mkdir -p $(BIN)
	openssl genpkey -quiet -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out $(BIN)/test.key
	openssl pkey -in $(BIN)/test.key -pubout -out $(BIN)/test.pub
	$(MAKE) release UNCOMMITTED=yes VERSION=v0.0.0-test DIST=$(BIN)/dist KEY=$(BIN)/test.key SYSTEMS='$(shell $(GO) env GOOS)/$(shell $(GO) env GOARCH)'
	$(GO) test -C release $(QUICKLY) -count=1 ./hypershift
	$(GO) test -C release $(QUICKLY) -count=1 -timeout 10m . -dist='$(CURDIR)/$(BIN)/dist' -key='$(CURDIR)/$(BIN)/test.key'
	$(MAKE) chart ARGS=-chart='$(CURDIR)/$(BIN)/dist/konnectivity-0.0.0-test.tgz'

.PHONY: release-twice
release-twice: ## Make a release of the last commit in two places, and compare every byte; compiles everything twice (long)
	folder=$$(mktemp -d) && for n in 1 2; do \
		git clone --quiet . "$$folder/$$n/src" && mkdir -p "$$folder/$$n/src/.cache" && \
		$(MAKE) -C "$$folder/$$n/src" release VERSION=v0.0.0-twice SYSTEMS='$(SYSTEMS)' GOCACHE="$$folder/$$n/cache" || exit; \
	done && diff -r "$$folder/1/src/dist" "$$folder/2/src/dist" && rm -rf "$$folder"

.PHONY: clean
clean: ## Remove what make built
	rm -rf $(BIN) $(DIST)
