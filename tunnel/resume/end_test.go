package resume

import (
	"errors"
	"testing"
	"time"

	"konnectivity/tunnel"
)

func (s State) String() string {
	return [...]string{"attached", "detached", "lingering", "gone"}[s]
}

var t0 = time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)

func at(seconds int) time.Time { return t0.Add(time.Duration(seconds) * time.Second) }

// written is an end that has sent text and nothing else.
func written(t *testing.T, text string) *End {
	t.Helper()
	e := newEnd(30 * time.Second)
	t.Cleanup(e.Out.Release)
	e.Out.Append(tunnel.CopyChunk([]byte(text)))
	send(&e)
	return &e
}

func send(e *End) (fin bool) {
	batch := make([]tunnel.Chunk, 8)
	n, fin := e.Out.Next(batch)
	tunnel.ReleaseAll(batch[:n])
	e.Out.Given()
	return fin
}

func want(t *testing.T, e *End, s State, r Reason) {
	t.Helper()
	if e.State() != s || e.Reason() != r {
		t.Errorf("it is %v (%q), want %v (%q)", e.State(), e.Reason().Label(), s, r.Label())
	}
}

func TestWindow(t *testing.T) {
	e := written(t, "abc")
	e.Broken(0, tunnel.CodeLost, at(10))
	e.Tick(at(39))
	want(t, e, Detached, NotGone)
	epoch, _, _ := e.Try(at(39))
	if err := e.Resumed(epoch, 1, at(39)); err != nil {
		t.Fatal(err)
	}
	e.Tick(at(1000)) // a carrier is there: nothing runs out
	want(t, e, Attached, NotGone)
	e.Broken(epoch, tunnel.CodeShutdown, at(1000))
	for range 5 { // to try does not stretch it
		_, _, _ = e.Try(at(1020))
	}
	e.Tick(at(1030))
	want(t, e, Gone, Expired)
	if e.Out.Size() != 0 {
		t.Error("it still holds memory")
	}
}

// What was given up without a carrier waits for one to say so by, keeps nothing
// meanwhile, and waits no longer than any.
func TestAbandonedEnd(t *testing.T) {
	e := written(t, "abc")
	e.Out.Finish()
	e.Broken(0, tunnel.CodeLost, at(10))
	e.Abandon(at(11))
	e.Settle(at(11))
	want(t, e, Lingering, NotGone)
	if e.Out.Size() != 0 {
		t.Error("it still holds memory")
	}
	epoch, _, err := e.Try(at(12))
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Resumed(epoch, 1, at(13)); !errors.Is(err, ErrGone) {
		t.Errorf("a carrier came: %v", err)
	}
	want(t, e, Gone, Ended)

	e = written(t, "abc")
	e.Broken(0, tunnel.CodeLost, at(10))
	e.Abandon(at(39))
	e.Tick(at(40))
	want(t, e, Gone, Unconfirmed)
}

func TestOnlyALostCarrierIsSurvived(t *testing.T) {
	for code := tunnel.CodeUnknown; code <= tunnel.CodeMemory; code++ {
		e := written(t, "abc")
		e.Broken(0, code, at(0))
		if code == tunnel.CodeLost || code == tunnel.CodeShutdown {
			want(t, e, Detached, NotGone)
		} else {
			want(t, e, Gone, Ended)
		}
	}
}

func TestNewestCarrierWins(t *testing.T) {
	e := written(t, "abcdef")
	if _, err := e.Accept(2, 3, at(1)); err != nil { // while the first is there
		t.Fatal(err)
	}
	for _, epoch := range []uint32{0, 1, 2} {
		if _, err := e.Accept(epoch, 3, at(1)); !errors.Is(err, ErrStale) {
			t.Errorf("carrier %d: %v", epoch, err)
		}
	}
	e.Broken(0, tunnel.CodePeerReset, at(2)) // late news of the first
	want(t, e, Attached, NotGone)
	e.Broken(2, tunnel.CodeCancelled, at(2)) // given up before it was used
	want(t, e, Detached, NotGone)
	if _, err := e.Accept(3, 3, at(3)); err != nil {
		t.Fatal(err)
	}
	e.Heard(3)
	e.Broken(3, tunnel.CodeCancelled, at(4))
	want(t, e, Gone, Ended)
	if _, err := e.Accept(4, 3, at(5)); !errors.Is(err, ErrGone) {
		t.Errorf("after its end: %v", err)
	}
}

func TestLiesEndIt(t *testing.T) {
	for name, lie := range map[string]func(e *End) error{
		"took what was not sent": func(e *End) error { return e.Ack(4, at(1)) },
		"lacks what it has": func(e *End) error {
			_ = e.Ack(2, at(1))
			_, err := e.Accept(1, 1, at(1))
			return err
		},
		"has what was not sent": func(e *End) error { _, err := e.Accept(1, 4, at(1)); return err },
		"answers so": func(e *End) error {
			epoch, _, _ := e.Try(at(1))
			return e.Resumed(epoch, 4, at(1))
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := written(t, "abc")
			if err := lie(e); !errors.Is(err, ErrContradiction) {
				t.Errorf("got %v", err)
			}
			want(t, e, Gone, Dishonest)
		})
	}
}

func TestLingersUntilThePeerHasIt(t *testing.T) {
	e := written(t, "abc")
	e.In.Finish()
	e.Out.Finish()
	e.Settle(at(0))
	want(t, e, Lingering, NotGone)
	if !send(e) {
		t.Fatal("no end was sent")
	}
	_ = e.Ack(3, at(1))
	want(t, e, Lingering, NotGone)
	e.Broken(0, tunnel.CodeLost, at(20))
	epoch, _, _ := e.Try(at(21))
	if err := e.Resumed(epoch, 3, at(22)); err != nil || !e.Out.Unsent() {
		t.Fatalf("the end is to be sent again: %v", err)
	}
	send(e)
	_ = e.Ack(4, at(23))
	want(t, e, Gone, Complete)
}

// over is an end both of whose directions are, at the time 0, with its last bytes on
// a carrier.
func over(t *testing.T) *End {
	t.Helper()
	e := written(t, "abc")
	e.In.Finish()
	e.Out.Finish()
	send(e)
	e.Settle(at(0))
	return e
}

// A peer that takes the last of it slowly has as long as that takes, and one that
// stands still for as long as relays bear that.
func TestLingersAsLongAsThePeerIsSlow(t *testing.T) {
	e := over(t)
	now, still := at(0), stillTime-time.Second
	for offset := range uint64(3) {
		now = now.Add(still)
		e.Tick(now)
		_ = e.Ack(offset+1, now)
		want(t, e, Lingering, NotGone)
	}
	_ = e.Ack(2, now.Add(still)) // which is no news
	e.Tick(now.Add(stillTime))
	want(t, e, Gone, Unconfirmed)
}

// Detached a carrier it has a window from when that was lost.
func TestLingeringIsBounded(t *testing.T) {
	e := over(t)
	e.Broken(0, tunnel.CodeLost, at(29))
	_, _, _ = e.Try(at(40)) // in vain
	e.Tick(at(58))
	want(t, e, Lingering, NotGone)
	e.Tick(at(59))
	want(t, e, Gone, Unconfirmed)
}

// A peer that may itself wait for what nobody reads any more has a window.
func TestLingeringWithoutAReaderIsBounded(t *testing.T) {
	e := written(t, "abc")
	e.Close(at(0))
	e.Tick(at(29))
	want(t, e, Lingering, NotGone)
	_ = e.Ack(1, at(29))
	e.Tick(at(58))
	want(t, e, Lingering, NotGone)
	e.Tick(at(59))
	want(t, e, Gone, Unconfirmed)
}

// It waits like any other once it has taken the peer's end, which came after it was closed.
func TestLingersOnOnceThePeersEndIsTaken(t *testing.T) {
	e := written(t, "abc")
	e.Close(at(0))
	send(e)
	e.In.Finish()
	e.Settle(at(1))
	e.Tick(at(30))
	want(t, e, Lingering, NotGone)
	e.Tick(at(0).Add(stillTime))
	want(t, e, Gone, Unconfirmed)
}

func TestClosedDropsWhatComes(t *testing.T) {
	e := written(t, "abc")
	e.Close(at(0))
	want(t, e, Lingering, NotGone)
	send(e)
	_ = e.Ack(4, at(1))
	want(t, e, Gone, Complete)
}

func TestPlain(t *testing.T) {
	e := written(t, "abc")
	e.Out.Append(tunnel.CopyChunk([]byte("def")))
	if !e.Degrade() {
		t.Fatal("it was attached")
	}
	if e.Degrade() {
		t.Error("it was degraded twice")
	}
	if e.Out.Kept() != 3 {
		t.Errorf("keeps %d bytes; what is yet to be sent are 3", e.Out.Kept())
	}
	send(e)
	if e.Out.Kept() != 0 || e.Out.Size() != 0 {
		t.Errorf("keeps %d bytes in %d", e.Out.Kept(), e.Out.Size())
	}
	e.Broken(0, tunnel.CodeLost, at(1))
	want(t, e, Gone, Unresolved)
}

// A plain end whose peer goes on by another carrier, of which it was not told before,
// has lost its own.
func TestPlainEndThatIsResumed(t *testing.T) {
	e := written(t, "abc")
	e.Dialed(1)
	e.Degrade()
	for _, late := range []uint32{0, 1} {
		if _, err := e.Accept(late, 3, at(0)); !errors.Is(err, ErrGone) {
			t.Errorf("resumed: %v", err)
		}
	}
	want(t, e, Attached, NotGone)
	if _, err := e.Accept(2, 3, at(0)); !errors.Is(err, ErrGone) {
		t.Errorf("resumed: %v", err)
	}
	want(t, e, Gone, Unresolved)
}

// Bytes behind the end of a direction are a mistake of who writes them, which is not
// to reach the peer.
func TestNothingComesBehindTheEnd(t *testing.T) {
	e := written(t, "abc")
	e.Out.Finish()
	more := tunnel.CopyChunk([]byte("d"))
	defer more.Release()
	defer func() {
		if recover() == nil {
			t.Error("it was taken")
		}
	}()
	e.Out.Append(more)
}

func TestNoBufferIsGivenUpThatIsNeeded(t *testing.T) {
	e := written(t, "abc")
	e.Broken(0, tunnel.CodeLost, at(0))
	if e.Degrade() {
		t.Error("it waits for a carrier")
	}
}

// One that lingers is done where it has given all of it to its carrier.
func TestMemoryIsFreedOfAnEndThatLingers(t *testing.T) {
	e := over(t)
	if !e.Degrade() || e.Out.Size() > 0 {
		t.Error("it still holds memory")
	}
	e.Settle(at(1))
	want(t, e, Gone, Complete)
}

// One that lingers is not done while its carrier has yet to take what it is being given.
func TestWhatIsBeingGivenIsNotOver(t *testing.T) {
	e := over(t)
	_ = e.Out.Rewind(0)
	batch := make([]tunnel.Chunk, 8)
	n, fin := e.Out.Next(batch)
	tunnel.ReleaseAll(batch[:n])
	if !fin || !e.Degrade() {
		t.Fatal("the end is not given, or needed for another carrier")
	}
	e.Settle(at(1))
	want(t, e, Lingering, NotGone)
	e.Out.Given()
	e.Settle(at(1))
	want(t, e, Gone, Complete)
}

// The end of a direction is acknowledged at once where the other one has ended, too.
func TestAcknowledgesTheEndWithItsOwn(t *testing.T) {
	for _, first := range []bool{true, false} {
		e := newEnd(time.Minute)
		if first {
			e.Out.Finish()
		}
		e.In.Take(1)
		e.In.Finish()
		if e.Due() != first || !e.In.Owes() {
			t.Errorf("due: %v, with our own end before it: %v", e.Due(), first)
		}
		if e.Out.Finish(); !e.Due() {
			t.Error("not due though both directions have ended")
		}
		if e.In.Tell(); e.Due() {
			t.Error("due again")
		}
	}
}

// A peer that keeps much is told less often, on that carrier.
func TestAcknowledgesInSteps(t *testing.T) {
	e := newEnd(time.Minute)
	due := func(at int) {
		t.Helper()
		e.In.Take(at - 1)
		if e.Due() {
			t.Errorf("due before %d", at)
		}
		e.In.Take(1)
		if !e.Due() {
			t.Errorf("not due at %d", at)
		}
		e.In.Tell()
	}
	due(Step)
	e.In.Keeps(true)
	due(BigStep)
	e.In.Take(Step)
	if e.In.Keeps(false); !e.Due() {
		t.Error("not due once the peer keeps less")
	}
	e.In.Tell()
	e.In.Keeps(true)
	if _, err := e.Accept(1, 0, at(0)); err != nil {
		t.Fatal(err)
	}
	due(Step)
}
