package main

import (
	"debug/buildinfo"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// The settings of the person who builds a release do not reach the compiler.
func TestSettingsOfTheBuilderAreIgnored(t *testing.T) {
	module := t.TempDir()
	if err := errors.Join(
		os.WriteFile(filepath.Join(module, "go.mod"), []byte("module tiny\n\ngo 1.26.0\n"), 0o600),
		os.WriteFile(filepath.Join(module, "main.go"), []byte("package main\n\nfunc main() {}\n"), 0o600),
		os.WriteFile(filepath.Join(module, "env"), []byte("GOARM64=v8.2\n"), 0o600),
	); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GOFLAGS", "-tags=mine -race=false -gcflags=-N")
	t.Setenv("GOEXPERIMENT", "noregabiargs")
	t.Setenv("GOAMD64", "v3")
	t.Setenv("GOPPC64", "power9")
	t.Setenv("GOENV", filepath.Join(module, "env"))
	t.Setenv("GOFIPS140", "latest")
	t.Setenv("CGO_ENABLED", "1")
	for arch, name := range map[string]string{"amd64": "GOAMD64", "arm64": "GOARM64"} {
		r, s := &release{work: t.TempDir()}, system{"linux", arch}
		if err := r.compile(s, module, "."); err != nil {
			t.Fatal(err)
		}
		info, err := buildinfo.ReadFile(r.binary(s, "tiny"))
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]string{}
		for _, setting := range info.Settings {
			got[setting.Key] = setting.Value
		}
		want := map[string]string{"-buildmode": "exe", "-compiler": "gc", "-trimpath": "true", "CGO_ENABLED": "0", "GOOS": "linux", "GOARCH": arch}
		for _, key := range []string{"-tags", "-gcflags", "GOEXPERIMENT", "GOFIPS140"} {
			if got[key] != "" {
				t.Errorf("%s: %s=%s has been the builder's", arch, key, got[key])
			}
		}
		want[name] = map[string]string{"amd64": "v1", "arm64": "v8.0"}[arch]
		for key, value := range want {
			if got[key] != value {
				t.Errorf("%s: %s=%s, want %s", arch, key, got[key], value)
			}
		}
	}
}
