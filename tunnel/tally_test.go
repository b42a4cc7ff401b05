package tunnel_test

import (
	"context"
	"errors"
	"testing"

	"konnectivity/tunnel"
)

func TestRelayShowsWhatAFrontNotes(t *testing.T) {
	total := new(tunnel.Traffic)
	r := &tunnel.Relay{Total: total}
	r.Holding(true, true)
	if up, down := r.Held(); !up || down {
		t.Errorf("held %v %v", up, down)
	}
	r.Holding(true, false)
	r.Holding(false, true)
	r.Carried(true, 3)
	r.Carried(false, 5)
	if up, down := r.Held(); up || !down {
		t.Errorf("held %v %v", up, down)
	}
	if up, down := r.Sent(); up != 3 || down != 5 || total.Up.Load() != 3 || total.Down.Load() != 5 {
		t.Errorf("%d %d", up, down)
	}
}

func TestDialObservesAndFindsTheHop(t *testing.T) {
	rec := &recorder{}
	var id string
	f := &tunnel.Forwarder{Observers: []tunnel.Observer{rec}, Dialer: tunnel.DialerFunc(func(ctx context.Context, _, _ string) (tunnel.Conn, error) {
		id = tunnel.ID(ctx)
		tunnel.NoteHop(ctx, "agent a")
		return nil, errors.New("no")
	})}
	req := &tunnel.Request{ID: "one", Network: "tcp", Address: "a:1"}
	_, err := f.Dial(t.Context(), req)
	var typed *tunnel.DialError
	if !errors.As(err, &typed) || id != "one" || req.Next != "agent a" || len(rec.events) != 1 {
		t.Errorf("%v, id %q, next %q, observed %v", err, id, req.Next, rec.events)
	}
}
