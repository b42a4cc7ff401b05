package sidecar

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strconv"
	"testing"

	"konnectivity/internal/admin"
	"konnectivity/internal/logging/silent"
	"konnectivity/internal/testutil"
)

func TestAdminAddressDefaultsToLoopback(t *testing.T) {
	for given, want := range map[string]string{":8096": "127.0.0.1:8096", "0.0.0.0:8096": "0.0.0.0:8096", "[::]:1": "[::]:1", "localhost:1": "localhost:1"} {
		if got := loopback(given); got != want {
			t.Errorf("%s: %s, want %s", given, got, want)
		}
	}
}

// Connections of both fronts are in one table, on a port of its own.
func TestAdminPort(t *testing.T) {
	w := newWorld(t)
	w.startServer()
	s := testutil.Must(compose(w.options(SOCKS5, "--http-serving-port=0", "--admin-address=:0"), silent.Log()))(w.t)
	if ip := s.admin.Addr().(*net.TCPAddr).IP; !ip.IsLoopback() {
		t.Errorf("it listens on %v", ip)
	}
	if s.health != nil {
		t.Error("a health port was not asked for")
	}
	s.close()

	o := w.options(SOCKS5, "--admin-address=127.0.0.1:0")
	s = testutil.Must(compose(o, silent.Log()))(t)
	address := s.admin.Addr().String()
	front := s.fronts[0].ln.Addr().String()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.run(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	c := testutil.Must(net.Dial("tcp", front))(w.t)
	defer c.Close()
	_, text, _ := net.SplitHostPort(testutil.ReservedAddress(t))
	refused := testutil.Must(strconv.Atoi(text))(w.t)
	_, _ = c.Write(append([]byte{5, 1, 0, 5, 1, 0, 1, 127, 0, 0, 1}, byte(refused>>8), byte(refused)))
	_, _ = io.Copy(io.Discard, c)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	res := testutil.Must(client.Get("http://" + address + "/api/v1/failures"))(w.t)
	defer res.Body.Close()
	var page admin.Page[admin.Failure]
	testutil.NoError(w.t, json.NewDecoder(res.Body).Decode(&page))
	if len(page.Items) != 1 || page.Items[0].Front != "socks5" || page.Items[0].Failure != "refused" || page.Items[0].Next != "server "+w.addr {
		t.Errorf("%+v", page.Items)
	}
}
