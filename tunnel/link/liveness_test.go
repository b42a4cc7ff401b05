package link_test

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/testutil"
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
	testutil.Between(t, took, link.DefaultDeadAfter, 20*time.Second, "the time until it is noticed")
	testutil.ErrorIs(t, s.ses.Err(), link.ErrDead, "the session")
	testutil.Equal(t, tunnel.LossOf(s.ses.Err()), tunnel.LossSilent, "the cause")
	for range 3 {
		testutil.Equal(t, tunnel.FailureOf((<-s.dials).err), failure, "how a pending dial failed")
	}
	err := testutil.Err(s.ses.Dial(t.Context(), tunnel.NewFlow("tcp", "x:1")))
	testutil.Equal(t, tunnel.FailureOf(err), failure, "how a new dial failed")
	for _, c := range s.streams {
		got, err := io.ReadAll(c)
		testutil.Holds(t, string(got) == "unread" && tunnel.CodeOf(err) == tunnel.CodeLost && tunnel.LossOf(err) == tunnel.LossSilent,
			"a stream reads %q, %v, want what had come, then the loss", got, err)
		testutil.Equal(t, tunnel.CodeOf(testutil.Err(c.Write([]byte("x")))), tunnel.CodeLost, "a write's code")
		_ = c.Close()
	}
	_ = s.ses.Close()
	testutil.AtMost(t, time.Since(s.since)-took, time.Second, "time that the rest took")
	testutil.Equal(t, s.ses.Streams(), 0, "streams left")
	testutil.Equal(t, s.budget.Used(), 0, "bytes left")
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
		testutil.Bubble(t, name, func(t *testing.T) {
			s := newStill(t, c.role)
			c.peer(s)
			// A writer that is stuck, or waits for credit, must come back too.
			stuck := testutil.Later(func() error { return testutil.Err(s.streams[0].Write(make([]byte, 1<<20))) })
			s.wantDead(c.failure)
			testutil.Fails(t, <-stuck, "a write to a dead peer")
		})
	}
}

func (p *rawPeer) sendQuietly(f frame) bool {
	_, err := p.conn.Write(f.bytes())
	return err == nil
}

// A peer lives that never answers a PING but says something now and then, and so does one behind
// a slow wire that is filled by bulk, since it reads on.
func TestLivePeers(t *testing.T) {
	testutil.EachInBubble(t, map[string]func(s *still){
		"only speaks": func(s *still) {
			s.wg.Go(s.drain)
			for s.sendQuietly(frame{tInfo, 0, 0, nil}) {
				time.Sleep(14 * time.Second)
			}
		},
		"reads slowly": func(s *still) {
			s.wg.Go(func() {
				for s.sendQuietly(frame{tCredit, 0, 2, u64(1 << 30)}) {
					time.Sleep(10 * time.Second)
				}
			})
			s.wg.Go(func() { _, _ = s.streams[0].Write(make([]byte, 4<<20)) }) // more than it reads
			buf := make([]byte, 1200)
			for err := error(nil); err == nil; time.Sleep(time.Second) {
				_, err = s.conn.Read(buf)
			}
		},
	}, func(t *testing.T, peer func(s *still)) {
		s := newStill(t, 1)
		s.wg.Go(func() { peer(s) })
		time.Sleep(10 * time.Minute)
		testutil.Succeeds(t, s.ses.Err(), "the link to a live peer")
		testutil.Equal(t, s.ses.Streams(), 6, "streams")
		_ = s.conn.Close()
		_ = s.ses.Close()
		for range 3 {
			<-s.dials
		}
		s.wg.Wait()
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
			testutil.AtMost(t, time.Since(s.ses.Heard()), link.DefaultPingInterval, "the time without a word")
		}
		synctest.Wait()
		testutil.Between(t, len(pings), 20, 22, "pings in 10 min")
		pings = nil
		mute.Store(true)
		silent := time.Now()
		s.since = s.ses.Heard()
		<-s.ses.Done()
		synctest.Wait()
		testutil.Requires(t, len(pings) > 0, "a peer that fell silent was not pinged")
		testutil.AtMost(t, pings[0].Sub(silent), 2*link.DefaultPingInterval, "the time until the first")
		s.wantDead(tunnel.FailUnavailable)
	})
}
