package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"konnectivity/e2e/suite"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// sockets counts the sockets that a process holds.
func sockets(p *suite.Process) (n int, err error) {
	dir := fmt.Sprintf("/proc/%d/fd", p.PID())
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0, err
	}
	for _, e := range entries {
		if to, err := os.Readlink(dir + "/" + e.Name()); err == nil && strings.HasPrefix(to, "socket:") {
			n++
		}
	}
	return n, nil
}

// profiled has a program tell its goroutines.
var profiled = []string{"--enable-profiling"}

// goroutines reads the count off a pprof page.
func goroutines(port int) (n int, err error) {
	tr := &http.Transport{DisableKeepAlives: true}
	res, err := (&http.Client{Transport: tr, Timeout: patience}).
		Get(fmt.Sprintf("http://%s/debug/pprof/goroutine?debug=1", suite.Loopback(port)))
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, err
	}
	_, err = fmt.Sscanf(string(body), "goroutine profile: total %d", &n)
	return n, err
}

// holdings is what a suite holds: sockets of every process, goroutines of
// those that tell.
type holdings map[string]int

func (w *whole) holdings() (holdings, error) {
	h := holdings{}
	var errs []error
	for _, p := range w.Processes() {
		n, err := sockets(p)
		h["sockets of "+p.Name] = n
		errs = append(errs, err)
	}
	for name, port := range map[string]int{"server": w.server.AdminPort, "agent": w.agent.AdminPort} {
		n, err := goroutines(port)
		h["goroutines of "+name] = n
		errs = append(errs, err)
	}
	return h, errors.Join(errs...)
}

// atRest is what is held while nothing is done: at most, of some looks, since
// some of it comes and goes by itself.
func (w *whole) atRest(t *testing.T) holdings {
	t.Helper()
	time.Sleep(time.Second)
	base := holdings{}
	for range 20 {
		for what, n := range must(w.holdings())(t) {
			base[what] = max(base[what], n)
		}
		time.Sleep(20 * time.Millisecond)
	}
	return base
}

// within says whether nothing is above the base.
func (h holdings) within(base holdings) bool {
	for what, n := range h {
		if n > base[what] {
			return false
		}
	}
	return true
}

// Dials that are given up at any moment, before, while or after they succeed,
// leave nothing behind in any process.
func TestCancelledDialsLeaveNothing(t *testing.T) {
	w := newWholeOf(t, flags{server: profiled, agent: profiled})
	target := echoTarget(t)
	routes := append(w.routes(t), route{"grpc", viaGRPC(w.server.UDS)})
	for _, r := range routes { // what is lazily made, is
		testutil.NoError(t, try(t, r, target))
	}
	base := w.atRest(t)

	dials := scaled(3_000, 100_000)
	// A dial is given up within a time of which half are long enough, on this
	// machine and now: it grows with each that was too short.
	var longest, next, cancelled, succeeded atomic.Int64
	longest.Store(int64(6 * time.Millisecond))
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for i := next.Add(1); i <= int64(dials); i = next.Add(1) {
				ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rand.Int64N(longest.Load())))
				c, err := routes[i%int64(len(routes))].Dial(ctx, tunnel.NewFlow("tcp", target))
				cancel()
				switch {
				case err == nil:
					succeeded.Add(1)
					longest.Store(max(longest.Load()*49/50, int64(time.Millisecond)))
					c.Close()
				case ctx.Err() != nil:
					cancelled.Add(1)
					longest.Store(longest.Load() * 51 / 50)
				default:
					t.Errorf("%s: %v", routes[i%int64(len(routes))].name, err)
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%d dials cancelled, %d had succeeded before", cancelled.Load(), succeeded.Load())
	if cancelled.Load() < int64(dials)/10 || succeeded.Load() == 0 {
		t.Errorf("the moments were not random: %d cancelled, %d succeeded", cancelled.Load(), succeeded.Load())
	}
	// The real gRPC client waits up to 10s for the answer to its close.
	eventually(t, 10*time.Second+patience, fmt.Sprintf("want what was held before, %v", base), func() (bool, any) {
		h, err := w.holdings()
		return err == nil && h.within(base), fmt.Sprint(h, err)
	})
	for _, r := range routes {
		testutil.NoError(t, try(t, r, target))
	}
}
