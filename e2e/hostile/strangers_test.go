package hostile

import (
	"testing"
	"time"

	"konnectivity/e2e/suite"
)

// survive attacks srv for the duration and holds it to the bounds, while agents
// join by the flags more.
func survive(t *testing.T, s *suite.Suite, srv *suite.Server, f *flood, more ...string) {
	t.Helper()
	figures := watch(t, srv.Process, srv.HealthURL("/healthz"))
	stop := f.start(t)
	time.Sleep(*duration / 5) // so that the crowd is there
	joins, longest := joinUntil(t, s, srv, time.Now().Add(*duration*4/5), more...)
	got := figures()
	stop()
	got.joins, got.join = joins, longest
	t.Logf("%d connections were opened", f.opened.Load())
	got.within(t)
}

func TestSilence(t *testing.T) {
	s := newSuite(t)
	srv := must(s.StartServer())(t)
	survive(t, s, srv, &flood{address: suite.Loopback(srv.AgentPort), count: 500})
}
