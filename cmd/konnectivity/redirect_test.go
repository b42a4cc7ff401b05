package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"konnectivity/internal/testutil"
)

func TestRedirectReadsNameservers(t *testing.T) {
	file := filepath.Join(t.TempDir(), "resolv.conf")
	testutil.NoError(t, os.WriteFile(file, []byte("nameserver 10.96.0.10\n"), 0o600))
	if status, _, stderr := konnectivity("redirect", "10.0.0.0/8", "--resolv-conf=/dev/null/not"); status != 1 || !strings.Contains(stderr, "--resolv-conf: ") {
		t.Errorf("no file: %d %q", status, stderr)
	}
	for name, want := range map[string]int{file: 1, file + "-none": 0} {
		o := redirectOptions{port: 1, resolvConf: name}
		if p, err := o.plan([]string{"10.0.0.0/8"}); err != nil || len(p.DNS) != want {
			t.Errorf("%s: %v, %v", name, p, err)
		}
	}
}
