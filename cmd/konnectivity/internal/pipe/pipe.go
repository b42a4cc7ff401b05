package pipe

import (
	"context"
	"fmt"
	"io"
	"time"

	"konnectivity/cmd/konnectivity/internal/screen"
	"konnectivity/cmd/konnectivity/internal/status"
	"konnectivity/tunnel"
)

// Pipe is one connection of standard input and output to a destination.
type Pipe struct {
	In  io.Reader
	Out io.Writer
	Say io.Writer // hears which way it goes, and how that ended; nil: nobody asked

	Dialer  tunnel.Dialer
	Way     string // the --via that Dialer goes by
	Timeout time.Duration
	Admin   string       // the server's admin port, as of status.Client, to show which agent it uses; "" is unknown
	Login   status.Login // for Admin
}

// Run connects to address, and carries bytes until both sides have ended.
func (p *Pipe) Run(ctx context.Context, address string) error {
	flow := tunnel.NewFlow("tcp", address)
	far, err := p.dial(ctx, flow)
	if err != nil {
		return err
	}
	near := tunnel.Wrap(newStdioConn(p.In, p.Out))
	relay := &tunnel.Relay{A: near, B: far, Flow: flow}
	start := time.Now()
	err = relay.Run(ctx)
	up, down := flow.Sent()
	if p.Say != nil {
		fmt.Fprintf(p.Say, "ended after %s: sent %s, received %s\n", screen.Span(time.Since(start)), screen.Bytes(float64(up)), screen.Bytes(float64(down)))
	}
	if ctx.Err() != nil {
		return nil // Ctrl-C is how many end it
	}
	return err
}

func (p *Pipe) dial(ctx context.Context, flow *tunnel.Flow) (tunnel.Conn, error) {
	dialing, cancel := context.WithTimeout(ctx, p.Timeout)
	defer cancel()
	if p.Say == nil {
		return p.Dialer.Dial(dialing, flow)
	}
	client := status.NewClient()
	defer client.Close()
	if p.Admin != "" {
		if err := client.Present(p.Login); err != nil {
			return nil, err
		}
	}
	tell := &teller{out: p.Say, admin: p.Admin, client: client, id: flow.ID}
	tell.begin(ctx, flow.Address, p.Way)
	far, err := p.Dialer.Dial(dialing, flow)
	if err != nil {
		tell.failed(ctx, tunnel.AsDialError(flow.Address, err))
		return nil, err
	}
	tell.connected(ctx, p.Dialer, far)
	return far, nil
}
