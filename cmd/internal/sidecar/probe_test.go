package sidecar

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"konnectivity/cmd/internal/program"
	"konnectivity/internal/testutil"
)

// probed is a sidecar's probe listeners alone, for a proxy that listens at own,
// with 127.0.0.2 in the place of a pod's address.
func probed(t *testing.T, own string, answer bool) (_ *sidecar, port string) {
	t.Helper()
	proxy := testutil.Opened(net.Listen("tcp", own))(t)
	s := &sidecar{opts: &Options{answerProbes: answer}, Base: program.Base{Log: logrus.New()}}
	s.self.add(proxy)
	pod := func() ([]netip.Addr, error) { return []netip.Addr{netip.MustParseAddr("127.0.0.2")}, nil }
	testutil.NoError(t, s.openProbes(pod))
	t.Cleanup(s.Close)
	_, port, _ = net.SplitHostPort(proxy.Addr().String())
	return s, port
}

func TestProbesAreAnswered(t *testing.T) {
	s, port := probed(t, "127.0.0.1:0", true)
	var all sync.WaitGroup
	for _, ln := range s.probes {
		all.Go(func() { s.answerProbes(context.Background(), ln) })
	}
	t.Cleanup(func() { s.Close(); all.Wait() })
	for range 3 {
		conn, err := net.DialTimeout("tcp", "127.0.0.2:"+port, patience)
		testutil.Requires(t, err == nil, "kubelet's probe: %v", err)
		_ = conn.SetDeadline(time.Now().Add(patience))
		if n, err := conn.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
			t.Errorf("a probe read %d bytes, %v; want it closed and nothing said", n, err)
		}
		_ = conn.Close()
	}
}

// broken is a listener that is at its end.
type broken struct{ net.Listener }

func (broken) Accept() (net.Conn, error) { return nil, syscall.EINVAL }

// Nobody but the log can tell why probes fail from then on; that it was closed is no news.
func TestProbesThatEndAreLogged(t *testing.T) {
	log, lines := logtest.NewNullLogger()
	s := &sidecar{Base: program.Base{Log: log}}
	s.answerProbes(t.Context(), broken{testutil.Listen(t)})
	last := lines.LastEntry()
	testutil.Requires(t, last != nil, "nothing is logged")
	testutil.Holds(t, last.Data[logrus.ErrorKey] == error(syscall.EINVAL), "its cause is %v", last.Data)
	lines.Reset()
	closed := testutil.Listen(t)
	testutil.NoError(t, closed.Close())
	s.answerProbes(t.Context(), closed)
	testutil.Equal(t, len(lines.AllEntries()), 0, "lines about a closed listener")
}

func TestProbesAreOffByDefault(t *testing.T) {
	byDefault, _ := probed(t, "127.0.0.1:0", false)
	testutil.Equal(t, len(byDefault.probes), 0, "listeners without --answer-tcp-probes")
	everywhere, _ := probed(t, "0.0.0.0:0", true)
	testutil.Equal(t, len(everywhere.probes), 0, "second listeners of a proxy that listens everywhere")
}

// One address that this machine does not have, or not yet, keeps no sidecar from
// serving.
func TestProbesWithUnusableAddress(t *testing.T) {
	absent, there := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("127.0.0.2")
	for _, c := range []struct {
		addresses []netip.Addr
		open      int
		fails     bool
	}{
		{[]netip.Addr{absent, there}, 1, false},
		{[]netip.Addr{absent}, 0, true},
		{nil, 0, false},
	} {
		s := &sidecar{opts: &Options{answerProbes: true}, Base: program.Base{Log: logrus.New()}}
		err := s.openProbesBeside(0, c.addresses)
		testutil.Holds(t, (err != nil) == c.fails && len(s.probes) == c.open,
			"%v: %d listeners, %v", c.addresses, len(s.probes), err)
		s.Close()
	}
}
