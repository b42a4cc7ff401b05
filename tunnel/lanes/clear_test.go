package lanes

import (
	"context"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
	"konnectivity/tunnel/resume"
)

// As soon as a lane has joined the only one, bulk leaves that to the small messages: at
// once where this side has added it, and after firstSample where the peer has.
func TestBulkMovesAsALaneJoins(t *testing.T) {
	for name, adds := range map[string]bool{"here": true, "there": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testBulkMovesAsALaneJoins(t, adds) })
		})
	}
}

func testBulkMovesAsALaneJoins(t *testing.T, adds bool) {
	options := resume.Options{Window: time.Minute, Budget: link.NewBudget(1 << 30)}
	opener, acceptor := resume.New(options), resume.New(options)
	defer opener.Wait()
	defer acceptor.Wait()
	sink := tunnel.DialerFunc(func(context.Context, *tunnel.Flow) (tunnel.Conn, error) {
		near, far := net.Pipe()
		go func() { _, _ = io.Copy(io.Discard, far); _ = far.Close() }()
		return tunnel.Wrap(near), nil
	})
	r := &rig{t: t, serve: acceptor.Forwarder(&tunnel.Forwarder{Dialer: sink})}
	opt := Options{Max: 2}
	if adds {
		opt.Dial = func(context.Context) (*link.Session, error) { return r.link(), nil }
	}
	g := New(r.link(), opt)
	defer func() {
		opener.Close()
		acceptor.Close()
		_ = g.Close()
		r.close()
	}()
	lossy(g)

	dialer := opener.Dialer(g)
	var conns []tunnel.Conn
	for range 2 {
		c, err := dialer.Dial(t.Context(), tunnel.NewFlow("tcp", "example.test:80"))
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	bulk, small := conns[0], conns[1]
	r.wake(bulk)
	if !adds && !g.Add(r.link()) {
		t.Fatal("a lane was not taken in")
	}
	end := time.Now().Add(firstSample)
	for len(g.Sessions()) < 2 || time.Now().Before(end) {
		carry(t, bulk)
		whisper(t, small)
		time.Sleep(firstSample / 4)
	}
	synctest.Wait()
	first, second := g.Sessions()[0].Streams(), g.Sessions()[1].Streams()
	if first != 1 || second != 1 {
		t.Errorf("%d streams on the first lane and %d on the second, want one on each", first, second)
	}
}
