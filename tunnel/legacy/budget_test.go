package legacy

import (
	"io"
	"testing"

	"konnectivity/tunnel"
)

// TestForgottenConnectionHoldsNothing: a connection that its mux has forgotten,
// since its peer was told of the end, may still have something to send when the
// stream is lost. Its memory is given back nevertheless.
func TestForgottenConnectionHoldsNothing(t *testing.T) {
	for name, end := range map[string]func(c *conn){
		"closed, and the peer goes on": func(c *conn) {
			_ = c.Close()
			c.receive([]tunnel.Chunk{tunnel.CopyChunk([]byte("more"))})
		},
		"ended, then reset": func(c *conn) {
			_ = c.CloseWrite()
			_ = c.Reset(io.ErrUnexpectedEOF)
		},
	} {
		for duplex, kind := range map[bool]string{true: "duplex", false: "old"} {
			t.Run(name+"/"+kind, func(t *testing.T) {
				limits := Limits{Budget: NewBudget(1 << 20)}.withDefaults()
				m := newMux(func(any) error { return nil }, ToAgent, FromAgent, limits, NoMetrics{}, nil)
				c := newServer(m, 1, duplex, "far:1", func(error) {})
				if err := c.announce(1); err != nil {
					t.Fatal(err)
				}
				if _, err := c.Write([]byte("unsent")); err != nil { // nobody runs the sender
					t.Fatal(err)
				}
				end(c)
				m.lose(&tunnel.ResetError{Code: tunnel.CodeLost})
				if used := limits.Budget.Used(); used != 0 {
					t.Errorf("%d bytes of the budget are lost", used)
				}
			})
		}
	}
}
