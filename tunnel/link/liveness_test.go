package link_test

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// still is a session with streams and dials under way toward a raw peer of the
// given role. All time is synctest's.
type still struct {
	*rig
	streams []tunnel.Conn
	since   time.Time
	wg      sync.WaitGroup // of the peer; synctest wants it joined
}

func newStill(t *testing.T, role byte) *still {
	near, far := net.Pipe()
	s := &still{rig: newRigTo(t, role, link.Buffered(near), far, false, link.Config{})}
	for range 3 {
		id, conn := s.dialed()
		s.send(frame{tData, 0, id, []byte("unread")})
		s.streams = append(s.streams, conn)
	}
	for range 3 {
		s.dial()
	}
	_ = s.conn.SetDeadline(time.Time{}) // a live peer has all the time
	s.since = time.Now()
	return s
}

// drain reads whatever comes until the connection ends.
func (s *still) drain() { _, _ = io.Copy(io.Discard, s.conn) }

// wantDead checks that the session ends of silence, when it should, and that
// it takes everything with it at once.
func (s *still) wantDead(failure tunnel.Failure) {
	t := s.t
	t.Helper()
	<-s.ses.Done()
	took := time.Since(s.since)
	if took < link.DefaultDeadAfter || took > 20*time.Second {
		t.Errorf("noticed after %v, want 15 s to 20 s", took)
	}
	if err := s.ses.Err(); !errors.Is(err, link.ErrDead) || tunnel.LossOf(err) != tunnel.LossSilent {
		t.Errorf("the session ended with %v", err)
	}
	for range 3 {
		if d := <-s.dials; tunnel.FailureOf(d.err) != failure {
			t.Errorf("a pending dial failed with %v, want %v", d.err, failure)
		}
	}
	if _, err := s.ses.Dial(t.Context(), tunnel.NewFlow("tcp", "x:1")); tunnel.FailureOf(err) != failure {
		t.Errorf("a new dial failed with %v, want %v", err, failure)
	}
	for _, c := range s.streams {
		got, err := io.ReadAll(c)
		if string(got) != "unread" || tunnel.CodeOf(err) != tunnel.CodeLost || tunnel.LossOf(err) != tunnel.LossSilent {
			t.Errorf("a stream reads %q, %v, want what had come, then the loss", got, err)
		}
		if _, err := c.Write([]byte("x")); tunnel.CodeOf(err) != tunnel.CodeLost {
			t.Errorf("a stream writes with %v", err)
		}
		_ = c.Close()
	}
	_ = s.ses.Close()
	if late := time.Since(s.since) - took; late > time.Second {
		t.Errorf("the rest took another %v", late)
	}
	if n := s.ses.Streams(); n != 0 || s.budget.Used() != 0 {
		t.Errorf("%d streams, %d bytes left", n, s.budget.Used())
	}
	_ = s.conn.Close()
	s.wg.Wait()
}

// A peer is found dead in time whatever it still does, and all of its link ends at once.
func TestDeadPeers(t *testing.T) {
	const agent, client, server = 1, 2, 3
	nothing := func(*still) {}
	drains := func(s *still) { s.wg.Go(s.drain) }
	for name, c := range map[string]struct {
		role    byte
		failure tunnel.Failure
		peer    func(*still)
	}{
		"an agent that reads":    {agent, tunnel.FailAgentLost, drains},
		"a client that reads":    {client, tunnel.FailUnavailable, drains},
		"a server that reads":    {server, tunnel.FailUnavailable, drains},
		"an agent that is still": {agent, tunnel.FailAgentLost, nothing},
		"a client that is still": {client, tunnel.FailUnavailable, nothing},
		"a server that is still": {server, tunnel.FailUnavailable, nothing},
		"one that completes no frame": {agent, tunnel.FailAgentLost, func(s *still) {
			drains(s)
			s.wg.Go(func() {
				for {
					for _, b := range (frame{tPing, 0, 0, u64(1)}).bytes() {
						if _, err := s.conn.Write([]byte{b}); err != nil {
							return
						}
						time.Sleep(time.Second)
					}
				}
			})
		}},
		"one that asks and reads nothing": {agent, tunnel.FailAgentLost, func(s *still) {
			s.wg.Go(func() {
				for s.sendQuietly(frame{tPing, 0, 0, u64(1)}) {
					time.Sleep(time.Second)
				}
			})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStill(t, c.role)
				c.peer(s)
				// A writer that is stuck, or waits for credit, must come back too.
				stuck := make(chan error, 1)
				go func() { _, err := s.streams[0].Write(make([]byte, 1<<20)); stuck <- err }()
				s.wantDead(c.failure)
				if err := <-stuck; err == nil {
					t.Error("a write to a dead peer succeeded")
				}
			})
		})
	}
}

func (p *rawPeer) sendQuietly(f frame) bool {
	_, err := p.conn.Write(f.bytes())
	return err == nil
}

// live runs a raw peer for long and expects the session to survive it.
func live(t *testing.T, peer func(s *still)) {
	synctest.Test(t, func(t *testing.T) {
		s := newStill(t, 1)
		s.wg.Go(func() { peer(s) })
		time.Sleep(10 * time.Minute)
		if err := s.ses.Err(); err != nil {
			t.Errorf("a live peer was given up: %v", err)
		}
		if n := s.ses.Streams(); n != 6 {
			t.Errorf("%d streams, want the 6 there were", n)
		}
		_ = s.conn.Close()
		_ = s.ses.Close()
		for range 3 {
			<-s.dials
		}
		s.wg.Wait()
	})
}

// A peer that never answers a PING but says something now and then lives.
func TestPeerThatOnlySpeaksLives(t *testing.T) {
	live(t, func(s *still) {
		s.wg.Go(s.drain)
		for s.sendQuietly(frame{tInfo, 0, 0, nil}) {
			time.Sleep(14 * time.Second)
		}
	})
}

// A peer behind a slow wire that is filled by bulk lives, since it reads on.
func TestSlowReaderLives(t *testing.T) {
	live(t, func(s *still) {
		s.wg.Go(func() {
			for s.sendQuietly(frame{tCredit, 0, 2, u64(1 << 30)}) {
				time.Sleep(10 * time.Second)
			}
		})
		s.wg.Go(func() { _, _ = s.streams[0].Write(make([]byte, 4<<20)) }) // more than it reads
		buf := make([]byte, 1200)
		for {
			if _, err := s.conn.Read(buf); err != nil {
				return
			}
			time.Sleep(time.Second)
		}
	})
}

// A session that accepted a link leaves the pings to its peer, but for the round trip,
// and takes them up at once when the peer's do not come.
func TestAcceptorLeavesPingsToTheInitiator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStill(t, 2)
		var pings []time.Time
		var mute atomic.Bool
		s.wg.Go(func() {
			for {
				f, err := s.read()
				if err != nil {
					return
				}
				if f.typ == tPing && f.flags == 0 {
					pings = append(pings, time.Now())
					if !mute.Load() {
						s.wg.Go(func() { s.sendQuietly(frame{tPing, ack, 0, f.payload}) })
					}
				}
			}
		})
		time.Sleep(time.Second) // a ping and a look at one moment may come either way
		for end := time.Now().Add(10 * time.Minute); time.Now().Before(end); {
			s.sendQuietly(frame{tPing, 0, 0, u64(1)})
			time.Sleep(link.DefaultPingInterval)
			if quiet := time.Since(s.ses.Heard()); quiet > link.DefaultPingInterval {
				t.Fatalf("nothing was heard for %v", quiet)
			}
		}
		synctest.Wait()
		if n := len(pings); n < 20 || n > 22 {
			t.Errorf("%d pings in 10 min, want one every 30 s", n)
		}
		pings = nil
		mute.Store(true)
		silent := time.Now()
		s.since = s.ses.Heard()
		<-s.ses.Done()
		synctest.Wait()
		if len(pings) == 0 || pings[0].Sub(silent) > 2*link.DefaultPingInterval {
			t.Errorf("a peer that fell silent was pinged at %v", pings)
		}
		s.wantDead(tunnel.FailUnavailable)
	})
}
