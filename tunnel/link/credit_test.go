package link

import (
	"math"
	"math/rand/v2"
	"runtime/debug"
	"testing"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel/shares"
)

func TestSendCredit(t *testing.T) {
	f := sendCredit{}
	testutil.Equal(t, f.available(), 0, "credit of a new stream")
	testutil.Equal(t, f.raise(100), true, "the limit rises")
	testutil.Equal(t, f.available(), 100, "credit")
	f.spend(60)
	testutil.Equal(t, f.available(), 40, "credit that is left")
	for _, old := range []uint64{0, 60, 99, 100} {
		testutil.Equal(t, f.raise(old), false, "the limit rises to %d", old)
		testutil.Equal(t, f.available(), 40, "credit after a limit of %d", old)
	}
	testutil.Equal(t, f.raise(maxCredit), true, "the limit rises")
	testutil.Holds(t, f.available() > 0 && f.available() <= math.MaxInt32, "%d is available", f.available())
}

// consumeHalves takes n half windows, each in the given time, and returns the
// window that results.
func consumeHalves(f *recvCredit, n int, each, rtt time.Duration, p shares.Pressure) uint64 {
	now := time.Unix(1000, 0)
	for range n {
		half := int(f.window / 2)
		f.received += uint64(half)
		f.consume(half, now, rtt, p, false)
		now = now.Add(each)
	}
	return f.window
}

func TestWindowGrowth(t *testing.T) {
	const rtt = 50 * time.Millisecond
	for _, c := range []struct {
		name      string
		halves    int
		each, rtt time.Duration
		p         shares.Pressure
		want      uint64
	}{
		{"what may have piled up says nothing", 4, 0, farRTT - 1, shares.Plenty, initialWindow},
		{"less than two windows on a link that is not far", 4, growAfter, farRTT - 1, shares.Plenty, initialWindow},
		// Time begins with the end of the first half.
		{"a quarter of a window in less than eight round trips", 2, 8*rtt - 1, rtt, shares.Plenty, farGrowth * initialWindow},
		{"two windows on a link that is not far", 5, (8*(farRTT-1) - 1) / 4, farRTT - 1, shares.Plenty, windowGrowth * initialWindow},
		{"half a window in eight round trips", 10, 8 * rtt, rtt, shares.Plenty, initialWindow},
		{"round trip unknown", 10, 0, 0, shares.Plenty, initialWindow},
		{"up to the cap", 100, 20 * time.Millisecond, rtt, shares.Plenty, maxWindow},
		{"fast for a moment only, as into empty socket buffers", 100, growAfter/100 - 1, farRTT - 1, shares.Plenty, initialWindow},
		{"the same on a far link, where these take round trips to fill", 2, 1, rtt, shares.Plenty, farGrowth * initialWindow},
		{"a short link, as fast as its turns allow", int(growAfter/(2*turnDelay)) + 8, 2*turnDelay - 1, turnDelay / 10, shares.Plenty, windowGrowth * initialWindow},
		{"a short link, slower than that", 100, 8*turnDelay/3 + 1, turnDelay / 10, shares.Plenty, initialWindow},
		{"half the memory used", 100, 1, rtt, shares.Tight, initialWindow},
		{"three quarters used", 1, 1, rtt, shares.Short, minWindow},
		{"all used", 100, 1, rtt, shares.Out, minWindow},
	} {
		f := newRecvCredit(initialWindow)
		testutil.Equal(t, consumeHalves(&f, c.halves, c.each, c.rtt, c.p), c.want, "%s: window", c.name)
	}
}

// The window of a reader that keeps the pace of bulk is wide while nothing else comes by a short
// link, and memory is plenty. It goes back as soon as one of these ends.
func TestWideWindow(t *testing.T) {
	const short = farRTT - 1
	read := func(f *recvCredit, bytes uint64, took, rtt time.Duration, p shares.Pressure, alone bool) {
		now := f.epoch.Add(took)
		if f.epoch.IsZero() {
			now = time.Unix(1000, 0)
		}
		f.received += bytes
		f.consume(int(bytes), now, rtt, p, alone)
	}
	for name, c := range map[string]struct {
		windows  []time.Duration // how long each two take before
		idle     time.Duration   // since the last of them
		rtt      time.Duration
		pressure shares.Pressure
		alone    bool
		want     uint64
	}{
		"bulk":                         {[]time.Duration{growAfter}, 0, short, shares.Plenty, true, wideWindow},
		"the slowest there is":         {[]time.Duration{2*bulkTime - 1}, 0, short, shares.Plenty, true, wideWindow},
		"slower":                       {[]time.Duration{2 * bulkTime}, 0, short, shares.Plenty, true, initialWindow},
		"slower now":                   {[]time.Duration{growAfter, 2 * bulkTime}, 0, short, shares.Plenty, true, initialWindow},
		"it was slower":                {[]time.Duration{2 * bulkTime, growAfter}, 0, short, shares.Plenty, true, wideWindow},
		"it rests":                     {[]time.Duration{growAfter}, 2 * bulkTime, short, shares.Plenty, true, initialWindow},
		"as into empty socket buffers": {[]time.Duration{growAfter - 1}, 0, short, shares.Plenty, true, initialWindow},
		"not alone":                    {[]time.Duration{growAfter}, 0, short, shares.Plenty, false, initialWindow},
		"far":                          {[]time.Duration{growAfter}, 0, farRTT, shares.Plenty, true, initialWindow},
		"half the memory used":         {[]time.Duration{growAfter}, 0, short, shares.Tight, true, initialWindow},
	} {
		f := newRecvCredit(initialWindow)
		read(&f, 1, 0, 0, shares.Plenty, false)
		for _, took := range c.windows {
			read(&f, 2*initialWindow, took, 0, shares.Plenty, false)
		}
		read(&f, 1, c.idle, c.rtt, c.pressure, c.alone)
		testutil.Equal(t, f.present(), c.want, "%s: window", name)
	}
	f := newRecvCredit(4 * wideWindow)
	f.wide = true
	testutil.Equal(t, f.present(), 4*wideWindow, "a window that has grown beyond")
	f = newRecvCredit(minWindow)
	const longest = 2 * bulkTime * minWindow / initialWindow
	testutil.Holds(t, f.lags(f.epoch.Add(longest)) && !f.lags(f.epoch.Add(longest-1)), "two of the least windows may not take %v in bulk", longest)
}

// A link carries bulk alone from aloneAfter behind the last of anything else on.
func TestAlone(t *testing.T) {
	var b books
	now := time.Unix(1000, 0)
	testutil.Holds(t, b.alone(true, now), "bulk is not alone on a new link")
	testutil.Holds(t, !b.alone(false, now), "bulk is alone beside a message")
	testutil.Holds(t, !b.alone(true, now.Add(aloneAfter-1)), "bulk is alone soon after a message")
	testutil.Holds(t, b.alone(true, now.Add(aloneAfter)), "bulk is not alone again")
}

// A window that shrank grows again once there is memory.
func TestWindowRecovers(t *testing.T) {
	f := newRecvCredit(initialWindow)
	consumeHalves(&f, 3, 1, time.Second, shares.Short)
	got := consumeHalves(&f, 100, growAfter/2, time.Second, shares.Plenty)
	testutil.Equal(t, got, maxWindow, "the window after memory came back")
}

// Random senders, readers, wires and memory: credit is never less than half a
// window, never more than one, and both sides always get on.
func TestCreditProperties(t *testing.T) {
	for seed := range uint64(500) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		window := uint64(minWindow)
		if seed%2 == 0 {
			window = initialWindow
		}
		recv, send := newRecvCredit(window), sendCredit{limit: window}
		now := time.Unix(1000, 0)
		var wire []int       // payload under way
		var credits []uint64 // limits under way
		for step := 0; recv.consumed < 8<<20; step++ {
			testutil.Requires(t, step <= 1_000_000,
				"seed %d: stuck at %d, sent %d, limit %d", seed, recv.consumed, send.sent, send.limit)
			now = now.Add(time.Duration(rnd.IntN(5)) * time.Millisecond)
			switch rnd.IntN(4) {
			case 0: // send
				if n := min(send.available(), 1+rnd.IntN(1<<17)); n > 0 {
					send.spend(n)
					wire = append(wire, n)
				}
			case 1: // receive
				if len(wire) > 0 {
					testutil.Requires(t, recv.receive(wire[0]),
						"seed %d: a sender within its credit is refused", seed)
					wire = wire[1:]
				}
			case 2: // read
				n := min(recv.unread(), rnd.IntN(1<<17))
				if n == 0 {
					break
				}
				before := recv.limit
				limit, grant := recv.consume(n, now, time.Duration(rnd.IntN(60))*time.Millisecond, shares.Pressure(rnd.IntN(4)), rnd.IntN(8) > 0)
				if grant {
					if limit != recv.limit || limit <= before || limit < recv.consumed+minWindow || limit > recv.consumed+maxWindow {
						t.Fatalf("seed %d: granted %d after %d, consumed %d", seed, limit, before, recv.consumed)
					}
					credits = append(credits, limit)
				} else if recv.limit != before {
					t.Fatalf("seed %d: a limit rose and nobody was told", seed)
				}
				testutil.Requires(t, recv.limit-recv.consumed >= recv.window/2,
					"seed %d: %d granted of a window of %d", seed, recv.limit-recv.consumed, recv.window)
			case 3: // credit arrives, at times out of order
				if len(credits) > 0 {
					i := rnd.IntN(len(credits))
					send.raise(credits[i])
					credits = append(credits[:i], credits[i+1:]...)
				}
			}
			if recv.window < minWindow || recv.window > maxWindow || send.sent > recv.limit || send.limit > recv.limit {
				t.Fatalf("seed %d: %+v %+v", seed, recv, send)
			}
		}
	}
}

// TestTheLastOfTheBudgetIsKept: the less is left, the less a stream may keep.
func TestTheLastOfTheBudgetIsKept(t *testing.T) {
	for _, c := range []struct{ used, tolerated int }{
		{800, 1 << 20}, {888, 1 << 20}, {900, minWindow * 8 / 9}, {950, minWindow * 8 / 19}, {999, minWindow * 8 / 999}, {1000, 0}, {1001, 0},
	} {
		b := NewBudget(1000)
		b.Hold(c.used)
		testutil.Holds(t, tolerates(b, c.tolerated) && (c.tolerated >= minWindow || !tolerates(b, c.tolerated+1)),
			"with %d of 1000 used it is not %d that a stream may keep", c.used, c.tolerated)
	}
}

func TestBudgetPressure(t *testing.T) {
	for _, c := range []struct {
		used   int
		want   shares.Pressure
		window uint64
	}{
		{0, shares.Plenty, initialWindow}, {499, shares.Plenty, initialWindow}, {500, shares.Tight, initialWindow}, {749, shares.Tight, initialWindow},
		{750, shares.Short, minWindow}, {888, shares.Short, minWindow}, {889, shares.Out, minWindow}, {1000, shares.Out, minWindow}, {5000, shares.Out, minWindow},
	} {
		b := NewBudget(1000)
		b.Hold(c.used)
		testutil.Equal(t, b.Pressure(), c.want, "the pressure, %d of 1000 used", c.used)
		testutil.Equal(t, firstWindow(b), c.window, "the first window, %d used", c.used)
		testutil.Equal(t, b.Used(), int64(c.used), "bytes used")
	}
	var none *Budget
	none.Hold(1 << 30)
	testutil.Holds(t, none.Pressure() == shares.Plenty && firstWindow(none) == initialWindow && none.Used() == 0 && none.Max() == 0,
		"no budget is a bound")
	testutil.Equal(t, tolerates(none, 1<<30) && none.Share() == nil && none.Take(1<<30), true, "no budget is no bound")
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(math.MaxInt64))
	for limit, want := range map[int64]int64{math.MaxInt64: defaultBudget, 400 << 20: 100 << 20} {
		debug.SetMemoryLimit(limit)
		testutil.Equal(t, NewBudget(0).Max(), want, "the budget by a memory limit of %d", limit)
	}
}

// A grant that follows another's stays close to it, and always ahead of it, however
// little that one grants at a time; once the window has grown, it is free.
func TestCreditIsBoundByTheNextStream(t *testing.T) {
	for _, step := range []uint64{1, 1000, 8 << 10, 64 << 10} {
		c := newRecvCredit(initialWindow)
		for next := uint64(minWindow); next < 1<<20; next += step {
			c.follow(next)
			if most := max(next+lead, initialWindow); c.limit <= next || c.limit > most {
				t.Fatalf("%d is granted where the next may be sent %d, in steps of %d", c.limit, next, step)
			}
			c.received = next
			c.consume(int(next-c.consumed), time.Unix(1000, 0), 0, shares.Plenty, false)
			if most := max(next+lead, initialWindow); c.limit > most {
				t.Fatalf("%d is granted once all was passed on, where the next may be sent %d", c.limit, next)
			}
		}
	}
	c := newRecvCredit(initialWindow)
	c.follow(0)
	consumeHalves(&c, 100, time.Millisecond, 50*time.Millisecond, shares.Plenty)
	if _, _, follows := c.follow(0); follows || c.limit < c.consumed+c.window/2 {
		t.Errorf("%d is granted of a window of %d after %d", c.limit, c.window, c.consumed)
	}
}
