package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"

	"konnectivity/e2e/suite"
	"konnectivity/internal/bench"
	"konnectivity/internal/wait"
)

// noise measures what a cluster that makes noise leaves to one that does not.
type noise struct {
	rep    bench.Report
	settle time.Duration // until changed bounds are in force, and loads run
	period time.Duration // for which each load is measured

	at           *site // of one server
	noisy, quiet identity
}

// noiseSettle is how long changed bounds take to be in force at most, and how long
// loads run before they are measured.
const noiseSettle = 3 * time.Second

// benchNoise is `bench noise`.
func benchNoise(ctx context.Context, args []string) error {
	n := &noise{settle: noiseSettle}
	set := flag.NewFlagSet("bench noise", flag.ExitOnError)
	set.DurationVar(&n.period, "for", 20*time.Second, "how long each load is measured")
	_ = set.Parse(args) // which ends the process itself
	if err := withSuite(func(s *suite.Suite) error { return n.measure(ctx, s) }); err != nil {
		return err
	}
	fmt.Print("a quiet cluster beside one that makes noise:\n\n")
	return n.rep.Table(os.Stdout, true)
}

// load is what the peers of one cluster do.
type load struct {
	Links   int             // of agents, and of sidecars as many
	Bulk    int             // connections that carry all they can, a multiple of Links
	Way     bench.Direction // in which they carry it
	Stalled int             // connections whose bytes are never read
	Rate    int             // new connections a second
	Echo    bool            // each of them is used before it is closed
}

// contest is a noisy cluster beside a quiet one.
type contest struct {
	what         string
	noisy, quiet load
	bounds       string // fair bounds of the noisy cluster, to compare with; "" is none
}

// probe times dials of the quiet cluster.
var probe = load{Links: 1, Rate: 100, Echo: true}

var contests = []contest{
	{"64 downloads", load{Links: 16, Bulk: 64, Way: bench.Down}, load{Links: 1, Bulk: 1, Way: bench.Down}, ""},
	{"64 uploads", load{Links: 16, Bulk: 64, Way: bench.Up}, load{Links: 1, Bulk: 1, Way: bench.Up}, ""},
	{"5,000 dials a second", load{Links: 16, Rate: 5000}, probe, "dialsPerSecond: 500"},
	{"1,000 stalled readers", load{Links: 16, Stalled: 1000}, probe, "connections: 100"},
}

func (n *noise) measure(ctx context.Context, s *suite.Suite) error {
	at, err := serve(ctx, s, "tenants", 1)
	if err != nil {
		return err
	}
	defer at.close()
	both, err := at.identities(0, 2)
	if err != nil {
		return err
	}
	n.at, n.noisy, n.quiet = at, both[0], both[1]
	for _, c := range contests {
		free, err := n.contest(ctx, c, "")
		if err != nil {
			return fmt.Errorf("%s: %w", c.what, err)
		}
		if c.quiet.Bulk > 0 {
			all := float64(free.noisy.Bytes + free.quiet.Bytes)
			n.note("one beside "+c.what+": its part of the bytes", "%", 100*float64(free.quiet.Bytes)/all)
			n.note("one beside "+c.what+": of both", "MB/s", all/1e6/free.took.Seconds())
			n.note("one beside "+c.what+": the server's processor time", "s/GB", 1e9*free.cpu.Seconds()/all)
			continue
		}
		bounded, err := n.contest(ctx, c, "bounds: {"+c.bounds+"}\n")
		if err != nil {
			return fmt.Errorf("%s within %s: %w", c.what, c.bounds, err)
		}
		n.noteQuiet("beside "+c.what, free.quiet)
		n.noteQuiet("beside "+c.what+" within "+c.bounds, bounded.quiet)
		n.note("beside "+c.what+": p99 ÷ p99 within "+c.bounds, "×", bench.Milliseconds(free.quiet.Dial.P99)/bench.Milliseconds(bounded.quiet.Dial.P99))
	}
	return nil
}

// note says a figure of the server, and keeps it for the table.
func (n *noise) note(what, unit string, value float64) {
	n.rep.Add("server", what, unit, value)
	say(fmt.Sprintf("%s: %.4g %s", what, value, unit))
}

// noteQuiet notes what became of the dials and echoes of the quiet cluster.
func (n *noise) noteQuiet(what string, r report) {
	n.note(what+": dials and echoes", "", float64(r.Dial.Count+r.Failed))
	n.note(what+": failed", "", float64(r.Failed))
	n.note(what+": p50", "ms", bench.Milliseconds(r.Dial.P50))
	n.note(what+": p99", "ms", bench.Milliseconds(r.Dial.P99))
}

// outcome is what both clusters did in some time.
type outcome struct {
	noisy, quiet report
	took, cpu    time.Duration // cpu is the server's
}

// contest runs both loads, the noisy cluster with bounds, and returns what they did in
// n.period.
func (n *noise) contest(ctx context.Context, c contest, bounds string) (o outcome, err error) {
	if err := n.noisy.write(n.at.dir, "tenant.yaml", n.noisy.settings(bounds)); err != nil {
		return o, err
	}
	wait.For(ctx, n.settle)
	var runs [2]*loadProcess
	for i, order := range []order{
		{n.noisy, c.noisy, n.at.servers[0].AgentPort, n.at.servers[0].ClientPort}, {n.quiet, c.quiet, n.at.servers[0].AgentPort, n.at.servers[0].ClientPort},
	} {
		if runs[i], err = startLoad(ctx, order); err != nil {
			return o, err
		}
		defer runs[i].stop()
	}
	look := func() (cpu time.Duration, err error) {
		for i, r := range []*report{&o.noisy, &o.quiet} {
			if *r, err = runs[i].report(); err != nil {
				return 0, err
			}
		}
		cpu, _, err = n.at.servers[0].Processor()
		return cpu, err
	}
	wait.For(ctx, n.settle)
	before, err := look()
	if err != nil {
		return o, err
	}
	start := time.Now()
	wait.For(ctx, n.period)
	after, err := look()
	o.took, o.cpu = time.Since(start), after-before
	for _, r := range []report{o.noisy, o.quiet} {
		if r.Failed > 0 {
			say(fmt.Sprintf("%d of %d dials failed, one of them: %s", r.Failed, r.Failed+r.Dial.Count, r.Err))
		}
	}
	return o, err
}

// All peers of one cluster run in a process of their own: two clusters in one process
// would take processor time from each other there, and not only in the server. The
// process gets its order by standard input, and answers it by a report once all
// connections are open. Then it answers each further value by the next report.

// loadCommand makes the program such a process.
const loadCommand = "load"

// order tells the process what to do.
type order struct {
	Identity              identity
	Load                  load
	AgentPort, ClientPort int
}

// report counts the bytes and dials since the last report.
type report struct {
	Bytes  int64
	Dial   bench.Latency // of those that did not fail
	Failed int
	Err    string // why one failed
}

// loadProcess is the process as its parent sees it.
type loadProcess struct {
	cmd  *exec.Cmd
	pipe io.WriteCloser
	in   *json.Encoder
	out  *json.Decoder
}

// startLoad starts the process, and returns when all connections are open.
func startLoad(ctx context.Context, o order) (*loadProcess, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &loadProcess{cmd: exec.CommandContext(ctx, self, loadCommand)}
	if p.pipe, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.cmd.Stderr = os.Stderr
	p.in, p.out = json.NewEncoder(p.pipe), json.NewDecoder(out)
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	if _, err := p.ask(o); err != nil {
		p.stop()
		return nil, fmt.Errorf("the peers of %s: %w", o.Identity.Name, err)
	}
	return p, nil
}

func (p *loadProcess) ask(what any) (r report, err error) {
	if err = p.in.Encode(what); err == nil {
		err = p.out.Decode(&r)
	}
	return r, err
}

// report returns the counts since the last report.
func (p *loadProcess) report() (report, error) { return p.ask("report") }

// stop ends the process.
func (p *loadProcess) stop() {
	_ = p.pipe.Close()
	_ = p.cmd.Wait()
}

// benchLoad is `bench load`: the process itself.
func benchLoad(ctx context.Context, _ []string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	var o order
	if err := in.Decode(&o); err != nil {
		return err
	}
	all := make([]identity, o.Load.Links)
	for i := range all {
		all[i] = o.Identity
	}
	r := &running{load: o.Load, fleet: newFleet(ctx)}
	defer r.close()
	defer cancel()
	if err := r.fleet.add(all, o.AgentPort, o.ClientPort); err != nil {
		return err
	}
	if err := r.start(ctx); err != nil {
		return err
	}
	for {
		if err := out.Encode(r.report()); err != nil {
			return err
		}
		var asked string
		if err := in.Decode(&asked); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// running is a load that runs.
type running struct {
	load
	fleet     *fleet
	transfers []*bench.Transfer
	reported  int64 // bytes
	dials     dials
	dialing   sync.WaitGroup
}

// start begins with the load.
func (r *running) start(ctx context.Context) error {
	// The server registers agents a moment after their links are made.
	if err := r.cluster(0).await(ctx); err != nil {
		return err
	}
	for i := range r.Stalled {
		c, err := r.cluster(i).dial(ctx)
		if err == nil {
			_, err = fmt.Fprintf(c, "down %d\n", int64(bench.Endless))
		}
		if err != nil {
			r.dials.add(0, err) // perhaps by a bound
		}
	}
	for i := range r.Links {
		if r.Bulk == 0 {
			break
		}
		t, err := r.cluster(i).path().Begin(ctx, r.Way, r.Bulk/r.Links, bench.Endless)
		if err != nil {
			return err
		}
		r.transfers = append(r.transfers, t)
	}
	if r.Rate > 0 {
		r.dialing.Go(func() { r.dials.run(ctx, r.Rate, r.dial) })
	}
	return nil
}

// cluster returns the cluster whose link the i-th connection uses.
func (r *running) cluster(i int) *cluster { return r.fleet.clusters[i%r.Links] }

func (r *running) dial(ctx context.Context, i int) (time.Duration, error) {
	start := time.Now()
	c, err := r.cluster(i).dial(ctx)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	if r.Echo {
		err = r.cluster(i).identify(c)
	}
	return time.Since(start), err
}

func (r *running) report() report {
	all := int64(0)
	for _, t := range r.transfers {
		all += t.Bytes()
	}
	now := report{Bytes: all - r.reported}
	r.reported = all
	var err error
	if now.Dial, now.Failed, err = r.dials.take(); err != nil {
		now.Err = err.Error()
	}
	return now
}

func (r *running) close() {
	r.fleet.close()
	for _, t := range r.transfers {
		t.Stop()
	}
	r.dialing.Wait()
}
