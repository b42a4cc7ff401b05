package diagnose

import (
	"context"
	"crypto/x509"
	"time"

	"github.com/sirupsen/logrus"

	"konnectivity/adapters"
	"konnectivity/cmd/internal/sidecar"
	"konnectivity/cmd/konnectivity/internal/screen"
	"konnectivity/internal/logging"
	"konnectivity/internal/printable"
	"konnectivity/internal/tlsreload"
	"konnectivity/tunnel/link"
)

// Subject is what to diagnose: the way of a sidecar with these flags.
type Subject struct {
	Sidecar     sidecar.Options
	SOCKS5Port  uint16                 // the second port of konnectivity-https-proxy
	ServerAdmin string                 // the server's admin port, as of status.Client; "" is unknown
	TokenFile   string                 // with the token that it asks for; "": none
	Target      string                 // HOST:PORT to connect to; "" is none
	Timeout     time.Duration          // of each step
	Given       func(flag string) bool // on the command line
}

// Run walks the way, and says of each step whether it works.
func Run(ctx context.Context, s *Subject) []Finding {
	c := &checker{opts: s, now: time.Now, quiet: logging.Discard()}
	c.walk(ctx)
	return c.findings
}

// Results of a step.
const (
	OK      = "ok"
	Warning = "warning"
	Failed  = "failed"
	Skipped = "skipped"
)

// Finding is what a step found.
type Finding struct {
	Group        string   `json:"group"`
	Step         string   `json:"step"`
	Result       string   `json:"result"`
	Cause        string   `json:"cause,omitempty"` // or, of what works, what was found
	Hint         string   `json:"hint,omitempty"`
	Milliseconds *float64 `json:"milliseconds,omitempty"` // nil where time tells nothing
}

// checker walks the steps and keeps what it found.
type checker struct {
	opts     *Subject
	now      func() time.Time
	group    string
	findings []Finding

	cas        []*x509.Certificate // of --ca-cert-path
	quiet      logrus.FieldLogger
	source     *tlsreload.Source
	linked     bool         // the server has links
	serving    link.Serving // what the server says of its agents
	waited     bool         // a dial ended without an answer
	toldSilent bool         // that agents are silent, or that there is none
	adapter    *adapters.Adapter
}

// walk goes from near to far. It leaves out what cannot work because an earlier
// step failed, so that the first cross is the cause.
func (c *checker) walk(ctx context.Context) {
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
			c.checkAgain(ctx)
		}
		c.checkFronts(ctx)
	}
}

func (c *checker) add(f Finding) {
	f.Group = c.group
	printable.All(&f) // causes are in the words of others
	c.findings = append(c.findings, f)
}

func (c *checker) ok(step, found string) {
	c.add(Finding{Step: step, Result: OK, Cause: found})
}

func (c *checker) warn(step, cause, hint string) {
	c.add(Finding{Step: step, Result: Warning, Cause: cause, Hint: hint})
}

// fail returns false, for steps that end with it.
func (c *checker) fail(step, cause, hint string) bool {
	c.add(Finding{Step: step, Result: Failed, Cause: cause, Hint: hint})
	return false
}

// timed is ok with how long it took.
func (c *checker) timed(step, found string, start time.Time) {
	c.add(Finding{Step: step, Result: OK, Cause: found, Milliseconds: milliseconds(time.Since(start))})
}

// milliseconds is never nil: a step that took no time was measured, too.
func milliseconds(took time.Duration) *float64 {
	ms := screen.Milliseconds(took)
	return &ms
}
