package server

import (
	"strings"
	"testing"
	"time"

	"konnectivity/internal/testutil"
)

// A tenant's bytes take the time that its bound has them take, by whatever
// protocols they pass, and come whole; another's take none.
func TestBandwidthIsBounded(t *testing.T) {
	const size, least = 500_000, 200 * time.Millisecond // at 1 MB a second, which any machine is faster than
	s := startSharers(t)
	red, blue := s.add("red", "bounds: {mbitPerSecond: 8}"), s.add("blue", "")
	red.hasAgent()
	blue.hasAgent()
	send := func(c *sharer, kind string) time.Duration {
		t.Helper()
		conn := c.reaches(kind, "a:1")
		had, began := c.got.Load(), time.Now()
		testutil.Must(conn.Write([]byte(strings.Repeat("x", size))))(t)
		conn.Close()
		s.eventually("all bytes", func() bool { return c.got.Load() == had+size })
		return time.Since(began)
	}
	for _, kind := range sharedClients {
		if took := send(red, kind); took < least {
			t.Errorf("%s: %d bytes took %v", kind, size, took)
		}
		send(blue, kind)
	}
	_, page := s.get(s.health, "/metrics")
	waited := grep(page, "tenant_bandwidth_wait_seconds_total{")
	if !strings.Contains(waited, `{direction="to_destination",tenant="blue"} 0`) || strings.Contains(waited, `{direction="to_destination",tenant="red"} 0`+"\n") {
		t.Errorf("who waited: %s", waited)
	}

	// Another bound holds for what is open, too.
	conn := red.reaches("link", "a:1")
	had := red.got.Load()
	red.write("")
	if red.cluster().spec.Bounds.MbitPerSecond != 0 {
		t.Fatal("the bound was not lifted")
	}
	before := red.cluster().limits.Paces.Up.Held()
	testutil.Must(conn.Write([]byte(strings.Repeat("x", size))))(t)
	conn.Close()
	s.eventually("all bytes", func() bool { return red.got.Load() == had+size })
	testutil.Equal(t, red.cluster().limits.Paces.Up.Held()-before, 0, "without a bound, it waited for")
}
