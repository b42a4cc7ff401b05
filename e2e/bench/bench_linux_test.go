package main

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"konnectivity/e2e/suite"
	"konnectivity/internal/testutil"
)

var binaries suite.Binaries

// TestMain is a tunnel where it is started under the name of one of its programs, and a
// child process of bench where it is started as one.
func TestMain(m *testing.M) {
	if beTunnel(filepath.Base(os.Args[0])) {
		return
	}
	if len(os.Args) > 1 && (os.Args[1] == loadCommand || os.Args[1] == hopCommand) {
		if err := run(context.Background()); err != nil {
			panic(err)
		}
		return
	}
	os.Exit(suite.Main(m, "../..", &binaries))
}

// Every figure of the noise is measured. Their values mean nothing on a busy machine.
func TestNoise(t *testing.T) {
	n := noise{period: 300 * time.Millisecond, settle: 100 * time.Millisecond}
	testutil.NoError(t, n.measure(t.Context(), suite.ForTest(t, binaries)))
	testutil.Equal(t, len(n.rep.Rows), 2*3+2*9, "rows")
}

// A few of everything are measured: each of the tables has a row for each step, and all
// links come back. Their values mean nothing. There are clusters whose agents have the same id,
// whose destinations have the same addresses and whose certificates have the same names: every
// client reaches its own cluster, also after the server was killed, and no dial fails.
func TestScale(t *testing.T) {
	checkGoroutines(t)
	o := scale{tenants: 8, servers: 2, agents: 8, connections: 40, links: 8, rate: 200, rest: 300 * time.Millisecond, suite: suite.ForTest(t, binaries)}
	testutil.NoError(t, o.measure(t.Context()))
	if tables, rows := strings.Count(o.out.String(), "\n|---|"), strings.Count(o.out.String(), "\n|"); tables != 7 || rows != 7*2+5*steps+3+4 {
		t.Errorf("%d tables with %d lines:\n%s", tables, rows, o.out.String())
	}
	testutil.Equal(t, o.failed, 0, "dials that failed")
}

// checkGoroutines fails the test if goroutines are left when the programs have ended.
func checkGoroutines(t *testing.T) {
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		testutil.Eventually(t, "no goroutine is left", func() bool { return goleak.Find() == nil })
	})
}
