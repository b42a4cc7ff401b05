package tunnel_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// counted is a flow whose bytes are added to total.
func counted(total *tunnel.Totals) *tunnel.Flow {
	f := tunnel.NewFlow("tcp", "a:1")
	(&tunnel.Forwarder{Total: total}).Begin(f, nil)
	return f
}

func TestFlowCountsBytesOfFronts(t *testing.T) {
	total := new(tunnel.Totals)
	f := counted(total)
	f.Hold(true, true)
	testutil.Equal(t, fmt.Sprint(f.Held()), "true false", "holding up and down")
	f.Hold(true, false)
	f.Hold(false, true)
	f.Carry(true, 3)
	f.Carry(false, 5)
	testutil.Equal(t, fmt.Sprint(f.Held()), "false true", "holding up and down")
	testutil.Equal(t, fmt.Sprint(f.Sent()), "3 5", "bytes up and down")
	testutil.Equal(t, fmt.Sprint(total.Up.Load(), total.Down.Load()), "3 5", "bytes in all")
}

// A front may note what it passes on while the flow is begun: what came before
// is the flow's alone.
func TestBeginWhileCarrying(t *testing.T) {
	total := new(tunnel.Totals)
	f := tunnel.NewFlow("tcp", "a:1")
	f.Carry(true, 1)
	carried := make(chan struct{})
	go func() {
		f.Hold(true, true)
		f.Carry(true, 2)
		close(carried)
	}()
	(&tunnel.Forwarder{Total: total}).Begin(f, nil)
	<-carried
	f.Carry(true, 4)
	up, _ := f.Sent()
	testutil.Equal(t, up, 7, "bytes of the flow")
	n := total.Up.Load()
	testutil.Holds(t, n == 4 || n == 6, "%d bytes in all are 4 or 6", n)
}

// A try has all that was asked and found, and f sees nothing of it before TakeResult.
// Fields are compared as a whole: a new one is covered.
func TestTryIsSeparateUntilItsResultIsTaken(t *testing.T) {
	f := &tunnel.Flow{
		Request: tunnel.Request{ID: "one", Front: "socks5", Network: "tcp", Address: "name:1", Source: tunnel.Addr{Text: "c:1"}, Client: &tunnel.Client{Tenant: "t"}},
		Span:    tunnel.Span{ID: 1, Parent: 2},
		Result:  tunnel.Result{Route: tunnel.RouteTunnel},
	}
	asked, found := f.Request, f.Result
	try := f.To("10.0.0.1:1")
	asked.Address = "10.0.0.1:1"
	testutil.Holds(t, try.Request == asked && try.Span == f.Span && try.Result == found && try.Tenant() == "t",
		"a try has %+v", try)
	try.Hop, try.Resolved = tunnel.Direct, "10.0.0.1:1"
	testutil.Equal(t, f.Result, found, "what f has before it takes a result")
	f.TakeResult(try)
	testutil.Equal(t, f.Result, try.Result, "the result")
	testutil.Equal(t, f.Address, "name:1", "the address, which stays")
}

func TestDialReportsHopToObservers(t *testing.T) {
	rec := &recorder{}
	f := &tunnel.Forwarder{Observers: []tunnel.Observer{rec}, Dialer: tunnel.DialerFunc(func(_ context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
		f.Hop = tunnel.Hop{Role: "agent", ID: "a"}
		return nil, errors.New("no")
	})}
	flow := &tunnel.Flow{Request: tunnel.Request{Network: "tcp", Address: "a:1"}}
	_, err := f.Dial(t.Context(), flow)
	var typed *tunnel.DialError
	testutil.Holds(t, errors.As(err, &typed) && flow.ID != "" && flow.Hop.String() == "agent a" && len(rec.events) == 1,
		"%v, id %q, hop %q, observed %v", err, flow.ID, flow.Hop, rec.events)
}

func TestObserversSeeTheTakenHop(t *testing.T) {
	for _, fails := range []bool{false, true} {
		f := &tunnel.Forwarder{Dialer: tunnel.DialerFunc(func(_ context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
			try := f.To("b:2")
			try.Hop = tunnel.Hop{Role: "agent", ID: "second"}
			f.Hop = tunnel.Hop{Role: "agent", ID: "first"}
			f.TakeResult(try)
			if fails {
				return nil, io.ErrUnexpectedEOF
			}
			_, b := testutil.Pair(t)
			return tunnel.Wrap(b), nil
		})}
		rec := &recorder{}
		f.Observers = []tunnel.Observer{rec}
		_ = tunnel.Forward(t.Context(), f, tunnel.NewFlow("tcp", "a:1"), func(tunnel.Conn, error) (tunnel.Conn, error) {
			return nil, io.EOF
		})
		testutil.Equal(t, rec.hop, "agent second", "the hop, where the dial fails: %v", fails)
	}
}

func TestHeldShowsStalledSide(t *testing.T) {
	relay := &tunnel.Relay{Flow: new(tunnel.Flow)}
	client, target, result := startRelay(t, relay)
	go func() { // the target never reads
		_, _ = io.Copy(client, endless{})
	}()
	held := func() bool {
		before, _ := relay.Flow.Sent()
		up, _ := relay.Flow.Held()
		time.Sleep(20 * time.Millisecond)
		after, _ := relay.Flow.Sent()
		return up && before == after
	}
	testutil.Eventually(t, "a reader that stalled shows", held)
	testutil.Equal(t, fmt.Sprint(relay.Flow.Held()), "true false", "holding up and down, as nothing goes down")
	client.Close()
	target.Close()
	_ = outcome(t, result)
	testutil.Equal(t, fmt.Sprint(relay.Flow.Held()), "false false", "holding up and down after its end")
}
