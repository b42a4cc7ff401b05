package diagnose

import (
	"context"
	"crypto/x509"
	"time"

	"github.com/sirupsen/logrus"

	"konnectivity/adapters"
	"konnectivity/cmd/internal/sidecar"
	"konnectivity/cmd/konnectivity/internal/status"
	"konnectivity/internal/logging"
	"konnectivity/internal/tlsreload"
	"konnectivity/tunnel/link"
)

// Subject is the path to check, of a sidecar with these flags.
type Subject struct {
	Sidecar     sidecar.Options
	SOCKS5Port  uint16                 // the second port of konnectivity-https-proxy
	ServerAdmin string                 // the server's admin port, as for status.Client; "" if it is not given
	TokenFile   string                 // with a token for ServerAdmin; "" for none
	Target      string                 // HOST:PORT to connect to; "" for none
	Timeout     time.Duration          // of each step
	Given       func(flag string) bool // reports whether the command line has a flag
}

// Run checks the path step by step.
func Run(ctx context.Context, s *Subject) []Finding {
	c := &pathChecker{opts: s, now: time.Now, quiet: logging.Silent()}
	c.walk(ctx)
	if c.admin != nil {
		c.admin.Close()
	}
	return c.findings
}

// pathChecker checks the path of a sidecar, step by step.
type pathChecker struct {
	report
	opts *Subject
	now  func() time.Time

	cas            []*x509.Certificate // of --ca-cert-path
	quiet          logrus.FieldLogger
	source         *tlsreload.Source
	linked         bool         // the server has links
	serving        link.Serving // whether its agents serve, by the server itself
	waited         bool         // a dial ended without an answer
	reportedAgents bool         // a finding says that agents are silent or missing
	adapter        *adapters.Adapter
	admin          *status.Client // for the server's admin port; nil if it cannot be asked
}

// walk checks from near to far, and skips steps that cannot work because an earlier one
// failed, so that the first cross is the cause.
func (c *pathChecker) walk(ctx context.Context) {
	if !c.checkFiles() || !c.load() || !c.checkServer(ctx) {
		return
	}
	c.checkAdmin(ctx)
	if c.opts.Target == "" {
		c.group = "destination"
		c.add(Finding{Step: "connection through the tunnel", Result: Skipped, Cause: "no HOST:PORT was given to try"})
		return
	}
	stop, ok := c.startAdapter(ctx)
	if !ok {
		return
	}
	defer stop()
	if c.checkName(ctx) {
		c.checkDestination(ctx)
		if c.waited {
			c.recheckAgents(ctx)
		}
		c.checkFronts(ctx)
	}
}
