package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// kept are Go's settings that say where things come from and are stored. Of all
// others a builder has no say: they decide bytes.
var kept = []string{
	"GOPATH", "GOROOT", "GOCACHE", "GOCACHEPROG", "GOMODCACHE", "GOTMPDIR", "GOTOOLCHAIN",
	"GOPROXY", "GONOPROXY", "GOSUMDB", "GONOSUMDB", "GOPRIVATE", "GOINSECURE", "GOVCS", "GOAUTH",
}

// baselines is the oldest processor of each architecture that programs run on:
// Go's own default. For arm that is also what Debian's armhf, Fedora's armv7hl and
// upstream's images are for.
var baselines = map[string]string{
	"amd64": "GOAMD64=v1", "arm64": "GOARM64=v8.0", "arm": "GOARM=7", "ppc64le": "GOPPC64=power8", "riscv64": "GORISCV64=rva20u64",
}

// compilerGC has the compiler collect its garbage less often: it takes a fifth less
// processor time, 700 MB at most instead of 450 (for k8s.io/api/core/v1), and writes
// the same bytes.
const compilerGC = "400"

// settings is the environment to compile for a system in: this process's, less
// what its builder has told Go, by variables or by a file.
func settings(s system, workspace string) ([]string, error) {
	environment := slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "GO") || strings.HasPrefix(v, "CGO_")
	})
	out, err := exec.Command("go", append([]string{"env", "-json"}, kept...)...).Output()
	if err != nil {
		return nil, fmt.Errorf("go env: %w", err)
	}
	values := map[string]string{}
	if err := json.Unmarshal(out, &values); err != nil {
		return nil, fmt.Errorf("go env: %w", err)
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if values[name] != "" {
			environment = append(environment, name+"="+values[name])
		}
	}
	environment = append(environment, "GOGC="+compilerGC, "GOENV=off", "GOFLAGS=", "GOEXPERIMENT=", "GOFIPS140=off", "CGO_ENABLED=0",
		"GOOS="+s.os, "GOARCH="+s.arch, "GOWORK="+workspace)
	if baseline := baselines[s.arch]; baseline != "" {
		environment = append(environment, baseline)
	}
	return environment, nil
}
