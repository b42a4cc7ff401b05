package adapters

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"

	"konnectivity/internal/tlsreload"
	"konnectivity/tunnel"
	"konnectivity/tunnel/connect"
)

// proxyDialer is how a Proxy is used.
type proxyDialer struct {
	Proxy *connect.Proxy
	Who   string        // what it is called to clients: "customer proxy"
	Via   tunnel.Dialer // reaches the proxy
	TLS   *tls.Config   // for a Proxy with TLS: verifies Proxy.Host
}

// Dial implements tunnel.Dialer by CONNECT to the proxy. Only ctx bounds it.
func (w *proxyDialer) Dial(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
	address := f.Address
	if _, _, err := tunnel.SplitAddress(address); err != nil {
		return nil, err
	}
	c, err := (&connect.Dialer{Proxy: w.Proxy, Via: w.Via, TLS: w.TLS}).Dial(ctx, f)
	if err != nil {
		return nil, w.failed(address, err)
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
		out.Reason = fmt.Sprintf("%s answered %d", w.Who, status.Status)
		if out.Failure == tunnel.FailAuth {
			out.Reason = w.Who + " wants authentication"
		}
		out.Err = fmt.Errorf("%s answered %d", w.Proxy, status.Status) // its page may contain anything
	case errors.As(err, &dial):
		out.Failure, out.Reason = dial.Failure, w.Who+": "+dial.Text()
	case errors.As(err, &files):
		out.Failure, out.Reason = tunnel.FailUnavailable, "the CAs to check the certificate of "+w.Who+" cannot be read"
	case errors.As(err, &cert):
		out.Failure, out.Reason = tunnel.FailUnavailable, w.Who+" shows a certificate that is not trusted; add its CA"
	case errors.Is(err, connect.ErrMalformed):
		out.Failure, out.Reason = tunnel.FailUnavailable, w.Who+" does not speak HTTP"
	case errors.As(err, &noTLS):
		out.Failure, out.Reason = tunnel.FailUnavailable, w.Who+" does not speak TLS; its URL may have to begin with http://"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), tunnel.CodeOf(err) == tunnel.CodePeerReset:
		out.Failure, out.Reason = tunnel.FailUnavailable, w.Who+" hung up"
	default:
		out.Failure = tunnel.FailureOf(err)
		if out.Failure == tunnel.FailInternal {
			out.Failure = tunnel.FailUnavailable
		}
		out.Reason = w.Who + ": " + out.Failure.String()
		if out.Failure == tunnel.FailTimeout {
			out.Reason = w.Who + " does not answer in time"
		}
	}
	return out
}
