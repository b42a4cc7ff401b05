package demo

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"text/tabwriter"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/pkg/client"

	"konnectivity/cmd/konnectivity/internal/screen"
	"konnectivity/cmd/konnectivity/internal/via"
	"konnectivity/tunnel"
)

// Check is one path of the demo and how a request over it went.
type Check struct {
	Path         string  `json:"path"`
	Error        string  `json:"error,omitempty"`
	Milliseconds float64 `json:"milliseconds"`
	Try          string  `json:"try,omitempty"` // a command line
}

const (
	checkTime = 10 * time.Second // one request; a healthy one takes milliseconds
	readyTime = 10 * time.Second // until the agent is connected
)

// Check waits until the suite is up and sends one request over each path.
func (d *Demo) Check(ctx context.Context) []Check {
	d.WaitReady(ctx)
	var checks []Check
	for _, p := range d.paths() {
		c := Check{Path: p.name, Try: p.try}
		start := time.Now()
		if err := p.get(ctx); err != nil {
			c.Error = err.Error()
		}
		c.Milliseconds = screen.Milliseconds(time.Since(start))
		checks = append(checks, c)
	}
	return checks
}

// WaitReady returns when server and sidecars could serve; a path that still
// cannot will say so itself.
func (d *Demo) WaitReady(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, readyTime)
	defer cancel()
	for ctx.Err() == nil && (d.server.Ready() != nil || d.adapter.Ready() != nil) {
		select {
		case <-ctx.Done():
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// path is one way through the suite.
type path struct {
	name, try string
	url       string
	transport *http.Transport
}

func (d *Demo) paths() []path {
	web, secure := "http://localhost:"+port(d.Ports.Web)+"/", "https://localhost:"+port(d.Ports.secure)+"/"
	socks, proxy := d.Ports.SOCKS5.Addr().String(), d.Ports.HTTP.Addr().String()
	clients := d.Ports.Clients.Addr().String()
	tlsFiles := fmt.Sprintf("--proxy-cacert %s --proxy-cert %s --proxy-key %s", d.File("ca.crt"), d.File("client.crt"), d.File("client.key"))
	numeric := "http://" + d.Ports.Web.Addr().String() + "/"
	return []path{
		{name: "SOCKS5 sidecar, name resolved by the agent", url: web, transport: dialingVia(via.SOCKS5(socks)),
			try: fmt.Sprintf("curl --socks5-hostname %s %s", socks, web)},
		{name: "SOCKS5 sidecar, address", url: numeric, transport: dialingVia(via.SOCKS5(socks)),
			try: fmt.Sprintf("curl --socks5 %s %s", socks, numeric)},
		{name: "HTTPS sidecar, plain request", url: numeric, transport: &http.Transport{Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: proxy})},
			try: fmt.Sprintf("curl --noproxy '' --proxy http://%s %s", proxy, numeric)},
		{name: "HTTPS sidecar, CONNECT", url: secure, transport: d.secured(dialingVia(via.HTTP(proxy))),
			try: fmt.Sprintf("curl --noproxy '' --proxy http://%s --cacert %s %s", proxy, d.File("ca.crt"), secure)},
		{name: "server, CONNECT over mTLS (kube-apiserver, HTTPConnect)", url: web, transport: dialingVia(d.connect),
			try: fmt.Sprintf("curl --noproxy '' --proxytunnel --proxy https://%s %s %s", clients, tlsFiles, web)},
		{name: "server, native link", url: web, transport: dialingVia(d.native)},
		{name: "server, gRPC over a unix socket (kube-apiserver, GRPC)", url: web, transport: d.grpcTransport()},
	}
}

func port(l net.Listener) string {
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}

// get sends one request and checks the answer.
func (p path) get(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	defer p.transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url, nil)
	if err != nil {
		return err
	}
	res, err := p.transport.RoundTrip(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK || string(body) != greeting {
		return fmt.Errorf("the target's answer did not arrive: %s, %q", res.Status, body)
	}
	return nil
}

// dialingVia is a transport whose connections go by d.
func dialingVia(d tunnel.Dialer) *http.Transport {
	return &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		return d.Dial(ctx, tunnel.NewFlow(network, address))
	}}
}

// secured trusts the demo target's certificate.
func (d *Demo) secured(t *http.Transport) *http.Transport {
	t.TLSClientConfig = &tls.Config{RootCAs: d.certs.ca.Pool(), MinVersion: tls.VersionTLS12}
	return t
}

// grpcTransport uses kube-apiserver's own client.
func (d *Demo) grpcTransport() *http.Transport {
	return &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		t, err := client.CreateSingleUseGrpcTunnel(ctx, "unix://"+d.File(socketName), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return nil, err
		}
		return t.DialContext(ctx, network, address)
	}}
}

// PrintJSON prints the checks for programs.
func PrintJSON(out io.Writer, checks []Check) error {
	enc := json.NewEncoder(out)
	enc.SetIndent("", "  ")
	return enc.Encode(checks)
}

// PrintTable shows the checks: with colour where a person looks, plain where
// it is piped.
func PrintTable(out io.Writer, checks []Check, colour bool) {
	green, red, off := "", "", ""
	if colour {
		green, red, off = "\x1b[32m", "\x1b[31m", "\x1b[0m"
	}
	tw := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, c := range checks {
		mark := green + "ok" + off
		if c.Error != "" {
			mark = red + "failed" + off
		}
		fmt.Fprintf(tw, "%s\t%.1f ms\t%s\n", mark, c.Milliseconds, c.Path)
	}
	_ = tw.Flush()
	for _, c := range checks {
		if c.Error != "" {
			fmt.Fprintf(out, "\n%s: %s\n", c.Path, c.Error)
		}
	}
}

// PrintTries prints what the reader can run while all of it serves.
func PrintTries(out io.Writer, checks []Check, colour bool) {
	dim, off := "", ""
	if colour {
		dim, off = "\x1b[2m", "\x1b[0m"
	}
	fmt.Fprintln(out, "\nTry it:")
	for _, c := range checks {
		if c.Try != "" {
			fmt.Fprintf(out, "\n  %s# %s%s\n  %s\n", dim, c.Path, off, c.Try)
		}
	}
}
