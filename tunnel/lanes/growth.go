package lanes

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"konnectivity/tunnel/link"
)

const (
	// addTimeout bounds an attempt to add a lane.
	addTimeout = 10 * time.Second

	// longestPause bounds the wait after such an attempt failed. The wait begins
	// with sampleEvery and doubles.
	longestPause = time.Minute
)

// add adds n lanes at once, in one attempt.
func (g *Group) add(n int) {
	ctx, cancel := context.WithTimeout(context.Background(), addTimeout)
	defer cancel()
	defer g.ends.Then(cancel)()
	var adding sync.WaitGroup
	var failed atomic.Bool
	for range n {
		adding.Go(func() {
			if g.addOne(ctx) != nil {
				failed.Store(true)
			}
		})
	}
	adding.Wait()
	g.added(!failed.Load(), time.Now())
}

// errElsewhere is why a new link became no lane.
var errElsewhere = errors.New("another server answers at this address")

// addOne adds a lane.
func (g *Group) addOne(ctx context.Context) error {
	ses, err := g.opt.Dial(ctx)
	switch {
	case err != nil:
		return err
	case ses.Peer().ID == "" || ses.Peer().ID != g.Peer().ID:
		_ = ses.CloseWith(link.GoAwayDuplicate, "")
		return errElsewhere
	case !g.Add(ses):
		_ = ses.Close()
	}
	return nil
}

// added notes whether an attempt has added all lanes.
func (g *Group) added(all bool, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if all {
		g.pause = 0
		return
	}
	g.pause = min(max(2*g.pause, sampleEvery), longestPause)
	g.notUntil = now.Add(g.pause)
}
