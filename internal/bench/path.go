package bench

import (
	"context"
	"fmt"
	"io"
	"time"

	"konnectivity/tunnel"
)

// Path is a way to a target, which is measured.
type Path struct {
	Name   string
	Dialer tunnel.Dialer
	Target string // host:port, as the far end of the path sees it
}

// dialTime bounds one dial; a path that needs longer is broken.
const dialTime = 30 * time.Second

func (p Path) dial(ctx context.Context) (tunnel.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	return p.Dialer.Dial(ctx, tunnel.NewFlow("tcp", p.Target))
}

// open dials the target and sends it a command.
func (p Path) open(ctx context.Context, command string) (tunnel.Conn, error) {
	c, err := p.dial(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := io.WriteString(c, command+"\n"); err != nil {
		_ = c.Close()
		return nil, fmt.Errorf("send %q: %w", command, err)
	}
	return c, nil
}
