package main

import (
	"context"
	"crypto/tls"
	"flag"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"konnectivity/e2e/line"
	"konnectivity/e2e/suite"
	"konnectivity/internal/bench"
	"konnectivity/internal/tlsreload"
	"konnectivity/tunnel"
)

// What a benchCell inherits beside the standard files.
const (
	farEnd  = 3 // the namespace at the line's other end
	cutWish = 4 // takes wishes for the line
)

// rest is how long what is left of a transfer gets to clear the line.
const rest = time.Second

// firstBytes is how many connections are opened for the time to the first byte.
const firstBytes = 10

// The hops that the line can be in.
const (
	legAgent   = "agent"   // sidecar and server here, agent and target at the far end
	legSidecar = "sidecar" // only the sidecar here
)

// measurement is one cell under way, at the near end of its line.
type measurement struct {
	name   string
	leg    string
	length time.Duration
	ahead  time.Duration // how long downloads have run when round trips beside them begin
	far    *line.Namespace
	worlds []*world
	rep    *bench.Report
}

// cellTest measures one thing of one path.
type cellTest struct {
	name string
	run  func(m *measurement, ctx context.Context, s subject) error
}

// subject is a path, and how many connections it takes on the line for so many
// streams.
type subject struct {
	bench.Path
	conns func(streams int) int
}

var allCellTests = []cellTest{
	{"down", func(m *measurement, ctx context.Context, s subject) error {
		return m.transfers(ctx, s, bench.Down)
	}},
	{"up", func(m *measurement, ctx context.Context, s subject) error {
		return m.transfers(ctx, s, bench.Up)
	}},
	{"rtt", (*measurement).roundTrip},
	{"small", (*measurement).roundTripBeside},
	{"first", (*measurement).firstByte},
}

func cellTests() (names []string) {
	for _, t := range allCellTests {
		names = append(names, t.name)
	}
	return names
}

// benchCell measures over the line that it finds itself at one end of.
func benchCell(ctx context.Context, args []string) error {
	m := &measurement{far: line.Inherited(farEnd), rep: bench.NewReport()}
	set := flag.NewFlagSet("bench cell", flag.ExitOnError)
	set.StringVar(&m.name, "name", "", "what the line is like")
	set.DurationVar(&m.length, "length", 0, "length of each test")
	set.DurationVar(&m.ahead, "ahead", 0, "how long downloads run before round trips beside them")
	bin := set.String("bin", "", "folder of the programs")
	before := set.String("before", "", "folder of another build of them")
	dirs := set.String("other", "", "folders of other tunnels")
	set.StringVar(&m.leg, "leg", legAgent, "where the line is")
	lanes := set.Int("lanes", 0, "also measure ours with so many lanes")
	tests := set.String("tests", "", "what to measure")
	names := set.String("subjects", "", "what to measure it with")
	cut := set.Duration("cut", 0, "measure a cut of the line, and nothing else")
	if err := set.Parse(args); err != nil {
		return err
	}
	others, err := readOthers(*dirs)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer m.close()
	subjects, err := m.start(ctx, suite.Binaries(*bin), suite.Binaries(*before), others, *lanes)
	if err != nil {
		return err
	}
	chosen := strings.Split(*names, ",")
	subjects = slices.DeleteFunc(subjects, func(s subject) bool { return !slices.Contains(chosen, s.Name) })
	if *cut > 0 {
		err = m.cut(ctx, subjects, *cut)
	} else {
		err = m.all(ctx, subjects, strings.Split(*tests, ","))
	}
	if err != nil {
		return err
	}
	return m.rep.JSON(os.Stdout)
}

// all runs the tests in order, each with every subject in turn. A test that is
// named twice is run twice.
func (m *measurement) all(ctx context.Context, subjects []subject, tests []string) error {
	for _, name := range tests {
		i := slices.IndexFunc(allCellTests, func(t cellTest) bool { return t.name == name })
		if i < 0 {
			return fmt.Errorf("no test %q: want some of %s", name, strings.Join(cellTests(), ","))
		}
		for _, s := range subjects {
			if err := allCellTests[i].run(m, ctx, s); err != nil {
				return fmt.Errorf("%s over %s: %w", name, s.Name, err)
			}
			time.Sleep(rest)
		}
	}
	return nil
}

// close ends all programs.
func (m *measurement) close() {
	for _, w := range m.worlds {
		w.close()
	}
}

// start runs what the paths lead through, and returns them, raw TLS last.
func (m *measurement) start(ctx context.Context, bin, before suite.Binaries, others []other, lanes int) ([]subject, error) {
	plain, err := m.serveTarget(ctx, nil)
	if err != nil {
		return nil, err
	}
	var subjects []subject
	each := func(streams int) int { return streams }
	add := func(name, front string) {
		subjects = append(subjects, subject{bench.Path{Name: name, Dialer: socks5(front), Target: plain}, each})
	}
	w, err := m.startWorld(ctx, bin, plain)
	if err != nil {
		return nil, err
	}
	add("ours", w.socks.Address())
	if lanes > 0 {
		laned, err := m.startWorld(ctx, bin, plain, fmt.Sprintf("--link-lanes=%d", lanes))
		if err != nil {
			return nil, err
		}
		add("ours with lanes", laned.socks.Address())
	}
	if before != "" {
		earlier, err := m.startWorld(ctx, before, plain)
		if err != nil {
			return nil, err
		}
		add("before", earlier.socks.Address())
	}
	for _, o := range others {
		p, err := m.startOther(ctx, bin, o, plain)
		if err != nil {
			return nil, err
		}
		subjects = append(subjects, subject{p, each})
	}
	if err := m.startChain(w); err != nil {
		return nil, err
	}
	chain := bench.Path{Name: "relay chain", Dialer: through("tcp", w.front, greetHop), Target: plain}
	subjects = append(subjects, subject{chain, each})
	raw, err := rawTLS(w, func(config *tls.Config) (string, error) { return m.serveTarget(ctx, config) })
	return append(subjects, subject{raw, func(int) int { return 1 }}), err
}

// newWorld makes one for a tunnel across the line, and starts nothing.
func (m *measurement) newWorld(bin suite.Binaries) (*world, error) {
	w, err := newWorld(bin, "--cluster-san="+line.AddrA.String(), "--server-san="+line.AddrB.String())
	if err == nil {
		m.worlds = append(m.worlds, w)
	}
	return w, err
}

// startWorld runs the suite's programs, with more flags for the one whose link
// crosses the line, and waits until connections get through.
func (m *measurement) startWorld(ctx context.Context, bin suite.Binaries, target string, more ...string) (*world, error) {
	w, err := m.newWorld(bin)
	if err != nil {
		return nil, err
	}
	switch m.leg {
	case legAgent:
		err = m.startFarAgent(w, more)
	case legSidecar:
		err = m.startFarServer(w, more)
	default:
		err = fmt.Errorf("no leg %q: want %s or %s", m.leg, legAgent, legSidecar)
	}
	if err != nil {
		return nil, err
	}
	return w, awaitPath(ctx, w.Suite, bench.Path{Name: "ours", Dialer: socks5(w.socks.Address()), Target: target})
}

// startFarAgent has the line between server and agent.
func (m *measurement) startFarAgent(w *world, more []string) (err error) {
	if w.server, err = w.StartServerAt(line.AddrA.String()); err != nil {
		return err
	}
	if err := m.far.Do(func() (err error) { w.agent, err = w.LaunchAgent(w.server, more...); return err }); err != nil {
		return err
	}
	w.socks, err = w.StartSOCKS5(w.server)
	return err
}

// startFarServer has the line between sidecar and server.
func (m *measurement) startFarServer(w *world, more []string) error {
	err := m.far.Do(func() (err error) {
		if w.server, err = w.LaunchServer("--server-bind-address=" + line.AddrB.String()); err == nil {
			w.agent, err = w.LaunchAgent(w.server)
		}
		return err
	})
	if err != nil {
		return err
	}
	w.socks, err = w.StartSOCKS5(w.server, append(more, "--konnectivity-hostname="+line.AddrB.String())...)
	return err
}

// startChain runs the relay chain with its last process at the far end; its hops are
// alike, so that serves for either leg.
func (m *measurement) startChain(w *world) error {
	var end, middle string
	err := m.far.Do(func() (err error) { _, end, err = w.StartHop("end", line.AddrB.String(), ""); return err })
	if err != nil {
		return err
	}
	if _, middle, err = w.StartHop("middle", "127.0.0.1", end); err != nil {
		return err
	}
	_, w.front, err = w.StartHop("front", "127.0.0.1", middle)
	return err
}

// serveTarget serves one at the far end until ctx ends, over TLS if config says
// so, and returns its address.
func (m *measurement) serveTarget(ctx context.Context, config *tls.Config) (string, error) {
	var l net.Listener
	err := m.far.Do(func() (err error) {
		l, err = net.Listen("tcp", net.JoinHostPort(line.AddrB.String(), "0"))
		return err
	})
	if err != nil {
		return "", err
	}
	address := l.Addr().String()
	if config != nil {
		l = tls.NewListener(l, config)
	}
	go func() { _ = bench.ServeTarget(ctx, l) }()
	return address, nil
}

// rawTLS is one TLS connection to a target at the far end, which all others have
// to be compared with: it has nothing in between.
func rawTLS(w *world, serve func(*tls.Config) (string, error)) (bench.Path, error) {
	server, err := source(w, "server")
	if err != nil {
		return bench.Path{}, err
	}
	client, err := source(w, "client")
	if err != nil {
		return bench.Path{}, err
	}
	target, err := serve(server.Server())
	if err != nil {
		return bench.Path{}, err
	}
	config := client.Client(line.AddrB.String())
	config.ClientSessionCache = nil // as the relay chain has it
	d := tls.Dialer{Config: config}
	return bench.Path{Name: "raw TLS", Target: target, Dialer: tunnel.DialerFunc(func(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
		c, err := d.DialContext(ctx, f.Network, f.Address)
		if err != nil {
			return nil, err
		}
		return tunnel.Wrap(c), nil
	})}, nil
}

func source(w *world, name string) (*tlsreload.Source, error) {
	return tlsreload.New(tlsreload.Files{
		CA: w.PKI("ca.crt"), Cert: w.PKI(name + ".crt"), Key: w.PKI(name + ".key"),
	}, tlsreload.Options{Name: name})
}

// patience is how long programs get until connections get through.
const patience = 20 * time.Second

// awaitPath returns once connections get through the programs of s.
func awaitPath(ctx context.Context, s *suite.Suite, p bench.Path) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not after %v", patience))
	defer cancel()
	for {
		_, err := p.FirstByte(ctx, 1)
		if err == nil {
			return nil
		}
		for _, p := range s.Processes() {
			select {
			case <-p.Done():
				return fmt.Errorf("%s has ended before anything got through:\n%s", p.Name, p.Output())
			default:
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("nothing gets through (%w): %w%s", context.Cause(ctx), err, outputs(s))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// outputs is what the programs of s have printed.
func outputs(s *suite.Suite) string {
	var all strings.Builder
	for _, p := range s.Processes() {
		fmt.Fprintf(&all, "\n%s has printed:\n%s", p.Name, p.Output())
	}
	return all.String()
}

func (m *measurement) add(s subject, what, unit string, value float64) {
	m.rep.Add(s.Name, m.name+": "+what, unit, value)
}

func (m *measurement) transfers(ctx context.Context, s subject, d bench.Direction) error {
	for _, streams := range []int{1, 8} {
		got, err := s.Steady(ctx, d, s.conns(streams), m.length)
		if err != nil {
			return err
		}
		label := fmt.Sprintf("%s, %d", d, streams)
		m.add(s, label, "MB/s", got.MBps)
		if streams == 1 {
			m.add(s, label+", first 10 MB", "s", got.First.Seconds())
		}
		time.Sleep(rest)
	}
	return nil
}

func (m *measurement) roundTrip(ctx context.Context, s subject) error {
	l, err := s.RoundTrip(ctx, m.length)
	m.add(s, "round trip, p50", "ms", milliseconds(l.P50))
	m.add(s, "round trip, p99", "ms", milliseconds(l.P99))
	return err
}

func (m *measurement) roundTripBeside(ctx context.Context, s subject) error {
	l, err := s.RoundTripBeside(ctx, s.conns(8), m.ahead, m.length)
	m.add(s, "round trip beside 8 downloads, p50", "ms", milliseconds(l.P50))
	m.add(s, "round trip beside 8 downloads, p99", "ms", milliseconds(l.P99))
	return err
}

func (m *measurement) firstByte(ctx context.Context, s subject) error {
	l, err := s.FirstByte(ctx, firstBytes)
	m.add(s, "dial to first byte, p50", "ms", milliseconds(l.P50))
	return err
}

// cut cuts the line for so long, with a connection of each subject open, and
// measures how soon after the line is whole again something gets through.
func (m *measurement) cut(ctx context.Context, subjects []subject, length time.Duration) error {
	wish := os.NewFile(cutWish, "wish")
	defer wish.Close()
	held := make([]*bench.Held, len(subjects))
	for i, s := range subjects {
		var err error
		if held[i], err = s.Idle(ctx, 1, 0); err != nil {
			return err
		}
		defer held[i].Close()
	}
	if _, err := wish.Write([]byte{wishCut}); err != nil {
		return err
	}
	restored := time.Now().Add(length)
	var mu sync.Mutex // of the report
	var wg sync.WaitGroup
	defer wg.Wait()
	for i, s := range subjects {
		wg.Go(func() {
			kept := survives(held[i].Conns[0], restored)
			for !kept {
				if _, err := s.FirstByte(ctx, 1); err == nil && time.Now().After(restored) || ctx.Err() != nil {
					break
				}
				time.Sleep(100 * time.Millisecond)
			}
			took := time.Since(restored)
			mu.Lock()
			defer mu.Unlock()
			m.add(s, fmt.Sprintf("cut for %v: answers again after", length), "s", took.Seconds())
			m.add(s, fmt.Sprintf("cut for %v: connections kept", length), "of 1", map[bool]float64{true: 1}[kept])
		})
	}
	time.Sleep(time.Until(restored))
	_, err := wish.Write([]byte{wishRestore})
	return err
}

// cutPatience is how long after a cut a connection may take to answer: TCP, which
// has doubled its wait each time, may sleep as long as the cut lasted.
const cutPatience = time.Minute

// survives says something on a connection whose line is cut, and returns whether
// it is answered.
func survives(c tunnel.Conn, restored time.Time) bool {
	_ = c.SetDeadline(restored.Add(cutPatience))
	var b [1]byte
	if _, err := c.Write(b[:]); err != nil {
		return false
	}
	_, err := c.Read(b[:])
	return err == nil
}
