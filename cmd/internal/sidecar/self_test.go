package sidecar

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"testing"

	"golang.org/x/net/proxy"

	"konnectivity/internal/testutil"
)

func TestSelfCheck(t *testing.T) {
	listening := func(addresses ...string) *selfCheck {
		s := new(selfCheck)
		for _, address := range addresses {
			s.own = append(s.own, netip.MustParseAddrPort(address))
		}
		return s
	}
	own, open := listening("127.0.0.1:8090", "[::1]:8091", "127.0.0.1:8092"), listening("[::]:8090")
	for check, addresses := range map[*selfCheck]map[string]bool{
		own: {
			"127.0.0.1:8090": true, "[::ffff:127.0.0.1]:8092": true, "0.0.0.0:8090": true, "[::]:8091": true, "[::1]:8091": true,
			"localhost:8090": true, "LocalHost.:8092": true, "a.localhost:8090": true,
			"127.0.0.1:80": false, "127.0.0.1:8091": false, "192.0.2.1:8090": false, "10.0.0.1:8090": false, "bad": false,
			"localhost:80": false, "localhost.example:8090": false, "notlocalhost:8090": false, "localhost": false,
		},
		open: {
			"127.0.0.1:8090": true, "127.0.0.9:8090": true, "[::1]:8090": true, "192.0.2.1:8090": false, "127.0.0.1:1": false,
		},
	} {
		for address, want := range addresses {
			testutil.Equal(t, check.names(address), want, "%s with %v", address, check.own)
		}
	}
}

// A client cannot have a sidecar connect to itself, whatever it calls it.
func TestFrontsRefuseOwnSidecar(t *testing.T) {
	w := newWorld(t)
	w.startServer()
	for _, front := range []Front{SOCKS5, HTTP} {
		addr := w.start(w.options(front)).addrs[front]
		d := func(address string) (net.Conn, error) { return dialConnect(t.Context(), addr, address) }
		if front == SOCKS5 {
			client := testutil.Must(proxy.SOCKS5("tcp", addr, nil, nil))(w.t)
			d = func(address string) (net.Conn, error) { return client.Dial("tcp", address) }
		}
		_, port, _ := net.SplitHostPort(addr)
		for _, host := range []string{"127.0.0.1", "localhost", "::ffff:127.0.0.1"} {
			c, err := d(net.JoinHostPort(host, port))
			if err == nil {
				_ = c.Close()
				t.Errorf("%s: connected to itself as %s", front, host)
			} else if said := err.Error(); !strings.Contains(said, "not allowed") && !strings.Contains(said, " 508 ") {
				t.Errorf("%s: %v", front, err)
			}
		}
	}
}

// Plain requests to any front of the sidecar are refused too.
func TestPlainRequestsRefuseOwnSidecar(t *testing.T) {
	w := newWorld(t)
	w.startServer()
	_, second, _ := net.SplitHostPort(testutil.ReservedAddress(t))
	addrs := w.start(w.options(HTTP, "--socks5-serving-port="+second)).addrs
	client := &http.Client{Timeout: patience, Transport: &http.Transport{
		DisableKeepAlives: true, Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: addrs[HTTP]}),
	}}
	for front, want := range map[Front]int{HTTP: http.StatusLoopDetected, SOCKS5: http.StatusForbidden} {
		_, port, _ := net.SplitHostPort(addrs[front])
		for _, host := range []string{"127.0.0.1", "[::ffff:127.0.0.1]", "0.0.0.0"} {
			resp := testutil.Must(client.Get("http://" + host + ":" + port + "/"))(w.t)
			_ = resp.Body.Close()
			testutil.Equal(t, resp.StatusCode, want, "%s at %s", front, host)
		}
	}
}
