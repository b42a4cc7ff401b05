package main

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"konnectivity/e2e/suite"
	"konnectivity/internal/bench"
	"konnectivity/internal/peers"
	"konnectivity/internal/pki"
	"konnectivity/internal/wait"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

const (
	// linkTime bounds an attempt to make a link, as an agent bounds its own.
	linkTime = 15 * time.Second

	// roundTime bounds a dial, and each round trip of a cluster's connection. No busy
	// machine takes so long, so a connection fails by an error or wrong bytes, not by
	// being slow.
	roundTime = time.Minute

	// targetAddress is the address that is dialed in every cluster.
	targetAddress = "10.0.0.1:443"
)

// identity is what the peers of a cluster need to connect. It travels to processes of
// their own.
type identity struct {
	Name          string
	ID            string // of agent and sidecar; "": the same in all clusters
	From          net.IP // their address, since clusters do not share one
	CA            []byte
	Agent, Client pki.Pair
}

func (i identity) serverName() string { return i.Name + ".bench.test" }

// settings returns the tenant.yaml with the lines that are given besides the name.
func (i identity) settings(lines string) []byte {
	return []byte("serverNames: [" + i.serverName() + "]\n" + lines)
}

// newIdentity makes the n-th cluster, and the folder that the server reads. The names
// in the certificates are the same for all clusters, and the CAs are not.
func newIdentity(n int, dir string) (identity, error) {
	i := identity{Name: fmt.Sprintf("cluster-%d", n), From: net.IPv4(127, 1, byte(n>>8), byte(n))}
	ca, err := pki.NewCA("cluster")
	if err != nil {
		return i, err
	}
	issue := func(leaf pki.Leaf, role pki.Role) (pair pki.Pair) {
		if err == nil {
			leaf.Holder = pki.Holder{Role: role, TrustDomain: pki.DefaultTrustDomain}
			pair, err = ca.Issue(leaf)
		}
		return pair
	}
	i.CA = ca.CertPEM
	i.Agent = issue(pki.Leaf{CommonName: "agent", Client: true}, pki.RoleAgent)
	i.Client = issue(pki.Leaf{CommonName: "client", Client: true}, pki.RoleClient)
	server := issue(pki.Leaf{CommonName: "server", DNS: []string{i.serverName()}, Server: true}, pki.RoleServer)
	if err != nil {
		return i, err
	}
	if err := os.MkdirAll(filepath.Join(dir, i.Name), 0o755); err != nil {
		return i, err
	}
	for name, data := range map[string][]byte{
		"agents-ca.crt": i.CA, "clients-ca.crt": i.CA, "server.crt": server.CertPEM, "server.key": server.KeyPEM, "tenant.yaml": i.settings(""),
	} {
		if err := i.write(dir, name, data); err != nil {
			return i, err
		}
	}
	return i, nil
}

// write replaces a file of the folder that the server reads, in one step: the server
// notices a new file sooner than an old one with new content.
func (i identity) write(dir, file string, data []byte) error {
	temporary := filepath.Join(dir, i.Name, "."+file)
	if err := os.WriteFile(temporary, data, 0o600); err != nil {
		return err
	}
	return os.Rename(temporary, filepath.Join(dir, i.Name, file))
}

// tls returns the configuration of one peer.
func (i identity) tls(pair pki.Pair) (*tls.Config, error) {
	cas := x509.NewCertPool()
	cas.AppendCertsFromPEM(i.CA)
	cert, err := tls.X509KeyPair(pair.CertPEM, pair.KeyPEM)
	return &tls.Config{
		ServerName: i.serverName(), RootCAs: cas, Certificates: []tls.Certificate{cert},
		NextProtos: []string{link.ALPN}, MinVersion: tls.VersionTLS13, DynamicRecordSizingDisabled: true, ClientSessionCache: tls.NewLRUClientSessionCache(1),
	}, err
}

// cluster is a tenant whose agent and sidecar run here, as the server sees them: as
// links.
type cluster struct {
	identity
	agent, client *peer
}

// fleet is clusters that are connected to servers.
type fleet struct {
	clusters []*cluster
	peers    []*peer // of all of them
	budget   *link.Budget
	running  sync.WaitGroup
	ctx      context.Context
	cancel   context.CancelFunc
}

// newFleet returns one without clusters. close must follow.
func newFleet(ctx context.Context) *fleet {
	f := &fleet{budget: link.NewBudget(0)}
	f.ctx, f.cancel = context.WithCancel(ctx)
	return f
}

// add connects clusters to a server, and returns when all peers have their links. Without
// one of its ports, none of that side connects.
func (f *fleet) add(all []identity, agentPort, clientPort int) error {
	for _, i := range all {
		c := &cluster{identity: i, agent: newPeer(agentPort, i, link.RoleAgent, f.budget), client: newPeer(clientPort, i, link.RoleClient, f.budget)}
		c.agent.link.Clients, c.agent.link.Handler = new(link.Clients), &tunnel.Forwarder{Dialer: namedTarget(i.Name)}
		var errs [2]error
		c.agent.tls, errs[0] = i.tls(i.Agent)
		c.client.tls, errs[1] = i.tls(i.Client)
		if err := errors.Join(errs[:]...); err != nil {
			return err
		}
		f.clusters = append(f.clusters, c)
		for _, p := range []*peer{c.agent, c.client} {
			if p.port != 0 {
				f.peers = append(f.peers, p)
				f.running.Go(func() { p.run(f.ctx) })
			}
		}
	}
	return f.complete(nil)
}

// close ends all links.
func (f *fleet) close() {
	f.cancel()
	f.running.Wait()
}

// namedTarget is a target of that name at every address of a cluster.
func namedTarget(name string) tunnel.Dialer {
	return tunnel.DialerFunc(func(context.Context, *tunnel.Flow) (tunnel.Conn, error) {
		near, far := net.Pipe()
		go func() { // ends with the connection
			defer far.Close()
			_ = bench.Serve(far, name)
		}()
		return tunnel.Wrap(near), nil
	})
}

const (
	// connectTime bounds the wait for links.
	connectTime = 5 * time.Minute

	// lookInterval is the pause between two looks at something that is waited for.
	lookInterval = 20 * time.Millisecond
)

// complete waits until every peer has a link that is none of the old ones.
func (f *fleet) complete(old map[*link.Session]bool) error {
	ctx, cancel := context.WithTimeout(f.ctx, connectTime)
	defer cancel()
	for {
		missing, why := 0, error(nil)
		for _, p := range f.peers {
			if s := p.session.Load(); s == nil || old[s] {
				missing++
				why = p.away()
			}
		}
		if missing == 0 {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%d of %d links are missing: %w", missing, len(f.peers), why)
		}
		wait.For(ctx, lookInterval)
	}
}

// failures counts the attempts to connect that failed.
func (f *fleet) failures() (n int64) {
	for _, p := range f.peers {
		n += p.failed.Load()
	}
	return n
}

// open opens a connection of a cluster, whose number i is modulo that of all. It returns how
// long the dial took.
func (f *fleet) open(ctx context.Context, i int) (tunnel.Conn, time.Duration, error) {
	c := f.clusters[i%len(f.clusters)]
	conn, took, err := c.open(ctx)
	if err != nil {
		err = fmt.Errorf("open a connection of %s: %w", c.Name, err)
	}
	return conn, took, err
}

// churn makes connections to clusters at random, at a rate a second.
func (f *fleet) churn(ctx context.Context, rate int, period time.Duration) *dials {
	ctx, cancel := context.WithTimeout(ctx, period)
	defer cancel()
	made := new(dials)
	made.run(ctx, rate, func(ctx context.Context, _ int) (time.Duration, error) {
		conn, took, err := f.open(ctx, rand.IntN(len(f.clusters)))
		if err == nil {
			_ = conn.Close()
		}
		return took, err
	})
	return made
}

// peer is an agent or a sidecar as the server sees one: a link that is made again
// when it is lost.
type peer struct {
	port    int // of the server
	from    net.IP
	tls     *tls.Config
	link    link.Config
	session atomic.Pointer[link.Session] // nil without a link
	failed  atomic.Int64                 // attempts
	last    atomic.Pointer[error]        // why the last attempt failed, or the last link ended
}

// newPeer returns a peer of that role. Most have the same id in all clusters: the server
// has to keep them apart. Only agents show the token, where their tenant asks for one.
func newPeer(port int, i identity, role link.Role, budget *link.Budget) *peer {
	hello := link.Hello{Role: role, ID: cmp.Or(i.ID, "the-"+role.String()), Software: "bench"}
	if role == link.RoleAgent {
		hello.Token = i.ID
	}
	return &peer{port: port, from: i.From, link: link.Config{Hello: hello, Budget: budget}}
}

// run keeps the link until ctx ends. It waits between attempts as agents and sidecars
// do.
func (p *peer) run(ctx context.Context) {
	pause := peers.Backoff{Base: time.Second, Growth: 1.5, Limit: 10 * time.Second}
	for ctx.Err() == nil {
		s, err := p.connect(ctx)
		if err != nil {
			p.failed.Add(1)
			p.last.Store(&err)
			wait.For(ctx, pause.Failure())
			continue
		}
		pause.Succeed()
		p.session.Store(s)
		select {
		case <-s.Done():
			why := s.Err()
			p.last.Store(&why)
		case <-ctx.Done():
		}
		p.session.Store(nil)
		_ = s.Close()
		wait.For(ctx, peers.Jitter(pause.Base))
	}
}

func (p *peer) connect(ctx context.Context) (*link.Session, error) {
	ctx, cancel := context.WithTimeout(ctx, linkTime)
	defer cancel()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: p.from}}
	raw, err := dialer.DialContext(ctx, "tcp", suite.Loopback(p.port))
	if err != nil {
		return nil, err
	}
	conn := tls.Client(link.Buffered(raw), p.tls)
	if err := conn.HandshakeContext(ctx); err != nil {
		_ = raw.Close()
		return nil, err
	}
	return link.Connect(ctx, conn, p.link)
}

// errAway means that a peer has no link at the moment.
var errAway = errors.New("there is no link to the server")

// away returns errAway and, if it is known, the reason.
func (p *peer) away() error {
	if why := p.last.Load(); why != nil {
		return fmt.Errorf("%w: %w", errAway, *why)
	}
	return errAway
}

// Dial implements tunnel.Dialer by the peer's link.
func (p *peer) Dial(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
	s := p.session.Load()
	if s == nil {
		return nil, p.away()
	}
	return s.Dial(ctx, f)
}

// path leads through the cluster's links.
func (c *cluster) path() bench.Path {
	return bench.Path{Name: c.Name, Dialer: c.client, Target: targetAddress}
}

// errCrossed is the worst failure: bytes of one cluster came to another.
var errCrossed = errors.New("a connection reached another cluster")

func (c *cluster) dial(ctx context.Context) (tunnel.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, roundTime)
	defer cancel()
	return c.client.Dial(ctx, tunnel.NewFlow("tcp", targetAddress))
}

// open dials, and checks that the cluster's own target answers. It returns how long
// the dial took.
func (c *cluster) open(ctx context.Context) (_ tunnel.Conn, took time.Duration, err error) {
	start := time.Now()
	conn, err := c.dial(ctx)
	if err != nil {
		return nil, 0, err
	}
	took = time.Since(start)
	if err := c.identify(conn); err != nil {
		_ = conn.Close()
		return nil, 0, err
	}
	return conn, took, nil
}

// await waits until connections can be opened, and the agent knows its link: the server may have
// used it before.
func (c *cluster) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	for {
		conn, _, err := c.open(ctx)
		if err == nil {
			_ = conn.Close()
		}
		if err == nil && c.agent.session.Load() != nil {
			return nil
		}
		if ctx.Err() != nil || errors.Is(err, errCrossed) {
			return fmt.Errorf("reach %s: %w", c.Name, cmp.Or(err, errAway))
		}
		wait.For(ctx, lookInterval)
	}
}

// identify asks the target for its name, and checks one echo.
func (c *cluster) identify(conn tunnel.Conn) error {
	_ = conn.SetDeadline(time.Now().Add(roundTime))
	if _, err := io.WriteString(conn, "name\n"); err != nil {
		return err
	}
	line, err := bufio.NewReaderSize(conn, 64).ReadString('\n')
	if err != nil {
		return err
	}
	if line != c.Name+"\n" {
		return fmt.Errorf("%w: %s was answered by %q", errCrossed, c.Name, line)
	}
	return echo(conn, c.Name)
}

// echo sends text and checks that it comes back.
func echo(conn tunnel.Conn, text string) error {
	_ = conn.SetDeadline(time.Now().Add(roundTime))
	if _, err := io.WriteString(conn, text); err != nil {
		return err
	}
	got := make([]byte, len(text))
	if _, err := io.ReadFull(conn, got); err != nil {
		return err
	}
	if string(got) != text {
		return fmt.Errorf("%w: sent %q, got %q", errCrossed, text, got)
	}
	return nil
}

// dials counts dials and times those that succeed.
type dials struct {
	mu     sync.Mutex
	took   []time.Duration
	failed int
	err    error // of the last one that failed
}

// maxDials is how many dials are under way at once.
const maxDials = 1024

// run calls dial at a rate a second until ctx ends, and returns when all dials have
// ended. Dials beyond maxDials are left out: that many wait already.
func (d *dials) run(ctx context.Context, rate int, dial func(ctx context.Context, i int) (time.Duration, error)) {
	var dialing errgroup.Group
	dialing.SetLimit(maxDials)
	for start, made := time.Now(), 0; ctx.Err() == nil; wait.For(ctx, 2*time.Millisecond) {
		for due := int(time.Since(start).Seconds() * float64(rate)); made < due; made++ {
			i := made
			dialing.TryGo(func() error { d.add(dial(context.WithoutCancel(ctx), i)); return nil })
		}
	}
	_ = dialing.Wait() // each is noted
}

func (d *dials) add(took time.Duration, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil {
		d.failed, d.err = d.failed+1, err
		return
	}
	d.took = append(d.took, took)
}

// take returns the dials since the last call.
func (d *dials) take() (took bench.Latency, failed int, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	took, failed, err = bench.Distribution(d.took), d.failed, d.err
	d.took, d.failed, d.err = nil, 0, nil
	return took, failed, err
}
