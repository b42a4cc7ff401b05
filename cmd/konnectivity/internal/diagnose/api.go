package diagnose

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"time"

	"konnectivity/cmd/konnectivity/internal/status"
	"konnectivity/internal/admin"
)

// API is the way of a node's programs to their API server.
type API struct {
	Address    string        // of an agent's --api-bind: HOST:PORT, or a path behind unix:
	AgentAdmin string        // the agent's admin port, which says why it failed; "" if it is not given
	Timeout    time.Duration // of each step
}

// Run checks the way step by step. It verifies no certificate, since it has no CA of the API.
func (a *API) Run(ctx context.Context) []Finding {
	r := &report{group: "API server"}
	a.walk(ctx, r)
	return r.findings
}

// walk connects to the agent, and asks the API server behind it for its certificate.
func (a *API) walk(ctx context.Context, r *report) {
	dialer := net.Dialer{Timeout: a.Timeout}
	network, address := "tcp", a.Address
	if path, is := strings.CutPrefix(address, "unix:"); is {
		network, address = "unix", path
	}
	began := time.Now()
	const step = "the agent's --api-bind"
	conn, err := dialer.DialContext(ctx, network, address)
	reset := errors.Is(err, syscall.ECONNRESET) // so soon that it was during the connect
	if err != nil && !reset {
		r.fail(step, err.Error(), "Start the node's agent with --api-bind="+a.Address+", and look into its log.")
		return
	}
	r.timed(step, a.Address+" accepts connections", began)
	var leaf *x509.Certificate
	start := time.Now()
	if !reset {
		defer conn.Close()
		leaf, err = a.greet(ctx, conn)
	}
	const server = "the API server"
	if _, spoken := errors.AsType[tls.RecordHeaderError](err); spoken {
		r.fail(server, "what answers there does not speak TLS, so it is no API server", "Check --api, and --api-server of the servers, or apiServers of the tenant.")
		return
	}
	if err != nil {
		r.fail(server, a.why(ctx, began, err), "Servers need --api-server, or apiServers of the tenant, and must reach that address; agents need a link to one of them.")
		return
	}
	r.timed(server, "answers by TLS as "+leaf.Subject.CommonName, start)
	a.checkName(r, leaf)
}

// greet returns the certificate that the other end shows. It does not verify it.
func (a *API) greet(ctx context.Context, conn net.Conn) (*x509.Certificate, error) {
	ctx, cancel := context.WithTimeout(ctx, a.Timeout)
	defer cancel()
	secure := tls.Client(conn, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2", "http/1.1"}})
	if err := secure.HandshakeContext(ctx); err != nil {
		return nil, err
	}
	return secure.ConnectionState().PeerCertificates[0], nil
}

// why is what the agent knows of a failure since began, or else err. Older failures had other
// causes.
func (a *API) why(ctx context.Context, began time.Time, err error) string {
	if a.AgentAdmin == "" {
		return err.Error()
	}
	client, wrong := status.NewClient(status.Login{})
	if wrong != nil {
		return err.Error()
	}
	defer client.Close()
	report := status.Report{Address: a.AgentAdmin}
	// all that an agent keeps: many others may have failed since
	if wrong := client.Report(ctx, &report, "", admin.KeptFailures); wrong != nil {
		return fmt.Sprintf("%v (and of the agent's admin port: %v)", err, wrong)
	}
	since := report.Status.Now.Add(-time.Since(began)) // by the agent's clock
	for _, f := range report.Failures {
		if f.Front == "api" && !f.Time.Before(since) {
			return "the agent says: " + f.Cause
		}
	}
	return err.Error()
}

// checkName warns unless the certificate is for the host in a.Address.
func (a *API) checkName(r *report, leaf *x509.Certificate) {
	host, _, err := net.SplitHostPort(a.Address)
	if err != nil {
		return // a socket has no name
	}
	const step = "certificate of the API server"
	if err := leaf.VerifyHostname(host); err != nil {
		r.warn(step, err.Error(), "Issue it for "+host+", too, or set tls-server-name in the kubeconfigs.")
		return
	}
	r.ok(step, "it is for "+host)
}
