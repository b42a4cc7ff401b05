package resume

import (
	"net"
	"os"
	"time"

	"konnectivity/tunnel"
)

var errDeadline error = os.ErrDeadlineExceeded

// deadline is one of a Conn; nil is none. Conn.mu guards it.
type deadline struct {
	tunnel.Deadline
	at        time.Time
	interrupt *time.Timer // of a write that was in the carrier as it was set; nil: none
}

// newDeadline returns a deadline that wakes the waits of c at t; nil for the zero time.
func (c *Conn) newDeadline(t time.Time) *deadline {
	if t.IsZero() {
		return nil
	}
	d := &deadline{at: t}
	d.Set(t, &c.changed)
	return d
}

// time returns the point in time; zero: never.
func (d *deadline) time() time.Time {
	if d == nil {
		return time.Time{}
	}
	return d.at
}

// passed reports whether it has passed, even if its timer has not fired: the carrier has a
// timer of its own.
func (d *deadline) passed() bool {
	return d != nil && (d.Passed() || !time.Now().Before(d.at))
}

// stop disarms it.
func (d *deadline) stop() {
	if d == nil {
		return
	}
	d.Stop()
	if d.interrupt != nil {
		d.interrupt.Stop()
	}
}

// SetDeadline implements net.Conn.
func (c *Conn) SetDeadline(t time.Time) error {
	if err := c.SetReadDeadline(t); err != nil {
		return err
	}
	return c.SetWriteDeadline(t)
}

// SetReadDeadline implements net.Conn.
func (c *Conn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.m.Closed() {
		return net.ErrClosed
	}
	c.readBy.stop()
	c.readBy = c.newDeadline(t)
	if c.st != nil {
		_ = c.st.SetReadDeadline(t)
	}
	return nil
}

// SetWriteDeadline implements net.Conn.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.m.Closed() {
		return net.ErrClosed
	}
	c.writeBy.stop()
	c.writeBy = c.newDeadline(t)
	if by := c.writeBy; by != nil && c.m.WriterSends() {
		by.interrupt = time.AfterFunc(time.Until(t), func() { c.interruptWrite(by) })
	}
	return nil
}

// interruptWrite frees a write that waits in the carrier, unless it has another deadline by
// now. It gives the carrier up, and with it a connection that is plain.
func (c *Conn) interruptWrite(by *deadline) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.writeBy != by || !c.m.Up() || !c.m.WriterSends() {
		return
	}
	if c.m.Plain() {
		_ = c.st.Reset(&tunnel.ResetError{Code: tunnel.CodeGone})
	}
	c.step(c.m.CarrierLost(c.m.Epoch(), tunnel.Lost(tunnel.LossLocal), time.Now()))
}
