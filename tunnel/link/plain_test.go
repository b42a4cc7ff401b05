package link_test

import (
	"context"
	"io"
	"net"
	"testing"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// TestPlainConnectionsAreNeverEndedShort: bytes that wait for a destination as the link is cut
// are lost, so it is reset, also where all that ended the connection in order had come.
func TestPlainConnectionsAreNeverEndedShort(t *testing.T) {
	for name, c := range map[string]struct{ peerEnds, destEnds bool }{
		"open":                     {false, false},
		"ended by the peer":        {true, false},
		"ended by the destination": {false, true},
		"ended both ways":          {true, true},
	} {
		t.Run(name, func(t *testing.T) {
			noLeaks(t)
			near, far := tcpPair(t)
			toDest, dest := tcpPair(t)
			_ = toDest.(*net.TCPConn).SetWriteBuffer(4 << 10)
			_ = dest.(*net.TCPConn).SetReadBuffer(4 << 10)
			reach := tunnel.DialerFunc(func(context.Context, *tunnel.Flow) (tunnel.Conn, error) { return tunnel.Wrap(toDest), nil })
			r := newRig(t, near, far, false, link.Config{Handler: &tunnel.Forwarder{Dialer: reach}})
			r.open(1, "x:1")
			if c.destEnds {
				_ = dest.(*net.TCPConn).CloseWrite()
				r.want(frame{tData, fin, 1, nil})
			}
			sent := 0
			for range 7 {
				r.send(data(1, largestPayload))
				sent += largestPayload
			}
			if c.peerEnds {
				r.send(frame{tData, fin, 1, nil})
			}
			r.wantNothing() // all of it was read
			_ = far.Close()
			<-r.ses.Done()
			got, err := io.Copy(io.Discard, dest)
			testutil.Fails(t, err, "the destination's read of %d of %d bytes", got, sent)
			_ = dest.Close()
			_ = r.ses.Close()
		})
	}
}
