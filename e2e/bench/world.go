package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"time"

	"golang.org/x/net/proxy"

	"konnectivity/e2e/suite"
	"konnectivity/internal/bench"
	"konnectivity/tunnel"
)

// world is ours and the relay chain, running.
type world struct {
	*suite.Suite
	server *suite.Server
	agent  *suite.Agent
	socks  *suite.Sidecar
	front  string // of the chain
	chain  []*suite.Process
}

// newWorld makes the PKI, with more of its flags, and starts nothing.
func newWorld(bin suite.Binaries, more ...string) (*world, error) {
	dir, err := os.MkdirTemp("", "kb")
	if err != nil {
		return nil, err
	}
	s, err := suite.New(bin, dir, more...)
	if err != nil {
		_ = os.RemoveAll(dir)
		return nil, err
	}
	return &world{Suite: s}, nil
}

// start runs all, our programs with more of their flags.
func start(bin suite.Binaries, more ...string) (w *world, err error) {
	if w, err = newWorld(bin); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			w.close()
		}
	}()
	if w.server, err = w.StartServer(append([]string{"--enable-profiling"}, more...)...); err != nil {
		return w, err
	}
	if w.agent, err = w.StartAgent(w.server, append([]string{"--enable-profiling"}, more...)...); err != nil {
		return w, err
	}
	if w.socks, err = w.StartSOCKS5(w.server, more...); err != nil {
		return w, err
	}
	return w, w.startChain("127.0.0.1", func(start func() error) error { return start() })
}

// startChain runs the relay chain, whose last process listens at end, and is started by there.
func (w *world) startChain(end string, there func(func() error) error) error {
	hop := func(role, host string) error {
		ports, err := w.Reserve(1)
		if err != nil {
			return err
		}
		self, err := os.Executable()
		if err != nil {
			return err
		}
		at := net.JoinHostPort(host, strconv.Itoa(ports[0]))
		p, err := w.Run(self, nil, hopCommand, role, w.PKI(""), at, w.front)
		if err != nil {
			return err
		}
		w.front, w.chain = at, append(w.chain, p)
		return suite.WaitListening(p, "tcp", at)
	}
	err := there(func() error { return hop("end", end) })
	for _, role := range []string{"middle", "front"} {
		if err == nil {
			err = hop(role, "127.0.0.1")
		}
	}
	return err
}

func (w *world) close() {
	if w == nil {
		return
	}
	w.Close()
	_ = os.RemoveAll(w.Dir)
}

// settle is how long a process gets to come to rest after its start.
const settle = 2 * time.Second

// residents notes what each of our processes holds before it has done anything.
func (w *world) residents(rep *bench.Report) error {
	time.Sleep(settle)
	for _, p := range []*suite.Process{w.socks.Process, w.server.Process, w.agent.Process} {
		m, err := p.Memory()
		if err != nil {
			return err
		}
		rep.Add("ours", "resident when idle: "+p.Name, "MB", float64(m.Resident())/1e6)
	}
	return nil
}

// subject is our own programs.
func (w *world) subject(name, target string) bench.Subject {
	path := bench.Path{Name: name, Dialer: socks5(w.socks.Address()), Target: target}
	return bench.Subject{Path: path, PIDs: []int{w.socks.PID(), w.server.PID(), w.agent.PID()}}
}

// subjects are these and the relay chain.
func (w *world) subjects(target string) []bench.Subject {
	var chain []int
	for _, p := range w.chain {
		chain = append(chain, p.PID())
	}
	return []bench.Subject{
		w.subject("ours", target),
		{Path: w.relayed(target), PIDs: chain},
	}
}

// relayed is the path through the relay chain.
func (w *world) relayed(target string) bench.Path {
	return bench.Path{Name: "relay chain", Dialer: through("tcp", w.front, greetHop), Target: target}
}

// greeting asks the program at the other end of c for a destination. It owns c.
type greeting func(ctx context.Context, c net.Conn, f *tunnel.Flow) (tunnel.Conn, error)

// through dials by the program that takes clients at front.
func through(network, front string, greet greeting) tunnel.Dialer {
	return tunnel.DialerFunc(func(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, front)
		if err != nil {
			return nil, err
		}
		return greet(ctx, c, f)
	})
}

func socks5(front string) tunnel.Dialer { return through("tcp", front, greetSOCKS5) }

// greetHop asks the front of the relay chain.
func greetHop(_ context.Context, c net.Conn, f *tunnel.Flow) (tunnel.Conn, error) {
	if err := askHop(c, f.Address); err != nil {
		_ = c.Close()
		return nil, err
	}
	return tunnel.Wrap(c), nil
}

// greetSOCKS5 keeps the raw connection, for half-close.
func greetSOCKS5(ctx context.Context, c net.Conn, f *tunnel.Flow) (tunnel.Conn, error) {
	client, err := proxy.SOCKS5("tcp", "", nil, proxy.Direct)
	if err == nil {
		_, err = client.(interface {
			DialWithConn(ctx context.Context, c net.Conn, network, address string) (net.Addr, error)
		}).DialWithConn(ctx, c, f.Network, f.Address)
	}
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	return tunnel.Wrap(c), nil
}

// profile saves CPU profiles of server and agent at work.
func (w *world) profile(dir, more string) {
	time.Sleep(time.Second) // until the tests have begun
	for name, port := range map[string]int{"server": w.server.AdminPort, "agent": w.agent.AdminPort} {
		go func() {
			if err := saveProfiles(context.Background(), port, dir, name+more+"-", "profile"); err != nil {
				fmt.Fprintln(os.Stderr, "profile:", err)
			}
		}()
	}
}
