package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"time"

	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// A crowd is all peers of one cluster, in a process of their own: two clusters
// that shared one would take processor time from each other there already, and
// not only in the server.

// crowdArg has the program be a crowd. Its order comes by standard input, then a
// line for each report that is wanted; the first report says that all is set up.
const crowdArg = "crowd"

// most is how many dials of a crowd are under way at once.
const most = 1024

// order is what a crowd is to do.
type order struct {
	Name, ServerName      string
	From                  net.IP
	CA                    []byte
	Agent, Client         [2][]byte // certificate and key
	AgentPort, ClientPort int
	Load                  load
}

// load is what a crowd does.
type load struct {
	Links   int  // of agents, and of sidecars as many
	Bulk    int  // connections that carry all they can
	Up      bool // they carry it to the destination, not from there
	Stalled int  // connections whose bytes nobody reads
	Rate    int  // new connections a second
	Echo    bool // each of them is used before it is closed
}

// report is what has happened since the last one.
type report struct {
	Bytes         int64
	Dials, Failed int
	P50, P99      time.Duration // of those that did not fail
	Err           string        // why one failed
}

// crowd is its process's side.
type crowd struct {
	order
	swarm   *swarm
	bytes   atomic.Int64
	outcome outcome
	doing   sync.WaitGroup
}

// beCrowd does as ordered until nothing more is asked for.
func beCrowd(ctx context.Context, from io.Reader, to io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	in, out := json.NewDecoder(from), json.NewEncoder(to)
	c := new(crowd)
	if err := in.Decode(&c.order); err != nil {
		return err
	}
	if err := c.begin(ctx); err != nil {
		return err
	}
	defer c.doing.Wait()
	defer c.swarm.close()
	defer cancel()
	for {
		if err := out.Encode(c.report()); err != nil {
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

// begin connects and has the load begin.
func (c *crowd) begin(ctx context.Context) error {
	clusters := make([]*tenant, c.Load.Links)
	t, err := c.tenant()
	if err != nil {
		return err
	}
	for i := range clusters {
		clusters[i] = t
	}
	c.swarm = startAt(ctx, clusters, c.AgentPort, c.ClientPort)
	connecting, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	if err := c.swarm.complete(connecting, nil); err != nil {
		return err
	}
	if err := c.reached(connecting); err != nil {
		return err
	}
	for i := range c.Load.Bulk {
		conn, err := c.of(i).client.dial(ctx, endlessAt)
		if err != nil {
			return fmt.Errorf("open a connection: %w", err)
		}
		c.doing.Go(func() { c.carry(conn) })
	}
	for i := range c.Load.Stalled {
		if _, err := c.of(i).client.dial(ctx, endlessAt); err != nil {
			c.outcome.add(0, err) // perhaps at a bound
		}
	}
	if c.Load.Rate > 0 {
		c.doing.Go(func() { c.dials(ctx) })
	}
	return nil
}

// reached waits until the server has entered the agents: links are there a moment
// before.
func (c *crowd) reached(ctx context.Context) error {
	for {
		conn, err := c.of(0).client.dial(ctx, destination)
		if err == nil {
			return conn.Close()
		}
		if ctx.Err() != nil {
			return fmt.Errorf("reach the agents: %w", err)
		}
		sleep(ctx, lookEvery)
	}
}

// of is whose link is used next.
func (c *crowd) of(i int) *cluster { return c.swarm.clusters[i%c.Load.Links] }

func (c *crowd) tenant() (*tenant, error) {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(c.CA)
	t := &tenant{name: c.Name, from: c.From, secure: make(map[link.Role]*tls.Config)}
	for role, pair := range map[link.Role][2][]byte{link.RoleAgent: c.Agent, link.RoleClient: c.Client} {
		cert, err := tls.X509KeyPair(pair[0], pair[1])
		if err != nil {
			return nil, err
		}
		t.secure[role] = secure(c.ServerName, pool, cert)
	}
	return t, nil
}

// carry moves what it can until the connection ends, as it does with the crowd.
func (c *crowd) carry(conn tunnel.Conn) {
	defer conn.Close()
	for batch := make([]tunnel.Chunk, 4); ; {
		if c.Load.Up {
			batch[0] = tunnel.NewChunk(tunnel.ChunkSize)
			if conn.Out().WriteChunks(batch[:1]) != nil {
				return
			}
			c.bytes.Add(tunnel.ChunkSize)
			continue
		}
		n, err := conn.In().ReadChunks(batch)
		if err != nil {
			return
		}
		for _, chunk := range batch[:n] {
			c.bytes.Add(int64(chunk.Len()))
		}
		tunnel.ReleaseAll(batch[:n])
	}
}

// dials makes connections at the rate. Those that there is no room for any more
// are left out: that many wait already.
func (c *crowd) dials(ctx context.Context) {
	var under sync.WaitGroup
	defer under.Wait()
	room := make(chan struct{}, most)
	began, made := time.Now(), 0
	for ctx.Err() == nil {
		sleep(ctx, 2*time.Millisecond)
		for due := int(time.Since(began).Seconds() * float64(c.Load.Rate)); made < due; made++ {
			select {
			case room <- struct{}{}:
			default:
				continue
			}
			of := c.of(made)
			under.Go(func() {
				defer func() { <-room }()
				begin := time.Now()
				err := c.dial(ctx, of)
				if ctx.Err() == nil {
					c.outcome.add(time.Since(begin), err)
				}
			})
		}
	}
}

func (c *crowd) dial(ctx context.Context, of *cluster) error {
	if c.Load.Echo {
		conn, _, err := of.open(ctx)
		if err == nil {
			_ = conn.Close()
		}
		return err
	}
	conn, err := of.client.dial(ctx, destination)
	if err == nil {
		_ = conn.Close()
	}
	return err
}

func (c *crowd) report() report {
	took, failed, err := c.outcome.take()
	r := report{Bytes: c.bytes.Swap(0), Dials: len(took) + failed, Failed: failed, P50: percentile(took, 0.5), P99: percentile(took, 0.99)}
	if err != nil {
		r.Err = err.Error()
	}
	return r
}

// hired is a crowd as who orders it sees it.
type hired struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *json.Decoder
}

// hire starts a crowd by a program that knows crowdArg, and returns when all is
// set up.
func hire(ctx context.Context, program string, o order) (*hired, error) {
	h := &hired{cmd: exec.CommandContext(ctx, program, crowdArg)}
	var err error
	if h.in, err = h.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := h.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	h.cmd.Stderr = os.Stderr
	h.out = json.NewDecoder(out)
	if err := h.cmd.Start(); err != nil {
		return nil, err
	}
	err = json.NewEncoder(h.in).Encode(o)
	if err == nil {
		err = h.out.Decode(new(report))
	}
	if err != nil {
		_ = h.dismiss()
		return nil, fmt.Errorf("the peers of %s: %w", o.Name, err)
	}
	return h, nil
}

// ask is what has happened since it was last asked.
func (h *hired) ask() (r report, err error) {
	if err = json.NewEncoder(h.in).Encode("report"); err == nil {
		err = h.out.Decode(&r)
	}
	return r, err
}

// dismiss ends it.
func (h *hired) dismiss() error {
	_ = h.in.Close()
	return h.cmd.Wait()
}
