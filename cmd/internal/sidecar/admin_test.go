package sidecar

import (
	"encoding/json"
	"net"
	"testing"
	"time"

	"konnectivity/adapters/uplink"
	"konnectivity/internal/admin"
	"konnectivity/internal/logging"
	"konnectivity/internal/testutil"
)

func TestAdminAddressDefaultsToLoopback(t *testing.T) {
	for given, want := range map[string]string{":8096": "127.0.0.1:8096", "0.0.0.0:8096": "0.0.0.0:8096", "[::]:1": "[::]:1", "localhost:1": "localhost:1"} {
		testutil.Equal(t, loopback(given), want, "%s", given)
	}
}

// A server that no longer answers is shown as silent before its link is given up.
func TestAdminShowsSilence(t *testing.T) {
	for heard, silent := range map[time.Duration]bool{time.Second: false, time.Hour: true} {
		p := peerAt(uplink.Link{Heard: time.Now().Add(-heard)})
		testutil.Equal(t, p.Silent > 0, silent, "heard %v ago", heard)
	}
}

// Connections of both fronts are in one table, on a port of its own.
func TestAdminPort(t *testing.T) {
	w := newWorld(t)
	w.startServer()
	s := testutil.Must(compose(w.options(SOCKS5, "--http-serving-port=0", "--admin-address=:0"), logging.Silent()))(w.t)
	ip := s.admin.Addr().(*net.TCPAddr).IP
	testutil.Holds(t, ip.IsLoopback(), "it listens on %v", ip)
	testutil.Holds(t, s.health == nil, "a health port was not asked for")
	s.Close()

	r := w.start(w.options(SOCKS5, "--admin-address=127.0.0.1:0"))
	testutil.Fails(t, testutil.Err(get("socks5", r.addrs[SOCKS5], "http://"+testutil.ReservedAddress(t))),
		"a port that nobody has")
	text := testutil.Must(get("", "", "http://"+r.admin+"/api/v1/failures"))(t)
	var page admin.Page[admin.Failure]
	testutil.NoError(t, json.Unmarshal([]byte(text), &page))
	testutil.Holds(t, len(page.Items) == 1 && page.Items[0].Front == "socks5" && page.Items[0].Failure == "refused" &&
		page.Items[0].Next == "server "+w.addr, "%+v", page.Items)
}
