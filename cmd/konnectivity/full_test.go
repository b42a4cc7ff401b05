package main

import (
	"bytes"
	"errors"
	"path/filepath"
	"testing"

	"konnectivity/cmd/konnectivity/internal/diagnose"
	"konnectivity/internal/cli"
)

var errNoSpace = errors.New("no space left on device")

// full is a disk without room.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, errNoSpace }

// What was not written was not done.
func TestFullDisk(t *testing.T) {
	if err := printFindings(full{}, []diagnose.Finding{{Result: diagnose.OK}}, false); !errors.Is(err, errNoSpace) {
		t.Errorf("findings: %v", err)
	}
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
