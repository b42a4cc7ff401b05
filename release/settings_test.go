package main

import (
	"debug/buildinfo"
	"errors"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"github.com/goreleaser/nfpm/v2"
)

// tinyModule is a module of one program, tiny.
func tinyModule(t *testing.T) string {
	t.Helper()
	module := t.TempDir()
	noError(t, errors.Join(
		os.WriteFile(filepath.Join(module, "go.mod"), []byte("module tiny\n\ngo 1.26.0\n"), 0o600),
		os.WriteFile(filepath.Join(module, "main.go"), []byte("package main\n\nfunc main() {}\n"), 0o600),
		os.WriteFile(filepath.Join(module, "env"), []byte("GOARM64=v8.2\n"), 0o600),
	))
	return module
}

// Programs of a release with FIPS are in that mode, and who builds it again can know.
func TestFIPS(t *testing.T) {
	r, s := &release{work: t.TempDir(), out: t.TempDir(), fips: "v1.0.0"}, system{"linux", "amd64"}
	noError(t, r.provenance())
	contains(t, string(must(os.ReadFile(r.provenanceFile()))(t)), `"fips": "v1.0.0"`, "the provenance")
	noError(t, r.compile(s, tinyModule(t), "."))
	info := must(buildinfo.ReadFile(r.binary(s, "tiny")))(t)
	if !slices.Contains(info.Settings, debug.BuildSetting{Key: "DefaultGODEBUG", Value: "fips140=on"}) {
		t.Errorf("the program has %v", info.Settings)
	}
}

// The settings of the person who builds a release do not reach the compiler.
func TestSettingsOfTheBuilderAreIgnored(t *testing.T) {
	module := tinyModule(t)
	t.Setenv("GOFLAGS", "-tags=mine -race=false -gcflags=-N")
	t.Setenv("GOEXPERIMENT", "noregabiargs")
	t.Setenv("GOAMD64", "v3")
	t.Setenv("GOPPC64", "power9")
	t.Setenv("GOARM", "5")
	t.Setenv("GOENV", filepath.Join(module, "env"))
	t.Setenv("GOFIPS140", "latest")
	t.Setenv("CGO_ENABLED", "1")
	for arch, name := range map[string]string{"amd64": "GOAMD64", "arm64": "GOARM64", "arm": "GOARM"} {
		r, s := &release{work: t.TempDir()}, system{"linux", arch}
		noError(t, r.compile(s, module, "."))
		info := must(buildinfo.ReadFile(r.binary(s, "tiny")))(t)
		got := map[string]string{}
		for _, setting := range info.Settings {
			got[setting.Key] = setting.Value
		}
		want := map[string]string{"-buildmode": "exe", "-compiler": "gc", "-trimpath": "true", "CGO_ENABLED": "0", "GOOS": "linux", "GOARCH": arch}
		for _, key := range []string{"-tags", "-gcflags", "GOEXPERIMENT", "GOFIPS140"} {
			equal(t, got[key], "", "%s: the builder's %s", arch, key)
		}
		want[name] = map[string]string{"amd64": "v1", "arm64": "v8.0", "arm": "7"}[arch]
		for key, value := range want {
			equal(t, got[key], value, "%s: %s", arch, key)
		}
	}
}

// Packages and images call 32-bit arm what their installers look for.
func TestArmHasItsNames(t *testing.T) {
	s := system{"linux", "arm"}
	for format, want := range map[string]string{"deb": "armhf", "rpm": "armv7hl"} {
		packager := must(nfpm.Get(format))(t)
		info := &nfpm.Info{Name: "konnectivity", Version: "v1.0.0", Arch: packageArch(s), Platform: s.os, Release: "1"}
		if got := packager.ConventionalFileName(nfpm.WithDefaults(info)); !strings.HasSuffix(got, want+"."+format) {
			t.Errorf("%s, want one for %s", got, want)
		}
	}
	image := must((&release{version: "v1.0.0"}).imageOf(s, "an image", "", nil))(t)
	config, err := image.ConfigFile()
	if err != nil || config.Platform().String() != "linux/arm/v7" {
		t.Errorf("the image is for %v, %v", config.Platform(), err)
	}
}
