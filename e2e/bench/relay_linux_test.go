package main

import (
	"testing"
	"time"

	"konnectivity/e2e/suite"
	"konnectivity/internal/bench"
	"konnectivity/internal/testutil"
)

// The processes of the relay chain carry every byte.
func TestRelayChain(t *testing.T) {
	checkGoroutines(t)
	w := &world{Suite: suite.ForTest(t, binaries)}
	testutil.NoError(t, w.startChain("127.0.0.1", func(start func() error) error { return start() }))
	target, stop, err := bench.StartTarget(t.Context())
	testutil.NoError(t, err)
	defer func() { testutil.NoError(t, stop()) }()
	path := w.relayed(target)
	testutil.Must(path.Bulk(t.Context(), bench.Up, 2, 1<<20))(t)
	testutil.Must(path.Bulk(t.Context(), bench.Down, 2, 1<<20))(t)
	testutil.Must(path.RoundTrip(t.Context(), 20*time.Millisecond))(t)
}
