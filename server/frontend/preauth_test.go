package frontend

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"konnectivity/internal/admission"
	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
)

// room allows connections that have not begun so many bytes.
func room(bytes int64) setting {
	return func(c *Config) {
		c.PreAuth = newPreAuth(admission.Limits{Bytes: bytes, Each: silentWeight}, 1)
	}
}

// Silent connections, however many, keep nobody from his request.
func TestUnprovenConnectionsMakeRoom(t *testing.T) {
	everywhere(t, func(t *testing.T, start func(...setting) *rig) {
		r := start(connecting(echo("")), room(2*tlsWeight), func(c *Config) { c.MaxConns = 1 })
		c := r.connected()
		const crowd = 40 // more than there is room for
		first := r.raw()
		for range crowd {
			r.raw()
		}
		closed(t, first)
		testutil.Eventually(t, "it is counted", func() bool { return r.count("evicted") >= crowd-2*tlsWeight/silentWeight })
		n, bytes := r.cfg.PreAuth.Held()
		testutil.Holds(t, n <= 2*tlsWeight/silentWeight && bytes <= 2*tlsWeight, "%d connections that have not begun weigh %d", n, bytes)
		send(t, c, "still here")
		expect(t, c, "still here")
	})
}

// A connection that has begun or failed no longer counts.
func TestUnprovenConnectionsAreReleased(t *testing.T) {
	everywhere(t, func(t *testing.T, start func(...setting) *rig) {
		r := start(connecting(echo("")))
		r.connected()
		r.raw().Close()
		bad := r.asked("nonsense\r\n")
		_, _ = io.Copy(io.Discard, bad)
		bad.Close()
		testutil.Eventually(t, "none is left", func() bool {
			n, bytes := r.cfg.PreAuth.Held()
			return n == 0 && bytes == 0
		})
	})
}

// unfinished is most of a ClientHello that claims more than any has.
func unfinished(size int) string {
	const claimed, record = 65_000, 16_000
	hello := "\x01\x00" + string([]byte{claimed >> 8, claimed & 0xff}) + "\x03\x03" + strings.Repeat("x", size)
	var b strings.Builder
	for len(hello) > 0 {
		n := min(len(hello), record)
		b.WriteString("\x16\x03\x01" + string([]byte{byte(n >> 8), byte(n)}) + hello[:n])
		hello = hello[n:]
	}
	return b.String()
}

func TestLongHandshakesAreCut(t *testing.T) {
	r := start(t, "tcp", true, connecting(echo("")), func(c *Config) { c.handshakeTimeout = time.Hour })
	c := r.raw()
	_, _ = io.WriteString(c, unfinished(maxHandshake+1))
	closed(t, c)
	testutil.Equal(t, r.count("tls"), 1, "counted: %v", r.rejected)
}

// What a peer makes the process keep before it has begun counts.
func TestUnprovenConnectionsWeighWhatTheySend(t *testing.T) {
	r := start(t, "tcp", true, connecting(echo("")))
	const sent = maxHandshake * 2 / 3
	c := r.raw()
	_, _ = io.WriteString(c, unfinished(sent))
	testutil.Eventually(t, "it weighs more", func() bool {
		_, bytes := r.cfg.PreAuth.Held()
		return bytes > tlsWeight+readWeight*(sent-weighEvery) && bytes < tlsWeight+2*readWeight*sent
	})
}

// What its handler keeps for it, too.
func TestHandlersWeighConnections(t *testing.T) {
	r := start(t, "tcp", false, func(c *Config) {
		c.GRPC = func(_ context.Context, c *Conn) {
			c.Weigh(GRPCWeight)
			_, _ = io.Copy(io.Discard, c.Whole())
		}
	})
	r.asked("PRI ")
	testutil.Eventually(t, "it weighs more", func() bool {
		_, bytes := r.cfg.PreAuth.Held()
		return bytes == tlsWeight+GRPCWeight
	})
}

// A chain of certificates may be long.
func TestLongChainsPass(t *testing.T) {
	r := start(t, "tcp", true, connecting(echo("")))
	config := r.secure("http/1.1")
	config.ClientSessionCache = tls.NewLRUClientSessionCache(1)
	chain := &config.Certificates[0].Certificate
	other := testutil.Must(pki.NewCA(strings.Repeat("x", 64)))(t)
	more := testutil.Must(other.Issue(pki.Leaf{CommonName: "i", Client: true}))(t)
	for size := 0; size < 24<<10; size += len(more.TLS().Certificate[0]) {
		*chain = append(*chain, more.TLS().Certificate[0])
	}
	for range 2 { // the second resumes: its ClientHello carries the ticket
		c := tls.Client(r.raw(), config)
		send(t, c, request)
		expect(t, c, established)
		c.Close()
	}
}

// awaitingAll holds what a client sends after its ClientHello until all have
// sent theirs.
type awaitingAll struct {
	net.Conn
	greeted bool
	all     *sync.WaitGroup
}

func (c *awaitingAll) Write(p []byte) (int, error) {
	if c.greeted {
		c.all.Wait()
		return c.Conn.Write(p)
	}
	c.greeted = true
	defer c.all.Done()
	return c.Conn.Write(p)
}

// Five hundred handshakes at once, as of a kube-apiserver whose users all come
// back, are no flood.
func TestABurstOfHandshakesPasses(t *testing.T) {
	const burst = 500
	r := start(t, "tcp", true, connecting(echo("")), func(c *Config) { c.handshakeTimeout = time.Hour })
	config := r.secure()
	var all, clients sync.WaitGroup
	all.Add(burst)
	for range burst {
		raw := r.raw()
		_ = raw.SetDeadline(time.Now().Add(5 * time.Minute)) // a slow machine takes long for so many
		clients.Go(func() {
			c := tls.Client(&awaitingAll{Conn: raw, all: &all}, config)
			defer c.Close()
			if _, err := io.WriteString(c, request); err != nil {
				t.Error(err)
				return
			}
			answer := make([]byte, len(established))
			_, err := io.ReadFull(c, answer)
			testutil.Holds(t, err == nil && string(answer) == established, "%q, %v", answer, err)
		})
	}
	clients.Wait()
}

// A handler that is never asked to begin leaves the connection unproven, with
// its deadline.
func TestConnectionThatDoesNotBeginIsCut(t *testing.T) {
	t.Parallel() // it waits
	r := start(t, "tcp", true, quick, func(c *Config) {
		c.GRPC = func(_ context.Context, c *Conn) { _, _ = io.Copy(io.Discard, c.Whole()) }
	})
	c := r.dial("h2")
	closed(t, c)
	testutil.Eventually(t, "it is counted", func() bool { return r.count("timeout") == 1 })
}

// Allow gives more time, once.
func TestAllowedTimeIsBounded(t *testing.T) {
	t.Parallel() // it waits
	r := start(t, "tcp", true, func(c *Config) {
		c.handshakeTimeout = time.Hour
		c.GRPC = func(_ context.Context, c *Conn) {
			c.Allow(quickBound)
			c.Allow(time.Hour)
			_, _ = io.Copy(io.Discard, c.Whole())
		}
	})
	closed(t, r.dial("h2"))
}

// Begin may be called by many at once, and takes one place.
func TestBeginIsDoneOnce(t *testing.T) {
	begin := make(chan bool, 20)
	r := start(t, "tcp", true, func(c *Config) {
		c.MaxConns = 1
		c.GRPC = func(_ context.Context, c *Conn) {
			for range cap(begin) {
				go func() { begin <- c.Begin() }()
			}
			_, _ = io.Copy(io.Discard, c.Whole())
		}
	})
	for range 3 { // the place is given back
		c := r.dial("h2")
		for range cap(begin) {
			testutil.Requires(t, <-begin, "no room for one")
		}
		c.Close()
		testutil.Eventually(t, "it has ended", func() bool { return r.conns.Load() == 0 })
	}
}

// What strangers may take is what the page says.
func TestFiguresAreDocumented(t *testing.T) {
	const page = "../../docs/security.md"
	testutil.Says(t, page, "%v s for everything before a request", int64(HandshakeTimeout/time.Second))
	testutil.Says(t, page, "all ports of the server together allow them %v MiB, and %v MiB from the first", preAuthBurst>>20, preAuthBytes>>20)
	testutil.Says(t, page, "TLS accepts at most %v KiB from a stranger", maxHandshake>>10)
	testutil.Says(t, page, "who waits for a first turn costs %v KiB", silentWeight>>10)
	testutil.Says(t, page, "%v for each port of the server", MaxConns)
	testutil.Says(t, page, "CONNECT %v KiB", maxHeader>>10)
	testutil.Says(t, page, "required from those that are, of %v KiB at most", maxProxyHeader>>10)
}
