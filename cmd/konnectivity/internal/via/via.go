package via

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/url"
	"slices"
	"strings"

	"golang.org/x/net/proxy"

	"konnectivity/client"
	"konnectivity/internal/cli"
	"konnectivity/internal/tlsreload"
	"konnectivity/tunnel"
	"konnectivity/tunnel/connect"
)

// Kinds lists the paths for help, in two lines, and for usage errors, which cli joins to one.
const Kinds = "direct, socks5://HOST:PORT, http://HOST:PORT, http:///SOCKET, https://HOST:PORT,\nlink://HOST:PORT or grpc:///SOCKET"

// TLS configures connections to servers.
type TLS struct {
	Files      tlsreload.Files // client certificate and the server's CA
	ServerName string          // expected in the server's certificate; "" means its host
	Plain      bool            // connections end with their link
}

// Dialer returns the Dialer of a --via: direct, through a sidecar, to the server by
// CONNECT over mTLS or by a link, or as kube-apiserver does by gRPC over a unix socket.
// close releases it.
func Dialer(via string, secure TLS) (_ tunnel.Dialer, close func(), _ error) {
	none := func() {}
	if via == "direct" {
		return tunnel.DialerFunc(dialTCP), none, nil
	}
	u, err := url.Parse(via)
	if err == nil && u.User == nil && u.Host == "" && len(u.Path) > 1 {
		switch u.Scheme {
		case "grpc":
			return grpcSocket(u.Path), none, nil
		case "http":
			return HTTP(u.Path), none, nil
		}
	}
	if err != nil || u.Port() == "" || strings.Trim(u.Path, "/") != "" || u.User != nil {
		return nil, nil, unknown(via)
	}
	switch u.Scheme {
	case "socks5":
		return SOCKS5(u.Host), none, nil
	case "http":
		return HTTP(u.Host), none, nil
	case "https":
		return toServer(secure, u.Host, client.Connect)
	case "link":
		return toServer(secure, u.Host, client.Link)
	default:
		return nil, nil, unknown(via)
	}
}

// PassesID reports whether the hops of a --via, which Dialer takes, learn a Flow's id.
func PassesID(via string) bool {
	scheme, _, _ := strings.Cut(via, ":")
	return slices.Contains([]string{"http", "https", "link"}, scheme)
}

// unknown is the error for a --via that is not one of Kinds. It does not contain a
// password.
func unknown(via string) error {
	if strings.Contains(via, "@") {
		return cli.Usagef("--via: want %s, without user and password", Kinds)
	}
	return cli.Usagef("--via %q: want %s", via, Kinds)
}

func dialTCP(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
	return dialNetwork(ctx, f.Network, f.Address)
}

func dialNetwork(ctx context.Context, network, address string) (tunnel.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, network, address)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &tunnel.DialError{Failure: tunnel.FailUnavailable, Address: address, Reason: "there is no such socket"}
	}
	if err != nil {
		return nil, tunnel.AsDialError(address, err)
	}
	return tunnel.Wrap(c), nil
}

// SOCKS5 dials through the SOCKS5 proxy at front, an address as for Network.
func SOCKS5(front string) tunnel.Dialer {
	return tunnel.DialerFunc(func(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
		address := f.Address
		client, _ := proxy.SOCKS5("tcp", front, nil, proxy.Direct) // it always succeeds
		// DialWithConn keeps the raw connection, and so half-close.
		withConn := client.(interface {
			DialWithConn(ctx context.Context, c net.Conn, network, address string) (net.Addr, error)
		})
		c, err := dialNetwork(ctx, Network(front), front)
		if err != nil {
			return nil, err
		}
		err = handshakeAt(ctx, c, front, address, SpeaksSOCKS5, func(c net.Conn) error {
			_, err := withConn.DialWithConn(ctx, c, f.Network, address)
			return err
		})
		if err != nil {
			_ = c.Close()
			return nil, refusedBySOCKS5(front, address, err)
		}
		return c, nil
	})
}

// socks5Replies are those of RFC 1928 §6, in the words of x/net, which passes nothing else on.
var socks5Replies = []struct {
	words   string
	failure tunnel.Failure
	reason  string // "": that of the failure
}{
	{"general SOCKS server failure", tunnel.FailUnavailable, "the SOCKS5 proxy failed, and cannot say why by SOCKS5: its log does"},
	{"not allowed by ruleset", tunnel.FailDenied, ""},
	{"network unreachable", tunnel.FailNetUnreach, ""},
	{"host unreachable", tunnel.FailHostUnreach, "the host is unreachable, or its name is not known"},
	{"connection refused", tunnel.FailRefused, ""},
	{"TTL expired", tunnel.FailTimeout, ""}, // as our sidecars answer
}

// refusedBySOCKS5 is the error of a dial that the proxy at front did not make.
func refusedBySOCKS5(front, address string, err error) *tunnel.DialError {
	dial := tunnel.AsDialError(address, err)
	if dial.Failure != tunnel.FailInternal || errors.Is(err, io.EOF) {
		return unanswered(front, dial)
	}
	for _, r := range socks5Replies {
		if strings.HasSuffix(err.Error(), r.words) {
			return &tunnel.DialError{Failure: r.failure, Address: address, Reason: r.reason}
		}
	}
	return dial
}

// HTTP dials by CONNECT through the HTTP proxy at front, an address as for Network.
func HTTP(front string) tunnel.Dialer {
	return tunnel.DialerFunc(func(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
		address := f.Address
		c, err := dialNetwork(ctx, Network(front), front)
		if err != nil {
			return nil, err
		}
		var far tunnel.Conn
		err = handshakeAt(ctx, c, front, address, SpeaksHTTP, func(net.Conn) (err error) {
			far, err = connect.Handshake(ctx, c, connect.Request{Address: address, ID: f.ID})
			return err
		})
		if status, ok := errors.AsType[*connect.StatusError](err); ok {
			return nil, &tunnel.DialError{Failure: connect.ServerFailure(status), Address: address, Err: err}
		}
		if err != nil {
			return nil, unanswered(front, tunnel.AsDialError(address, err))
		}
		return far, nil
	})
}

// toServer connects to the server as sidecars do.
func toServer(secure TLS, server string, mode client.Mode) (tunnel.Dialer, func(), error) {
	if err := cli.CheckServerName(secure.ServerName); err != nil {
		return nil, nil, err
	}
	window := client.DefaultResumeWindow
	if secure.Plain {
		window = -1
	}
	c, err := client.New(client.Options{
		Address: server, ServerName: secure.ServerName, CAFile: secure.Files.CA, CertFile: secure.Files.Cert, KeyFile: secure.Files.Key,
		Mode: mode, ResumeWindow: window, Name: "konnectivity",
	})
	if err != nil {
		return nil, nil, err
	}
	return &Server{c}, func() { _ = c.Close() }, nil
}

// Server is the Dialer of a path to a server without a sidecar.
type Server struct{ *client.Client }

// Dial implements tunnel.Dialer.
func (s *Server) Dial(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
	c, err := s.DialContext(client.WithID(ctx, f.ID), f.Network, f.Address)
	if err != nil {
		return nil, err
	}
	return tunnel.Wrap(c), nil
}
