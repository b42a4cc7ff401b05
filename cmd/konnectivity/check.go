package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"konnectivity/adapters"
	"konnectivity/cmd/internal/sidecar"
	"konnectivity/internal/cli"
	"konnectivity/internal/printable"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// checkOptions are the flags of `konnectivity check`: all of a sidecar's, so
// that its command line can be pasted, and a few of its own.
type checkOptions struct {
	sidecar     sidecar.Options
	socks5Port  uint16 // the second port of konnectivity-https-proxy
	serverAdmin string
	output      string
	timeout     time.Duration
	given       func(flag string) bool // on the command line
}

// stepTimeout lets what a server says when its own time is up arrive.
const stepTimeout = tunnel.DefaultDialTimeout + 2*time.Second

func newCheck() *cobra.Command {
	o := &checkOptions{sidecar: sidecar.Options{Program: "konnectivity", Front: sidecar.SOCKS5}}
	cmd := &cobra.Command{
		Use:   "check [HOST:PORT]",
		Short: "Find out which step on the way through the tunnel fails, and why",
		Long: "Check takes the flags of a sidecar, walks the same way as that sidecar does, and says\n" +
			"of each step whether it works, else why and what to do: files, certificates, the\n" +
			"server and its protocol, its agents, names, and with HOST:PORT a connection there,\n" +
			"also through sidecars that run here. It changes nothing. The exit status is 1 if a\n" +
			"step failed; warnings do not count.",
		Example: "  konnectivity check --konnectivity-hostname=proxy.example.com --konnectivity-port=8090 \\\n" +
			"      --ca-cert-path=ca.crt --tls-cert-path=client.crt --tls-key-path=client.key kubernetes.default.svc:443",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(cmd.Context(), cmd.OutOrStdout(), strings.Join(args, ""))
		},
	}
	cli.AddFlags(cmd, "Check flags", func(f *pflag.FlagSet) {
		f.StringVar(&o.serverAdmin, "server-admin", "", "`HOST:PORT` of the server's admin port, to look at its agents")
		f.Uint16Var(&o.socks5Port, "socks5-serving-port", 0, "second port of a konnectivity-https-proxy, to try it too")
		f.StringVarP(&o.output, "output", "o", "text", "text or json")
		f.DurationVar(&o.timeout, "timeout", stepTimeout, "how long each step may take; longer than a server's own patience, whose word arrives then")
	})
	o.sidecar.AddFlags(cmd)
	cli.Choices(cmd, "output", "text", "json")
	cli.Choices(cmd, "link", "auto", "off", "require")
	o.given = cmd.Flags().Changed
	return cmd
}

// errChecksFailed makes the exit status 1; the list has said why.
var errChecksFailed = errors.New("not every step works")

func (o *checkOptions) run(ctx context.Context, out io.Writer, target string) error {
	if err := o.validate(target); err != nil {
		return err
	}
	c := &checker{opts: o, target: target, now: time.Now}
	c.walk(ctx)
	if o.output == "json" {
		enc := json.NewEncoder(out)
		enc.SetIndent("", "  ")
		if err := enc.Encode(c.findings); err != nil {
			return err
		}
	} else {
		printFindings(out, c.findings, newPaint(isTerminal(out)), screenOf(out).columns)
	}
	for _, f := range c.findings {
		if f.Result == resultFailed {
			return errChecksFailed
		}
	}
	return nil
}

func (o *checkOptions) validate(target string) error {
	s := &o.sidecar
	switch {
	case o.output != "text" && o.output != "json":
		return cli.Usagef("--output %q: want text or json", o.output)
	case o.timeout <= 0:
		return cli.Usagef("--timeout %v: want a positive duration", o.timeout)
	case !tunnel.ValidHost(s.ServerHost):
		return cli.Usagef("--konnectivity-hostname %q: want the name or IP address of the konnectivity server", s.ServerHost)
	case s.ServerPort == 0:
		return cli.Usagef("--konnectivity-port: want a port from 1 to 65535, got 0")
	}
	if target != "" {
		if _, _, err := tunnel.SplitAddress(target); err != nil {
			return cli.Usagef("%q: %s", target, tunnel.AsDialError("", err).Text())
		}
	}
	if o.serverAdmin != "" {
		if _, _, err := net.SplitHostPort(o.serverAdmin); err != nil {
			return cli.Usagef("--server-admin %q: want HOST:PORT", o.serverAdmin)
		}
	}
	return nil
}

// Results of a step.
const (
	resultOK      = "ok"
	resultWarning = "warning"
	resultFailed  = "failed"
	resultSkipped = "skipped"
)

// finding is what a step found.
type finding struct {
	Group        string   `json:"group"`
	Step         string   `json:"step"`
	Result       string   `json:"result"`
	Cause        string   `json:"cause,omitempty"` // or, of what works, what was found
	Hint         string   `json:"hint,omitempty"`
	Milliseconds *float64 `json:"milliseconds,omitempty"` // nil where time tells nothing
}

// checker walks the steps and keeps what it found.
type checker struct {
	opts     *checkOptions
	target   string
	now      func() time.Time
	group    string
	findings []finding

	files      material     // as far as they could be read
	linked     bool         // the server has links
	serving    link.Serving // what the server says of its agents
	waited     bool         // a dial ended without an answer
	toldSilent bool         // that agents are silent, or that there is none
	adapter    *adapters.Adapter
}

// walk goes from what is near to what is far. What cannot work since a step
// before failed is left out, so that the first cross is the cause.
func (c *checker) walk(ctx context.Context) {
	if !c.checkFiles() {
		return
	}
	if !c.checkServer(ctx) {
		return
	}
	c.checkAdmin(ctx)
	if c.target == "" {
		c.group = "destination"
		c.add(finding{Step: "connection through the tunnel", Result: resultSkipped, Cause: "no HOST:PORT was given to try"})
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

func (c *checker) add(f finding) {
	f.Group = c.group
	printable.All(&f) // causes are in the words of others
	c.findings = append(c.findings, f)
}

func (c *checker) ok(step, found string) {
	c.add(finding{Step: step, Result: resultOK, Cause: found})
}

func (c *checker) warn(step, cause, hint string) {
	c.add(finding{Step: step, Result: resultWarning, Cause: cause, Hint: hint})
}

// fail returns false, for steps that end with it.
func (c *checker) fail(step, cause, hint string) bool {
	c.add(finding{Step: step, Result: resultFailed, Cause: cause, Hint: hint})
	return false
}

// timed is ok with how long it took.
func (c *checker) timed(step, found string, start time.Time) {
	c.add(finding{Step: step, Result: resultOK, Cause: found, Milliseconds: milliseconds(time.Since(start))})
}

// milliseconds never is nil, however short a step was: what was measured is told.
func milliseconds(took time.Duration) *float64 {
	ms := float64(took.Microseconds()) / 1000
	return &ms
}
