package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"konnectivity/e2e/suite"
)

var binaries suite.Binaries

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == crowdArg {
		if err := beCrowd(context.Background(), os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(suite.Main(m, "../..", &binaries))
}

// Twenty clusters whose agents have the same id, whose destinations have the
// same addresses and whose certificates have the same names: everybody reaches
// their own, also after the server was killed, and no dial fails.
func TestSwarm(t *testing.T) {
	leavesNothing(t)
	o := options{tenants: 20, connections: 60, rate: 200, period: 300 * time.Millisecond, restart: true, say: func(line string) { t.Log(line) }}
	figures, err := o.measure(t.Context(), suite.ForTest(t, binaries))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range figures {
		if f.what == "of them failed" && f.value != "0" {
			t.Errorf("%s dials failed", f.value)
		}
	}
}

// What noise leaves is measured from end to end. How much it is, a test on a busy
// machine cannot say.
func TestNoise(t *testing.T) {
	o := options{period: 300 * time.Millisecond, settle: 100 * time.Millisecond, say: func(line string) { t.Log(line) }}
	figures, err := o.noise(t.Context(), suite.ForTest(t, binaries))
	if err != nil {
		t.Fatal(err)
	}
	if len(figures) != 10 {
		t.Errorf("figures %v", figures)
	}
}

// Tenants are added, changed and removed at random: no connection of those that
// nobody touched fails, and the server has as many goroutines as before.
func TestChangesHarmNobodyElse(t *testing.T) {
	leavesNothing(t)
	o := options{tenants: 24, period: 300 * time.Millisecond, changeFor: 3 * time.Second, say: func(line string) { t.Log(line) }}
	if _, err := o.measure(t.Context(), suite.ForTest(t, binaries)); err != nil {
		t.Fatal(err)
	}
}

// leavesNothing sees at the end, after the programs have ended, that nothing runs
// any more.
func leavesNothing(t *testing.T) {
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		goleak.VerifyNone(t)
	})
}
