package roam_test

import (
	"context"
	"testing"
	"time"

	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// watched is a carrier that shows who watches it.
type watched struct {
	*link.Stream
	by chan link.Watcher
}

func (s watched) Watch(w link.Watcher) (link.Ack, bool) {
	s.by <- w
	return s.Stream.Watch(w)
}

// Who is asked to move goes on by the server that asks, for it has another lane;
// one that has lost its carrier goes on by any.
func TestMoveAsksTheSameServerFirst(t *testing.T) {
	w := &world{t: t, serve: make(grab, 1)}
	w.begin(1, time.Minute)
	asked, by := make(chan string, 10), make(chan link.Watcher, 10)
	c, err := w.opener.Dialer(tunnel.DialerFunc(func(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
		asked <- f.Resume.First
		c, err := w.Dial(ctx, f)
		if err != nil {
			return nil, err
		}
		return watched{c.(*link.Stream), by}, nil
	})).Dial(t.Context(), tunnel.NewFlow("tcp", "dest:1"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Reset(nil) }()
	(<-by).Move()
	if first, then := <-asked, <-asked; first != "" || then != "x" {
		t.Errorf("dialed by server %q, moved by %q", first, then)
	}
	(<-by).Lost(&tunnel.ResetError{Code: tunnel.CodeLost})
	if then := <-asked; then != "" {
		t.Errorf("resumed after a loss by server %q", then)
	}
}
