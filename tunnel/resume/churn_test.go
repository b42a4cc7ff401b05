package resume

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// churned has a machine lose each of so many carriers after lasting, and returns how long
// it waited for them in all, at most. brings is what each brings first; nil: nothing.
func churned(m *Machine, carriers int, lasting time.Duration, brings func(epoch uint32) happening) (waited time.Duration) {
	now := t0
	step := func(what happening) { m.Settle(what(m, now), now) }
	for range carriers {
		step(lost(m.epoch))
		step(detached)
		waited += m.Pause()
		now = now.Add(m.Pause())
		step(redial)
		step(up(m.epoch, m.Out.acked))
		giveAll(m)
		step(sent)
		if brings != nil {
			step(brings(m.epoch))
		}
		now = now.Add(lasting)
	}
	return waited
}

// A connection that is resumed in vain waits longer each time, and ends after some, with the
// cause of the last loss. One that makes progress, or has carriers that last, goes on.
func TestChurn(t *testing.T) {
	const brief = time.Millisecond
	aByte := func(epoch uint32) happening { return took(epoch, 1, false) }
	anAck := func(epoch uint32) happening { return acked(epoch, 1) }
	for name, c := range map[string]struct {
		left        bool // by its application
		lasting     time.Duration
		brings      func(epoch uint32) happening
		carriers    int
		least, most time.Duration // that it waits
		life        Life
	}{
		"in vain":                        {false, brief, nil, mostVain + 1, 30 * time.Second, time.Minute, Fruitless},
		"in vain, but not often":         {false, brief, nil, mostVain, 30 * time.Second, time.Minute, Live},
		"in vain, and left":              {true, brief, nil, mostVain + 1, 30 * time.Second, time.Minute, Unconfirmed},
		"left, on carriers that last":    {true, settled, nil, mostVain + 1, 30 * time.Second, time.Minute, Unconfirmed},
		"idle, on carriers that last":    {false, settled, nil, 100, 0, 0, Live},
		"with bytes each time":           {false, brief, aByte, 100, 20 * time.Second, 25 * time.Second, Live},
		"with bytes on all of them":      {false, settled, aByte, 100, 0, 0, Live},
		"with an acknowledgement, first": {false, brief, anAck, mostVain + 2, 30 * time.Second, time.Minute, Fruitless},
	} {
		t.Run(name, func(t *testing.T) {
			m := play(t, nil)
			if c.left {
				playOn(t, m, step{0, closed, StateLingering, Live, Send})
			}
			waited := churned(m, c.carriers, c.lasting, c.brings)
			testutil.Equal(t, m.life, c.life, "its end")
			testutil.Between(t, waited, c.least, c.most, "the wait")
			testutil.Holds(t, c.life != Fruitless || m.err == error(errLost), "it is told %v", m.err)
		})
	}
}

// Whose connection was resumed in vain reads why the last carrier was lost, but not that this
// process closed it: the connection was to go on.
func TestResumesInVainTellTheLastLoss(t *testing.T) {
	for cause := range tunnel.AllLossCauses() {
		m := play(t, nil)
		churned(m, mostVain, time.Millisecond, nil)
		happens(m, lostBy(m.epoch, tunnel.Lost(cause)))
		happens(m, detached)
		happens(m, redial)
		want := cause
		if cause == tunnel.LossLocal {
			want = tunnel.LossUnknown
		}
		testutil.Equal(t, m.Life(), Fruitless, "the end behind %v", cause)
		testutil.Equal(t, m.Loss(), cause, "the cause that is counted")
		testutil.Equal(t, m.Err(), error(tunnel.Lost(want)), "what the application reads")
		testutil.Holds(t, !errors.Is(m.Err(), net.ErrClosed), "%v is net.ErrClosed", m.Err())
	}
}

// brief is a carrier that is lost as soon as it is used.
type brief struct{ lean }

func (brief) Watch(w link.Watcher) *link.Ack {
	go w.Lost(errLost)
	return nil
}

// A Conn keeps to the waits of its machine: it dials no more often, and over as long a time.
func TestResumesInVainArePaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnds(t)
		var dials atomic.Int64
		dialer := e.Dialer(tunnel.DialerFunc(func(_ context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
			dials.Add(1)
			f.Resume.Granted = tunnel.Grant{Window: time.Minute, Route: "route"}
			return brief{}, nil
		}))
		began := time.Now()
		testutil.Must(dialer.Dial(t.Context(), tunnel.NewFlow("tcp", "dest:1")))(t)
		for synctest.Wait(); e.Len() > 0; synctest.Wait() {
			time.Sleep(time.Second)
		}
		// Half of each wait may be left out.
		testutil.Equal(t, dials.Load(), mostVain+1, "dials")
		testutil.AtLeast(t, time.Since(began), 15*time.Second, "their time")
	})
}

// The waits grow from the first that follows a carrier which was lost at once, and stay
// within what the other end waits for.
func TestPauses(t *testing.T) {
	for window, longest := range map[time.Duration]time.Duration{time.Minute: longestPause, 4 * time.Second: time.Second} {
		var c churn
		before := c.pause(window)
		c.lost(t0, false)
		pause := c.pause(window)
		testutil.Holds(t, before == 0 && pause == 0, "it waits %v and %v behind the first carrier", before, pause)
		for range mostVain {
			c.resumed(t0)
			c.lost(t0, false)
			pause := c.pause(window)
			testutil.Holds(t, pause > before || pause == longest, "it waits %v behind %v", pause, before)
			testutil.AtMost(t, pause, longest, "the pause")
			before = pause
		}
		c.resumed(t0)
		c.brought()
		c.lost(t0, false)
		testutil.Equal(t, c.pause(window), lastPause, "pause behind progress")
		c.resumed(t0)
		c.lost(t0.Add(settled), false)
		testutil.Equal(t, c.pause(window), 0, "pause behind a carrier that lasted")
	}
}

// An acceptor ends what its opener resumes again and again in vain, by carriers that it
// leaves attached, or before it has the answer.
func TestAcceptorEndsResumesInVain(t *testing.T) {
	testutil.Each(t, map[string]bool{"attached": true, "not answered": false}, func(t *testing.T, attached bool) {
		m := play(t, nil, step{0, dropped(0), StateDetached, Live, Detach | Dial})
		for epoch := range uint32(mostVainAccepted) {
			does := happens(m, offered(epoch+1, 0))
			testutil.Holds(t, does&Answer != 0, "carrier %d is taken", epoch+1)
			if attached {
				happens(m, up(epoch+1, 0))
				happens(m, offered(epoch+2, 0)) // which has it leave this one
				happens(m, detached)
				happens(m, sent)
			}
		}
		last := step{0, offered(mostVainAccepted+1, 0), StateGone, Fruitless, RefuseGone | Finish | Fail}
		playOn(t, m, last)
	})
}

// A policy that forbids a destination by now ends the connection, at both ends.
func TestForbiddenDestination(t *testing.T) {
	denied := failed(&tunnel.DialError{Failure: tunnel.FailDenied})
	play(t, nil, step{0, forbidden, StateGone, Denied, Finish | Fail})
	play(t, nil, step{0, dropped(0), StateDetached, Live, Detach | Dial},
		step{0, redial, StateDetached, Live, 0}, step{0, denied, StateGone, Denied, Finish | Fail})
}

// A reset by policy ends a connection, also on a carrier that is so new that any other reset
// would count as a loss; and a connection that a policy forbids resets by that code.
func TestResetByPolicy(t *testing.T) {
	cut := func(number uint32) happening {
		return lostBy(number, &tunnel.ResetError{Code: tunnel.CodePolicy})
	}
	play(t, nil, step{0, cut(0), StateGone, Ended, Finish | Fail})
	play(t, nil, step{0, dropped(0), StateDetached, Live, Detach | Dial},
		step{0, offered(1, 0), StateAttached, Live, Answer}, step{0, up(1, 0), StateAttached, Live, Attach | Send},
		step{0, cut(1), StateGone, Ended, Finish | Fail})
	m := newMachine(time.Minute, 0)
	happens(&m, forbidden)
	testutil.Equal(t, m.ResetCode(), tunnel.CodePolicy, "the code that it resets with")
	testutil.Equal(t, tunnel.CodeOf(m.err), tunnel.CodePolicy, "its error's")
}

// Bounds are what the pages say.
func TestFiguresAreDocumented(t *testing.T) {
	const security, operations = "../../docs/security.md", "../../docs/operations.md"
	testutil.Says(t, operations, "A connection keeps %v KiB at most until", minKept>>10)
	testutil.Says(t, operations, "then what is on its way, and %v MiB at most", maxKept>>20)
	testutil.Says(t, operations, "as do %v KiB for each connection that is closed here", lingerMemory>>10)
	testutil.Says(t, operations, "while memory is scarce, for %v s at most", int64(hurriedTime/time.Second))
	testutil.Says(t, operations, "The longest window is %v minutes", int64(MaxWindow/time.Minute))
	testutil.Says(t, security, "(where memory is scarce, for %v s at most)", int64(hurriedTime/time.Second))
	testutil.Says(t, security, "to %v s, and after %v in a row the connection ends", int64(longestPause/time.Second), mostVain)
	testutil.Says(t, security, "that was resumed %v times in a row in vain", mostVainAccepted)
}
