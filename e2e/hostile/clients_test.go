package hostile

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	pb "sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"

	"konnectivity/e2e/suite"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

const (
	linkBudget = 64 << 20 // as the server's flag says
	grpcBudget = 64 << 20 // legacy.DefaultBudget

	// fairDials is the part of its dials a second that a neighbour keeps in a
	// minute's attack; the attacker works on the same processors. someDials is
	// what a short one must leave on a machine that is busy with others, where
	// without turns it leaves a thirtieth.
	fairDials = 0.5
	someDials = 0.1
)

// attack is the worst that a client with a certificate does, from 127.0.0.8.
type attack struct {
	t     *testing.T
	suite *suite.Suite
	srv   *suite.Server
	ctx   context.Context
	work  *sync.WaitGroup // ends soon after ctx
}

// besideNeighbour runs an attack, and holds server and neighbour to the bounds.
func besideNeighbour(t *testing.T, begin func(a attack)) {
	s := newSuite(t)
	srv := must(s.StartServer(fmt.Sprint("--memory-budget-mib=", linkBudget>>20)))(t)
	must(s.StartAgent(srv))(t)
	n := neighbourOf(t, s, srv)
	time.Sleep(settleTime)
	alone := n.rate(*duration / 4)
	figures := watch(t, srv.Process, srv.HealthURL("/healthz"))
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	defer func() { cancel(); work.Wait() }()
	begin(attack{t: t, suite: s, srv: srv, ctx: ctx, work: &work})
	pace(t.Context(), *duration/4)
	beside := n.rate(*duration * 3 / 4)
	got := figures()
	t.Logf("%v; a neighbour has %.0f dials a second, alone %.0f (%.2f); %d of its connections were hurt, %d dials failed",
		got, beside, alone, beside/alone, n.hurt.Load(), n.failed.Load())
	if bound := int64(linkBudget + grpcBudget + maxGrowth); got.peak > bound {
		t.Errorf("%.1f MiB resident, want at most %.0f", mib(got.peak), mib(bound))
	}
	fair := someDials
	if *duration >= time.Minute {
		fair = fairDials
	}
	if beside < fair*alone {
		t.Errorf("the neighbour has %.0f dials a second, alone %.0f", beside, alone)
	}
	if n.hurt.Load() > 0 || n.failed.Load() > 0 {
		t.Errorf("%d of the neighbour's connections were hurt, %d of its dials failed", n.hurt.Load(), n.failed.Load())
	}
}

const attacker = "127.0.0.8"

// links opens n links.
func (a attack) links(n int) []*link.Session {
	out := make([]*link.Session, n)
	for i := range out {
		out[i] = linkFrom(a.t, a.suite, a.srv, attacker)
	}
	return out
}

// silent is a listener whose backlog is full: whoever dials it gets no answer.
func silent(t *testing.T) string {
	t.Helper()
	fd := must(syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0))(t)
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "silent")
	l := must(net.FileListener(f))(t)
	f.Close()
	t.Cleanup(func() { l.Close() })
	for range 4 {
		c, err := net.DialTimeout("tcp", l.Addr().String(), time.Second)
		if err != nil {
			break
		}
		t.Cleanup(func() { c.Close() })
	}
	return l.Addr().String()
}

// TestDialsThatHang: one client dials what never answers, as often as it may.
func TestDialsThatHang(t *testing.T) {
	besideNeighbour(t, func(a attack) {
		target := silent(t)
		for _, ses := range a.links(5) {
			for range 1500 {
				a.work.Go(func() {
					for a.ctx.Err() == nil {
						if c, err := ses.Dial(a.ctx, "tcp", target); err == nil {
							c.Close()
						}
						pace(a.ctx, 500*time.Millisecond)
					}
				})
			}
		}
	})
}

// TestStormOfDials: one client dials and closes as fast as it can.
func TestStormOfDials(t *testing.T) {
	besideNeighbour(t, func(a attack) {
		target := listen(t, echo)
		for _, ses := range a.links(10) {
			for range 20 {
				a.work.Go(func() {
					for a.ctx.Err() == nil {
						if c, err := ses.Dial(a.ctx, "tcp", target); err == nil {
							c.Close()
						}
					}
				})
			}
		}
	})
}

// TestIdleStreams: gRPC streams that ask for nothing, as many as there can be.
func TestIdleStreams(t *testing.T) {
	besideNeighbour(t, func(a attack) {
		for range 40 {
			conn := must(grpc.NewClient(suite.Loopback(a.srv.ClientPort), grpc.WithTransportCredentials(credentials.NewTLS(clientTLS(t, a.suite))),
				grpc.WithContextDialer(func(ctx context.Context, at string) (net.Conn, error) {
					return (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(attacker)}}).DialContext(ctx, "tcp", at)
				})))(t)
			t.Cleanup(func() { conn.Close() })
			for range 20 {
				a.work.Go(func() { a.streams(conn, 100) })
			}
		}
	})
}

// streams opens streams and lets them be; one that ends is opened again.
func (a attack) streams(conn *grpc.ClientConn, n int) {
	for a.ctx.Err() == nil {
		open := make([]pb.ProxyService_ProxyClient, 0, n)
		for range n {
			stream, err := pb.NewProxyServiceClient(conn).Proxy(a.ctx)
			if err != nil {
				break
			}
			open = append(open, stream)
		}
		for _, stream := range open {
			_, _ = stream.Recv()
		}
		pace(a.ctx, time.Second)
	}
}

// TestIdleConnections: open ones that carry nothing, as many as there can be.
func TestIdleConnections(t *testing.T) {
	besideNeighbour(t, func(a attack) {
		target := listen(t, echo)
		a.hold(20, 500, target, func(tunnel.Conn) {})
	})
}

// hold opens connections over each of n links, and keeps them.
func (a attack) hold(n, each int, target string, use func(tunnel.Conn)) {
	for _, ses := range a.links(n) {
		a.work.Go(func() {
			for range each {
				c, err := ses.Dial(a.ctx, "tcp", target)
				if err != nil {
					if !pace(a.ctx, 50*time.Millisecond) {
						return
					}
					continue
				}
				a.work.Go(func() {
					defer c.Reset(nil)
					defer context.AfterFunc(a.ctx, func() { _ = c.Reset(nil) })()
					use(c)
					<-a.ctx.Done()
				})
			}
		})
	}
}

// TestReadersThatStop: destinations send without end, and their client reads
// nothing.
func TestReadersThatStop(t *testing.T) {
	besideNeighbour(t, func(a attack) {
		block := make([]byte, 64<<10)
		target := listen(t, func(c *net.TCPConn) {
			for {
				if _, err := c.Write(block); err != nil {
					return
				}
			}
		})
		a.hold(20, 100, target, func(tunnel.Conn) {})
	})
}

// TestDestinationsThatStopReading: one client writes all it can to those.
func TestDestinationsThatStopReading(t *testing.T) {
	besideNeighbour(t, func(a attack) {
		block := make([]byte, 64<<10)
		stop := make(chan struct{})
		t.Cleanup(func() { close(stop) })
		target := listen(t, func(*net.TCPConn) { <-stop })
		a.hold(20, 100, target, func(c tunnel.Conn) {
			for {
				if _, err := c.Write(block); err != nil {
					return
				}
			}
		})
	})
}

// TestTinyFrames: messages of a byte, by the million.
func TestTinyFrames(t *testing.T) {
	besideNeighbour(t, func(a attack) {
		target := listen(t, func(c *net.TCPConn) { _, _ = io.Copy(io.Discard, c) })
		a.hold(4, 10, target, func(c tunnel.Conn) {
			for {
				if _, err := c.Write([]byte{1}); err != nil {
					return
				}
			}
		})
	})
}
