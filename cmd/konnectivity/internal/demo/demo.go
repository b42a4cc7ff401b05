package demo

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/sirupsen/logrus"
	"golang.org/x/sync/errgroup"

	"konnectivity/adapters"
	"konnectivity/adapters/uplink"
	"konnectivity/agent"
	"konnectivity/agent/egress"
	"konnectivity/httpsproxy"
	"konnectivity/internal/admission"
	"konnectivity/internal/pki"
	"konnectivity/internal/unixsocket"
	"konnectivity/internal/version"
	"konnectivity/server"
	"konnectivity/socks5"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// Demo is the whole suite in one process: what quickstart shows.
type Demo struct {
	dir     string // of the socket, and of the files that curl needs
	certs   memoryTLS
	log     *logrus.Logger
	Ports   Ports
	server  *server.Server
	agent   *agent.Agent
	adapter *adapters.Adapter
	connect *uplink.Server // a client of the server by CONNECT, and one by a link
	native  *uplink.Server
	fronts  []func(context.Context) error // sidecars and the demo target
}

// Ports are the listeners, all on free ports of loopback.
type Ports struct {
	Clients, agents, SOCKS5, HTTP, Web, secure, Admin net.Listener
	uds                                               net.Listener
}

// socketName is the file of the clients' unix socket.
const socketName = "uds"

// demoGrace is short: nobody works with what is open when quickstart ends.
const demoGrace = time.Second

// New puts everything together and opens the ports.
func New(dir string) (*Demo, error) {
	d := &Demo{dir: dir, log: logrus.New()}
	d.log.SetOutput(os.Stderr)
	d.log.SetLevel(logrus.WarnLevel)
	d.log.SetFormatter(&logrus.JSONFormatter{})
	for _, step := range []func() error{d.makeCertificates, d.listen, d.makeServer, d.makeAgent, d.makeSidecars, d.makeClients, d.makeTarget} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// memoryTLS makes TLS configurations from one certificate in memory.
type memoryTLS struct {
	ca   *pki.CA
	pair pki.Pair
}

func (m memoryTLS) server(protos ...string) *tls.Config {
	return &tls.Config{
		Certificates: []tls.Certificate{m.pair.TLS()}, ClientCAs: m.ca.Pool(), ClientAuth: tls.RequireAndVerifyClientCert,
		NextProtos: protos, MinVersion: tls.VersionTLS12, DynamicRecordSizingDisabled: true,
	}
}

func (m memoryTLS) Client(name string, protos ...string) *tls.Config {
	return &tls.Config{
		Certificates: []tls.Certificate{m.pair.TLS()}, RootCAs: m.ca.Pool(), ServerName: name, NextProtos: protos,
		ClientSessionCache: tls.NewLRUClientSessionCache(0), MinVersion: tls.VersionTLS12, DynamicRecordSizingDisabled: true,
	}
}

// makeCertificates makes one certificate for all parts, and writes it to files
// for curl, which are removed when quickstart ends.
func (d *Demo) makeCertificates() error {
	ca, err := pki.NewCA("konnectivity quickstart")
	if err != nil {
		return err
	}
	pair, err := ca.Issue(pki.Leaf{
		CommonName: "quickstart", DNS: []string{"localhost"}, IPs: []net.IP{net.IPv4(127, 0, 0, 1)},
		Server: true, Client: true, Lifetime: 24 * time.Hour,
	})
	if err != nil {
		return err
	}
	d.certs = memoryTLS{ca, pair}
	if err := pki.WriteCert(d.File("ca.crt"), ca.CertPEM); err != nil {
		return err
	}
	if err := pki.WriteCert(d.File("client.crt"), pair.CertPEM); err != nil {
		return err
	}
	return pki.WriteKey(d.File("client.key"), pair.KeyPEM)
}

// File is the path of a file of the demo: ca.crt, client.crt, client.key.
func (d *Demo) File(name string) string { return filepath.Join(d.dir, name) }

func (d *Demo) listen() error {
	for _, l := range []*net.Listener{&d.Ports.Clients, &d.Ports.agents, &d.Ports.SOCKS5, &d.Ports.HTTP, &d.Ports.Web, &d.Ports.secure, &d.Ports.Admin} {
		var err error
		if *l, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			return err
		}
	}
	var err error
	d.Ports.uds, err = unixsocket.Listen(d.File(socketName), unixsocket.Options{})
	return err
}

// Page is where the server's status page is.
func (d *Demo) Page() string { return "http://" + d.Ports.Admin.Addr().String() + "/" }

func (d *Demo) makeServer() error {
	var err error
	d.server, err = server.New(server.Options{
		ID:      "quickstart",
		Clients: []server.Listener{{Listener: d.Ports.Clients, TLS: d.certs.server}, {Listener: d.Ports.uds}},
		Agents:  []server.Listener{{Listener: d.Ports.agents, TLS: d.certs.server}},
		Admin:   d.Ports.Admin,
		Grace:   demoGrace, Log: d.log, Registry: prometheus.NewRegistry(),
	})
	return err
}

func (d *Demo) makeAgent() error {
	var err error
	d.agent, err = agent.New(agent.Options{
		ID: "quickstart-agent", Servers: []string{d.Ports.agents.Addr().String()}, TLS: d.certs.Client,
		Dialer: egress.New(egress.Options{}), Grace: demoGrace, Log: d.log,
	})
	return err
}

func (d *Demo) makeSidecars() error {
	var err error
	d.adapter, err = adapters.New(adapters.Options{
		Server: adapters.ServerOptions{Address: d.Ports.Clients.Addr().String(), TLS: d.certs, Software: "quickstart/" + version.Get().Version},
		SOCKS5: adapters.ResolvePolicy{Disabled: true},
		Log:    d.log,
	})
	if err != nil {
		return err
	}
	socks, err := socks5.New(socks5.Options{
		Forwarder: &tunnel.Forwarder{Dialer: d.adapter.SOCKS5()}, Drain: demoGrace, Descriptors: admission.Descriptors() / 2, Log: d.log,
	})
	if err != nil {
		return err
	}
	proxy, err := httpsproxy.New(httpsproxy.Options{
		Connect: &tunnel.Forwarder{Dialer: d.adapter.Connect()}, Forward: d.adapter.Forward(), Transport: d.adapter.Transport(), Drain: demoGrace,
		Descriptors: admission.Descriptors() / 2, Log: d.log,
	})
	if err != nil {
		return err
	}
	d.fronts = append(d.fronts,
		func(ctx context.Context) error { return socks.Serve(ctx, d.Ports.SOCKS5) },
		func(ctx context.Context) error { return proxy.Serve(ctx, d.Ports.HTTP) })
	return nil
}

// makeClients makes the sidecars' way to the server without a sidecar. They last
// until the end: a link that goes with its request may go before the connection
// has ended, and the status page would show that as a failure.
func (d *Demo) makeClients() error {
	client := func(mode link.Mode) (*uplink.Server, error) {
		return uplink.New(uplink.Options{
			Address: d.Ports.Clients.Addr().String(), TLS: d.certs, Mode: mode, Software: "quickstart-link/" + version.Get().Version, Log: d.log,
		})
	}
	var err error
	if d.connect, err = client(link.Off); err != nil {
		return err
	}
	d.native, err = client(link.Require)
	return err
}

// greeting is what the demo target answers.
const greeting = "hello through the tunnel\n"

// makeTarget is a small web server, plain and with TLS, that stands for the
// data plane's services.
func (d *Demo) makeTarget() error {
	web := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, greeting) })
	secure := tls.NewListener(d.Ports.secure, &tls.Config{Certificates: []tls.Certificate{d.certs.pair.TLS()}, MinVersion: tls.VersionTLS12})
	for _, l := range []net.Listener{d.Ports.Web, secure} {
		d.fronts = append(d.fronts, func(ctx context.Context) error { return serveHTTP(ctx, l, web) })
	}
	return nil
}

func serveHTTP(ctx context.Context, l net.Listener, h http.Handler) error {
	srv := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	defer context.AfterFunc(ctx, func() { _ = srv.Close() })()
	if err := srv.Serve(l); ctx.Err() == nil {
		return fmt.Errorf("demo target: %w", err)
	}
	return nil
}

// Serve runs everything until ctx ends or a part fails: the sidecars stop first, so
// that the rest has nothing left to drain.
func (d *Demo) Serve(ctx context.Context) error {
	behind, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	rest, broken := errgroup.WithContext(behind)
	context.AfterFunc(broken, cancel)
	rest.Go(func() error { return d.server.Run(behind) })
	rest.Go(func() error { return d.agent.Run(behind) })
	rest.Go(func() error { return d.adapter.Run(behind) })
	fronts, failed := errgroup.WithContext(ctx)
	for _, serve := range d.fronts {
		fronts.Go(func() error { return serve(failed) })
	}
	err := fronts.Wait()
	d.connect.Close()
	d.native.Close()
	stop()
	if restErr := rest.Wait(); err == nil {
		err = restErr
	}
	return err
}
