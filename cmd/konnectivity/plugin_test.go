package main

import (
	"bytes"
	"strings"
	"testing"

	"konnectivity/internal/cli"
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
		if !strings.Contains(out, "\n  "+command) {
			t.Errorf("%s: %s", args, out)
		}
		_, rest, _ := strings.Cut(out, "Usage:")
		if name := ownName.FindString(strings.ReplaceAll(rest, "kubectl konnectivity ", "")); name != "" {
			t.Errorf("%s: %q is left in %s", args, name, out)
		}
	}
	if _, said := run("dial"); !strings.HasPrefix(said, "kubectl konnectivity: want one argument") || !strings.Contains(said, "(see kubectl konnectivity dial --help)") {
		t.Errorf("%q", said)
	}
}
