package main

import (
	"bytes"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"konnectivity/cmd/konnectivity/internal/diagnose"
	"konnectivity/internal/cli"
	"konnectivity/internal/testutil"
)

var errNoSpace = errors.New("no space left on device")

// full is a disk without room.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, errNoSpace }

// What was not written was not done.
func TestFullDisk(t *testing.T) {
	testutil.ErrorIs(t, printFindings(full{}, []diagnose.Finding{{Result: diagnose.OK}}, false), errNoSpace, "findings")
	for _, args := range [][]string{
		{"certs", filepath.Join(t.TempDir(), "pki")},
		{"version"},
		{"quickstart", "--once"},
		{"quickstart", "--once", "--json"},
	} {
		var stderr bytes.Buffer
		root := newRoot()
		root.SetOut(full{})
		if status := cli.Run(root, args, &stderr, nil); status != cli.ExitFailure || !bytes.Contains(stderr.Bytes(), []byte(errNoSpace.Error())) {
			t.Errorf("%v: status %d, %q", args, status, stderr.String())
		}
	}
}

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
		testutil.Equal(t, ownName.FindString(strings.ReplaceAll(rest, "kubectl konnectivity ", "")), "",
			"%s: what is left of the program's own name", args)
	}
	if _, said := run("dial"); !strings.HasPrefix(said, "kubectl konnectivity: want one argument") || !strings.Contains(said, "(see kubectl konnectivity dial --help)") {
		t.Errorf("%q", said)
	}
}
