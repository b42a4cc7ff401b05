package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/sirupsen/logrus"
	"golang.org/x/sync/errgroup"

	"konnectivity/adapters"
	"konnectivity/agent"
	"konnectivity/agent/egress"
	"konnectivity/cmd/konnectivity/internal/via"
	"konnectivity/httpsproxy"
	"konnectivity/internal/admission"
	"konnectivity/internal/cli"
	"konnectivity/internal/front"
	"konnectivity/internal/observe"
	"konnectivity/internal/pki"
	"konnectivity/internal/tlsreload"
	"konnectivity/internal/unixsocket"
	"konnectivity/internal/version"
	"konnectivity/internal/wait"
	"konnectivity/server"
	"konnectivity/socks5"
	"konnectivity/tunnel"
)

// demo is the whole suite in one process on loopback: what quickstart runs.
type demo struct {
	dir      string // of the unix socket and of the files that curl needs
	certs    *tlsreload.Source
	log      *logrus.Logger
	ports    demoPorts
	server   *server.Server
	agent    *agent.Agent
	adapter  *adapters.Adapter
	services []func(context.Context) error // sidecars and the demo target
	paths    []demoPath
	closers  []func() // of paths
}

// demoPorts are the listeners, on free ports of loopback.
type demoPorts struct {
	clients, agents, socks5, http, web, secure, admin net.Listener
	uds                                               net.Listener
}

const (
	// demoSocket is the file of the clients' unix socket.
	demoSocket = "uds"

	// demoGrace is short: no connection of a user is open when quickstart ends.
	demoGrace = time.Second
)

// newDemo composes the suite and opens its ports. Certificates and the socket are
// written into dir, which the caller removes.
func newDemo(dir string) (*demo, error) {
	d := &demo{dir: dir, log: logrus.New()}
	d.log.SetOutput(os.Stderr)
	d.log.SetLevel(logrus.WarnLevel)
	d.log.SetFormatter(&logrus.JSONFormatter{})
	for _, step := range []func() error{d.makeCertificates, d.listen, d.makeServer, d.makeAgent, d.makeSidecars, d.makeTarget, d.makePaths} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// makeCertificates issues one certificate for all parts and writes it to dir, where
// curl reads it too.
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
	files := d.files()
	err = cmp.Or(pki.WriteCert(files.CA, ca.CertPEM), pki.WriteCert(files.Cert, pair.CertPEM), pki.WriteKey(files.Key, pair.KeyPEM))
	if err != nil {
		return err
	}
	d.certs, err = tlsreload.New(files, tlsreload.Options{Name: "quickstart", Log: d.log})
	return err
}

// files are the certificate files of the demo.
func (d *demo) files() tlsreload.Files { return tlsreload.FilesIn(d.dir, "client") }

func (d *demo) socket() string { return filepath.Join(d.dir, demoSocket) }

func (d *demo) listen() (err error) {
	p := &d.ports
	for _, l := range []*net.Listener{&p.clients, &p.agents, &p.socks5, &p.http, &p.web, &p.secure, &p.admin} {
		if *l, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			return err
		}
	}
	p.uds, err = unixsocket.Listen(d.socket(), unixsocket.Options{})
	return err
}

func (d *demo) makeServer() (err error) {
	d.server, err = server.New(server.Options{
		ID:      "quickstart",
		Clients: []server.Listener{{Listener: d.ports.clients, TLS: d.certs.ServerFor}, {Listener: d.ports.uds}},
		Agents:  []server.Listener{{Listener: d.ports.agents, TLS: d.certs.ServerFor}},
		Admin:   d.ports.admin,
		Grace:   demoGrace, Log: d.log, Registry: prometheus.NewRegistry(),
	})
	return err
}

func (d *demo) makeAgent() (err error) {
	d.agent, err = agent.New(agent.Options{
		ID: "quickstart-agent", Servers: []string{d.ports.agents.Addr().String()}, TLS: d.certs.Client,
		Dialer: egress.New(egress.Options{}), Grace: demoGrace, Log: d.log,
	})
	return err
}

func (d *demo) makeSidecars() (err error) {
	d.adapter, err = adapters.New(adapters.Options{
		Server: adapters.ServerOptions{Address: d.ports.clients.Addr().String(), TLS: d.certs, Software: "quickstart/" + version.Get().Version},
		SOCKS5: adapters.ResolvePolicy{Disabled: true},
		Log:    d.log,
	})
	if err != nil {
		return err
	}
	common := func(dialer tunnel.Dialer) front.Options {
		return front.Options{Forwarder: &tunnel.Forwarder{Dialer: dialer}, Drain: demoGrace, Descriptors: admission.Descriptors() / 2, Log: d.log}
	}
	socks, err := socks5.New(socks5.Options{Options: common(d.adapter.SOCKS5())})
	if err != nil {
		return err
	}
	proxy, err := httpsproxy.New(httpsproxy.Options{
		Options: common(d.adapter.Connect()), Forward: d.adapter.Forward(), Transport: d.adapter.Transport(),
	})
	if err != nil {
		return err
	}
	d.services = append(d.services,
		func(ctx context.Context) error { return socks.Serve(ctx, d.ports.socks5) },
		func(ctx context.Context) error { return proxy.Serve(ctx, d.ports.http) })
	return nil
}

// demoGreeting is the answer of the demo target.
const demoGreeting = "hello through the tunnel\n"

// makeTarget makes a small web server, plain and with TLS, that stands for the data
// plane's services.
func (d *demo) makeTarget() error {
	web := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, demoGreeting) })
	secure := &tls.Config{Certificates: []tls.Certificate{*d.certs.Certificate()}, MinVersion: tls.VersionTLS12}
	d.services = append(d.services,
		func(ctx context.Context) error { return observe.Serve(ctx, d.ports.web, web, d.log) },
		func(ctx context.Context) error { return observe.ServeTLS(ctx, d.ports.secure, secure, web, d.log) })
	return nil
}

// serve runs everything until ctx ends or a part fails. The sidecars stop first, so
// that the rest has nothing left to drain.
func (d *demo) serve(ctx context.Context) error {
	return cli.Around(ctx, func(ctx context.Context) error {
		services, failed := errgroup.WithContext(ctx)
		for _, serve := range d.services {
			services.Go(func() error { return serve(failed) })
		}
		err := services.Wait()
		for _, closePath := range d.closers {
			closePath()
		}
		return err
	}, nil, d.server.Run, d.agent.Run, d.adapter.Run)
}

// waitReady waits, for at most demoReadyTime, until server and sidecars can serve. A
// path that cannot be used even then reports that itself.
func (d *demo) waitReady(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, demoReadyTime)
	defer cancel()
	for ctx.Err() == nil && (d.server.Ready() != nil || d.adapter.Ready() != nil) {
		wait.For(ctx, 10*time.Millisecond)
	}
}

// makePaths makes the paths that are checked. Their dialers last until the end: a
// link that is closed with its only request may end before the connection has, which
// the status page would show as a failure.
func (d *demo) makePaths() error {
	port := func(l net.Listener) string { _, port, _ := net.SplitHostPort(l.Addr().String()); return port }
	web, secure := "http://localhost:"+port(d.ports.web)+"/", "https://localhost:"+port(d.ports.secure)+"/"
	numeric := "http://" + d.ports.web.Addr().String() + "/"
	socks, proxy, clients := d.ports.socks5.Addr().String(), d.ports.http.Addr().String(), d.ports.clients.Addr().String()
	files := d.files()
	// via is as for `konnectivity dial`; "" is a plain request to the HTTPS sidecar.
	for _, p := range []struct{ name, via, url, try string }{
		{name: "SOCKS5 sidecar, name resolved by the agent", via: "socks5://" + socks, url: web, try: fmt.Sprintf("curl --socks5-hostname %s %s", socks, web)},
		{name: "SOCKS5 sidecar, address", via: "socks5://" + socks, url: numeric, try: fmt.Sprintf("curl --socks5 %s %s", socks, numeric)},
		{name: "HTTPS sidecar, plain request", url: numeric, try: fmt.Sprintf("curl --noproxy '' --proxy http://%s %s", proxy, numeric)},
		{name: "HTTPS sidecar, CONNECT", via: "http://" + proxy, url: secure, try: fmt.Sprintf("curl --noproxy '' --proxy http://%s --cacert %s %s", proxy, files.CA, secure)},
		{name: "server, CONNECT over mTLS (kube-apiserver, HTTPConnect)", via: "https://" + clients, url: web,
			try: fmt.Sprintf("curl --noproxy '' --proxytunnel --proxy https://%s --proxy-cacert %s --proxy-cert %s --proxy-key %s %s", clients, files.CA, files.Cert, files.Key, web)},
		{name: "server, native link", via: "link://" + clients, url: web},
		{name: "server, gRPC over a unix socket (kube-apiserver, GRPC)", via: "grpc://" + d.socket(), url: web},
	} {
		transport := &http.Transport{Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: proxy})}
		if p.via != "" {
			dialer, closeDialer, err := via.Dialer(p.via, via.TLS{Files: files})
			if err != nil {
				return err
			}
			d.closers = append(d.closers, closeDialer)
			transport = &http.Transport{TLSClientConfig: d.certs.Client("localhost"), DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
				return dialer.Dial(ctx, tunnel.NewFlow(network, address))
			}}
		}
		d.paths = append(d.paths, demoPath{pathCheck{Path: p.name, Try: p.try}, p.url, transport})
	}
	return nil
}
