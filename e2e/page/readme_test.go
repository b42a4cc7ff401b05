package page

import (
	"flag"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"konnectivity/tunnel"
)

// history is how long the process of the README's picture has run.
var history = flag.Duration("history", 0, "take status-page.png, the README's picture, after a server ran that long")

// TestPictureOfTheReadme takes docs/images/status-page.png again:
// go test ./e2e/page -run Readme -pictures="$PWD/docs/images" -history=4m
func TestPictureOfTheReadme(t *testing.T) {
	if *pictures == "" || *history == 0 {
		t.Skip("nobody wants the picture: give -pictures and -history")
	}
	s := lively(t)
	stop := make(chan struct{})
	var feeding sync.WaitGroup
	feeding.Go(func() { s.live(stop) })
	defer feeding.Wait()
	defer close(stop)
	time.Sleep(*history)
	b := openTab(t)
	b.size(1180, 1080, false)
	b.open(s.url())
	b.until("the stall", `document.querySelector('#rows tr.stalled') !== null`)
	b.until("the history", `document.querySelector('.line').getAttribute('d') !== ''`)
	b.picture("status-page", false)
	b.quiet(s.url())
}

// live lets traffic ebb and flow, and dials come, until stop.
func (s *scene) live(stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case <-time.After(time.Second):
		}
		s.mu.Lock()
		for i := range s.flows {
			f := &s.flows[i]
			f.up, f.down = sway(f.up), sway(f.down)
		}
		s.mu.Unlock()
		for range 2 + rand.IntN(5) {
			s.table.Dialed(&tunnel.Flow{}, time.Duration(30+rand.IntN(25))*time.Millisecond, nil)
		}
	}
}

// sway changes a rate by a fifth at most; over time it stays about where it was.
func sway(rate int) int {
	return int(float64(rate) * (0.8 + 0.4*rand.Float64()) * 1.007)
}
