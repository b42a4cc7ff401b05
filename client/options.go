package client

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"time"

	"konnectivity/internal/pki"
	"konnectivity/tunnel"
	"konnectivity/tunnel/lanes"
	"konnectivity/tunnel/link"
	"konnectivity/tunnel/resume"
)

// Mode is how a Client asks the server for connections.
type Mode string

// The modes. With a Socket, only Auto and Connect are possible, and mean the same.
const (
	Auto    Mode = ""        // by a link where the server speaks it, else by CONNECT
	Link    Mode = "link"    // by a link; a server that does not speak it is an error
	Connect Mode = "connect" // by HTTP CONNECT; connections do not outlive what carries them
)

// DefaultResumeWindow is the ResumeWindow of Options that have none.
const DefaultResumeWindow = resume.DefaultWindow

// Options say how the server is reached. One of Address and Socket must be given; what else
// has its zero value is as its comment says.
type Options struct {
	// Address is host:port of the server's port for clients, which speaks TLS. If host is a
	// name with several addresses, each of them gets a link. Names are looked up again every
	// 30 s.
	Address string

	// Socket is, in place of Address, the path of a unix socket that takes HTTP CONNECT
	// without TLS: the server's (--uds-name), or a sidecar's (--serving-uds). ServerName, TLS,
	// its files and Proxy must be left out then; ResumeWindow and Lanes have no effect.
	Socket string

	// ServerName is the name to ask the server for in TLS, which its certificate must have,
	// such as that of a tenant; "": the host of Address.
	ServerName string

	// CAFile, CertFile and KeyFile are PEM files: the CAs of the server's certificate (""
	// are the system's), and the certificate to show it with its key (both or neither). They
	// must be there when New is called, are read again every 10 s, and are used for new
	// handshakes; a broken new file leaves the old one in use.
	CAFile, CertFile, KeyFile string

	// TokenFile has a service account token, to show a server that accepts tokens in place of
	// a certificate (--client-service-accounts). It is read at every connect. "": none.
	TokenFile string

	// RequirePeerRole refuses a server whose certificate has no role, and PeerTrustDomain
	// one whose role is of another trust domain; "": any. A certificate with another role
	// than a server's is refused always.
	RequirePeerRole bool
	PeerTrustDomain string

	// TLS is used in place of the five fields above, except that New sets ServerName, if it
	// is empty, and NextProtos in a copy of it.
	TLS *tls.Config

	Mode Mode

	// ResumeWindow is how long a connection whose link was lost waits for another, at most
	// 10 minutes; 0: DefaultResumeWindow, negative: it ends with its link.
	ResumeWindow time.Duration

	// Lanes is how many TCP connections a link may have where one is too slow, at most 8; 0
	// and 1: one.
	Lanes int

	// MaxServers is to how many servers to keep links where the host of Address has more
	// addresses: for servers that forward to one another. 0: to all.
	MaxServers int

	// Proxy is an HTTP proxy on the way to the server: http:// or https:// with host, port,
	// and maybe user and password. It is asked for Address as it is, and an https:// proxy
	// must have a certificate of the system's CAs. nil: none; the environment is not looked
	// at.
	Proxy *url.URL

	// Name tells the server's log and status page what this program is, such as
	// "driver/1.2": one line, at most 256 bytes; "": "client".
	Name string

	// Log gets a line when the server is lost or found, or when files change; nil: none.
	Log *slog.Logger
}

// maxName bounds what the server keeps of a Name for each link.
const maxName = 256

// check returns an error that names a field which can never work.
func (o Options) check() error {
	bad := func(field string, err error) error { return fmt.Errorf("client: Options.%s: %w", field, err) }
	switch {
	case (o.Address == "") == (o.Socket == ""):
		return bad("Address", errors.New("want either it or Socket"))
	case o.Socket == "" && !hasPort(o.Address):
		return bad("Address", fmt.Errorf("%q: want host:port", o.Address))
	case o.Mode != Auto && o.Mode != Link && o.Mode != Connect:
		return bad("Mode", fmt.Errorf("%q: want Auto, Link or Connect", o.Mode))
	case o.Socket != "" && o.Mode == Link:
		return bad("Mode", errors.New("links need TLS, which a socket has not"))
	case o.Socket != "" && (o.ServerName != "" || o.TokenFile != "" || o.files() || o.TLS != nil || o.Proxy != nil):
		return bad("Socket", errors.New("want no ServerName, TokenFile, TLS or Proxy with it"))
	case o.TLS != nil && o.files():
		return bad("TLS", errors.New("want either it or files"))
	case o.MaxServers < 0:
		return bad("MaxServers", fmt.Errorf("%d: want 0 for all, or more", o.MaxServers))
	case len(o.Name) > maxName || tunnel.OneLine(o.Name) != o.Name:
		return bad("Name", fmt.Errorf("want one line of at most %d bytes", maxName))
	case o.PeerTrustDomain != "" && !pki.ValidTrustDomain(o.PeerTrustDomain):
		return bad("PeerTrustDomain", fmt.Errorf("%q is none", o.PeerTrustDomain))
	}
	if err := resume.CheckWindow(max(o.ResumeWindow, 0)); err != nil {
		return bad("ResumeWindow", err)
	}
	if err := lanes.CheckMax(o.Lanes); o.Lanes != 0 && err != nil {
		return bad("Lanes", err)
	}
	return nil
}

// hasPort reports whether address is host:port.
func hasPort(address string) bool {
	_, _, err := tunnel.SplitAddress(address)
	return err == nil
}

// files reports whether files or rules for them are given.
func (o Options) files() bool {
	return o.CAFile+o.CertFile+o.KeyFile+o.PeerTrustDomain != "" || o.RequirePeerRole
}

// linkModes are the Modes in the words of the flag --link.
var linkModes = map[Mode]link.Mode{Auto: link.Auto, Link: link.Require, Connect: link.Off}

// window is ResumeWindow without its default.
func (o Options) window() time.Duration {
	if o.ResumeWindow == 0 {
		return DefaultResumeWindow
	}
	return max(o.ResumeWindow, 0)
}
