package link_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel/link"
)

// shaking is a handshake under way with a raw peer at the other end.
type shaking struct {
	*rawPeer
	result chan error
	start  time.Time
}

// shake starts Connect or Accept over a pipe that is slow to interrupt writes. The raw
// peer takes the HELLO of an initiator.
func shake(t *testing.T, ctx context.Context, initiator bool, cfg link.Config) *shaking {
	near, far := net.Pipe()
	s := &shaking{rawPeer: &rawPeer{t: t, conn: far}, result: make(chan error, 1), start: time.Now()}
	go func() {
		start := link.Accept
		if initiator {
			start = link.Connect
		}
		ses, err := start(ctx, tardy{near}, cfg)
		if err == nil {
			_ = ses.Close()
		}
		s.result <- err
	}()
	t.Cleanup(func() { _ = far.Close() })
	if initiator {
		s.wantType(tHello, 0)
	}
	return s
}

// failed returns after how long the handshake failed, and why.
func (s *shaking) failed() (time.Duration, error) {
	s.t.Helper()
	err := <-s.result
	testutil.Requires(s.t, err != nil, "the handshake succeeded")
	return time.Since(s.start), err
}

func bothRoles(t *testing.T, test func(t *testing.T, initiator bool)) {
	testutil.EachInBubble(t, map[string]bool{"accept": false, "connect": true}, func(t *testing.T, initiator bool) { test(t, initiator) })
}

// What comes instead of HELLO is a violation, and HELLO has to be there within 10 s.
func TestNoHello(t *testing.T) {
	many := []any{1, []byte{1}}
	for range 65 {
		many = append(many, 7, "feature")
	}
	hello := helloFrame(1).bytes()
	for name, c := range map[string]struct {
		first []byte
		pause time.Duration // between two bytes
		late  bool
	}{
		"http":                {first: []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n")},
		"zeroes on stream":    {first: frame{tHello, 0, 1, fields(1, []byte{1})}.bytes()},
		"open":                {first: openFrame(1, "echo:1").bytes()},
		"ping":                {first: frame{tPing, 0, 0, u64(1)}.bytes()},
		"unknown type":        {first: frame{42, 0, 0, nil}.bytes()},
		"too long":            {first: []byte{tHello, 0, 0x3f, 0xf5, 0, 0, 0, 0, 0, 0, 0, 0}},
		"half a field":        {first: frame{tHello, 0, 0, []byte{0, 1}}.bytes()},
		"role of two bytes":   {first: frame{tHello, 0, 0, fields(1, "ab")}.bytes()},
		"count of a byte":     {first: frame{tHello, 0, 0, fields(6, "a")}.bytes()},
		"too many features":   {first: frame{tHello, 0, 0, fields(many...)}.bytes()},
		"silence":             {late: true},
		"a header and no end": {first: hello[:14], late: true},
		"a byte a second":     {first: hello, pause: time.Second, late: true},
	} {
		t.Run(name, func(t *testing.T) {
			bothRoles(t, func(t *testing.T, initiator bool) {
				s := shake(t, t.Context(), initiator, link.Config{})
				var wg sync.WaitGroup
				wg.Go(func() {
					for i, err := 0, error(nil); i < len(c.first) && err == nil; i++ {
						_, err = s.conn.Write(c.first[i : i+1])
						time.Sleep(c.pause)
					}
				})
				s.wantGoAway(1)
				took, err := s.failed()
				wg.Wait()
				if !c.late {
					testutil.ErrorSays(t, err, "violation", "the handshake")
					testutil.AtMost(t, took, time.Second, "the time that it took")
					return
				}
				testutil.ErrorIs(t, err, context.DeadlineExceeded, "the handshake")
				testutil.Between(t, took, 9*time.Second, 12*time.Second, "the time that it took")
			})
		})
	}
}

// A peer that takes nothing must not hold a handshake up either.
func TestHandshakeWithAPeerThatDoesNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		defer far.Close()
		start := time.Now()
		testutil.ErrorIs(t, testutil.Err(link.Connect(t.Context(), near, link.Config{})), context.DeadlineExceeded, "the error")
		testutil.AtMost(t, time.Since(start), 12*time.Second, "time that it took")
	})
}

func TestHandshakeEndsWithItsContext(t *testing.T) {
	bothRoles(t, func(t *testing.T, initiator bool) {
		ctx, cancel := context.WithCancelCause(t.Context())
		s := shake(t, ctx, initiator, link.Config{})
		time.Sleep(time.Second)
		gone := errors.New("nobody wants it any more")
		cancel(gone)
		took, err := s.failed()
		testutil.ErrorIs(t, err, gone, "the handshake")
		testutil.Equal(t, took.Truncate(time.Second), time.Second, "the time that it took")
		testutil.ErrorIs(t, testutil.Err(s.read()), io.EOF, "what is read behind it")
	})
}

func TestVerifyIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := shake(t, t.Context(), false, link.Config{Verify: func(ctx context.Context, _ link.Hello) error {
			<-ctx.Done()
			return context.Cause(ctx)
		}})
		s.send(helloFrame(1))
		took, err := s.failed()
		testutil.ErrorIs(t, err, context.DeadlineExceeded, "the handshake")
		testutil.AtMost(t, took, 12*time.Second, "the time that it took")
	})
}

// tardy is a connection that is slow to interrupt a write.
type tardy struct{ net.Conn }

func (c tardy) SetDeadline(t time.Time) error {
	return errors.Join(c.SetWriteDeadline(t), c.SetReadDeadline(t))
}

func (c tardy) SetWriteDeadline(t time.Time) error {
	if !t.IsZero() && t.Before(time.Now()) {
		time.Sleep(10 * time.Millisecond)
	}
	return c.Conn.SetWriteDeadline(t)
}

// A link that is given up as its peer's HELLO is judged says so: also to a peer that
// was accepted, and would take the end of the connection for a cut.
func TestFarewellAtTheEndOfAHandshake(t *testing.T) {
	refused := errors.New("refused")
	for name, c := range map[string]struct {
		within time.Duration // 0: it is given up instead
		verify error
		code   uint16
	}{
		"refused late": {link.HandshakeTimeout, refused, uint16(link.GoAwayRefused)}, "refused for nobody": {0, refused, uint16(link.GoAwayRefused)},
		"accepted late": {link.HandshakeTimeout, nil, uint16(link.GoAwayInternal)}, "accepted for nobody": {0, nil, uint16(link.GoAwayShutdown)},
	} {
		t.Run(name, func(t *testing.T) {
			bothRoles(t, func(t *testing.T, initiator bool) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				s := shake(t, ctx, initiator, link.Config{Verify: func(ctx context.Context, _ link.Hello) error {
					if c.within == 0 {
						cancel()
					}
					<-ctx.Done()
					return c.verify
				}})
				s.send(helloFrame(1))
				time.Sleep(c.within + 100*time.Millisecond) // it need not read at once
				s.wantGoAway(c.code)
				_, _ = s.failed()
			})
		})
	}
}

func TestRefusalInsteadOfHello(t *testing.T) {
	bothRoles(t, func(t *testing.T, initiator bool) {
		s := shake(t, t.Context(), initiator, link.Config{})
		s.send(frame{tGoAway, 0, 0, u16(3, "a link from "+strings.Repeat("x", 2000))})
		_, err := s.failed()
		var bye *link.GoAwayError
		testutil.Holds(t, errors.As(err, &bye) && bye.Code == link.GoAwayDuplicate && len(bye.Text) == 1024, "%v", err)
	})
}

func TestPeerHangsUpInsteadOfHello(t *testing.T) {
	bothRoles(t, func(t *testing.T, initiator bool) {
		s := shake(t, t.Context(), initiator, link.Config{})
		_ = s.conn.Close()
		took, err := s.failed()
		testutil.ErrorIs(t, err, io.EOF, "the handshake")
		testutil.AtMost(t, took, time.Second, "the time that it took")
	})
}

// What does not fit a HELLO is an error that names it, before a byte is sent.
func TestOversizeHelloOfOurOwn(t *testing.T) {
	long := strings.Repeat("k", 20000)
	for want, hello := range map[string]link.Hello{
		"the token":                          {Token: long},
		"the identifiers":                    {Identifiers: long},
		"the id":                             {ID: long},
		"the software":                       {Software: long},
		"id, identifiers and token":          {Token: long[:9000], Identifiers: long[:9000]},
		"id, identifiers and token together": {ID: "a", Features: []string{long}},
	} {
		near, far := net.Pipe()
		_, err := link.Connect(t.Context(), near, link.Config{Hello: hello})
		testutil.Holds(t, err != nil && strings.Contains(err.Error(), want) && strings.Contains(err.Error(), "16372"), "%s: %v", want, err)
		testutil.Equal(t, err != nil && strings.Contains(err.Error(), "kkk"), false, "the secret in %q", err)
		testutil.Equal(t, testutil.Err(far.Read(make([]byte, 1))), io.EOF, "what is read after %s", want)
	}
	// One that just fits arrives whole.
	near, far := tcpPair(t)
	token := strings.Repeat("t", 16000)
	arrived := ""
	_, b := sessions(t, near, far, link.Config{Hello: link.Hello{Role: link.RoleAgent, Token: token}},
		link.Config{Verify: func(_ context.Context, peer link.Hello) error { arrived = peer.Token; return nil }})
	testutil.Holds(t, arrived == token, "a token of %d bytes arrived with %d, or others", len(token), len(arrived))
	testutil.Equal(t, b.Peer().Token, "", "the token, once it was judged")
}

// An id that is too long is refused, whatever else judges the peer.
func TestLongIDsAreRefused(t *testing.T) {
	bothRoles(t, func(t *testing.T, initiator bool) {
		s := shake(t, t.Context(), initiator, link.Config{Verify: func(context.Context, link.Hello) error { return nil }})
		s.send(frame{tHello, 0, 0, fields(1, []byte{1}, 3, strings.Repeat("i", link.MaxID+1))})
		s.wantGoAway(uint16(link.GoAwayRefused))
		_, err := s.failed()
		testutil.Contains(t, err.Error(), "id has 513 bytes", "the error")
	})
}
