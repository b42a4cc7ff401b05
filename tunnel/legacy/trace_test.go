package legacy

import (
	"encoding/hex"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// traced is one connection, with the number 9 of the dial 7, whose packets are
// recorded.
type traced struct {
	*mux
	conn  *conn
	start time.Time
	wg    sync.WaitGroup
	mu    sync.Mutex
	log   strings.Builder
}

func newTraced(name string) *traced {
	c := &traced{start: time.Now()}
	c.mux = newMux(c.send, FromAgent, ToAgent, Limits{}.withDefaults(), NoMetrics{}, nil)
	c.wg.Go(c.sender.run)
	duplex := !strings.HasPrefix(name, "old-")
	if strings.HasSuffix(name, "opener") {
		c.conn = newOpener(c.mux, 7, 9, duplex, "a:1")
		_, _ = c.add(9, c.conn)
	} else {
		c.conn = newServer(c.mux, 9, duplex, "a:1", func(cause error) { c.note("cancel(%v)", cause) })
		_ = c.conn.announce(7)
	}
	synctest.Wait()
	return c
}

func (c *traced) note(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	fmt.Fprintf(&c.log, " %v:%s", time.Since(c.start), fmt.Sprintf(format, args...))
}

func (c *traced) send(m any) error {
	bufs, err := newCodec().Marshal(m)
	if err == nil {
		c.note("%s", hex.EncodeToString(bufs.Materialize()))
		bufs.Free()
	}
	return err
}

// step does what a letter of a script says: w writes, c is CloseWrite, C Close, R Reset,
// r reads, h hastens, d is DATA from the peer, e its end and x its reset, o orphans an old
// server, L loses the stream, and the digits wait.
func (c *traced) step(letter rune) {
	end := &c.conn.end
	switch known := c.get(9) != nil; {
	case letter == 'w':
		_, _ = c.conn.Write([]byte("x"))
	case letter == 'c':
		_ = c.conn.CloseWrite()
	case letter == 'C':
		_ = c.conn.Close()
	case letter == 'R':
		_ = c.conn.Reset(&tunnel.ResetError{Code: tunnel.CodeTimeout})
	case letter == 'r':
		_ = c.conn.SetReadDeadline(time.Now().Add(time.Microsecond))
		n, err := c.conn.Read(make([]byte, 100))
		_ = c.conn.SetReadDeadline(time.Time{})
		c.note("read(%d,%v)", n, err)
	case letter == 'h' && !end.server:
		c.conn.hasten()
	case letter == 'd' && known:
		c.conn.receive(chunks(1, 10))
	case letter == 'e' && known:
		c.conn.peerEnds()
	case letter == 'x' && known && end.server:
		_ = c.conn.Reset(errDialClosed)
	case letter == 'x' && known:
		c.conn.peerResets(&tunnel.ResetError{Code: resetCode("broken")})
	case letter == 'o' && end.server && !end.duplex && !end.closed && c.lost == nil:
		c.note("orphaned(%v)", c.conn.orphaned())
	case letter == 'L':
		c.lose(&tunnel.ResetError{Code: tunnel.CodeLost})
	case letter >= '1' && letter <= '4':
		time.Sleep([]time.Duration{60, 300, 1100, 7000}[letter-'1'] * time.Millisecond)
	}
	synctest.Wait()
}

// trace is what a script brings about: each packet with its time, then what is left of
// the connection two minutes later.
func trace(t *testing.T, role, script string) (out string) {
	synctest.Test(t, func(t *testing.T) {
		c := newTraced(role)
		for _, letter := range script {
			c.step(letter)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		c.note("known(%v)", c.get(9) != nil)
		c.step('r')
		c.step('r')
		_, err := c.conn.Write([]byte("y"))
		synctest.Wait()
		c.note("write(%v)", err)
		c.lose(&tunnel.ResetError{Code: tunnel.CodeLost})
		c.wg.Wait()
		_ = c.conn.Close()
		testutil.Equal(t, c.limits.Budget.Used(), 0, "%s: bytes of the budget are lost", script)
		out = c.log.String()
	})
	return out
}
