package peers

import (
	"slices"
	"time"

	"konnectivity/tunnel"
)

// newsTime is for how long behind a session that was made or lost the agents of servers may
// change: most of those that lost a server try it again within 10 s (--sync-interval-cap).
const newsTime = 10 * time.Second

// Final returns err, why no session leads on with a connection. That agents do not know it is
// final only once the sessions have been the same for newsTime: until then the agent that does
// may be about to come, to a server that has started, or from one that was lost.
func (s *Set[A, S]) Final(err error) error {
	if tunnel.FailureOf(err) != tunnel.FailGone || s.steady() {
		return err
	}
	return &tunnel.DialError{Failure: tunnel.FailAgentLost, Address: tunnel.AsDialError("", err).Address,
		Reason: "the agent that has the connection may be about to come to another server"}
}

// steady reports whether the sessions have been the same for newsTime. It looks at the sessions
// first: of one that the loop takes out meanwhile, the news tell.
func (s *Set[A, S]) steady() bool {
	ended := func(m Member[A, S]) bool { return m.State() == Ended } // and the loop has yet to see it
	if slices.ContainsFunc(s.Members(), ended) {
		return false
	}
	news := tunnel.Moment(s.news.Load())
	return news == 0 || tunnel.Now()-news >= tunnel.Moment(newsTime)
}
