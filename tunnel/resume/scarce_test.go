package resume_test

import (
	"io"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// unheard makes a connection by an opener that acknowledges nothing.
func (r *route) unheard(number byte) (c tunnel.Conn, dest *wireEnd, outlives bool) {
	r.t.Helper()
	f := tunnel.NewFlow("tcp", "dest:1")
	f.Resume = &tunnel.Resume{Token: [16]byte{number}, Window: time.Minute}
	c = testutil.Must(r.Dial(r.t.Context(), f))(r.t)
	return c, <-r.dests, f.Resume.Granted.Window > 0
}

// resumes asks for what unheard has made, which has to be there.
func (r *route) resumes(number byte) {
	r.t.Helper()
	f := tunnel.NewFlow("tcp", "dest:1")
	f.Resume = &tunnel.Resume{Token: [16]byte{number}, Window: time.Minute, Epoch: 1, Taken: 1}
	testutil.Succeeds(r.t, testutil.Err(r.Dial(r.t.Context(), f)), "resuming the connection %d", number)
}

// leave ends both directions of such a connection, which then lingers at the agent.
func leave(t *testing.T, c tunnel.Conn, dest *wireEnd) {
	t.Helper()
	testutil.NoError(t, c.CloseWrite())
	testutil.NoError(t, dest.Close())
	testutil.NoError(t, testutil.Err(io.ReadAll(c)))
	synctest.Wait()
}

// lingering is what an end that lingers takes of the budget.
const lingering = 8 << 10

// What has ended and is not acknowledged counts in an end's budget, so that an opener which
// acknowledges nothing has no more of it than the budget allows.
func TestEndsThatLingerTakeMemory(t *testing.T) {
	const most = 10
	onRoute(t, time.Minute, func(t *testing.T, r *route) {
		held := memory - 2*most*lingering // the rest is scarce once half of it is taken
		r.memory.Hold(held)
		var all []tunnel.Conn
		for n := range most + 2 {
			c, dest, outlives := r.unheard(byte(n + 1))
			leave(t, c, dest)
			testutil.Equal(t, outlives, n < most, "the connection %d may outlive its link", n)
			testutil.Equal(t, int(r.memory.Used())-held, min(n+1, most)*lingering, "bytes with the connection %d", n)
			all = append(all, c)
		}
		for _, c := range all {
			_ = c.Reset(nil)
		}
		synctest.Wait()
		testutil.Equal(t, int(r.memory.Used()), held, "bytes in the end")
	})
}

// Where they make memory short, some of them go, those first that were used longest ago, and not a
// connection that is used: it would free next to nothing.
func TestEndsThatLingerMakeRoom(t *testing.T) {
	const most = 10
	onRoute(t, time.Minute, func(t *testing.T, r *route) {
		_, used, _ := r.unheard(1)
		var leaving []func()
		for n := range most {
			time.Sleep(time.Second)
			c, dest, _ := r.unheard(byte(n + 2))
			leaving = append(leaving, func() { leave(t, c, dest) })
		}
		for _, leave := range slices.Backward(leaving) { // the first of them last
			time.Sleep(time.Second)
			leave()
		}
		time.Sleep(time.Second)
		r.memory.Hold(memory - most*lingering - most*lingering/4)
		testutil.Must(used.Write([]byte("x")))(t)
		synctest.Wait()
		gone := most + 1 - r.agent.Len()
		testutil.Equal(t, gone > 0 && gone < most, true, "%d of them have made room", gone)
		testutil.Equal(t, int(r.agent.Stats().Degraded), gone, "connections that have become plain")
		testutil.Equal(t, r.far.a.Streams(), most+1-gone, "streams of the rest")
		r.resumes(2)
	})
}

// What one client leaves without an acknowledgement makes new connections plain of its own alone.
func TestEndsThatLingerAreTheirClients(t *testing.T) {
	const most = 10
	onRoute(t, time.Minute, func(t *testing.T, r *route) {
		r.memory.Hold(memory - 2*most*lingering)
		clients := link.NewBudget(1 << 30)
		one, two := &tunnel.Client{Budget: clients.Share()}, &tunnel.Client{Budget: clients.Share()}
		r.client = one
		for n := range most {
			c, dest, _ := r.unheard(byte(n + 1))
			leave(t, c, dest)
		}
		for n, of := range []*tunnel.Client{one, two} {
			r.client = of
			c, _, outlives := r.unheard(byte(most + 1 + n))
			testutil.Equal(t, outlives, of == two, "a new connection of client %d outlives its link", n+1)
			_ = c.Reset(nil)
		}
	})
}

// What is kept for one client, and what a writer has that waits for it, counts for that client
// alone, for as long as it is there.
func TestKeptBytesAreTheirClients(t *testing.T) {
	onRoute(t, time.Minute, func(t *testing.T, r *route) {
		clients := link.NewBudget(1 << 30)
		one, two := &tunnel.Client{Budget: clients.Share()}, &tunnel.Client{Budget: clients.Share()}
		want := func(what string, of *tunnel.Client, outlives bool) {
			t.Helper()
			r.client = of
			c, _, does := r.unheard(9)
			testutil.Equal(t, does, outlives, "%s: a new connection outlives its link", what)
			_ = c.Reset(nil)
			synctest.Wait()
		}
		r.client = one
		c, dest, _ := r.unheard(1)
		go io.Copy(io.Discard, c)
		go dest.Write(make([]byte, 1<<20))
		synctest.Wait()
		held := memory - 2*int(r.memory.Used()) // as much is free as is kept: just scarce
		r.memory.Hold(held)
		want("the one that does not acknowledge", one, false)
		want("another", two, true)
		_ = c.Reset(nil)
		synctest.Wait()
		testutil.Equal(t, int(r.memory.Used()), held, "bytes in the end")
		r.memory.Hold(memory - held - 1)
		want("the one that did not, with a byte free", one, true)
	})
}

// Where ends that linger make memory short for their client, some of them go, and none of another
// client, though that one's have waited longer.
func TestEndsThatLingerMakeRoomForTheirClient(t *testing.T) {
	const most = 10
	onRoute(t, time.Minute, func(t *testing.T, r *route) {
		clients := link.NewBudget(1 << 30)
		r.client = &tunnel.Client{Budget: clients.Share()}
		other, dest, _ := r.unheard(1)
		leave(t, other, dest)
		time.Sleep(time.Second)
		r.client = &tunnel.Client{Budget: clients.Share()}
		_, used, _ := r.unheard(2)
		for n := range most {
			c, dest, _ := r.unheard(byte(n + 3))
			leave(t, c, dest)
		}
		time.Sleep(time.Second)
		r.memory.Hold(memory - (most+1)*lingering - most*lingering/4)
		testutil.Must(used.Write([]byte("x")))(t)
		synctest.Wait()
		gone := most + 2 - r.agent.Len()
		testutil.Holds(t, gone > 0 && gone < most, "%d of them have made room", gone)
		r.resumes(1) // the other client's
	})
}

// While memory is scarce, an end waits for an acknowledgement no longer than 20 s. Those that
// linger for the longest time make room, and no more than it takes; readers that have stalled get
// all that was sent to them.
func TestEndsThatLingerAreHurried(t *testing.T) {
	const most, size = 10, 32 << 10
	onRoute(t, time.Minute, func(t *testing.T, r *route) {
		stalled, dest, _ := r.unheard(1)
		testutil.NoError(t, stalled.CloseWrite())
		testutil.Must(dest.Write(make([]byte, size)))(t)
		testutil.NoError(t, dest.Close())
		synctest.Wait()
		for n := range most - 1 {
			c, dest, _ := r.unheard(byte(n + 2))
			leave(t, c, dest)
		}
		held := memory - 2*int(r.memory.Used()) // as much is free as they take: just scarce
		r.memory.Hold(held)
		c, dest, outlives := r.unheard(most + 1)
		testutil.Holds(t, !outlives, "memory is not scarce")
		time.Sleep(10 * time.Second)
		testutil.Equal(t, r.agent.Len(), most, "ends after 10 s")
		r.memory.Give(held)
		time.Sleep(time.Minute)
		testutil.Equal(t, r.agent.Len(), most, "ends while there is memory")
		r.memory.Hold(held)
		time.Sleep(2 * time.Second)
		gone := most - r.agent.Len()
		testutil.Equal(t, gone > 0 && gone < most, true, "%d of them have made room", gone)
		testutil.Equal(t, int(r.agent.Stats().Degraded), gone, "connections that have become plain")
		_, _, outlives = r.unheard(most + 2)
		testutil.Holds(t, outlives, "a new connection is plain")
		got, err := io.ReadAll(stalled)
		testutil.Holds(t, len(got) == size && err == nil, "%d bytes of %d came: %v", len(got), size, err)
		leave(t, c, dest)
	})
}

// A server whose memory is scarce gives up what has ended and is not acknowledged, and yet a
// reader that stalls meanwhile gets all that was sent to it, at either end.
func TestAStalledReaderWhereMemoryIsScarce(t *testing.T) {
	const size = 32 << 10
	onRoute(t, time.Minute, func(t *testing.T, r *route) {
		r.budget = link.NewBudget(1 << 20)
		r.relink(toAgent)
		r.relink(toOpener)
		c, dest, _ := r.download()
		defer c.Close()
		testutil.Must(dest.Write(make([]byte, size)))(t)
		testutil.NoError(t, dest.CloseWrite())
		testutil.Must(c.Write(make([]byte, wireRoom+size)))(t)
		testutil.NoError(t, c.CloseWrite())
		time.Sleep(time.Second)
		testutil.Equal(t, r.near.b.Streams(), 1, "streams at the server")
		r.budget.Hold(1 << 19)
		time.Sleep(time.Minute)
		synctest.Wait()
		testutil.Equal(t, r.near.b.Streams(), 0, "streams at the server, a minute later")
		got, err := io.ReadAll(c)
		testutil.Holds(t, len(got) == size && err == nil, "%d bytes of %d came: %v", len(got), size, err)
		takes(t, dest, wireRoom+size, time.Minute)
	})
}
