package line_test

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"go.uber.org/goleak"

	"konnectivity/e2e/line"
	"konnectivity/internal/testutil"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testutil.Settled(m)) }

func newLine(t *testing.T, cfg line.Config) *line.Line {
	t.Helper()
	t.Parallel()
	if err := line.Possible(); err != nil {
		t.Skip(err)
	}
	l := testutil.Must(line.New(cfg))(t)
	t.Cleanup(func() {
		testutil.Succeeds(t, l.Close(), "close")
	})
	return l
}

// listen opens a UDP socket at an end.
func listen(t *testing.T, n *line.Namespace, address netip.Addr) *net.UDPConn {
	t.Helper()
	var c *net.UDPConn
	err := n.Do(func() (err error) {
		c, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(address, 0)))
		return err
	})
	testutil.NoError(t, err)
	_ = c.SetDeadline(time.Now().Add(3 * time.Minute))
	t.Cleanup(func() { c.Close() })
	return c
}

// ends are a socket at A, and one at B with its address.
func ends(t *testing.T, l *line.Line) (a, b *net.UDPConn, to netip.AddrPort) {
	t.Helper()
	a, b = listen(t, l.A, line.AddrA), listen(t, l.B, line.AddrB)
	return a, b, b.LocalAddr().(*net.UDPAddr).AddrPort()
}

// settles has measure tried until it has nothing to complain of: a machine that
// has other work to do disturbs many a measurement, but not all of a minute.
func settles(t *testing.T, measure func() (complaint string)) {
	t.Helper()
	complaint := ""
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		if complaint = measure(); complaint == "" {
			return
		}
	}
	t.Error(complaint)
}

func TestLineDelays(t *testing.T) {
	const delay = 20 * time.Millisecond
	l := newLine(t, line.Config{Delay: delay})
	a, b, to := ends(t, l)
	go func() {
		var p [64]byte
		for {
			n, from, err := b.ReadFromUDPAddrPort(p[:])
			if err != nil {
				return
			}
			_, _ = b.WriteToUDPAddrPort(p[:n], from)
		}
	}()
	settles(t, func() string {
		sent := time.Now()
		testutil.Must(a.WriteToUDPAddrPort([]byte("ping"), to))(t)
		testutil.Must(a.Read(make([]byte, 64)))(t)
		took := time.Since(sent)
		testutil.Holds(t, took >= 2*delay, "a round trip of %v over a line of %v", took, 2*delay)
		if !within5(float64(took), float64(2*delay)) {
			return fmt.Sprintf("a round trip of %v, want %v", took, 2*delay)
		}
		return ""
	})
}

// What the seeded Shaper says is lost of numbered packets does not arrive, and
// all else does.
func TestLineLosesWhatItsSeedSays(t *testing.T) {
	cfg := line.Config{Loss: 0.05, Seed: 7}
	l := newLine(t, cfg)
	a, b, to := ends(t, l)
	model := line.NewShaper(cfg, 0)
	lost := int64(0)
	for i := range 1000 {
		testutil.Must(a.WriteToUDPAddrPort(fmt.Appendf(nil, "%d", i), to))(t)
		if _, v := model.Admit(time.Time{}, packet); v == line.Lost {
			lost++
			continue
		}
		var p [8]byte
		if n, err := b.Read(p[:]); err != nil || string(p[:n]) != fmt.Sprint(i) {
			t.Fatalf("packet %d: read %q, %v", i, p[:n], err)
		}
	}
	toB, _ := l.Counters()
	testutil.Holds(t, lost != 0 && toB.Lost == lost && toB.Carried == 1000-lost, "%+v, and %d were to be lost", toB, lost)
}

func TestLineIsCutAndRestored(t *testing.T) {
	l := newLine(t, line.Config{})
	a, b, to := ends(t, l)
	say := func(text string) {
		t.Helper()
		testutil.Must(a.WriteToUDPAddrPort([]byte(text), to))(t)
	}
	l.SetCut(true)
	say("unheard")
	testutil.Eventually(t, "a packet is cut", func() bool { toB, _ := l.Counters(); return toB.Cut > 0 })
	l.SetCut(false)
	say("heard")
	p := make([]byte, 64)
	n, err := b.Read(p)
	testutil.Holds(t, err == nil && string(p[:n]) == "heard", "read %q, %v", p[:n], err)
}
