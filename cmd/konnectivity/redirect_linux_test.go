package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"konnectivity/internal/testutil"
)

// A pipe is refused at once, though no program writes to it.
func TestRedirectRefusesAPipe(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "resolv.conf")
	testutil.NoError(t, unix.Mkfifo(pipe, 0o600))
	expect(t, 1, "--resolv-conf: read "+pipe+": not a regular file", "redirect", "10.0.0.0/8", "--resolv-conf="+pipe)
}

// What was done is no failure because it cannot be told.
func TestRedirectWithAFullStandardOutput(t *testing.T) {
	full := testutil.Must(os.OpenFile("/dev/full", os.O_WRONLY, 0))(t)
	defer full.Close()
	o := redirectOptions{port: 1, resolvConf: filepath.Join(t.TempDir(), "none")}
	var err error
	testutil.InNetwork(t, func() {
		err = errors.Join(o.run([]string{"10.0.0.0/8"}, full), (&redirectOptions{remove: true}).run(nil, full))
	})()
	if err != nil && strings.HasPrefix(err.Error(), "this kernel cannot") {
		t.Skip("it needs nftables: ", err)
	}
	testutil.NoError(t, err)
}
