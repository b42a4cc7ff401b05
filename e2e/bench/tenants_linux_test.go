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
// child process of tenants.noise where it is started as one.
func TestMain(m *testing.M) {
	if beTunnel(filepath.Base(os.Args[0])) {
		return
	}
	if len(os.Args) == 2 && os.Args[1] == loadCommand {
		if err := benchLoad(context.Background(), os.Stdin, os.Stdout); err != nil {
			panic(err)
		}
		return
	}
	os.Exit(suite.Main(m, "../..", &binaries))
}

// Twenty clusters whose agents have the same id, whose destinations have the same
// addresses and whose certificates have the same names: every client reaches its own
// cluster, also after the server was killed, and no dial fails.
func TestTenants(t *testing.T) {
	checkGoroutines(t)
	o := tenants{count: 20, connections: 60, rate: 200, period: 300 * time.Millisecond, restart: true, say: func(line string) { t.Log(line) }}
	testutil.NoError(t, o.measure(t.Context(), suite.ForTest(t, binaries)))
	failed := 0
	for _, row := range o.rep.Rows {
		if row.Label == "new connections: failed" {
			failed++
			if n := row.Median("server"); n != 0 {
				t.Errorf("%v dials failed", n)
			}
		}
	}
	if failed != 1 || len(o.rep.Rows) != 20 {
		t.Errorf("%d rows: %+v", len(o.rep.Rows), o.rep.Rows)
	}
}

// Every figure of the noise is measured. Their values mean nothing on a busy machine.
func TestNoise(t *testing.T) {
	o := tenants{period: 300 * time.Millisecond, settle: 100 * time.Millisecond, say: func(line string) { t.Log(line) }}
	testutil.NoError(t, o.noise(t.Context(), suite.ForTest(t, binaries)))
	if len(o.rep.Rows) != 2*3+2*9 {
		t.Errorf("%d rows: %+v", len(o.rep.Rows), o.rep.Rows)
	}
}

// A few of everything are measured: each of the tables has a row for each step, and all
// links come back. Their values mean nothing.
func TestScale(t *testing.T) {
	checkGoroutines(t)
	o := scale{tenants: 8, servers: 2, agents: 8, connections: 40, links: 8, rate: 50, rest: 100 * time.Millisecond, say: func(line string) { t.Log(line) }, suite: suite.ForTest(t, binaries)}
	testutil.NoError(t, o.measure(t.Context()))
	if tables, rows := strings.Count(o.out.String(), "\n|---|"), strings.Count(o.out.String(), "\n|"); tables != 6 || rows != 6*2+5*steps+3 {
		t.Errorf("%d tables with %d lines:\n%s", tables, rows, o.out.String())
	}
}

// Tenants are changed and removed at random: no connection of the others fails, and
// the server has as many goroutines as before.
func TestTenantChanges(t *testing.T) {
	checkGoroutines(t)
	o := tenants{count: 24, period: 300 * time.Millisecond, changeFor: 3 * time.Second, say: func(line string) { t.Log(line) }}
	testutil.NoError(t, o.measure(t.Context(), suite.ForTest(t, binaries)))
}

// checkGoroutines fails the test if goroutines are left when the programs have ended.
func checkGoroutines(t *testing.T) {
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		goleak.VerifyNone(t)
	})
}
