package tunnel_test

import (
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"konnectivity/tunnel"
)

func TestTraceParent(t *testing.T) {
	const trace = "0af7651916cd43dd8448eb211c80319c"
	for header, want := range map[string]string{
		"00-" + trace + "-b7ad6b7169203331-01":                   trace,
		"42-" + trace + "-b7ad6b7169203331-01-more":              trace,
		"00-" + trace + "-b7ad6b7169203331-01-more":              "",
		"42-" + trace + "-b7ad6b7169203331-01more":               "",
		"ff-" + trace + "-b7ad6b7169203331-01":                   "",
		"00-" + trace + "-0000000000000000-01":                   "",
		"00-" + strings.Repeat("0", 32) + "-b7ad6b7169203331-01": "",
		"00-" + strings.ToUpper(trace) + "-b7ad6b7169203331-01":  "",
		"00-" + trace + "-b7ad6b716920333\n-01":                  "",
		"00_" + trace + "-b7ad6b7169203331-01":                   "",
		"00-" + trace:                                            "",
		"":                                                       "",
	} {
		if got := tunnel.TraceParent(header); got != want {
			t.Errorf("%q: %q, want %q", header, got, want)
		}
	}
}

func FuzzTraceParent(f *testing.F) {
	f.Add("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	f.Fuzz(func(t *testing.T, header string) {
		if id := tunnel.TraceParent(header); id != "" && (len(id) != 32 || tunnel.CleanID(id) != id) {
			t.Errorf("%q: %q", header, id)
		}
	})
}

func TestCleanID(t *testing.T) {
	for id, want := range map[string]string{
		tunnel.NewID()[:4] + "-_.Z9":        "=",
		strings.Repeat("a", tunnel.MaxID):   "=",
		strings.Repeat("a", tunnel.MaxID+1): "",
		"a b":                               "",
		"a\r\nEvil: 1":                      "",
		"ä":                                 "",
		"":                                  "",
	} {
		if want == "=" {
			want = id
		}
		if got := tunnel.CleanID(id); got != want {
			t.Errorf("%q: %q", id, got)
		}
	}
}

func TestObserversLearnByWhomADialWent(t *testing.T) {
	for _, fails := range []bool{false, true} {
		f := &tunnel.Forwarder{Dialer: tunnel.DialerFunc(func(_ context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
			try := f.To("b:2")
			try.Hop = tunnel.Hop{Role: "agent", ID: "second"}
			f.Hop = tunnel.Hop{Role: "agent", ID: "first"}
			f.Adopt(try)
			if fails {
				return nil, io.ErrUnexpectedEOF
			}
			_, b := tcpPair(t)
			return tunnel.Wrap(b), nil
		})}
		hop := ""
		f.Observers = []tunnel.Observer{dialed(func(flow *tunnel.Flow) { hop = flow.Hop.String() })}
		_ = f.Forward(t.Context(), tunnel.NewFlow("tcp", "a:1"), func(tunnel.Conn, error) (tunnel.Conn, error) {
			return nil, io.EOF
		})
		if hop != "agent second" {
			t.Errorf("fails=%v: went by %q", fails, hop)
		}
	}
}

// dialed is an Observer of dials.
type dialed func(*tunnel.Flow)

func (d dialed) Dialed(req *tunnel.Flow, _ time.Duration, _ error) { d(req) }
func (dialed) Opened(*tunnel.Flow)                                 {}
func (dialed) Closed(*tunnel.Flow, time.Duration, error)           {}

func TestHeldTellsWhichSideDoesNotRead(t *testing.T) {
	client, a := tcpPair(t)
	b, target := tcpPair(t)
	relay := &tunnel.Relay{A: tunnel.Wrap(a), B: tunnel.Wrap(b), Flow: new(tunnel.Flow)}
	done := make(chan error, 1)
	go func() { done <- relay.Run(t.Context()) }()
	go func() { // the target never reads
		_, _ = io.Copy(client, zeros{})
	}()
	held := func() bool {
		before, _ := relay.Flow.Sent()
		up, _ := relay.Flow.Held()
		time.Sleep(20 * time.Millisecond)
		after, _ := relay.Flow.Sent()
		return up && before == after
	}
	for end := time.Now().Add(20 * time.Second); !held(); {
		if time.Now().After(end) {
			t.Fatal("a reader that stalled does not show")
		}
	}
	if _, down := relay.Flow.Held(); down {
		t.Error("nothing goes down, and yet it is held")
	}
	client.Close()
	target.Close()
	<-done
	if up, _ := relay.Flow.Held(); up {
		t.Error("held after its end")
	}
}

// zeros is an endless source.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }
