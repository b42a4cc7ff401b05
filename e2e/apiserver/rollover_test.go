package apiserver

import (
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"konnectivity/e2e/suite"
	"konnectivity/internal/testutil"
)

const (
	// breath is how long the load runs between two replacements.
	breath = time.Second

	// moment is how long before and after a program was seen to have ended its
	// end may be felt, on a machine that does other things beside.
	moment = 3 * time.Second

	// apiGrace is what kube-apiserver gets to end in, here in place of the
	// pod's 45 s. It waits for clients that follow logs.
	apiGrace = 10 * time.Second
)

// ending has the times at which programs were stopped, had ended, and had been
// replaced by others that were ready.
type ending struct {
	what string
	told time.Time
	was  []time.Time
	back time.Time
}

// rollOver replaces servers and agents one after the other, under load and with
// logs followed.
func (w *world) rollOver(t *testing.T) {
	w.t = t
	l := w.press()
	var followers []*follower
	var endings []ending
	replace := func(what string, end func() []time.Time, next func()) {
		followers = append(followers, w.follow(), w.follow())
		time.Sleep(breath)
		told := time.Now()
		was := end()
		next()
		for _, s := range w.servers {
			w.join(s)
		}
		endings = append(endings, ending{what, told, was, time.Now()})
		w.logs()
	}
	for i := range w.servers {
		replace("server", func() []time.Time { return w.stopServer(i) }, func() { w.restartServer(i) })
	}
	for _, a := range w.agents {
		replace("agent", func() []time.Time { return w.stopAgent(a) }, func() { w.startAgent(w.dataPlane, a) })
	}
	time.Sleep(breath)
	l.end()
	t.Logf("requests: %v; %d were cut, %d lost", l.sent, len(l.cut), len(l.lost))
	for _, e := range endings {
		for _, was := range e.was {
			t.Logf("%s: told at %s, ended %.1f s later, ready again %.1f s after that", e.what, e.told.Format(time.TimeOnly), was.Sub(e.told).Seconds(), e.back.Sub(was).Seconds())
		}
	}
	w.checkLoad(l, endings)
	checkFollowers(t, followers, endings)
}

// checkLoad expects that a new connection was always possible, and that what
// went by an old one failed only where that one was cut at the end of its grace.
// A kube-apiserver that is stopped closes connections that have just come, or leaves
// them waiting.
func (w *world) checkLoad(l *load, endings []ending) {
	t := w.t
	for _, f := range l.lost {
		t.Errorf("%s failed twice: %v", f.kind, f.err)
	}
	for _, f := range l.cut {
		if w.pods && w.hungUp(f.err) && acrossBeginningOfAny(f, endings) {
			t.Logf("%s did not get to kube-apiserver: %v", f.kind, f.err)
		} else if f.kind == "exec" || !atEndOfAny(f.at, endings) {
			t.Errorf("%s failed at %s after %v: %v", f.kind, f.at.Format(time.TimeOnly), f.at.Sub(f.asked), f.err)
		} else {
			t.Logf("%s was cut: %.300v", f.kind, f.err)
		}
	}
	for kind := range requests() {
		testutil.Holds(t, l.sent[kind] >= 100 && l.sent["exec"] >= 10, "hardly any load: %v", l.sent)
	}
}

// checkFollowers expects every line, and that none ended before the grace of
// what carried it.
func checkFollowers(t *testing.T, followers []*follower, endings []ending) {
	for i, f := range followers {
		runs := f.runs()
		f.stop()
		<-f.done
		testutil.Succeeds(t, f.err, "a follower")
		testutil.Holds(t, runs || atEndOfAny(f.ended, endings),
			"follower %d ended after %d lines, and nothing that carried it had", i, f.lines)
		t.Logf("follower %d: %d lines, still runs: %v", i, f.lines, runs)
	}
}

// hungUp says whether a client failed to talk to kube-apiserver itself.
func (w *world) hungUp(err error) bool {
	return strings.Contains(err.Error(), w.frontURL()+"/api") || strings.Contains(err.Error(), "Unable to connect to the server")
}

// acrossBeginningOfAny says whether something was told to end while f was under
// way.
func acrossBeginningOfAny(f failure, endings []ending) bool {
	return slices.ContainsFunc(endings, func(e ending) bool {
		return f.asked.Before(e.told.Add(moment)) && f.at.After(e.told.Add(-moment))
	})
}

// atEndOfAny says whether something ended at that time.
func atEndOfAny(at time.Time, endings []ending) bool {
	return slices.ContainsFunc(endings, func(e ending) bool {
		return slices.ContainsFunc(e.was, func(was time.Time) bool { return near(at, was) })
	})
}

func near(at, then time.Time) bool { return at.Sub(then).Abs() < moment }

// stopServer ends a server, and where it has one its pod's kube-apiserver, as
// kubelet does: both at once. It returns when each had ended.
func (w *world) stopServer(i int) (ended []time.Time) {
	var api sync.WaitGroup
	if w.pods {
		api.Go(func() { stopAPI(w.apis[i].Process) })
	}
	w.terminate(w.servers[i])
	ended = []time.Time{time.Now()}
	if api.Wait(); w.pods {
		ended = append(ended, time.Now())
	}
	return ended
}

// stopAgent ends an agent, and returns when it had.
func (w *world) stopAgent(a *agent) (ended []time.Time) {
	stop(w.t, a.Process)
	return []time.Time{time.Now()}
}

func stopAPI(p *suite.Process) {
	_ = p.Signal(syscall.SIGTERM)
	if _, err := p.Wait(apiGrace); err != nil {
		p.Kill()
	}
}

// restartServer starts what stopServer ended.
func (w *world) restartServer(i int) {
	w.startServer(w.servers[i])
	if w.pods {
		w.runAPI(w.apis[i])
	}
}
