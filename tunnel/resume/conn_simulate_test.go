package resume_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus/hooks/test"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel/link"
	"konnectivity/tunnel/resume"
)

var simRuns = flag.Int("runs", 24, "how many runs of connections there are without -simulate")

// TestSimulateConns has real ends, links and relays meet what package resume simulates of
// the pure part: applications at both ends of some connections, one to three servers
// between them, links that tear at any byte, stand still or are left, servers that
// die, carriers that are tried twice, memory that is scarce for a while, ends that
// are closed, reset or die. The oracle is that what an application reads is what the
// other wrote, that it reads the end only where that is, that both have all of it if
// nothing happened that connections cannot outlive, and that nothing is left of any
// connection. A seed repeats the faults and what applications do, but not how
// goroutines take turns.
func TestSimulateConns(t *testing.T) {
	seed, runs := *resume.SimulateSeed, *simRuns
	switch {
	case seed == 0 && *resume.SimulateFor > 0:
		seed = rand.Uint64()
	case seed == 0:
		seed = 1
	}
	if testing.Short() {
		runs /= 8
	}
	faults, resumes := 0, int64(0)
	for begun, n := time.Now(), 0; *resume.SimulateFor > 0 && time.Since(begun) < *resume.SimulateFor || *resume.SimulateFor == 0 && n < runs; n++ {
		synctest.Test(t, func(t *testing.T) {
			defer func() {
				if t.Failed() { // Test does not return then
					t.Logf("seed %d (again: go test ./tunnel/resume -run TestSimulateConns -runs 1 -seed %d)", seed, seed)
				}
			}()
			s := newSimulation(t, seed)
			s.run()
			faults += s.faults
			resumes += s.ends[0].Stats().Resumes
		})
		seed++
	}
	t.Logf("%d faults, %d carriers resumed by, before seed %d", faults, resumes, seed)
}

const (
	simWindow = time.Minute // longer than it takes to notice silence, and than faults take to heal

	// simPatience is how long it may take until nothing is left: as long as an end
	// waits for a peer that does not say that it has it all, and more.
	simPatience = 25 * time.Minute
)

func newSimulation(t *testing.T, seed uint64) *simulation {
	s := &simulation{
		t: t, rnd: rand.New(rand.NewPCG(seed, 0)), stop: make(chan struct{}),
		dests: map[string]duplex{}, asked: map[int]asked{}, watched: map[int]link.Watcher{},
	}
	alone := 0
	switch s.rnd.IntN(8) {
	case 0:
		alone = 1
		s.deadly.Store(true)
	case 1:
		s.scarce = true
		s.deadly.Store(true)
	}
	for who := range s.ends {
		s.memory[who] = link.NewBudget(simMemory)
		log, _ := test.NewNullLogger()
		s.ends[who] = resume.New(resume.Options{Window: simWindow, Budget: s.memory[who], Log: log, MaxDetached: alone})
		s.ends[who].OnResume(func(time.Duration) { s.pauses[who].Add(1) })
	}
	s.direct = s.rnd.IntN(2) == 0
	w := &world{t: t, opener: s.ends[0], agent: s.ends[1], serve: s.serve(), wire: wires}
	for range 1 + s.rnd.IntN(3) {
		v := &relayer{server: &server{w: w}, s: s}
		s.servers = append(s.servers, v)
		for _, near := range []bool{toOpener, toAgent} {
			rnd := s.another()
			s.wg.Go(func() { v.keep(near, rnd) })
		}
	}
	return s
}

// run is one from beginning to end.
func (s *simulation) run() {
	synctest.Wait() // all are linked
	conns := 1 + s.rnd.IntN(4)
	for id := range conns {
		c := s.newTransfer(id)
		s.apps.Go(c.run)
	}
	for range 5 + s.rnd.IntN(60) {
		time.Sleep(upTo(s.rnd, 150*time.Millisecond))
		s.fault()
	}
	if s.rnd.IntN(10) == 0 {
		s.doom()
	}
	finished := make(chan struct{})
	go func() { s.apps.Wait(); close(finished) }()
	select {
	case <-finished:
	case <-time.After(simPatience):
		s.t.Errorf("applications wait for ever: opener %+v, agent %+v", s.ends[0].Stats(), s.ends[1].Stats())
	}
	s.nothingIsLeft()
	for _, e := range s.ends {
		e.Close()
	}
	close(s.stop)
	s.wg.Wait()
	for _, e := range s.ends {
		e.Wait()
	}
	<-finished
}

// nothingIsLeft waits until all ends are gone, which they have to be some time after
// nobody uses them, and wants nothing to be kept for them.
func (s *simulation) nothingIsLeft() {
	time.Sleep(time.Second) // until memory is plenty again
	for end := time.Now().Add(simPatience); s.ends[0].Len()+s.ends[1].Len()+s.streams() > 0 && time.Now().Before(end); {
		time.Sleep(time.Second)
	}
	for who, e := range s.ends {
		testutil.Equal(s.t, e.Stats().Resumes, s.pauses[who].Load(), "resumptions of end %d, by its pauses", who)
		if stats := e.Stats(); stats.Conns > 0 || stats.Detached != 0 || stats.Kept != 0 || s.memory[who].Used() != 0 {
			s.t.Errorf("end %d has left %+v, and %d bytes of memory", who, stats, s.memory[who].Used())
		}
	}
	testutil.Equal(s.t, s.streams(), 0, "streams that servers have left")
}

// streams is how many the servers have.
func (s *simulation) streams() (n int) {
	for _, v := range s.servers {
		for _, near := range []bool{toOpener, toAgent} {
			if h := v.get(near); h.b != nil {
				n += h.b.Streams()
			}
		}
	}
	return n
}

// doom is what connections cannot outlive.
func (s *simulation) doom() {
	s.deadly.Store(true)
	switch s.rnd.IntN(3) {
	case 0, 1: // a process ends
		s.ends[s.rnd.IntN(2)].Close()
	case 2: // nobody is linked any more
		for _, v := range s.servers {
			v.die(3 * simWindow)
		}
	}
}

// fault makes something happen.
func (s *simulation) fault() {
	v, near := s.servers[s.rnd.IntN(len(s.servers))], s.rnd.IntN(2) == 0
	h := v.get(near)
	if h.wire == nil {
		return
	}
	s.faults++
	switch n := s.rnd.IntN(100); {
	case n < 35:
		h.wire.tear(s.rnd.IntN(2), 1+s.rnd.IntN(4000))
	case n < 50:
		h.wire.cut()
	case n < 60:
		v.die(upTo(s.rnd, time.Second))
	case n < 72:
		s.hold(h, upTo(s.rnd, 500*time.Millisecond))
	case n < 74: // until both have noticed
		s.hushed.Store(true)
		h.wire.hold(0, true)
		h.wire.hold(1, true)
	case n < 78: // a side leaves it, of which the server hears nothing
		h.wire.hold(0, true)
		h.wire.hold(1, true)
		h.a.Replaced()
	case n < 84: // the server is to leave
		if near := v.get(toOpener); near.a != nil {
			s.ends[0].Move(near.a)
		}
	case n < 89:
		s.moveBulk()
	case n < 94:
		s.again(v)
	case s.scarce:
		who, n := s.rnd.IntN(2), simMemory-s.rnd.IntN(32<<10)
		s.memory[who].Hold(n)
		time.AfterFunc(upTo(s.rnd, 300*time.Millisecond), func() { s.memory[who].Hold(-n) })
	}
}

// hold has nothing come through for a while, one way or both.
func (s *simulation) hold(h hop, length time.Duration) {
	ways := 1 + s.rnd.IntN(3)
	for who := range 2 {
		if ways&(1<<who) != 0 {
			h.wire.hold(who, true)
			time.AfterFunc(length, func() { h.wire.hold(who, false) })
		}
	}
}

// moveBulk asks one of the openers to move a connection, as a server does.
func (s *simulation) moveBulk() {
	s.mu.Lock()
	w := s.watched[s.rnd.IntN(4)]
	s.mu.Unlock()
	if w != nil {
		w.Move()
	}
}

func upTo(rnd *rand.Rand, d time.Duration) time.Duration {
	return time.Duration(rnd.Int64N(int64(d) + 1))
}

func address(id int) string { return fmt.Sprintf("dest-%d:1", id) }
