package main

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
	"konnectivity/agent"
	"konnectivity/agent/egress"
	"konnectivity/httpsproxy"
	"konnectivity/internal/pki"
	"konnectivity/internal/version"
	"konnectivity/server"
	"konnectivity/socks5"
	"konnectivity/tunnel"
)

// demo is the whole suite in one process: what quickstart shows.
type demo struct {
	dir     string // of the socket, and of the files that curl needs
	certs   memoryTLS
	log     *logrus.Logger
	ports   demoPorts
	server  *server.Server
	agent   *agent.Agent
	adapter *adapters.Adapter
	fronts  []func(context.Context) error // sidecars and the demo target
}

// demoPorts are the listeners, all on free ports of loopback.
type demoPorts struct {
	clients, agents, socks5, http, web, secure, admin net.Listener
	uds                                               net.Listener
}

// socketName is the file of the clients' unix socket.
const socketName = "uds"

// demoGrace is short: what is open when quickstart ends is nobody's work.
const demoGrace = time.Second

// newDemo puts everything together and opens the ports.
func newDemo(dir string) (*demo, error) {
	d := &demo{dir: dir, log: logrus.New()}
	d.log.SetOutput(os.Stderr)
	d.log.SetLevel(logrus.WarnLevel)
	d.log.SetFormatter(&logrus.JSONFormatter{})
	for _, step := range []func() error{d.makeCertificates, d.listen, d.makeServer, d.makeAgent, d.makeSidecars, d.makeTarget} {
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

func (m memoryTLS) Server(protos ...string) *tls.Config {
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

// makeCertificates makes one certificate for all, and writes it for curl's
// sake: the file system forgets it when quickstart ends.
func (d *demo) makeCertificates() error {
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
	if err := pki.WriteCert(d.file("ca.crt"), ca.CertPEM); err != nil {
		return err
	}
	if err := pki.WriteCert(d.file("client.crt"), pair.CertPEM); err != nil {
		return err
	}
	return pki.WriteKey(d.file("client.key"), pair.KeyPEM)
}

func (d *demo) file(name string) string { return filepath.Join(d.dir, name) }

func (d *demo) listen() error {
	for _, l := range []*net.Listener{&d.ports.clients, &d.ports.agents, &d.ports.socks5, &d.ports.http, &d.ports.web, &d.ports.secure, &d.ports.admin} {
		var err error
		if *l, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			return err
		}
	}
	var err error
	d.ports.uds, err = server.ListenUnix(d.file(socketName), false)
	return err
}

// page is where the server's status page is.
func (d *demo) page() string { return "http://" + d.ports.admin.Addr().String() + "/" }

func (d *demo) makeServer() error {
	var err error
	d.server, err = server.New(server.Options{
		ID:      "quickstart",
		Clients: []server.Listener{{Listener: d.ports.clients, TLS: d.certs.Server}, {Listener: d.ports.uds}},
		Agents:  []server.Listener{{Listener: d.ports.agents, TLS: d.certs.Server}},
		Admin:   d.ports.admin,
		Grace:   demoGrace, Log: d.log, Registry: prometheus.NewRegistry(),
	})
	return err
}

func (d *demo) makeAgent() error {
	var err error
	d.agent, err = agent.New(agent.Options{
		ID: "quickstart-agent", Servers: []string{d.ports.agents.Addr().String()}, TLS: d.certs.Client,
		Dialer: egress.New(egress.Options{}), Grace: demoGrace, Log: d.log,
	})
	return err
}

func (d *demo) makeSidecars() error {
	var err error
	d.adapter, err = adapters.New(adapters.Options{
		Server: adapters.ServerOptions{Address: d.ports.clients.Addr().String(), TLS: d.certs, Software: "quickstart/" + version.Get().Version},
		SOCKS5: adapters.ResolvePolicy{Disabled: true},
		Log:    d.log,
	})
	if err != nil {
		return err
	}
	socks, err := socks5.New(socks5.Options{
		Forwarder: &tunnel.Forwarder{Dialer: d.adapter.SOCKS5()}, Drain: demoGrace, Log: d.log,
	})
	if err != nil {
		return err
	}
	proxy, err := httpsproxy.New(httpsproxy.Options{
		Connect: &tunnel.Forwarder{Dialer: d.adapter.Connect()}, Forward: d.adapter.Forward(), Transport: d.adapter.Transport(), Drain: demoGrace, Log: d.log,
	})
	if err != nil {
		return err
	}
	d.fronts = append(d.fronts,
		func(ctx context.Context) error { return socks.Serve(ctx, d.ports.socks5) },
		func(ctx context.Context) error { return proxy.Serve(ctx, d.ports.http) })
	return nil
}

// greeting is what the demo target answers.
const greeting = "hello through the tunnel\n"

// makeTarget is a small web server, plain and with TLS, that stands for the
// data plane's services.
func (d *demo) makeTarget() error {
	web := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, greeting) })
	secure := tls.NewListener(d.ports.secure, &tls.Config{Certificates: []tls.Certificate{d.certs.pair.TLS()}, MinVersion: tls.VersionTLS12})
	for _, l := range []net.Listener{d.ports.web, secure} {
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

// serve runs everything until ctx ends: the sidecars stop first, so that the
// rest has nothing left to drain.
func (d *demo) serve(ctx context.Context) error {
	behind, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	rest, _ := errgroup.WithContext(behind)
	rest.Go(func() error { return d.server.Run(behind) })
	rest.Go(func() error { return d.agent.Run(behind) })
	rest.Go(func() error { return d.adapter.Run(behind) })
	fronts, failed := errgroup.WithContext(ctx)
	for _, serve := range d.fronts {
		fronts.Go(func() error { return serve(failed) })
	}
	err := fronts.Wait()
	stop()
	if restErr := rest.Wait(); err == nil {
		err = restErr
	}
	return err
}
