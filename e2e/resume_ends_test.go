package e2e

import (
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"konnectivity/tunnel"
)

// window is that of tests in which nothing comes back.
const window = 2 * time.Second

// ended wants c to be reset, and not ended in order, soon after a window.
func ended(t *testing.T, what string, c net.Conn) {
	t.Helper()
	began := time.Now()
	_ = c.SetReadDeadline(began.Add(window + slack))
	_, err := io.Copy(io.Discard, c)
	t.Logf("%s: %v after %v", what, err, time.Since(began).Round(time.Millisecond))
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("%s: %v instead of a reset", what, err)
	}
}

// A connection ends with either of its ends: the other hears of it within a
// window, and does not take it for the end of the data.
func TestConnectionsEndWithTheirEnds(t *testing.T) {
	t.Parallel() // it waits
	for name, kill := range map[string]func(*fleet){
		"agent":   func(f *fleet) { f.agent.Kill() },
		"sidecar": func(f *fleet) { f.socks.Kill() },
		"agent that comes back": func(f *fleet) {
			f.agent.Kill()
			f.startAgent()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			short := []string{"--resume-window=" + window.String()}
			f := newFleet(t, 2, flags{server: short, agent: append([]string{"--agent-id=agent-1"}, short...), sidecars: short})
			far := make(chan net.Conn, 1)
			target := listen(t, func(c *net.TCPConn) {
				far <- c
				<-t.Context().Done()
			})
			near := must(f.ways()[0].Dial(within(t, patience), tunnel.NewFlow("tcp", target)))(t)
			defer near.Close()
			other := <-far
			for _, c := range []net.Conn{near, other} { // both ways are in use
				must(c.Write([]byte("x")))(t)
			}
			must(io.ReadFull(near, make([]byte, 1)))(t)
			must(io.ReadFull(other, make([]byte, 1)))(t)
			kill(f)
			left := other
			if name != "sidecar" {
				left = near
			}
			ended(t, "the other side", left)
		})
	}
}

// Where one of the programs does not take part, all works as ever: connections
// are carried, and end with the sidecar's link.
func TestConnectionsArePlainWhereOneSideIs(t *testing.T) {
	t.Parallel() // it waits
	off := []string{"--resume-window=0"}
	for name, more := range map[string]flags{"server": {server: off}, "agent": {agent: off}, "sidecars": {sidecars: off}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, 1, more)
			s := startStorm(t, f.vault, scaled(time.Second, 10*time.Second), halves, f.ways()...)
			s.end()
			target := listen(t, func(c *net.TCPConn) { _, _ = io.Copy(c, c) })
			var conns []net.Conn
			for _, way := range f.ways() {
				c := must(way.Dial(within(t, patience), tunnel.NewFlow("tcp", target)))(t)
				defer c.Close()
				must(c.Write([]byte("x")))(t)
				must(io.ReadFull(c, make([]byte, 1)))(t)
				conns = append(conns, c)
			}
			f.toClients.cut() // of a sidecar's that does not take part the server is an end
			for _, c := range conns {
				ended(t, "after a cut", c)
			}
		})
	}
}
