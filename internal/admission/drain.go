package admission

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"konnectivity/tunnel"
)

// Drain is how a front lets go of its connections.
type Drain struct {
	Time  time.Duration // how long open connections may take to finish; 0 cuts them at once
	Begin func()        // called once nothing more is accepted; nil: nothing to do
}

// Serve accepts connections from ln, which it closes, until ctx ends. It then
// gives open connections the time of d, resets those that are left, and returns
// once every goroutine it started has ended: nil after ctx ended, else why
// accepting failed for good. It survives running out of descriptors. take must
// not block; what it returns serves the connection, with a context that ends
// when it is to be cut. nil: it was refused.
func (a *Acceptor) Serve(ctx context.Context, ln net.Listener, d Drain, take func(net.Conn) func(context.Context)) error {
	// Connections outlive ctx by the drain, so they have a context of their own.
	work, cut := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cut(nil)
	var conns sync.WaitGroup
	err := a.Run(ctx, ln, func(conn net.Conn) {
		if serve := take(conn); serve != nil {
			conns.Go(func() { serve(work) })
		}
	})
	if d.Begin != nil {
		d.Begin()
	}
	defer a.CutAfter(d.Time, func() { cut(&tunnel.ResetError{Code: tunnel.CodeShutdown}) }).Stop()
	conns.Wait()
	return err
}

// CutAfter calls cut once the time of a drain is over, and logs that, unless it is
// stopped because all connections have ended.
func (a *Acceptor) CutAfter(drain time.Duration, cut func()) *time.Timer {
	return time.AfterFunc(drain, func() {
		if drain > 0 {
			a.Log.Warn(fmt.Sprintf("shutting down: %s that are still open after %v are cut", a.What, drain))
		}
		cut()
	})
}
