package lanes

import (
	"context"
	"errors"
	"sync"
	"time"

	"konnectivity/tunnel/link"
)

const (
	// addTimeout bounds an attempt to add a lane.
	addTimeout = 10 * time.Second

	// longestPause bounds the wait after such an attempt failed. It doubles, from
	// one look on.
	longestPause = time.Minute
)

// add adds n lanes, all at once.
func (g *Group) add(n int) {
	if n <= 0 {
		return
	}
	ctx, cancel := context.WithTimeout(g.ctx, addTimeout)
	defer cancel()
	var adding sync.WaitGroup
	defer adding.Wait()
	for range n {
		adding.Go(func() {
			g.added(g.addOne(ctx), time.Now())
		})
	}
}

// errElsewhere is why a link became no lane.
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

// added takes in how an attempt ended.
func (g *Group) added(err error, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err == nil {
		g.pause = 0
		return
	}
	g.pause = min(max(2*g.pause, lookEvery), longestPause)
	g.notUntil = now.Add(g.pause)
}
