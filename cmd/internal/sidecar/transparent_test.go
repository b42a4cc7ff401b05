package sidecar

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"konnectivity/internal/cli"
	"konnectivity/internal/front"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

func TestTransparentPortFlags(t *testing.T) {
	for args, want := range map[string]string{
		"--transparent-port=70000":                                         "want a port from 0 to 65535",
		"--transparent-port=8090":                                          "--transparent-port and --serving-port are both 8090",
		"--transparent-port=8091 --http-serving-port=8091":                 "--transparent-port and --http-serving-port are both 8091",
		"--transparent-port=8096 --socks5-credentials-file=/etc/passwords": "cannot be asked for the password",
		"--transparent-port=8096 --http-serving-port=8091":                 "",
	} {
		if !front.Redirects && !strings.Contains(args, "70000") {
			want = "only Linux"
		}
		_, status, said := parse(t, SOCKS5, strings.Fields(args)...)
		testutil.Holds(t, (status == 0) == (want == "") && (want == "" || status == cli.ExitUsage && strings.Contains(said, want)),
			"%s: status %d, said %q, want %q", args, status, said, want)
	}
}

// The port is for netfilter alone, which redirects to loopback: it is open there
// whatever else the sidecar serves, and of no use to others.
func TestTransparentPortListensOnLoopback(t *testing.T) {
	if !front.Redirects {
		t.Skip("only Linux has it")
	}
	w := newWorld(t)
	w.startServer()
	port := testutil.Reserved(t)
	r := w.start(w.options(HTTP, "--serving-address=0.0.0.0", "--answer-tcp-probes", "--transparent-port="+strconv.Itoa(port)))
	for _, host := range []string{"127.0.0.1", "::1"} {
		c, err := net.Dial("tcp", tunnel.JoinAddress(host, uint16(port)))
		if host == "::1" && err != nil && !strings.Contains(err.Error(), "reset") { // which may come before Dial has looked
			testutil.Fails(t, testutil.Err(net.Listen("tcp", "[::1]:0")), "IPv6 is not served")
			continue
		}
		if err == nil {
			_ = c.SetDeadline(time.Now().Add(patience))
			_, err = io.ReadAll(c)
			_ = c.Close()
		}
		testutil.ErrorSays(t, err, "reset", "%s: a connection that nobody redirected", host)
	}
	others := testutil.Must(reachable())(w.t)
	for _, a := range others {
		if c, err := net.Dial("tcp", tunnel.JoinAddress(a.String(), uint16(port))); err == nil {
			_ = c.Close()
			t.Errorf("the port is open at %s", a)
		}
	}
	testutil.ErrorSays(t, testutil.Err(dialConnect(t.Context(), strings.Replace(r.addrs[HTTP], "[::]", "127.0.0.1", 1), tunnel.JoinAddress("127.0.0.1", uint16(port)))),
		" 403 ", "by the other front")
}

// If the sidecar's own connections are redirected to it, the one to the server is refused,
// and the log says what to do.
func TestTransparentFrontRefusesTheServer(t *testing.T) {
	w := newWorld(t)
	w.startServer()
	var log testutil.Output
	s := testutil.Must(compose(w.options(SOCKS5), logTo(&log)))(w.t)
	defer s.Close()
	through := errors.New("through")
	d := s.refuseServer(tunnel.DialerFunc(func(context.Context, *tunnel.Flow) (tunnel.Conn, error) { return nil, through }))
	dial := func(address string) error {
		_, err := d.Dial(t.Context(), tunnel.NewFlow("tcp", address))
		return err
	}
	// Its addresses are known once they have been used.
	if c, err := s.adapter.Straight().Dial(t.Context(), tunnel.NewFlow("tcp", strings.TrimPrefix(w.site(), "http://"))); err != nil {
		t.Fatal(err)
	} else {
		_ = c.Close()
	}
	mapped := netip.MustParseAddrPort(w.addr)
	for _, address := range []string{w.addr, "[::ffff:" + mapped.Addr().String() + "]:" + strconv.Itoa(int(mapped.Port()))} {
		testutil.Equal(t, tunnel.FailureOf(dial(address)), tunnel.FailDenied, "%s", address)
	}
	for _, address := range []string{"127.0.0.1:1", tunnel.JoinAddress("192.0.2.1", mapped.Port())} {
		testutil.Equal(t, dial(address), through, "%s", address)
	}
	said := log.String()
	testutil.Holds(t, strings.Contains(said, "konnectivity redirect") && strings.Contains(said, "--uid="), "the log says %s", said)
	over, end := context.WithCancel(t.Context())
	end()
	s.adapter.Run(over)
}
