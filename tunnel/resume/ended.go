package resume

import "sync"

// maxEnded is how many connections are remembered that were reset at this end, each with some
// 0.6 KB. Of those that lost their carrier in the same moment, the opener asks within seconds.
const maxEnded = 256

// endings has the accepted connections that were reset at this end last. The reset of some was
// lost with their carrier, or there was none: an opener that resumes one of them hears how it
// ended.
type endings struct {
	mu    sync.Mutex
	conns []*Conn
	next  int // to be replaced, once there are maxEnded
}

// add remembers c, whose lock the caller holds. What has used c is not kept.
func (e *endings) add(c *Conn) {
	over := c.manager.newConn(nil, 0, 0, c.token, c.address)
	over.dest, over.m = c.dest, c.m
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.conns) < maxEnded {
		e.conns = append(e.conns, over)
		return
	}
	e.conns[e.next] = over
	e.next = (e.next + 1) % maxEnded
}

// get returns the connection with that token; nil: it is not remembered.
func (e *endings) get(token [16]byte) *Conn {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, c := range e.conns {
		if c.token == token {
			return c
		}
	}
	return nil
}
