package main

import (
	"bytes"
	"strings"
	"testing"

	"konnectivity/internal/cli"
	"konnectivity/internal/testutil"
)

// As a plugin, the program calls itself as it was called: in usage, examples and errors.
func TestPlugin(t *testing.T) {
	run := func(args ...string) (out string, stderr string) {
		var said, errors bytes.Buffer
		root := newRoot()
		asPlugin(root)
		root.SetOut(&said)
		cli.Run(root, args, &errors, nil)
		return said.String(), errors.String()
	}
	for _, args := range []string{"--help", "status --help", "dial --help", "tenants list --help"} {
		out, _ := run(strings.Fields(args)...)
		command := strings.TrimSuffix(strings.TrimSuffix("kubectl konnectivity "+args, "--help"), " ")
		testutil.Contains(t, out, "\n  "+command, "%s", args)
		_, rest, _ := strings.Cut(out, "Usage:")
		testutil.Equal(t, ownName.FindString(strings.ReplaceAll(rest, "kubectl konnectivity ", "")), "", "%s: what is left of the program's own name", args)
	}
	if _, said := run("dial"); !strings.HasPrefix(said, "kubectl konnectivity: want one argument") || !strings.Contains(said, "(see kubectl konnectivity dial --help)") {
		t.Errorf("%q", said)
	}
}
