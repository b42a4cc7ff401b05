package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"konnectivity/internal/cli"
	"konnectivity/internal/testutil"
)

func TestRedirectErrors(t *testing.T) {
	for args, want := range map[string]string{
		"":                                       "want the networks to redirect",
		"10.0.0.1/8":                             "did you mean 10.0.0.0/8?",
		"10.0.0.0/8 --except=10.1.0.0":           "--except: ",
		"10.0.0.0/8 --transparent-port=0":        "--transparent-port: want a port",
		"10.0.0.0/8 --transparent-port=70000":    "--transparent-port",
		"10.0.0.0/8 --uid=root":                  "--uid",
		"10.0.0.0/8 --uid=-1":                    "--uid",
		"10.0.0.0/8 --resolv-conf=/dev/null/not": "--resolv-conf: ",
	} {
		var stderr bytes.Buffer
		status := cli.Run(newRoot(), append([]string{"redirect"}, strings.Fields(args)...), &stderr, nil)
		if status == 0 || !strings.Contains(stderr.String(), want) || strings.Count(stderr.String(), "\n") != 1 {
			t.Errorf("%s: status %d, %q, want %q", args, status, stderr.String(), want)
		}
	}
}

func TestRedirectReadsNameservers(t *testing.T) {
	file := filepath.Join(t.TempDir(), "resolv.conf")
	testutil.NoError(t, os.WriteFile(file, []byte("nameserver 10.96.0.10\n"), 0o600))
	for name, want := range map[string]int{file: 1, file + "-none": 0} {
		o := redirectOptions{port: 1, resolvConf: name}
		if p, err := o.plan([]string{"10.0.0.0/8"}); err != nil || len(p.DNS) != want {
			t.Errorf("%s: %v, %v", name, p, err)
		}
	}
}
