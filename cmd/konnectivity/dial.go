package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"konnectivity/internal/cli"
	"konnectivity/tunnel"
)

// dialOptions are the flags of `konnectivity dial`.
type dialOptions struct {
	via     viaFlags
	way     string
	timeout time.Duration
	verbose bool
	admin   string
}

func newDial() *cobra.Command {
	o := &dialOptions{}
	cmd := &cobra.Command{
		Use:   "dial HOST:PORT",
		Short: "Connect standard input and output to a destination behind the tunnel",
		Long: "Dial connects to HOST:PORT and carries standard input to it and its bytes to standard\n" +
			"output. The end of input is told to the destination, whose answer still arrives, as\n" +
			"TCP does it; only grpc cannot tell it. A way is\n" + viaKinds + ".",
		Example: "  echo | konnectivity dial kubernetes.default.svc:443 -v\n" +
			"  ssh -o ProxyCommand='konnectivity dial --via socks5://127.0.0.1:8090 %h:%p' core@10.0.3.7\n" +
			"  konnectivity dial --via link://proxy.example.com:8090 --ca-cert-path pki/ca.crt \\\n" +
			"      --tls-cert-path pki/client.crt --tls-key-path pki/client.key 10.0.0.1:6443",
		Args: cli.OneArg("HOST:PORT"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(cmd.Context(), args[0], stdio{cmd.InOrStdin(), cmd.OutOrStdout()}, cmd.ErrOrStderr())
		},
	}
	cli.AddFlags(cmd, "Dial flags", func(f *pflag.FlagSet) {
		f.StringVar(&o.way, "via", "socks5://127.0.0.1:8090", "the `WAY` to go")
		f.DurationVar(&o.timeout, "timeout", tunnel.DefaultDialTimeout, "how long the destination has to answer")
		f.BoolVarP(&o.verbose, "verbose", "v", false, "tell on standard error which way it goes, how long that takes and what to do when it fails")
		f.StringVar(&o.admin, "server-admin", "", "with -v, `HOST:PORT` of the server's admin port, to learn by which agent it goes")
	})
	o.via.register(cmd)
	cli.Choices(cmd, "via", "direct", "socks5://", "http://", "https://", "link://", "grpc:///")
	return cmd
}

// stdio is where bytes come from and go to.
type stdio struct {
	in  io.Reader
	out io.Writer
}

func (o *dialOptions) run(ctx context.Context, address string, std stdio, say io.Writer) error {
	if _, _, err := tunnel.SplitAddress(address); err != nil {
		return cli.Usagef("%q: %s", address, tunnel.AsDialError("", err).Text())
	}
	if o.timeout <= 0 {
		return cli.Usagef("--timeout %v: want a positive duration", o.timeout)
	}
	if !o.verbose {
		say = io.Discard
	}
	dialer, closeDialer, err := o.via.dialer(o.way)
	if err != nil {
		return err
	}
	defer closeDialer()
	flow := tunnel.NewFlow("tcp", address)
	tell := &teller{out: say, admin: o.admin, id: flow.ID}
	far, err := o.dial(ctx, dialer, flow, tell)
	if err != nil {
		return err
	}
	near := newStdioConn(std)
	relay := &tunnel.Relay{A: near, B: far, Flow: flow}
	start := time.Now()
	err = relay.Run(ctx)
	up, down := flow.Sent()
	fmt.Fprintf(say, "ended after %s: sent %s, received %s\n", span(time.Since(start)), size(float64(up)), size(float64(down)))
	if ctx.Err() != nil {
		return nil // Ctrl-C is how many end it
	}
	return err
}

func (o *dialOptions) dial(ctx context.Context, dialer tunnel.Dialer, flow *tunnel.Flow, tell *teller) (tunnel.Conn, error) {
	if o.verbose {
		tell.begin(ctx, flow.Address, o.way)
	}
	dialing, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	far, err := dialer.Dial(dialing, flow)
	switch {
	case !o.verbose:
	case err != nil:
		tell.failed(ctx, tunnel.AsDialError(flow.Address, err))
	default:
		tell.connected(ctx, dialer, far)
	}
	return far, err
}

// stdioConn is standard input and output as a connection.
type stdioConn struct {
	net.Conn // nil: a Relay asks for neither addresses nor deadlines
	in       *io.PipeReader
	out      io.Writer
	once     sync.Once
}

// newStdioConn reads input on a goroutine that nobody joins: a read from a
// terminal cannot be interrupted, and the process is about to end anyway when
// nobody wants its bytes any more.
func newStdioConn(std stdio) *stdioConn {
	r, w := io.Pipe()
	go func() {
		_, err := io.Copy(w, std.in)
		_ = w.CloseWithError(err) // nil is EOF
	}()
	return &stdioConn{in: r, out: std.out}
}

func (c *stdioConn) Read(p []byte) (int, error)  { return c.in.Read(p) }
func (c *stdioConn) Write(p []byte) (int, error) { return c.out.Write(p) }

// CloseWrite ends standard output, so that whoever reads it by a pipe knows.
func (c *stdioConn) CloseWrite() (err error) {
	c.once.Do(func() {
		if out, ok := c.out.(io.Closer); ok {
			err = out.Close()
		}
	})
	return err
}

func (c *stdioConn) Close() error {
	_ = c.in.Close()
	return c.CloseWrite()
}

func (c *stdioConn) Reset(error) error { return c.in.Close() }
