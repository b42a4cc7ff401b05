package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
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
	"konnectivity/internal/wait"
	"konnectivity/tunnel"
)

// Files that the process of a cell inherits, besides the standard ones.
const (
	farFile = 3 // the namespace at the line's other end
	cutFile = 4 // one byte asks to cut the line, for the cell's time of it
)

// drainTime is how long the rest of a transfer gets to clear the line.
const drainTime = time.Second

// firstByteDials is how many connections are opened for the time to the first byte.
const firstByteDials = 10

// The hops that the line can be in.
const (
	legAgent   = "agent"   // sidecar and server here, agent and target at the far end
	legSidecar = "sidecar" // only the sidecar here
)

// measurement is a cell that is being measured, at the near end of its line.
type measurement struct {
	*lines
	cell
	bin    suite.Binaries
	far    *line.Namespace
	worlds []*world
	rep    *bench.Report
}

// subject is a path, and how many connections it takes on the line for so many
// streams.
type subject struct {
	bench.Path
	conns func(streams int) int
}

// cellTests are the tests by name, each of one thing over one path.
var cellTests = []struct {
	name string
	run  func(m *measurement, ctx context.Context, s subject) error
}{
	{"down", func(m *measurement, ctx context.Context, s subject) error { return m.transfers(ctx, s, bench.Down) }},
	{"up", func(m *measurement, ctx context.Context, s subject) error { return m.transfers(ctx, s, bench.Up) }},
	{"rtt", (*measurement).roundTrip},
	{"small", (*measurement).roundTripBeside},
	{"first", (*measurement).firstByte},
}

func cellTestNames() (names []string) {
	for _, t := range cellTests {
		names = append(names, t.name)
	}
	return names
}

// benchCell measures a cell over the line that its process was started at one end of, and writes
// the report to standard output.
func (ls *lines) benchCell(ctx context.Context, bin suite.Binaries) error {
	m := &measurement{lines: ls, cell: ls.cells[ls.only], bin: bin, far: line.Inherited(farFile), rep: new(bench.Report)}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer m.close()
	subjects, err := m.start(ctx)
	if err != nil {
		return err
	}
	subjects = slices.DeleteFunc(subjects, func(s subject) bool { return !slices.Contains(m.subjects, s.Name) })
	if m.cut > 0 {
		err = m.interrupt(ctx, subjects)
	} else {
		err = m.all(ctx, subjects)
	}
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(m.rep)
}

// all runs the tests in order, each with every subject in turn.
func (m *measurement) all(ctx context.Context, subjects []subject) error {
	for _, name := range m.tests {
		test := cellTests[slices.Index(cellTestNames(), name)]
		for _, s := range subjects {
			if err := test.run(m, ctx, s); err != nil {
				return fmt.Errorf("%s over %s: %w", name, s.Name, err)
			}
			time.Sleep(drainTime)
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

// start runs the programs of all paths, and returns the paths, raw TLS last.
func (m *measurement) start(ctx context.Context) ([]subject, error) {
	plain, err := m.serveTarget(ctx, nil)
	if err != nil {
		return nil, err
	}
	var subjects []subject
	each := func(streams int) int { return streams }
	var w *world
	for _, ours := range []struct {
		name   string
		bin    suite.Binaries
		flags  []string
		wanted bool
	}{
		{"before", m.before, nil, m.before != ""},
		{"ours with -lanes", m.bin, []string{fmt.Sprintf("--link-lanes=%d", m.lanes)}, m.lanes > 0},
		{"ours", m.bin, nil, true},
	} {
		if !ours.wanted {
			continue
		}
		if w, err = m.startWorld(ctx, ours.bin, plain, ours.flags...); err != nil {
			return nil, err
		}
		p := bench.Path{Name: ours.name, Dialer: socks5(w.socks.Address()), Target: plain}
		subjects = append([]subject{{p, each}}, subjects...)
	}
	for _, o := range m.others {
		p, err := m.startOther(ctx, m.bin, o, plain)
		if err != nil {
			return nil, err
		}
		subjects = append(subjects, subject{p, each})
	}
	if err := w.startChain(line.AddrB.String(), m.there(w.Suite)); err != nil { // for either leg: the hops are alike
		return nil, err
	}
	subjects = append(subjects, subject{w.relayed(plain), each})
	raw, err := rawTLS(w, func(config *tls.Config) (string, error) { return m.serveTarget(ctx, config) })
	return append(subjects, subject{raw, func(int) int { return 1 }}), err
}

// newWorld makes a world for a tunnel across the line, and starts nothing.
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

// there returns what runs a function at the far end, where the programs of s that it starts are,
// too.
func (m *measurement) there(s *suite.Suite) func(fn func() error) error {
	return func(fn func() error) error {
		s.On = m.far.Do
		defer func() { s.On = nil }()
		return m.far.Do(fn)
	}
}

// startFarAgent puts the line between server and agent.
func (m *measurement) startFarAgent(w *world, more []string) (err error) {
	near := line.AddrA.String()
	if w.server, err = w.StartServer("--agent-bind-address=" + near); err != nil {
		return err
	}
	more = append(more, "--proxy-server-host="+near)
	if err := m.there(w.Suite)(func() (err error) { w.agent, err = w.LaunchAgent(w.server, more...); return err }); err != nil {
		return err
	}
	w.socks, err = w.StartSOCKS5(w.server)
	return err
}

// startFarServer puts the line between sidecar and server.
func (m *measurement) startFarServer(w *world, more []string) error {
	err := m.there(w.Suite)(func() (err error) {
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

// serveTarget serves a target at the far end until ctx ends, over TLS if config is
// not nil, and returns its address.
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

// rawTLS returns the path to compare all others with: one TLS connection to a target
// at the far end, and nothing in between.
func rawTLS(w *world, serve func(*tls.Config) (string, error)) (bench.Path, error) {
	server, err := source(w.PKI(""), "server")
	if err != nil {
		return bench.Path{}, err
	}
	client, err := source(w.PKI(""), "client")
	if err != nil {
		return bench.Path{}, err
	}
	target, err := serve(server.Server())
	if err != nil {
		return bench.Path{}, err
	}
	config := fullHandshakes(client, line.AddrB.String())
	return bench.Path{Name: "raw TLS", Target: target, Dialer: tunnel.DialerBy(&tls.Dialer{Config: config})}, nil
}

// pathTime bounds the time until connections get through programs that were started.
const pathTime = 20 * time.Second

// awaitPath returns once connections get through the programs of s.
func awaitPath(ctx context.Context, s *suite.Suite, p bench.Path) error {
	ctx, cancel := context.WithTimeoutCause(ctx, pathTime, fmt.Errorf("not after %v", pathTime))
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
		if !wait.For(ctx, 50*time.Millisecond) {
			return fmt.Errorf("nothing gets through (%w): %w%s", context.Cause(ctx), err, outputs(s))
		}
	}
}

// outputs returns all that the programs of s have printed.
func outputs(s *suite.Suite) string {
	var all strings.Builder
	for _, p := range s.Processes() {
		fmt.Fprintf(&all, "\n%s has printed:\n%s", p.Name, p.Output())
	}
	return all.String()
}

func (m *measurement) add(s subject, what, unit string, value float64) {
	m.rep.Add(s.Name, m.cell.String()+": "+what, unit, value)
}

func (m *measurement) transfers(ctx context.Context, s subject, d bench.Direction) error {
	for _, streams := range []int{1, 8} {
		got, err := s.Steady(ctx, d, s.conns(streams), m.length())
		if err != nil {
			return err
		}
		label := fmt.Sprintf("%s, %d", d, streams)
		m.add(s, label, "MB/s", got.MBps)
		if streams == 1 {
			m.add(s, label+", first 10 MB", "s", got.First.Seconds())
			m.add(s, label+", dial and first 10 MB", "s", (got.Dialed + got.First).Seconds())
		}
		time.Sleep(drainTime)
	}
	return nil
}

func (m *measurement) roundTrip(ctx context.Context, s subject) error {
	l, err := s.RoundTrip(ctx, m.length())
	m.rep.Latency(s.Name, m.cell.String()+": round trip", l)
	return err
}

func (m *measurement) roundTripBeside(ctx context.Context, s subject) error {
	l, err := s.RoundTripBeside(ctx, s.conns(8), m.ahead, m.length())
	m.rep.Latency(s.Name, m.cell.String()+": round trip beside 8 downloads", l)
	return err
}

func (m *measurement) firstByte(ctx context.Context, s subject) error {
	l, err := s.FirstByte(ctx, firstByteDials)
	m.add(s, "dial to first byte, p50", "ms", bench.Milliseconds(l.P50))
	return err
}

// interrupt cuts the line for m.cut, with a connection of each subject open, and measures
// how soon after that the subject answers again.
func (m *measurement) interrupt(ctx context.Context, subjects []subject) error {
	requests := os.NewFile(cutFile, "requests")
	defer requests.Close()
	held := make([]*bench.Held, len(subjects))
	for i, s := range subjects {
		var err error
		if held[i], err = s.Idle(ctx, 1, 0); err != nil {
			return err
		}
		defer held[i].Close()
	}
	if _, err := requests.Write([]byte{0}); err != nil {
		return err
	}
	restored := time.Now().Add(m.cut)
	var mu sync.Mutex // of the report
	var wg sync.WaitGroup
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
			m.add(s, fmt.Sprintf("cut for %v: answers again after", m.cut), "s", took.Seconds())
			m.add(s, fmt.Sprintf("cut for %v: connections kept", m.cut), "of 1", map[bool]float64{true: 1}[kept])
		})
	}
	wg.Wait()
	return nil
}

// cutLimit is how long after a cut a connection may take to answer: TCP doubles its
// wait each time, and so may sleep for as long as the cut lasted.
const cutLimit = time.Minute

// survives writes to a connection whose line is cut, and reports whether it is
// answered.
func survives(c tunnel.Conn, restored time.Time) bool {
	_ = c.SetDeadline(restored.Add(cutLimit))
	var b [1]byte
	if _, err := c.Write(b[:]); err != nil {
		return false
	}
	_, err := c.Read(b[:])
	return err == nil
}
