package httpsproxy

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"time"

	"konnectivity/tunnel"
)

// upgrade is a 101 response (RFC 9110 §15.2.2) and the connection it came on.
type upgrade struct {
	resp *http.Response
	conn net.Conn
}

// far is the destination's end, with what the transport has read ahead.
func (u *upgrade) far() tunnel.Conn {
	return &upgradedConn{Conn: tunnel.Wrap(u.conn), body: u.resp.Body}
}

// upgradedConn hides that Conn may pass chunks: only body knows which bytes
// come next.
type upgradedConn struct {
	tunnel.Conn
	body io.Reader
}

func (c *upgradedConn) Read(p []byte) (int, error) { return c.body.Read(p) }

// switchProtocols tells the client and relays, until both directions have ended.
func (x *exchange) switchProtocols() {
	s, c := x.server, x.client
	far := x.upgraded.far()
	conn, rw, err := x.rc.Hijack()
	if err != nil {
		_ = far.Reset(err)
		panic(http.ErrAbortHandler) // the connection is gone
	}
	_ = conn.SetDeadline(time.Time{})
	ahead, _ := rw.Reader.Peek(rw.Reader.Buffered())
	near := tunnel.Unread(c.Conn, ahead)
	head := s.switchingHead(x.upgraded.resp)
	line := x.line
	line.kind, line.status = kindUpgrade, http.StatusSwitchingProtocols
	req := &tunnel.Request{ID: line.id, Front: line.kind, Network: "tcp", Address: line.destination, Source: c.RemoteAddr()}
	s.count(line)
	c.detach(func() {
		defer s.log(line)
		_ = near.SetWriteDeadline(time.Now().Add(replyTimeout))
		if _, err := near.Write(head); err != nil {
			_ = far.Reset(err)
			line.outcome, line.err = outcomeBroken, err
			return
		}
		_ = near.SetWriteDeadline(time.Time{})
		if line.err = s.relay(c.ctx, req, line, near, far); line.err != nil {
			line.outcome = outcomeBroken
		}
	})
}

// switchingHead is the 101 response as the client gets it.
func (s *Server) switchingHead(resp *http.Response) []byte {
	protocol := resp.Header["Upgrade"]
	s.cleanResponse(resp)
	resp.Header["Connection"] = []string{"Upgrade"}
	resp.Header["Upgrade"] = protocol
	head := bytes.NewBufferString("HTTP/1.1 101 Switching Protocols\r\n")
	_ = resp.Header.Write(head)
	head.WriteString("\r\n")
	return head.Bytes()
}

// relay is the second half of what a Forwarder does, for a connection that was
// dialed as a request's.
func (s *Server) relay(ctx context.Context, req *tunnel.Request, line *access, near, far tunnel.Conn) error {
	f := s.opts.Connect
	relay := &tunnel.Relay{A: near, B: far, Linger: f.Linger, Idle: f.Idle, Total: f.Total}
	line.relay = relay
	for _, o := range f.Observers {
		o.Opened(req, relay)
	}
	start := time.Now()
	err := relay.Run(ctx)
	for _, o := range f.Observers {
		o.Closed(req, relay, time.Since(start), err)
	}
	return err
}
