package peers

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// That agents do not know a connection ends it only once no session was made or lost for a
// while, by what a Set knows, and before it knows of a loss. Other failures stay what they are.
func TestGoneIsFinalWithoutNews(t *testing.T) {
	w := &world{random: rand.New(rand.NewPCG(1, 1)), behind: map[string][]string{"a": {"1"}, "b": {"2"}}, up: map[string]bool{"1": true, "2": true}}
	running(t, w, all, func(t *testing.T, s *Set[string, *conn]) {
		gone := &tunnel.DialError{Failure: tunnel.FailGone}
		want := func(final bool, behind string) {
			t.Helper()
			failure := tunnel.FailAgentLost
			if final {
				failure = tunnel.FailGone
			}
			testutil.Equal(t, tunnel.FailureOf(s.Final(gone)), failure, "the failure behind %s", behind)
		}
		want(true, "nothing")
		for _, at := range []string{"a", "b"} {
			s.Offer(at, testutil.Must(w.connect(t.Context(), at))(t))
			synctest.Wait()
			want(false, "a session that was made")
			time.Sleep(newsTime)
			want(true, "a while")
		}
		_ = s.Members()[0].Session.Close()
		want(false, "one that was lost")
		synctest.Wait()
		want(false, "one that was lost, as the loop knows")
		time.Sleep(newsTime)
		want(true, "a while")
		_ = s.Members()[0].Session.Close()
		testutil.Equal(t, tunnel.FailureOf(s.Final(&tunnel.DialError{Failure: tunnel.FailDenied})), tunnel.FailDenied, "another failure")
		testutil.Succeeds(t, s.Final(nil), "no failure")
	})
}

// A session that is lost while the Set is asked is news.
func TestGoneIsNotFinalWhileASessionEnds(t *testing.T) {
	s := New(Config[string, losing]{})
	lose := func() { s.news.Store(int64(tunnel.Now())) } // as the loop does, before it shows the members without it
	s.snapshot.Store(&[]Member[string, losing]{{Session: losing{lose: lose}}})
	testutil.Equal(t, tunnel.FailureOf(s.Final(&tunnel.DialError{Failure: tunnel.FailGone})), tunnel.FailAgentLost, "the failure")
}

// losing is a session that ends as soon as it was seen to live.
type losing struct {
	Session
	lose func()
}

func (l losing) Done() <-chan struct{} { l.lose(); return nil }
func (l losing) Drains() *tunnel.Event { return new(tunnel.Event) }
