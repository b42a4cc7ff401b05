package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"konnectivity/e2e/suite"
	"konnectivity/internal/pki"
)

const (
	// changers is how many tenants are changed at the same time, at most; never
	// more than a third of all.
	changers = 16

	// noticed is how long a change that cuts nobody is left in place: the server
	// looks every 2 s.
	noticed = 3 * time.Second

	// changeTime bounds how long a change may take to be in force, on a busy
	// machine.
	changeTime = time.Minute

	// restTime bounds how long the server may take to be rid of what is gone.
	restTime = 30 * time.Second

	// chunk is how much is sent and wanted back at once.
	chunk = 2048
)

// changes are made to tenants at random, while a connection of each carries
// bytes that are checked.
type changes struct {
	*trial
	rounds, opened, turn atomic.Int64

	mu      sync.Mutex
	made    map[string]int // by kind
	slowest time.Duration  // to cut what was to be cut
	harmed  int            // connections of tenants of which nothing was taken away
	err     error          // the first
}

// kind is one of change. What it changes it puts back.
type kind struct {
	name string
	cuts bool // the tenant's own connections
	make func(*changes, context.Context, *cluster) error
}

var kinds = []kind{
	{"settings changed", false, (*changes).bound},
	{"settings broken", false, (*changes).breakSettings},
	{"CA added", false, (*changes).addCA},
	{"CA taken away", true, (*changes).swapCA},
	{"tenant removed", true, (*changes).remove},
}

// change changes tenants at random for as long as -churn says.
func (t *trial) change(ctx context.Context) error {
	if t.changeFor == 0 {
		return nil
	}
	t.letGo() // they are checked one by one, which tenants that are removed fail
	g := &changes{trial: t, made: make(map[string]int)}
	before, err := g.base(ctx)
	if err != nil {
		return err
	}
	carrying, stop := context.WithCancel(ctx)
	var carriers sync.WaitGroup
	defer carriers.Wait()
	defer stop()
	for _, c := range t.swarm.clusters {
		carriers.Go(func() { g.carry(carrying, c) })
	}
	var changing sync.WaitGroup
	end := time.Now().Add(t.changeFor)
	for range min(changers, (len(t.swarm.clusters)+2)/3) {
		changing.Go(func() {
			for time.Now().Before(end) && ctx.Err() == nil && !g.failed() {
				g.one(ctx)
			}
		})
	}
	changing.Wait()
	stop()
	carriers.Wait()
	if g.err != nil {
		t.say(t.server.Output())
		return g.err
	}
	most := before.routines + float64(len(t.swarm.clusters))
	after, err := g.rested(ctx, most)
	if err != nil {
		return err
	}
	g.report()
	t.note("the server's memory in use before and after, MB", "%.1f and %.1f", before.heap/1e6, after.heap/1e6)
	t.note("its goroutines before and after", "%.0f and %.0f", before.routines, after.routines)
	if after.routines > most {
		return errors.New("the server keeps goroutines of what is gone")
	}
	return nil
}

// state is what a server has at rest.
type state struct{ heap, routines float64 } // bytes that are in use, and goroutines

// rested is what the server has as soon as it has no more goroutines than most, or
// when it has not come to that for restTime.
func (g *changes) rested(ctx context.Context, most float64) (s state, err error) {
	for end := time.Now().Add(restTime); ; {
		if s, err = g.base(ctx); err != nil || s.routines <= most || time.Now().After(end) {
			return s, err
		}
	}
}

// base is what the server has when it has come to rest.
func (g *changes) base(ctx context.Context) (s state, err error) {
	if _, err = g.settled(ctx); err != nil {
		return s, err
	}
	collect := "http://" + suite.Loopback(g.server.AdminPort) + "/debug/pprof/heap?gc=1"
	for range 2 { // what pools keep outlives one collection
		if _, err = get(ctx, collect, io.Discard); err != nil {
			return s, err
		}
	}
	var page bytes.Buffer
	if _, err = get(ctx, g.server.HealthURL("/metrics"), &page); err != nil {
		return s, err
	}
	for line := range strings.Lines(page.String()) {
		for name, to := range map[string]*float64{"go_memstats_heap_alloc_bytes ": &s.heap, "go_goroutines ": &s.routines} {
			if text, ok := strings.CutPrefix(line, name); ok && err == nil {
				*to, err = strconv.ParseFloat(strings.TrimSpace(text), 64)
			}
		}
	}
	return s, err
}

func (g *changes) report() {
	for _, k := range kinds {
		g.note(k.name, "%d", g.made[k.name])
	}
	g.note("what was to be cut was cut after, s at most", "%.1f", g.slowest.Seconds())
	g.note("connections opened meanwhile", "%d", g.opened.Load())
	g.note("bytes sent and got back, MB", "%.1f", float64(g.rounds.Load()*chunk)/1e6)
	g.note("connections of others harmed", "%d", g.harmed)
}

// one makes a change to a tenant that nobody else changes at the moment.
func (g *changes) one(ctx context.Context) {
	c := g.swarm.clusters[rand.IntN(len(g.swarm.clusters))]
	if !c.changing.TryLock() {
		sleep(ctx, lookEvery)
		return
	}
	defer c.changing.Unlock()
	k := kinds[int(g.turn.Add(1))%len(kinds)] // each as often as the others
	if k.cuts {
		c.cuts.Add(1)
	}
	err := k.make(g, ctx, c)
	if err == nil && k.cuts {
		err = g.back(ctx, c)
		c.cuts.Add(1)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.made[k.name]++
	if err != nil && ctx.Err() == nil && g.err == nil {
		g.err = fmt.Errorf("%s, of %s: %w", k.name, c.name, err)
	}
}

// failed says whether there is no sense in going on.
func (g *changes) failed() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.err != nil
}

// carry has connections of a cluster carry bytes, one after the other, until ctx
// ends. None may fail while nothing of the cluster is taken away.
func (g *changes) carry(ctx context.Context, c *cluster) {
	for ctx.Err() == nil {
		before := c.cuts.Load()
		if before%2 == 1 {
			sleep(ctx, lookEvery)
			continue
		}
		err := g.use(ctx, c)
		if err == nil || ctx.Err() != nil || c.cuts.Load() != before && !errors.Is(err, errCrossed) {
			continue
		}
		g.mu.Lock()
		if g.harmed++; g.err == nil {
			g.err = fmt.Errorf("a connection of %s, of which nothing was taken away: %w", c.name, err)
		}
		g.mu.Unlock()
	}
}

// use opens a connection, and sends bytes and wants them back for some seconds.
func (g *changes) use(ctx context.Context, c *cluster) error {
	conn, _, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	g.opened.Add(1)
	for range 1 + rand.IntN(20) {
		line := fmt.Sprintf("%s %d ", c.name, rand.Uint64())
		if err := echo(conn, strings.Repeat(line, chunk/len(line)+1)[:chunk]); err != nil {
			return err
		}
		g.rounds.Add(1)
		sleep(ctx, rand.N(time.Second))
	}
	return nil
}

// put replaces a file of the tenant's folder at once.
func (g *changes) put(c *cluster, file string, data []byte) error {
	folder := filepath.Join(g.dir, c.name)
	young := filepath.Join(folder, "."+file)
	if err := os.WriteFile(young, data, 0o600); err != nil {
		return err
	}
	return os.Rename(young, filepath.Join(folder, file))
}

// instead has a file say something else until then returns.
func (g *changes) instead(c *cluster, file string, data []byte, then func() error) error {
	was, err := os.ReadFile(filepath.Join(g.dir, c.name, file))
	if err != nil {
		return err
	}
	if err := g.put(c, file, data); err != nil {
		return err
	}
	return errors.Join(then(), g.put(c, file, was))
}

// noticed waits until the server has seen what was changed, and harms nobody.
func (g *changes) noticed(ctx context.Context) func() error {
	return func() error { sleep(ctx, noticed); return nil }
}

func (g *changes) bound(ctx context.Context, c *cluster) error {
	settings := fmt.Sprintf("serverNames: [%s]\nbounds: {connections: %d, mbitPerSecond: %d}\n", c.serverName(), 10+rand.IntN(1000), 10+rand.IntN(1000))
	return g.instead(c, "tenant.yaml", []byte(settings), g.noticed(ctx))
}

func (g *changes) breakSettings(ctx context.Context, c *cluster) error {
	return g.instead(c, "tenant.yaml", []byte("serverNames: ["+c.serverName()), g.noticed(ctx))
}

func (g *changes) addCA(ctx context.Context, c *cluster) error {
	more, err := pki.NewCA("cluster")
	if err != nil {
		return err
	}
	was, err := os.ReadFile(filepath.Join(g.dir, c.name, "agents-ca.crt"))
	if err != nil {
		return err
	}
	return g.instead(c, "agents-ca.crt", append(was, more.CertPEM...), g.noticed(ctx))
}

// swapCA cuts the tenant's clients, and not its agents.
func (g *changes) swapCA(ctx context.Context, c *cluster) error {
	other, err := pki.NewCA("cluster")
	if err != nil {
		return err
	}
	agent := c.agent.session.Load()
	if agent == nil {
		return c.agent.away()
	}
	return g.instead(c, "clients-ca.crt", other.CertPEM, func() error {
		if err := g.cut(ctx, c.client); err != nil {
			return err
		}
		select {
		case <-agent.Done():
			return errors.New("the agent was cut, too")
		default:
			return nil
		}
	})
}

// remove cuts all that the tenant has.
func (g *changes) remove(ctx context.Context, c *cluster) error {
	folder, away := filepath.Join(g.dir, c.name), filepath.Join(g.dir, "."+c.name)
	if err := os.Rename(folder, away); err != nil {
		return err
	}
	return errors.Join(g.cut(ctx, c.agent, c.client), os.Rename(away, folder))
}

// cut waits until links have ended, as they are to.
func (g *changes) cut(ctx context.Context, of ...*peer) error {
	begin := time.Now()
	limit := time.After(changeTime)
	for _, p := range of {
		s := p.session.Load()
		if s == nil {
			continue // it has ended
		}
		select {
		case <-s.Done():
		case <-ctx.Done():
			return ctx.Err()
		case <-limit:
			return fmt.Errorf("a link was not cut within %v", changeTime)
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.slowest = max(g.slowest, time.Since(begin))
	return nil
}

// back waits until a cluster works as before.
func (g *changes) back(ctx context.Context, c *cluster) error {
	ctx, cancel := context.WithTimeout(ctx, changeTime)
	defer cancel()
	for {
		conn, _, err := c.open(ctx)
		if err == nil {
			_ = conn.Close()
		}
		if err == nil && c.agent.session.Load() != nil { // the server may have used it before
			return nil
		}
		if ctx.Err() != nil || errors.Is(err, errCrossed) {
			return fmt.Errorf("it does not come back: %w", cmp.Or(err, errAway))
		}
		sleep(ctx, lookEvery)
	}
}
