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

	"konnectivity/adapters/uplink"
	"konnectivity/internal/admin"
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
	id := tunnel.NewID()
	fmt.Fprintf(say, "connection %s to %s by %s\n", id, address, o.way)
	far, err := o.dial(tunnel.WithID(ctx, id), dialer, address, say)
	if err != nil {
		return err
	}
	o.tellWay(ctx, dialer, far, id, say)
	near := newStdioConn(std)
	relay := &tunnel.Relay{A: near, B: far}
	start := time.Now()
	err = relay.Run(ctx)
	up, down := relay.Sent()
	fmt.Fprintf(say, "ended after %s: sent %s, received %s\n", span(time.Since(start)), size(float64(up)), size(float64(down)))
	if ctx.Err() != nil {
		return nil // Ctrl-C is how many end it
	}
	return err
}

func (o *dialOptions) dial(ctx context.Context, dialer tunnel.Dialer, address string, say io.Writer) (tunnel.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	start := time.Now()
	far, err := dialer.Dial(ctx, "tcp", address)
	if err != nil {
		dial := tunnel.AsDialError(address, err)
		fmt.Fprintf(say, "failed after %s: %s\n", span(time.Since(start)), dial.Failure)
		if hint := admin.Hint(dial.Failure); hint != "" {
			fmt.Fprintln(say, hint)
		}
		return nil, err
	}
	fmt.Fprintf(say, "connected in %s", duration(time.Since(start).Seconds()))
	up, ok := dialer.(*uplink.Server)
	linked := ok && len(up.Links()) > 0 // else that is the address of a proxy
	if remote := far.RemoteAddr(); linked && remote != nil && remote.String() != "" {
		fmt.Fprintf(say, ", to %s", remote)
	}
	fmt.Fprintln(say)
	return far, nil
}

// tellWay tells what is known of the hops.
func (o *dialOptions) tellWay(ctx context.Context, dialer tunnel.Dialer, far tunnel.Conn, id string, say io.Writer) {
	if !o.verbose {
		return
	}
	if up, ok := dialer.(*uplink.Server); ok {
		for _, l := range up.Links() {
			fmt.Fprintf(say, "server %s (%s) at %s, round trip %s\n", plain(l.Peer.ID), plain(l.Peer.Software), l.Address, duration(l.Stats.RTT.Seconds()))
		}
	}
	if o.admin == "" {
		return
	}
	client := newAdminClient()
	defer client.close()
	c, err := client.connection(ctx, o.admin, id)
	for n := 0; n < 10 && err == nil && c == nil; n++ { // it answers us before it lists us
		time.Sleep(50 * time.Millisecond)
		c, err = client.connection(ctx, o.admin, id)
	}
	switch {
	case err != nil:
		fmt.Fprintf(say, "%s: %v\n", o.admin, err)
	case c == nil:
		fmt.Fprintf(say, "%s: it does not know the connection; it is another server, or the way loses the id\n", o.admin)
	default:
		fmt.Fprintf(say, "the server goes by %s\n", plain(c.Next))
	}
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
