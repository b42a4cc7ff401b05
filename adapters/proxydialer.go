package adapters

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"

	"konnectivity/internal/tlsreload"
	"konnectivity/tunnel"
	"konnectivity/tunnel/connect"
)

// proxyDialer goes by a proxy, and explains its errors to clients.
type proxyDialer struct {
	connect.Dialer
	who string // what the proxy is called to clients: "customer proxy"
}

// Dial implements tunnel.Dialer by CONNECT to the proxy. Only ctx bounds it.
func (w *proxyDialer) Dial(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
	if _, _, err := tunnel.SplitAddress(f.Address); err != nil {
		return nil, err
	}
	c, err := w.Dialer.Dial(ctx, f)
	if err != nil {
		return nil, w.failed(f.Address, err)
	}
	return c, nil
}

// failed returns an error for clients that says whose fault it is.
func (w *proxyDialer) failed(address string, err error) error {
	out := &tunnel.DialError{Address: address, Err: err}
	var status *connect.StatusError
	var dial *tunnel.DialError
	var files *tlsreload.NotReadyError
	var cert *tls.CertificateVerificationError
	var noTLS tls.RecordHeaderError
	switch {
	case errors.As(err, &status):
		out.Failure = connect.ProxyFailure(status)
		out.Reason = w.who + " answered " + status.Answer()
		if out.Failure == tunnel.FailAuth {
			out.Reason = w.who + " wants authentication: " + tunnel.AuthAdvice
		}
		out.Err = fmt.Errorf("%s answered %s", w.Proxy, status.Answer()) // its page may contain anything
	case errors.As(err, &dial):
		out.Failure, out.Reason = dial.Failure, w.who+": "+dial.Text()
	case errors.As(err, &files):
		out.Failure, out.Reason = tunnel.FailUnavailable, "the CAs to check the certificate of "+w.who+" cannot be read"
	case errors.As(err, &cert):
		out.Failure, out.Reason = tunnel.FailUnavailable, w.who+": "+cmp.Or(tlsreload.Untrusted(cert, tlsreload.ProxyCAs), "its certificate is not trusted")
	case errors.Is(err, connect.ErrMalformed):
		out.Failure, out.Reason = tunnel.FailUnavailable, w.who+" does not speak HTTP"
	case errors.As(err, &noTLS):
		out.Failure, out.Reason = tunnel.FailUnavailable, w.who+" does not speak TLS; its URL may have to begin with http://"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), tunnel.CodeOf(err) == tunnel.CodePeerReset:
		out.Failure, out.Reason = tunnel.FailUnavailable, w.who+" hung up"
	default:
		out.Failure = tunnel.FailureOf(err)
		if out.Failure == tunnel.FailInternal {
			out.Failure = tunnel.FailUnavailable
		}
		out.Reason = w.who + ": " + out.Failure.String()
		if out.Failure == tunnel.FailTimeout {
			out.Reason = w.who + " does not answer in time"
		}
	}
	return out
}
