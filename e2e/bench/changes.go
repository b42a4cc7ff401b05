package main

import (
	"bytes"
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
	"konnectivity/internal/wait"
)

const (
	// maxChanges is how many tenants are changed at the same time, at most; never more
	// than a third of all.
	maxChanges = 16

	// changeRest is how long a change that cuts nothing stays in place: the server
	// looks every 2 s.
	changeRest = 3 * time.Second

	// changeTime bounds how long a change may take to be in force, on a busy machine.
	changeTime = time.Minute

	// cleanupTime bounds how long the server may take to end the goroutines of
	// connections that have ended.
	cleanupTime = 30 * time.Second

	// chunk is how many bytes are echoed at once.
	chunk = 2048
)

// changes are made to tenants at random, while a connection of each carries bytes that
// are checked.
type changes struct {
	figures
	length, rest time.Duration // rest: of the server, before its memory is read

	dir                  string // of the tenants
	server               *suite.Server
	clusters             []*cluster
	rounds, opened, next atomic.Int64

	mu      sync.Mutex
	made    map[string]int // by kind
	slowest time.Duration  // until links that had to be cut were cut
}

// changeKind is one kind of change. make changes a tenant, and then changes it back.
type changeKind struct {
	name string
	cuts bool // the tenant's own connections
	make func(*changes, context.Context, *cluster) error
}

var changeKinds = []changeKind{
	{"settings changed", false, func(g *changes, ctx context.Context, c *cluster) error {
		bounds := fmt.Sprintf("bounds: {connections: %d, mbitPerSecond: %d}\n", 10+rand.IntN(1000), 10+rand.IntN(1000))
		return g.replace(c, "tenant.yaml", c.settings(bounds), changeInForce(ctx))
	}},
	{"settings broken", false, func(g *changes, ctx context.Context, c *cluster) error {
		return g.replace(c, "tenant.yaml", []byte("serverNames: ["+c.serverName()), changeInForce(ctx))
	}},
	{"CA added", false, func(g *changes, ctx context.Context, c *cluster) error {
		other, err := pki.NewCA("cluster")
		if err != nil {
			return err
		}
		return g.replace(c, "agents-ca.crt", bytes.Join([][]byte{c.CA, other.CertPEM}, nil), changeInForce(ctx))
	}},
	{"CA taken away", true, (*changes).swapCA},
	{"tenant removed", true, (*changes).remove},
}

// changeInForce waits until the server has seen a change that cuts no connection.
func changeInForce(ctx context.Context) func() error {
	return func() error { wait.For(ctx, changeRest); return nil }
}

// measure has count clusters connect to a server, and changes them.
func (g *changes) measure(ctx context.Context, s *suite.Suite, count int) error {
	at, err := serve(s, "tenants", 1)
	if err != nil {
		return err
	}
	fleet := newFleet(ctx)
	defer fleet.close()
	all, err := at.identities(0, count)
	if err != nil {
		return err
	}
	if err := at.connect(fleet, all); err != nil {
		return err
	}
	g.dir, g.server, g.clusters, g.made = at.dir, at.servers[0], fleet.clusters, make(map[string]int)
	before, err := g.footprint(ctx)
	if err != nil {
		return err
	}
	if err := g.run(ctx); err != nil {
		g.say(g.server.Output())
		return err
	}
	limit := before.goroutines + float64(len(g.clusters))
	after, err := g.footprint(ctx)
	for end := time.Now().Add(cleanupTime); err == nil && after.goroutines > limit && time.Now().Before(end); {
		after, err = g.footprint(ctx)
	}
	if err != nil {
		return err
	}
	for _, k := range changeKinds {
		g.note(k.name, "", float64(g.made[k.name]))
	}
	g.note("links to be cut were cut after, at most", "s", g.slowest.Seconds())
	g.note("connections opened meanwhile", "", float64(g.opened.Load()))
	g.note("bytes sent and echoed", "MB", float64(g.rounds.Load()*chunk)/1e6)
	g.note("memory in use before", "MB", before.heap/1e6)
	g.note("memory in use after", "MB", after.heap/1e6)
	g.note("goroutines before", "", before.goroutines)
	g.note("goroutines after", "", after.goroutines)
	if after.goroutines > limit {
		return errors.New("the server keeps goroutines of connections that have ended")
	}
	return nil
}

// run changes tenants, and carries bytes, until the time is over or something fails.
func (g *changes) run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	carrying, stop := context.WithCancel(ctx)
	var carriers, changers sync.WaitGroup
	for _, c := range g.clusters {
		carriers.Go(func() {
			if err := g.carry(carrying, c); err != nil {
				cancel(err)
			}
		})
	}
	end := time.Now().Add(g.length)
	for range min(maxChanges, (len(g.clusters)+2)/3) {
		changers.Go(func() {
			for time.Now().Before(end) && ctx.Err() == nil {
				if err := g.changeOne(ctx); err != nil {
					cancel(err)
				}
			}
		})
	}
	changers.Wait()
	stop()
	carriers.Wait()
	return context.Cause(ctx)
}

// footprint is what a server uses at rest.
type footprint struct{ heap, goroutines float64 } // heap: bytes in use

func (g *changes) footprint(ctx context.Context) (f footprint, err error) {
	wait.For(ctx, g.rest)
	for range 2 { // memory in pools outlives one collection
		if _, err = get(ctx, adminURL(g.server.AdminPort, "/debug/pprof/heap?gc=1"), io.Discard); err != nil {
			return f, err
		}
	}
	var page bytes.Buffer
	if _, err = get(ctx, g.server.HealthURL("/metrics"), &page); err != nil {
		return f, err
	}
	for line := range strings.Lines(page.String()) {
		for name, to := range map[string]*float64{"go_memstats_heap_alloc_bytes ": &f.heap, "go_goroutines ": &f.goroutines} {
			if text, ok := strings.CutPrefix(line, name); ok && err == nil {
				*to, err = strconv.ParseFloat(strings.TrimSpace(text), 64)
			}
		}
	}
	return f, err
}

// changeOne changes a tenant that is not being changed at the moment.
func (g *changes) changeOne(ctx context.Context) error {
	c := g.clusters[rand.IntN(len(g.clusters))]
	if !c.changing.TryLock() {
		wait.For(ctx, lookInterval)
		return nil
	}
	defer c.changing.Unlock()
	k := changeKinds[int(g.next.Add(1))%len(changeKinds)] // each as often as the others
	if k.cuts {
		c.cuts.Add(1)
	}
	err := k.make(g, ctx, c)
	if err == nil && k.cuts {
		err = c.await(ctx, changeTime)
		c.cuts.Add(1)
	}
	g.mu.Lock()
	g.made[k.name]++
	g.mu.Unlock()
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("%s, of %s: %w", k.name, c.Name, err)
	}
	return nil
}

// carry has connections of a cluster carry bytes, one after the other, until ctx ends.
// None may fail while nothing is taken away from the cluster.
func (g *changes) carry(ctx context.Context, c *cluster) error {
	for ctx.Err() == nil {
		before := c.cuts.Load()
		if before%2 == 1 {
			wait.For(ctx, lookInterval)
			continue
		}
		err := g.use(ctx, c)
		if err == nil || ctx.Err() != nil || c.cuts.Load() != before && !errors.Is(err, errCrossed) {
			continue
		}
		return fmt.Errorf("a connection of %s, of which nothing was taken away: %w", c.Name, err)
	}
	return nil
}

// use opens a connection, and has bytes echoed for some seconds.
func (g *changes) use(ctx context.Context, c *cluster) error {
	conn, _, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	g.opened.Add(1)
	for range 1 + rand.IntN(20) {
		line := fmt.Sprintf("%s %d ", c.Name, rand.Uint64())
		if err := echo(conn, strings.Repeat(line, chunk/len(line)+1)[:chunk]); err != nil {
			return err
		}
		g.rounds.Add(1)
		wait.For(ctx, rand.N(time.Second))
	}
	return nil
}

// replace replaces the content of a tenant's file until during returns.
func (g *changes) replace(c *cluster, file string, data []byte, during func() error) error {
	old, err := os.ReadFile(filepath.Join(g.dir, c.Name, file))
	if err != nil {
		return err
	}
	if err := c.write(g.dir, file, data); err != nil {
		return err
	}
	return errors.Join(during(), c.write(g.dir, file, old))
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
	return g.replace(c, "clients-ca.crt", other.CertPEM, func() error {
		if err := g.awaitCut(ctx, c.client); err != nil {
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

// remove cuts all connections of the tenant.
func (g *changes) remove(ctx context.Context, c *cluster) error {
	folder, hidden := filepath.Join(g.dir, c.Name), filepath.Join(g.dir, "."+c.Name)
	if err := os.Rename(folder, hidden); err != nil {
		return err
	}
	return errors.Join(g.awaitCut(ctx, c.agent, c.client), os.Rename(hidden, folder))
}

// awaitCut waits until the links of peers have ended.
func (g *changes) awaitCut(ctx context.Context, of ...*peer) error {
	start := time.Now()
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
	g.slowest = max(g.slowest, time.Since(start))
	return nil
}
