package tunnel_test

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

type recorder struct {
	events []string
	hop    string   // of the last dial
	far    net.Addr // and what it has reached
}

func (r *recorder) Dialed(f *tunnel.Flow, _ time.Duration, err error) {
	r.hop, r.far = f.Hop.String(), f.Far
	r.events = append(r.events, "dialed "+tunnel.FailureOf(err).Label())
}

func (r *recorder) Unanswered(*tunnel.Flow, time.Duration, error) {
	r.events = append(r.events, "unanswered")
}

func (r *recorder) Opened(*tunnel.Flow) { r.events = append(r.events, "opened") }

func (r *recorder) Closed(*tunnel.Flow, time.Duration, error) {
	r.events = append(r.events, "closed")
}

func TestForwardBoundsTheDial(t *testing.T) {
	rec := &recorder{}
	f := &tunnel.Forwarder{
		DialTimeout: 20 * time.Millisecond,
		Observers:   []tunnel.Observer{rec},
		Dialer: tunnel.DialerFunc(func(ctx context.Context, _ *tunnel.Flow) (tunnel.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}),
	}
	var told error
	err := tunnel.Forward(t.Context(), f, &tunnel.Flow{Request: tunnel.Request{Network: "tcp", Address: "a:1"}}, func(_ tunnel.Conn, err error) (tunnel.Conn, error) {
		told = err
		return nil, err
	})
	testutil.Equal(t, tunnel.FailureOf(err), tunnel.FailTimeout, "the failure")
	testutil.Equal(t, told, err, "what the client is told")
	testutil.EqualSlices(t, rec.events, []string{"dialed timeout"}, "what is observed")
}

// A destination that was reached for a client that is gone is reset, and observers hear of it.
func TestForwardObservesClientsThatCannotBeAnswered(t *testing.T) {
	target, far := testutil.Pair(t)
	rec, gone := &recorder{}, errors.New("gone")
	f := &tunnel.Forwarder{
		Observers: []tunnel.Observer{rec},
		Dialer:    tunnel.DialerFunc(func(context.Context, *tunnel.Flow) (tunnel.Conn, error) { return tunnel.Wrap(far), nil }),
	}
	err := tunnel.Forward(t.Context(), f, tunnel.NewFlow("tcp", "a:1"), func(tunnel.Conn, error) (tunnel.Conn, error) { return nil, gone })
	testutil.Equal(t, err, gone, "the error")
	testutil.EqualSlices(t, rec.events, []string{"dialed other", "unanswered"}, "what is observed")
	testutil.Equal(t, rec.far, far.RemoteAddr(), "what was reached")
	_ = target.SetReadDeadline(time.Now().Add(testutil.Patience))
	testutil.Equal(t, tunnel.CodeOf(testutil.Err(target.Read(make([]byte, 1)))), tunnel.CodePeerReset, "it reads")
}

// What is to be done at the end is done once, the last of it first, whether the dial
// fails or the connection ends.
func TestForwardRunsAtEndFunctions(t *testing.T) {
	for _, fails := range []bool{true, false} {
		client, a := testutil.Pair(t)
		b, target := testutil.Pair(t)
		rec, id := &recorder{}, ""
		f := &tunnel.Forwarder{Observers: []tunnel.Observer{rec}, Dialer: tunnel.DialerFunc(func(_ context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
			if id = f.ID; fails {
				return nil, errors.New("no")
			}
			return tunnel.Wrap(b), nil
		})}
		_, _ = client.Close(), target.Close()
		flow := &tunnel.Flow{}
		flow.AtEnd(func() { rec.events = append(rec.events, "first") })
		flow.AtEnd(func() { rec.events = append(rec.events, "second") })
		_ = tunnel.Forward(t.Context(), f, flow, func(_ tunnel.Conn, err error) (tunnel.Conn, error) { return tunnel.Wrap(a), err })
		testutil.Equal(t, id, flow.ID, "the id that the dial ran under")
		testutil.Equal(t, id != "", true, "there is one")
		want := []string{"dialed other", "opened", "closed", "second", "first"}
		if fails {
			want = []string{"dialed internal", "second", "first"}
		}
		testutil.EqualSlices(t, rec.events, want, "what was observed, where the dial fails: %v", fails)
	}
}
