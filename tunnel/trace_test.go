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
		f := &tunnel.Forwarder{Dialer: tunnel.DialerFunc(func(ctx context.Context, _, _ string) (tunnel.Conn, error) {
			tunnel.NoteHop(ctx, "agent first")
			tunnel.NoteHop(ctx, "agent second")
			if fails {
				return nil, io.ErrUnexpectedEOF
			}
			_, b := tcpPair(t)
			return tunnel.Wrap(b), nil
		})}
		next := ""
		f.Observers = []tunnel.Observer{dialed(func(req *tunnel.Request) { next = req.Next })}
		_ = f.Forward(t.Context(), &tunnel.Request{Network: "tcp", Address: "a:1"}, func(tunnel.Conn, error) (tunnel.Conn, error) {
			return nil, io.EOF
		})
		if next != "agent second" {
			t.Errorf("fails=%v: went by %q", fails, next)
		}
	}
	tunnel.NoteHop(t.Context(), "nobody listens")
}

// dialed is an Observer of dials.
type dialed func(*tunnel.Request)

func (d dialed) Dialed(req *tunnel.Request, _ time.Duration, _ error)      { d(req) }
func (dialed) Opened(*tunnel.Request, *tunnel.Relay)                       {}
func (dialed) Closed(*tunnel.Request, *tunnel.Relay, time.Duration, error) {}

func TestHeldTellsWhichSideDoesNotRead(t *testing.T) {
	client, a := tcpPair(t)
	b, target := tcpPair(t)
	relay := &tunnel.Relay{A: tunnel.Wrap(a), B: tunnel.Wrap(b)}
	done := make(chan error, 1)
	go func() { done <- relay.Run(t.Context()) }()
	go func() { // the target never reads
		_, _ = io.Copy(client, zeros{})
	}()
	held := func() bool {
		before, _ := relay.Sent()
		up, _ := relay.Held()
		time.Sleep(20 * time.Millisecond)
		after, _ := relay.Sent()
		return up && before == after
	}
	for end := time.Now().Add(20 * time.Second); !held(); {
		if time.Now().After(end) {
			t.Fatal("a reader that stalled does not show")
		}
	}
	if _, down := relay.Held(); down {
		t.Error("nothing goes down, and yet it is held")
	}
	client.Close()
	target.Close()
	<-done
	if up, _ := relay.Held(); up {
		t.Error("held after its end")
	}
}

// zeros is an endless source.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }
