package main

import (
	"os"
	"path/filepath"
	"testing"
)

// The manifest has each archive's address and checksum, and where the program is in it;
// without an address there is none.
func TestKrew(t *testing.T) {
	r := &release{out: t.TempDir(), work: t.TempDir(), version: "v1.2.3", systems: []system{{"linux", "amd64"}, {"windows", "arm64"}}}
	for _, s := range r.systems {
		noError(t, os.WriteFile(r.archive(s), []byte("hello"), 0o600))
	}
	file := filepath.Join(r.out, "konnectivity_1.2.3_krew.yaml")
	noError(t, r.krew())
	there(t, file, false)
	r.downloads = "https://example.com/v1.2.3/"
	noError(t, r.krew())
	text := string(must(os.ReadFile(file))(t))
	for _, want := range []string{
		"version: v1.2.3\n", "{os: windows, arch: arm64}", "uri: https://example.com/v1.2.3/konnectivity_1.2.3_linux_amd64.tar.gz\n", "konnectivity_1.2.3_windows_arm64.zip\n",
		"sha256: 2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824\n", "bin: konnectivity.exe\n", "{from: konnectivity_1.2.3_linux_amd64/konnectivity, to: .}",
	} {
		contains(t, text, want, "the manifest")
	}
}
