package main

import (
	"os"
	"path/filepath"
	"testing"

	"konnectivity/internal/testutil"
)

func TestRedirectReadsNameservers(t *testing.T) {
	file := filepath.Join(t.TempDir(), "resolv.conf")
	testutil.NoError(t, os.WriteFile(file, []byte("nameserver 10.96.0.10\n"), 0o600))
	expect(t, 1, "--resolv-conf: ", "redirect", "10.0.0.0/8", "--resolv-conf=/dev/null/not")
	for name, want := range map[string]int{file: 1, file + "-none": 0, os.DevNull: 0} {
		o := redirectOptions{port: 1, resolvConf: name}
		testutil.Equal(t, len(testutil.Must(o.plan([]string{"10.0.0.0/8"}))(t).DNS), want, "%s", name)
	}
}
