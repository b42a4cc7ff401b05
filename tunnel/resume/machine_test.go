package resume

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

func (s State) String() string {
	return [...]string{"attached", "detached", "lingering", "gone"}[s]
}

// happening is what a machine takes in at a time.
type happening func(m *Machine, now time.Time) Actions

// anytime is one for which the time does not count.
func anytime(what func(*Machine) Actions) happening {
	return func(m *Machine, _ time.Time) Actions { return what(m) }
}

// happens has m take in what happens.
func happens(m *Machine, what happening) Actions { return m.Settle(what(m, t0), t0) }

// step is what happens, and what the machine says to it.
type step struct {
	at    int // seconds
	event happening
	state State
	life  Life
	does  Actions // all of them, but for the harmless ones
}

// harmless are actions that may be done once too often: a wait that is woken looks again.
const harmless = Used | Wake | WatchDeadline

var t0 = time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)

// play has a machine with a window of 30 s, which has written and sent "abc", take in
// steps.
func play(t *testing.T, prepare func(*Machine), steps ...step) *Machine {
	t.Helper()
	m := newMachine(30*time.Second, 0)
	t.Cleanup(m.Out.Release)
	m.Out.Append(tunnel.CopyChunk([]byte("abc")))
	giveAll(&m)
	if prepare != nil {
		prepare(&m)
	}
	playOn(t, &m, steps...)
	return &m
}

func playOn(t *testing.T, m *Machine, steps ...step) {
	t.Helper()
	for i, s := range steps {
		now := t0.Add(time.Duration(s.at) * time.Second)
		does := m.Settle(s.event(m, now), now)
		if does&Send != 0 {
			giveAll(m)
			m.sender = SenderIdle
		}
		testutil.Holds(t, m.State() == s.state && m.life == s.life && does&s.does == s.does && does&^harmless == s.does&^harmless,
			"after step %d it is %v (%q) and does %b, want %v (%q) and %b", i, m.State(), m.life.Label(), does, s.state, s.life.Label(), s.does)
	}
}

// giveAll gives the carrier what it lacks, and says whether the end was among it.
func giveAll(m *Machine) (fin bool) {
	batch := make([]tunnel.Chunk, 8)
	n, fin := m.Out.Next(batch)
	tunnel.ReleaseAll(batch[:n])
	m.Out.Given()
	return fin
}

// bothOver ends both directions, with the last bytes on a carrier.
func bothOver(m *Machine) {
	m.In.Finish()
	m.Out.Finish()
	giveAll(m)
}

var errLost = tunnel.Lost(tunnel.LossCut)

func lost(epoch uint32) happening { return lostBy(epoch, errLost) }

func lostBy(epoch uint32, cause error) happening {
	return func(m *Machine, now time.Time) Actions { return m.CarrierLost(epoch, cause, now) }
}

// dropped is the loss of a carrier that is detached at once.
func dropped(epoch uint32) happening {
	return func(m *Machine, now time.Time) Actions {
		return m.Settle(m.CarrierLost(epoch, errLost, now), now) | m.CarrierDetached()
	}
}

func reset(epoch uint32) happening {
	return lostBy(epoch, &tunnel.ResetError{Code: tunnel.CodeCancelled})
}

// givenUp is a reset by the application, of an end that redials or not.
func givenUp(cause error, redials bool) happening {
	return func(m *Machine, now time.Time) Actions { return m.Reset(cause, redials, now) }
}

func up(epoch uint32, offset uint64) happening {
	return func(m *Machine, now time.Time) Actions { return m.CarrierUp(epoch, offset, now) }
}

func offered(epoch uint32, offset uint64) happening {
	return func(m *Machine, now time.Time) Actions { return m.Offered(epoch, offset, now) }
}

func acked(epoch uint32, offset uint64) happening {
	return anytime(func(m *Machine) Actions { return m.Acked(epoch, offset, false, false) })
}

func took(epoch uint32, n int, fin bool) happening {
	return anytime(func(m *Machine) Actions { return m.Took(epoch, n, fin) })
}

func writes(fin bool) happening {
	return anytime(func(m *Machine) Actions { return m.Written(fin) })
}

func failed(cause error) happening {
	return anytime(func(m *Machine) Actions { return m.RedialFailed(cause) })
}

var (
	redial      happening = (*Machine).Redial
	deadlineDue happening = (*Machine).DeadlineDue
	moveBegins  happening = (*Machine).MoveBegins

	detached  = anytime((*Machine).CarrierDetached)
	sent      = anytime((*Machine).Sent)
	closed    = anytime((*Machine).Close)
	degraded  = anytime((*Machine).Degraded)
	evicted   = anytime((*Machine).Evicted)
	forbidden = anytime((*Machine).Forbidden)
	moveFails = anytime((*Machine).MoveFails)
	moveEnds  = anytime((*Machine).MoveEnds)
)

const still = int(stillTime / time.Second)

// A carrier is reset by the code of the connection's own reset, unless the peer would wait
// for another carrier then.
func TestResetCode(t *testing.T) {
	for code, want := range map[tunnel.Code]tunnel.Code{
		tunnel.CodePeerReset: tunnel.CodePeerReset, tunnel.CodeCancelled: tunnel.CodeCancelled,
		tunnel.CodeLost: tunnel.CodeGone, tunnel.CodeShutdown: tunnel.CodeGone,
	} {
		m := play(t, nil, step{0, givenUp(&tunnel.ResetError{Code: code}, false), StateGone, Ended, Finish | Fail})
		testutil.Equal(t, m.ResetCode(), want, "the code after a reset by %v", code)
	}
	m := play(t, nil, step{0, acked(0, 4), StateGone, Contradicted, Finish | Fail})
	testutil.Equal(t, m.ResetCode(), tunnel.CodeProtocol, "the code after a contradiction")
}

// TestMachine has a machine take in what docs/link-protocol.md §9 tells of.
func TestMachine(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(*Machine)
		steps   []step
	}{
		"the window begins with the loss, whatever is tried": {steps: []step{
			{10, dropped(0), StateDetached, Live, Detach | WatchDeadline | Dial},
			{39, deadlineDue, StateDetached, Live, 0},
			{39, redial, StateDetached, Live, 0},
			{39, up(1, 1), StateAttached, Live, Attach | Send},
			{1000, deadlineDue, StateAttached, Live, 0},
			{1000, dropped(1), StateDetached, Live, Detach | Dial},
			{1020, redial, StateDetached, Live, 0},
			{1020, failed(nil), StateDetached, Live, 0},
			{1029, redial, StateDetached, Live, 0},
			{1030, deadlineDue, StateGone, Expired, Finish | Fail},
		}},
		"a redial waits for what still uses the carrier": {
			prepare: func(m *Machine) { m.sender = SenderWriter; m.BeginRead() },
			steps: []step{
				{0, lost(0), StateDetached, Live, Detach},
				{0, redial, StateDetached, Live, RefuseGone},
				{1, detached, StateDetached, Live, 0},
				{2, redial, StateDetached, Live, RefuseGone},
				{2, anytime(func(m *Machine) Actions { return m.ReadDone(0, 5, false) }), StateDetached, Live, 0},
				{3, offered(1, 3), StateDetached, Live, 0},
				{4, sent, StateDetached, Live, Dial},
				{4, redial, StateDetached, Live, 0},
			}},
		"what was reset without a carrier ends with the next": {prepare: func(m *Machine) { m.Out.Finish() }, steps: []step{
			{10, dropped(0), StateDetached, Live, Detach | Dial},
			{11, givenUp(nil, true), StateLingering, Live, Fail},
			{12, redial, StateLingering, Live, 0},
			{13, up(1, 1), StateGone, Ended, Finish | RefuseGone},
		}},
		"what was reset without a carrier waits no longer than any": {steps: []step{
			{10, lost(0), StateDetached, Live, Detach},
			{39, givenUp(nil, true), StateLingering, Live, Fail},
			{40, deadlineDue, StateGone, Unconfirmed, Finish},
		}},
		"the newest carrier wins": {steps: []step{
			{1, offered(2, 3), StateDetached, Live, Detach}, // while the first is there
			{1, detached, StateDetached, Live, Dial},
			{1, offered(2, 3), StateAttached, Live, Answer},
			{1, up(2, 0), StateAttached, Live, Attach},
			{1, offered(0, 3), StateAttached, Live, RefuseStale},
			{1, offered(1, 3), StateAttached, Live, RefuseStale},
			{1, offered(2, 3), StateAttached, Live, RefuseStale},
			{1, up(1, 0), StateAttached, Live, RefuseStale},
			{2, reset(0), StateAttached, Live, 0},      // late news of the first
			{2, reset(2), StateDetached, Live, Detach}, // given up before it was used
			{2, detached, StateDetached, Live, Dial},
			{3, offered(3, 3), StateAttached, Live, Answer},
			{3, offered(4, 3), StateAttached, Live, Answer}, // before 3 was told
			{3, up(3, 0), StateAttached, Live, RefuseStale},
			{3, up(4, 0), StateAttached, Live, Attach},
			{3, took(4, 1, false), StateAttached, Live, AckSoon},
			{4, reset(4), StateGone, Ended, Finish | Fail},
			{5, offered(5, 3), StateGone, Ended, Answer},
			{5, up(5, 0), StateGone, Ended, RefuseGone}, // and resets it
		}},
		"a carrier whose opener cannot be told": {steps: []step{
			{1, dropped(0), StateDetached, Live, Detach | Dial},
			{2, offered(1, 3), StateAttached, Live, Answer},
			{3, lost(1), StateDetached, Live, 0},
			{33, deadlineDue, StateGone, Expired, Finish | Fail},
		}},
		"one half may last": {steps: []step{
			{10, took(0, 0, true), StateAttached, Live, Wake | AckSoon},
			{10 + 2*still, deadlineDue, StateAttached, Live, 0},
		}},
		"acknowledged what was not sent": {steps: []step{{1, acked(0, 4), StateGone, Contradicted, Finish | Fail}}},
		"lacks what was acknowledged": {steps: []step{
			{1, acked(0, 2), StateAttached, Live, 0},
			{1, lost(0), StateDetached, Live, Detach},
			{1, detached, StateDetached, Live, Dial},
			{1, offered(1, 1), StateGone, Contradicted, Finish | Fail | RefuseGone},
		}},
		"has what was not sent": {steps: []step{
			{1, lost(0), StateDetached, Live, Detach},
			{1, detached, StateDetached, Live, Dial},
			{1, offered(1, 4), StateGone, Contradicted, Finish | Fail | RefuseGone},
		}},
		"answers that it has what was not sent": {steps: []step{
			{1, lost(0), StateDetached, Live, Detach},
			{1, detached, StateDetached, Live, Dial},
			{1, redial, StateDetached, Live, 0},
			{1, up(1, 4), StateGone, Contradicted, Finish | Fail | RefuseGone},
		}},
		"lingers until the peer has all of it": {prepare: bothOver, steps: []step{
			{0, writes(false), StateLingering, Live, Ack | WatchDeadline},
			{1, acked(0, 3), StateLingering, Live, Ack},
			{20, dropped(0), StateLingering, Live, Detach | Dial},
			{21, redial, StateLingering, Live, 0},
			{22, up(1, 3), StateLingering, Live, Attach | Send | Ack}, // the end, once more
			{23, acked(1, 4), StateGone, Complete, Finish | Fail | Ack},
		}},
		"a peer that has all of it as it is resumed is answered": {prepare: bothOver, steps: []step{
			{0, dropped(0), StateLingering, Live, Detach | Dial},
			{1, offered(1, 4), StateGone, Complete, Answer | Finish | Fail},
			{1, up(1, 0), StateGone, Complete, RefuseGone},
		}},
		"a slow peer has all the time while it goes on": {prepare: bothOver, steps: []step{
			{0, writes(false), StateLingering, Live, Ack},
			{still - 1, deadlineDue, StateLingering, Live, Ack},
			{still - 1, acked(0, 1), StateLingering, Live, Ack},
			{2*still - 2, deadlineDue, StateLingering, Live, Ack},
			{2*still - 2, acked(0, 2), StateLingering, Live, Ack},
			{3*still - 3, acked(0, 2), StateLingering, Live, Ack}, // which is no news
			{3*still - 3, deadlineDue, StateLingering, Live, Ack},
			{3*still - 2, deadlineDue, StateGone, Unconfirmed, Finish | Fail},
		}},
		"lingers without a carrier for a window": {prepare: bothOver, steps: []step{
			{29, dropped(0), StateLingering, Live, Detach | Dial},
			{40, redial, StateLingering, Live, 0},
			{58, deadlineDue, StateLingering, Live, 0},
			{59, deadlineDue, StateGone, Unconfirmed, Finish | Fail},
		}},
		"lingers for a window where the peer may wait for its reader": {steps: []step{
			{0, closed, StateLingering, Live, Send},
			{29, deadlineDue, StateLingering, Live, 0},
			{29, acked(0, 1), StateLingering, Live, 0},
			{58, deadlineDue, StateLingering, Live, 0},
			{59, deadlineDue, StateGone, Unconfirmed, Finish | Fail},
		}},
		"lingers on once the peer's end is taken": {steps: []step{
			{0, closed, StateLingering, Live, Send},
			{1, took(0, 0, true), StateLingering, Live, Ack},
			{30, deadlineDue, StateLingering, Live, Ack},
			{still, deadlineDue, StateGone, Unconfirmed, Finish | Fail},
		}},
		"closed, and the peer has all of it": {prepare: func(m *Machine) { m.Out.Finish(); giveAll(m) }, steps: []step{
			{0, closed, StateLingering, Live, 0},
			{1, acked(0, 4), StateGone, Complete, Finish | Fail},
		}},
		"a plain end ends with its carrier": {steps: []step{
			{0, degraded, StateAttached, Live, Wake},
			{1, lost(0), StateGone, Discarded, Finish | Fail},
		}},
		"a closed plain end whose peer is slow": {prepare: func(m *Machine) {
			m.Out.Append(tunnel.CopyChunk(make([]byte, 3*leastTaken)))
			giveAll(m)
			m.Out.Append(tunnel.CopyChunk([]byte("more")))
			m.sender = SenderTask // which waits for credit
		}, steps: []step{
			{0, degraded, StateAttached, Live, Wake},
			{0, closed, StateLingering, Live, WatchDeadline},
			{29, acked(0, leastTaken), StateLingering, Live, 0},
			{58, deadlineDue, StateLingering, Live, WatchDeadline},
			{58, acked(0, 2*leastTaken), StateLingering, Live, 0},
			{87, acked(0, 3*leastTaken-1), StateLingering, Live, 0},
			{88, deadlineDue, StateGone, Unconfirmed, Finish | Fail},
		}},
		"a plain end whose peer goes on by another carrier": {prepare: func(m *Machine) { m.epoch = 1 }, steps: []step{
			{0, degraded, StateAttached, Live, 0},
			{0, offered(0, 3), StateAttached, Live, RefuseGone},
			{0, offered(1, 3), StateAttached, Live, RefuseGone},
			{0, offered(2, 3), StateDetached, Live, Detach},
			{0, detached, StateDetached, Live, Dial},
			{0, offered(2, 3), StateGone, Discarded, Finish | Fail | RefuseGone},
		}},
		"an evicted end without a carrier": {steps: []step{
			{0, evicted, StateAttached, Live, 0},
			{0, lost(0), StateDetached, Live, Detach},
			{0, evicted, StateGone, Discarded, Finish | Fail},
		}},
		"a peer that does not know it": {steps: []step{
			{0, dropped(0), StateDetached, Live, Detach | Dial},
			{1, redial, StateDetached, Live, 0},
			{2, failed(&tunnel.DialError{Failure: tunnel.FailUnavailable}), StateDetached, Live, 0},
			{3, failed(&tunnel.DialError{Failure: tunnel.FailGone}), StateGone, Unknown, Finish | Fail},
		}},
		"what another process has by now says no more": {steps: []step{
			{10, moveBegins, StateDetached, Live, Detach},
			{11, givenUp(tunnel.ErrSeized, false), StateDetached, Live, Fail},
			{12, moveEnds, StateGone, Moved, Finish},
			{13, offered(1, 3), StateGone, Moved, RefuseMoving},
		}},
		"what is on its way may end": {steps: []step{
			{10, moveBegins, StateDetached, Live, Detach},
			{11, offered(1, 3), StateDetached, Live, RefuseMoving},
			{40, deadlineDue, StateGone, Expired, Finish | Fail},
			{41, offered(1, 3), StateGone, Expired, RefuseGone},
		}},
		"what is on its way does not come to its end": {steps: []step{
			{10, writes(true), StateAttached, Live, Send},
			{11, acked(0, 4), StateAttached, Live, 0},
			{12, moveBegins, StateDetached, Live, Detach},
			{13, took(0, 0, true), StateLingering, Live, 0},
			{14, moveFails, StateGone, Complete, Finish | Fail},
		}},
		"memory is freed of an end that lingers": {prepare: bothOver, steps: []step{{1, degraded, StateGone, Complete, Finish | Fail | Ack}}},
	} {
		t.Run(name, func(t *testing.T) {
			m := play(t, c.prepare, c.steps...)
			testutil.Holds(t, !m.Over() && m.phase != Abandoned || m.Out.Size() == 0, "it still holds %d bytes of memory", m.Out.Size())
		})
	}
}

// What comes behind the end of a connection changes nothing, also of one that was to move.
func TestNothingHappensBehindTheEnd(t *testing.T) {
	ends := step{0, forbidden, StateGone, Denied, Finish | Fail}
	for phase, m := range map[Phase]*Machine{
		InUse: play(t, nil, ends), Moving: play(t, nil, step{0, moveBegins, StateDetached, Live, Detach}, ends),
	} {
		testutil.Holds(t, !m.Moving() && !m.Movable(), "it moves: %v, or may: %v", m.Moving(), m.Movable())
		for what, event := range map[string]happening{ // bytes that are taken count all the same
			"a write": writes(true), "no room": anytime(func(m *Machine) Actions { return m.Blocked(true) }), "all is sent": sent,
			"an acknowledgement": acked(0, 4), "a loss": lost(0), "no carrier": detached, "a redial": redial, "a failed one": failed(errLost),
			"one that is refused": failed(&tunnel.DialError{Failure: tunnel.FailGone}), "an offer": offered(1, 4), "a carrier": up(0, 4),
			"a close": closed, "a reset": givenUp(errLost, false), "one by an opener": givenUp(errLost, true), "short memory": degraded,
			"a socket that is gone": givenUp(tunnel.ErrSeized, false), "eviction": evicted, "a policy": forbidden,
			"a move": moveBegins, "one that failed": moveFails, "one that is over": moveEnds,
			"an acknowledgement that is due": anytime((*Machine).AckDue), "a deadline": deadlineDue,
		} {
			does := happens(m, event) &^ (refuses | Wake | Used)
			testutil.Holds(t, does == 0 && m.life == Denied && m.phase == phase && !m.Closed(), "%s does %b, and it is %q", what, does, m.life.Label())
		}
	}
}

// A connection keeps why it lost its newest carrier. An acceptor that hears of the loss by
// the next carrier has lost it to that.
func TestKeepsWhyACarrierWasLost(t *testing.T) {
	for want, event := range map[tunnel.LossCause]happening{
		tunnel.LossSilent:   lostBy(0, tunnel.Lost(tunnel.LossSilent)),
		tunnel.LossUnknown:  lostBy(0, &tunnel.ResetError{Code: tunnel.CodeShutdown}),
		tunnel.LossReplaced: offered(1, 3),
	} {
		testutil.Equal(t, play(t, nil, step{0, event, StateDetached, Live, Detach}).loss, want, "why it was lost")
	}
}

// Of all resets only two tell of a lost carrier.
func TestOnlyALostCarrierIsSurvived(t *testing.T) {
	for code := tunnel.CodeUnknown; code <= tunnel.CodeMemory; code++ {
		want := step{0, lostBy(0, &tunnel.ResetError{Code: code}), StateGone, Ended, Finish | Fail}
		if code == tunnel.CodeLost || code == tunnel.CodeShutdown {
			want.state, want.life, want.does = StateDetached, Live, Detach
		}
		play(t, nil, want)
	}
}

// An end that becomes plain keeps what its carrier was not given, and nothing else. One
// that waits for a carrier needs what it has.
func TestPlainKeepsOnlyWhatIsUnsent(t *testing.T) {
	m := play(t, func(m *Machine) { m.Out.Append(tunnel.CopyChunk([]byte("def"))); m.sender = SenderTask },
		step{0, degraded, StateAttached, Live, 0})
	testutil.Equal(t, m.Out.Kept(), 3, "bytes that it keeps")
	giveAll(m)
	testutil.Equal(t, m.Out.Kept(), 0, "bytes that it keeps")
	testutil.Equal(t, m.Out.Size(), 0, "their memory")
	m = play(t, nil, step{0, lost(0), StateDetached, Live, Detach}, step{0, degraded, StateDetached, Live, 0})
	testutil.Equal(t, m.Plain(), false, "it has given up what it needs with a carrier")
}

// An end that lingers is not done while its carrier has yet to take what it is being given.
func TestWhatIsBeingGivenIsNotOver(t *testing.T) {
	m := play(t, bothOver)
	_ = m.Out.Rewind(0)
	batch := make([]tunnel.Chunk, 8)
	n, _ := m.Out.Next(batch)
	tunnel.ReleaseAll(batch[:n])
	playOn(t, m, step{0, degraded, StateLingering, Live, Ack})
	m.Out.Given()
	playOn(t, m, step{1, sent, StateGone, Complete, Finish | Fail | Ack})
}

// Bytes behind the end of a direction are a mistake of who writes them, which is not
// to reach the peer.
func TestNothingComesBehindTheEnd(t *testing.T) {
	m := play(t, func(m *Machine) { m.Out.Finish() })
	more := tunnel.CopyChunk([]byte("d"))
	defer more.Release()
	defer func() { testutil.Equal(t, recover() != nil, true, "it was refused") }()
	m.Out.Append(more)
}

// A peer that keeps much is told less often, on that carrier.
func TestAcknowledgesInSteps(t *testing.T) {
	m := newMachine(time.Minute, 0)
	takes := func(n int) Actions { return happens(&m, took(m.epoch, n, false)) & Ack }
	acked := func(big bool) Actions { return m.Settle(m.Acked(0, 0, big, false), t0) }
	due := func(at int) {
		t.Helper()
		testutil.Holds(t, takes(at-1) == 0 && takes(1) != 0, "due at %d, and not before", at)
		m.Acknowledgement(false)
	}
	due(Step)
	acked(true)
	due(BigStep)
	takes(Step)
	testutil.Equal(t, acked(false)&Ack != 0, true, "due once the peer keeps less")
	m.Acknowledgement(false)
	acked(true)
	playOn(t, &m, step{0, dropped(0), StateDetached, Live, Detach | Dial},
		step{0, offered(1, 0), StateAttached, Live, Answer}, step{0, up(1, 0), StateAttached, Live, Attach})
	due(Step)
}

// The machine starts nothing, and reads no clock.
func TestMachineIsPure(t *testing.T) {
	for _, name := range []string{
		"machine.go", "machinestates.go", "machineactions.go", "outgoing.go", "incoming.go", "replaylimit.go", "snapshot.go",
	} {
		file := testutil.Must(parser.ParseFile(token.NewFileSet(), name, nil, 0))(t)
		for _, i := range file.Imports {
			pure := []string{`"errors"`, `"net/netip"`, `"time"`, `"konnectivity/tunnel"`}
			testutil.Equal(t, slices.Contains(pure, i.Path.Value), true, "%s imports %s", name, i.Path.Value)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				t.Errorf("%s starts a goroutine", name)
			case *ast.SelectorExpr:
				of, _ := n.X.(*ast.Ident)
				if of != nil && of.Name == "time" && !slices.Contains([]string{"Time", "Duration", "Second", "Millisecond", "Minute"}, n.Sel.Name) {
					t.Errorf("%s uses time.%s", name, n.Sel.Name)
				}
			}
			return true
		})
	}
}

// A Conn asks its machine by methods, and changes it by those of Machine alone.
func TestOnlyTheMachineHasItsState(t *testing.T) {
	free := []string{"In.Finished", "Out.Finished", "Out.Kept", "Out.OnlyEnd", "Out.Sent", "Out.Size"}
	for _, name := range testutil.Must(filepath.Glob("*.go"))(t) {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file := testutil.Must(parser.ParseFile(token.NewFileSet(), name, nil, 0))(t)
		ast.Inspect(file, func(n ast.Node) bool {
			of, use, ok := strings.Cut(pathOf(n), "c.m.")
			ok = ok && (of == "" || strings.HasSuffix(of, "."))
			method := ast.IsExported(use) && !strings.Contains(use, ".")
			testutil.Holds(t, !ok || method || slices.Contains(free, use), "%s uses %s of the machine", name, use)
			return true
		})
	}
}

// pathOf is a chain of selectors, as it is written; empty: n is none.
func pathOf(n ast.Node) string {
	switch n := n.(type) {
	case *ast.Ident:
		return n.Name
	case *ast.SelectorExpr:
		return pathOf(n.X) + "." + n.Sel.Name
	}
	return ""
}
