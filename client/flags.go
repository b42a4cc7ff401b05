package client

import (
	"errors"
	"flag"
	"strconv"
	"time"

	"konnectivity/tunnel"
	"konnectivity/tunnel/lanes"
	"konnectivity/tunnel/link"
)

// AddFlags defines flags on set that fill in o when they are parsed. They are the flags that
// tell a sidecar how to reach the server, with the same names and defaults, so that a
// sidecar's arguments can be copied: --konnectivity-hostname, --konnectivity-port,
// --server-name, --ca-cert-path, --tls-cert-path, --tls-key-path, --token-path, --require-peer-role,
// --peer-trust-domain, --resume-window, --link-lanes, --max-servers and --link. Other fields of
// o do not change. A program whose flags are pflag's passes set to AddGoFlagSet.
func (o *Options) AddFlags(set *flag.FlagSet) {
	server := &hostPort{address: &o.Address}
	add(set, server.setHost, "konnectivity-hostname", "konnectivity-server-local", "name or IP address of the konnectivity server")
	add(set, server.setPort, "konnectivity-port", "8090", "port of the konnectivity server for clients")
	set.StringVar(&o.ServerName, "server-name", "", "name to ask the server for in TLS (SNI), which its certificate must have (default: --konnectivity-hostname)")
	set.StringVar(&o.CAFile, "ca-cert-path", "/etc/konnectivity/proxy-ca/ca.crt", "CA file for verifying the server's certificate")
	set.StringVar(&o.CertFile, "tls-cert-path", usualCert, "client certificate")
	set.StringVar(&o.KeyFile, "tls-key-path", usualKey, "key of the client certificate")
	add(set, o.setToken, "token-path", "", "file with a service account token, to show the server instead of a certificate: --tls-cert-path and --tls-key-path have no default then")
	set.BoolVar(&o.RequirePeerRole, "require-peer-role", false, "refuse certificates of servers that have no role; certificates with a wrong role are always refused")
	set.StringVar(&o.PeerTrustDomain, "peer-trust-domain", "", "refuse certificates whose role has any other trust domain (default: every trust domain is accepted, the CA decides)")
	add(set, o.setWindow, "resume-window", DefaultResumeWindow.String(), "how long a connection that has lost its link waits to be resumed over another, to any server; at most 10m; 0: it ends with its link")
	set.IntVar(&o.Lanes, "link-lanes", lanes.MaxLanes, "how many TCP connections a link to a server may have where one is not enough")
	set.IntVar(&o.MaxServers, "max-servers", 0, "to how many servers to keep links where the name has more addresses, which is for servers that forward to one another; 0: to all")
	add(set, o.setLink, "link", string(link.Auto), "native link to the server: auto (if the server supports it, else HTTP CONNECT), off or require")
}

// The certificate of sidecars, unless flags say otherwise.
const (
	usualCert = "/etc/konnectivity/proxy-client/tls.crt"
	usualKey  = "/etc/konnectivity/proxy-client/tls.key"
)

// setting is a flag.Value that a function parses.
type setting struct {
	text string
	to   func(text string) error
}

// add defines a flag, and sets it to its default.
func add(set *flag.FlagSet, to func(text string) error, name, initial, usage string) {
	_ = to(initial)
	set.Var(&setting{initial, to}, name, usage)
}

// String implements flag.Value.
func (s *setting) String() string { return s.text }

// Set implements flag.Value.
func (s *setting) Set(text string) error {
	err := s.to(text)
	if err == nil {
		s.text = text
	}
	return err
}

// hostPort is an address that two flags name.
type hostPort struct {
	host    string
	port    uint16
	address *string
}

func (h *hostPort) join() { *h.address = tunnel.JoinAddress(h.host, h.port) }

func (h *hostPort) setHost(text string) error {
	if !tunnel.ValidHost(text) {
		return errors.New("want a name or an IP address, without a port")
	}
	h.host = text
	h.join()
	return nil
}

func (h *hostPort) setPort(text string) error {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 {
		return errors.New("want a port from 1 to 65535")
	}
	h.port = uint16(n)
	h.join()
	return nil
}

// setToken takes the defaults of the certificate away.
func (o *Options) setToken(text string) error {
	if o.TokenFile = text; text != "" && o.CertFile == usualCert && o.KeyFile == usualKey {
		o.CertFile, o.KeyFile = "", ""
	}
	return nil
}

func (o *Options) setWindow(text string) (err error) {
	o.ResumeWindow, err = time.ParseDuration(text)
	switch {
	case err != nil || o.ResumeWindow < 0:
		return errors.New("want a duration from 0 (off) to 10m")
	case o.ResumeWindow == 0:
		o.ResumeWindow = -1
	}
	return nil
}

func (o *Options) setLink(text string) error {
	for mode, name := range linkModes {
		if text == string(name) {
			o.Mode = mode
			return nil
		}
	}
	return errors.New("want auto, off or require")
}
