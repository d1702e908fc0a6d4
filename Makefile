# Two commands for everybody: `make demo` shows what Egret does, `make test` proves it. Both install what they need.
# For those who work on it: `make check` (format, clippy, unit and table tests), `make switches` (every scenario must fail without its mechanism), `make properties`, `make soak`,
# `make bench`, `make ci`.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# Debian package : a file or command that shows that it is there.
DEMO_PACKAGES := iptables:iptables ipset:ipset nftables:nft conntrack:conntrack iproute2:ip curl:curl procps:ps
# Go is not among them: Debian's is too old for what dnsd is compared with, and for kube-apiserver (integration/peers).
TEST_PACKAGES := $(DEMO_PACKAGES) clang:clang llvm:llvm-strip libbpf-dev:/usr/include/bpf/bpf_helpers.h prometheus:promtool dnsutils:dig \
  knot-dnsutils:kdig musl-tools:musl-gcc libc-ares-dev:/usr/include/ares.h etcd-server:etcd patch:patch containernetworking-plugins:/usr/lib/cni/bridge
IMAGE_PACKAGES := jq:jq binutils:readelf debian-archive-keyring:/usr/share/keyrings/debian-archive-keyring.gpg containerd:containerd runc:runc
# What `make image` needs besides for the other architecture: ARCH of amd64 and arm64.
CROSS_PACKAGES_arm64 := gcc-aarch64-linux-gnu:aarch64-linux-gnu-gcc libc6-dev-arm64-cross:/usr/aarch64-linux-gnu/include/stdio.h qemu-user-static:qemu-aarch64-static
CROSS_PACKAGES_amd64 := gcc-x86-64-linux-gnu:x86_64-linux-gnu-gcc libc6-dev-amd64-cross:/usr/x86_64-linux-gnu/include/stdio.h qemu-user-static:qemu-x86_64-static
OTHER_ARCH = $(filter-out $(shell dpkg --print-architecture),$(ARCH))
CLUSTER_PACKAGES := $(DEMO_PACKAGES) $(IMAGE_PACKAGES) etcd-server:etcd containernetworking-plugins:/usr/lib/cni/ptp busybox-static:/bin/busybox

# Namespaces, rules and eBPF programs need root.
AS_ROOT := $(if $(filter 0,$(shell id -u)),,sudo -E env "PATH=$(PATH)")
CARGO ?= cargo
FUZZ_SECONDS ?= 300
# Properties are tried on the same cases each time, so that what fails is what was changed; `make properties` draws others.
PROPERTY_SEED ?= 1
PROPERTY_CASES ?= 2560
PROPERTIES = grep -rlF --include='*.rs' 'proptest! {'

.PHONY: help
help: ## This list.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20

.PHONY: demo
demo: packages-demo build ## A node, pods and a little internet on this machine: what is allowed, refused, learned, held, expired (KEEP=1 leaves it running, BACKEND=netfilter takes another backend).
	@$(AS_ROOT) env KEEP="$(KEEP)" BACKEND="$(BACKEND)" EGRET_BIN_DIR="$(CURDIR)/target/debug" target/debug/demo

# OTHER=commit: upgraded to that commit's chart and programs, and rolled back. They are compiled apart: cargo would take one's libraries for the other's.
OTHER_SOURCE = target/other/$(OTHER)
.PHONY: cluster
cluster: packages-cluster build ## A Kubernetes cluster of three nodes on this machine, with the chart and a policy; needs Go (KEEP=1 leaves it running, IP_FAMILY=ipv6 is of IPv6 alone, OTHER=commit upgrades to that).
ifneq ($(OTHER),)
	@[[ -d "$(OTHER_SOURCE)" ]] || { mkdir -p "$(OTHER_SOURCE)" && git archive "$(OTHER)" | tar -xm -C "$(OTHER_SOURCE)"; }
	@CARGO_PROFILE_DEV_DEBUG=0 $(CARGO) build --locked --workspace --bins --manifest-path "$(OTHER_SOURCE)/Cargo.toml" --target-dir "$(OTHER_SOURCE)/target"
endif
	@$(AS_ROOT) env KEEP="$(KEEP)" IP_FAMILY="$(IP_FAMILY)" EGRET_BIN_DIR="$(CURDIR)/target/debug" $(if $(OTHER),EGRET_OTHER_SOURCE="$(CURDIR)/$(OTHER_SOURCE)") target/debug/cluster

# Tests wait for the most part, for processes to start and for time-outs, those with an API server most of all: they run beside the others. Three threads each on two cores.
WITH_API_SERVER := admission deploy konnectivity kubernetes kubernetes_watch policy_status
TESTS = $(sort $(basename $(notdir $(wildcard */tests/*.rs))) $(notdir $(patsubst %/main.rs,%,$(wildcard */tests/*/main.rs))))
RUN_TESTS = $(AS_ROOT) env EGRET_BIN_DIR="$(CURDIR)/target/debug" PROPTEST_RNG_SEED=$(PROPERTY_SEED) RUST_TEST_THREADS=$$(( 3 * $$(nproc) / 2 )) $(CARGO) test --workspace --no-fail-fast

.PHONY: test
test: packages-test ## Every test, on real packets and real DNS.
	@command -v go >/dev/null || echo "NOT COMPARED with CoreDNS, NOT TESTED with kube-apiserver, which are built with Go 1.26 or newer: please install it (https://go.dev/dl)" >&2
	@$(CARGO) build --workspace --bins --tests
	@beside="$$(mktemp)"; failed=; \
	$(RUN_TESTS) $(addprefix --test ,$(WITH_API_SERVER)) > "$$beside" 2>&1 & \
	$(RUN_TESTS) --lib --bins $(addprefix --test ,$(filter-out $(WITH_API_SERVER),$(TESTS))) || failed=1; \
	$(RUN_TESTS) --doc || failed=1; \
	wait $$! || failed=1; \
	cat "$$beside"; rm "$$beside"; [ -z "$$failed" ]

# `make check` tries a property on a quarter of the usual cases, and leaves out these: tests in namespaces, as root, beside CoreDNS (Go), or of more than some seconds (random clusters).
NOT_CHECKED := admin admission adversary agreement audit backends beside_node_cache cni compared conntrack convert_agreement decision denials deploy dns_permits ebpf ebpf_fallback ebpf_object encrypted fast_paths faults \
  forwarding incremental intervals ipset iptables ipvs kernel_answers konnectivity kubernetes kubernetes_watch links lists neighbours netfilter network nflog nft_table nftables out_of_sockets permutation policy_status preflight prometheus properties \
  restarts revocation routing scenarios shared_sets sharing sockets startup_ready startup_signals switches takeover_connections takeover_failures takeover_sockets threads unknown upstreams wire world writer
CHECKED = $(filter-out $(NOT_CHECKED),$(TESTS))

.PHONY: check
check: ## Format, clippy, and the unit and table tests that need neither root nor namespaces.
	@$(CARGO) fmt --all --check
	@$(CARGO) clippy --workspace --all-targets -- -D warnings
	@PROPTEST_RNG_SEED=$(PROPERTY_SEED) PROPTEST_CASES=64 $(CARGO) test --workspace --lib $(addprefix --test ,$(CHECKED)) -- --skip netfilter::monitor::watched_pods --skip nftables::pod_netns

.PHONY: build
build: packages-demo
	@$(CARGO) build --workspace --bins

# The copy's libraries are compiled where `make test` compiles them: those with the same features are there already. Only of two crates, as cargo finds no difference between ours and the copy's where
# features are the same: a path counts from its workspace.
.PHONY: switches
switches: packages-test ## Every scenario with its mechanism removed: fails if one still passes.
	@integration/switches/copy target/switches/src
	@CARGO_BUILD_BUILD_DIR="$(CURDIR)/target" $(CARGO) build --locked --manifest-path target/switches/src/Cargo.toml -p egret-dnsd -p egret-enforcer --bins --target-dir target/switches
	@$(AS_ROOT) env EGRET_BIN_DIR="$(CURDIR)/target/switches/debug" $(CARGO) test --workspace --test switches -- --ignored --nocapture

.PHONY: backends
backends: packages-test build ## The scenarios on the backends ebpf and nftables: a table of what holds, and of what each cannot do.
	@$(AS_ROOT) env EGRET_BIN_DIR="$(CURDIR)/target/debug" $(CARGO) test --workspace --test backends -- --ignored --nocapture

.PHONY: properties
properties: ## All properties on ten times the cases, drawn anew; then random clusters of all kinds, decided in three ways, for an hour (EGRET_PROPERTY_SECONDS).
	@crates="$$($(PROPERTIES) */src */tests | cut -d/ -f1 | sort -u | sed 's/^/-p egret-/')"; \
	tests="$$($(PROPERTIES) */tests | cut -d/ -f3 | sed 's/\.rs$$//; s/^/--test /' | sort -u)"; \
	seed="$$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')"; \
	echo "PROPTEST_RNG_SEED=$$seed PROPTEST_CASES=$(PROPERTY_CASES)"; \
	PROPTEST_RNG_SEED="$$seed" PROPTEST_CASES=$(PROPERTY_CASES) $(CARGO) test --release --no-fail-fast $$crates --lib $$tests
	@EGRET_PROPERTY_SECONDS="$${EGRET_PROPERTY_SECONDS:-3600}" $(CARGO) test --release -p egret-policies --test properties -- --nocapture

.PHONY: soak
soak: packages-test build ## Both daemons killed and stopped 200 times under load; every step of every change in either flavour.
	@$(AS_ROOT) env EGRET_BIN_DIR="$(CURDIR)/target/debug" EGRET_RESTARTS=200 $(CARGO) test -p egret-integration --test restarts -- --nocapture
	@$(AS_ROOT) env EGRET_EVERY_STEP=1 $(CARGO) test -p egret-enforcer --test faults

.PHONY: bench
bench: packages-demo ## The promises of SPECIFICATION.md, measured.
	@$(CARGO) build --release -p egret-dnsd -p egret-enforcer --bins
	@$(AS_ROOT) $(CARGO) bench -p egret-benches

# What libFuzzer wants of a compiler, and the stable one has: where a program has been, and what it compared.
FUZZ_FLAGS := --cfg fuzzing -Cpasses=sancov-module \
  $(addprefix -Cllvm-args=-sanitizer-coverage-,level=4 inline-8bit-counters pc-table trace-compares) -Cdebug-assertions -Ccodegen-units=1
# Named, so that what only runs while compiling is built without these.
FUZZ_TARGET = $(shell rustc -vV | sed -n 's/^host: //p')

.PHONY: fuzz
fuzz: ## Every reader with octets that nobody thought of, FUZZ_SECONDS each (300); needs a C++ compiler.
	@command -v c++ >/dev/null || { echo "please install a C++ compiler: apt-get install g++" >&2; exit 1; }
	@cd fuzz && RUSTFLAGS="$(FUZZ_FLAGS)" $(CARGO) build --release --bins --target $(FUZZ_TARGET)
	@cd fuzz; found=; for reader in $(basename $(notdir $(wildcard fuzz/fuzz_targets/*.rs))); do \
	  mkdir -p found/$$reader; \
	  target/$(FUZZ_TARGET)/release/$$reader found/$$reader corpus/$$reader -artifact_prefix=found/$$reader- \
	    -max_total_time=$(FUZZ_SECONDS) -timeout=5 -max_len=16384 \
	    $$(case $$reader in reader|probes) echo -dict=words;; corefile|config) echo -dict=directives;; esac) || found+=" $$reader"; \
	done; [ -z "$$found" ] || { echo "found, in fuzz/found:$$found" >&2; exit 1; }

.PHONY: image
image: packages-image ## One image with all programs (target/image, IMAGE=name), built from Debian's packages without a container runtime, and tried (ARCH=arm64 or amd64: of that processor, tried in an emulation).
	$(if $(OTHER_ARCH),@rustup target add $(subst arm64,aarch64,$(subst amd64,x86_64,$(OTHER_ARCH)))-unknown-linux-gnu)
	@deploy/image/build
	@$(AS_ROOT) deploy/image/check

# node-local-dns' manifest with the places filled in as the overlays need them; a test compares.
FILLED = sed -e 1,9d -e 's/__PILLAR__LOCAL__DNS__/169.254.20.10/g; s/__PILLAR__DNS__DOMAIN__/cluster.local/g'
.PHONY: manifests
manifests: ## What of deploy/kustomize is written from other files of deploy.
	@$(FILLED) -e 's/__PILLAR__DNS__SERVER__/10.96.0.10/g' deploy/node-local-dns/node-local-dns.yaml >deploy/kustomize/overlays/node-local-dns/node-local-dns.yaml
	@$(FILLED) -e 's/[ ,]__PILLAR__DNS__SERVER__//g' deploy/node-local-dns/node-local-dns.yaml >deploy/kustomize/overlays/node-local-dns-ipvs/node-local-dns.yaml

.PHONY: lint
lint: ## Format, clippy and docs, warnings denied.
	@$(CARGO) fmt --all --check
	@$(CARGO) clippy --workspace --all-targets -- -D warnings
	@RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --document-private-items

.PHONY: ci
ci: lint test switches ## What .ci/run runs.

# === Packages ===

.PHONY: packages-demo packages-test packages-image packages-cluster
packages-demo:
	@$(call install_missing,$(DEMO_PACKAGES))
packages-test:
	@$(call install_missing,$(TEST_PACKAGES))
packages-image:
	@$(call install_missing,$(IMAGE_PACKAGES) $(CROSS_PACKAGES_$(OTHER_ARCH)))
packages-cluster:
	@$(call install_missing,$(CLUSTER_PACKAGES))

define install_missing
missing=(); \
for pair in $(1); do \
  package="$${pair%%:*}"; proof="$${pair#*:}"; \
  if [[ "$$proof" == /* ]]; then [[ -e "$$proof" ]] || missing+=("$$package"); \
  else PATH="$$PATH:/usr/sbin:/sbin" command -v "$$proof" >/dev/null || missing+=("$$package"); fi; \
done; \
if (( $${#missing[@]} )); then \
  command -v apt-get >/dev/null || { echo "please install: $${missing[*]} (only Debian's packages are installed for you)" >&2; exit 1; }; \
  echo "installing $${missing[*]}"; \
  $(AS_ROOT) apt-get update -qq; \
  $(AS_ROOT) env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$${missing[@]}" >/dev/null; \
fi
endef
