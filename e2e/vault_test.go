package e2e

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// order is what a client first tells the vault: which way how much goes, and for
// about how long.
type order struct {
	Kind byte
	Seed uint8
	Size int64
	Life time.Duration
}

// The kinds of transfers. Of those that are half-closed, the client ends its
// direction before it has read anything; of the others, last.
const (
	upload         = 'U' // the vault answers with the hash
	uploadClosed   = 'u' // the same, of all before the end of the direction
	download       = 'D' // the client says that it has all
	downloadClosed = 'd'
	bothWays       = 'b' // at once; each direction is ended after its last byte
	echoes         = 'p' // every byte comes back; not counted
	knock          = 'k' // a byte comes back, and the vault waits for another order
)

// halves are all kinds of transfers, wholes those that end with the connection.
var (
	halves = []byte{download, upload, downloadClosed, uploadClosed, bothWays, bothWays}
	wholes = []byte{download, upload}
)

// orderSize is the size of an order.
const orderSize = 18

func (o order) send(w io.Writer) error {
	p := binary.BigEndian.AppendUint64([]byte{o.Kind, o.Seed}, uint64(o.Size))
	_, err := w.Write(binary.BigEndian.AppendUint64(p, uint64(o.Life)))
	return err
}

func readOrder(r io.Reader) (o order, err error) {
	var p [orderSize]byte
	_, err = io.ReadFull(r, p[:])
	return order{p[0], p[1], int64(binary.BigEndian.Uint64(p[2:])), time.Duration(binary.BigEndian.Uint64(p[10:]))}, err
}

func (o order) payload() io.Reader { return newPayload(int64(o.Seed), o.Size) }

func (o order) hash() (h [sha256.Size]byte) {
	sum := sha256.New()
	_, _ = io.Copy(sum, o.payload())
	return [sha256.Size]byte(sum.Sum(nil))
}

// pace is how often something is sent.
const pace = 20 * time.Millisecond

// give sends the payload over the order's life.
func (o order) give(w io.Writer) error {
	began, steps := time.Now(), int64(max(o.Life/pace, 1))
	r := o.payload()
	for i := range steps {
		n := o.Size*(i+1)/steps - o.Size*i/steps
		if _, err := io.CopyN(w, r, n); err != nil {
			return err
		}
		time.Sleep(time.Duration(i+1)*pace - time.Since(began))
	}
	return nil
}

var errOther = errors.New("other bytes arrived")

// take reads the payload.
func (o order) take(r io.Reader) error {
	sum := sha256.New()
	if n, err := io.CopyN(sum, r, o.Size); err != nil {
		return fmt.Errorf("received %d of %d bytes: %w", n, o.Size, err)
	}
	if [sha256.Size]byte(sum.Sum(nil)) != o.hash() {
		return errOther
	}
	return nil
}

// end reads the end of a direction, which must come next.
func end(r io.Reader) error {
	switch n, err := io.ReadFull(r, make([]byte, 1)); {
	case n > 0:
		return errors.New("bytes behind the last")
	case err != io.EOF:
		return fmt.Errorf("instead of the end: %w", err)
	}
	return nil
}

// vault is the destination of transfers.
type vault struct {
	address string
	open    atomic.Int64 // connections
	failed  atomic.Int64 // transfers, as the vault sees it
}

func newVault(t testing.TB) *vault {
	v := &vault{}
	v.address = testutil.Serve(t, func(c *net.TCPConn) {
		v.open.Add(1)
		defer v.open.Add(-1)
		o, err := readOrder(c)
		if o.Kind == knock {
			_, _ = c.Write([]byte{knock})
			o, err = readOrder(c)
		}
		if err != nil {
			return // the dial was in vain
		}
		if err := v.serve(c, o); err != nil && o.Kind != echoes {
			v.failed.Add(1)
			t.Logf("the vault's end of %c, %d bytes: %v", o.Kind, o.Size, err)
		}
	})
	return v
}

// knocking waits for an answer of the vault: the front of an agent with --api-bind accepts a
// connection before it has dialed.
func knocking(by tunnel.Dialer) tunnel.Dialer {
	return tunnel.DialerFunc(func(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
		c, err := by.Dial(ctx, f)
		if err != nil {
			return nil, err
		}
		until, _ := ctx.Deadline()
		_ = c.SetDeadline(until)
		err = order{Kind: knock}.send(c)
		if err == nil {
			_, err = io.ReadFull(c, make([]byte, 1))
		}
		if err != nil {
			_ = c.Close()
			return nil, err
		}
		return c, c.SetDeadline(time.Time{})
	})
}

func (v *vault) serve(c *net.TCPConn, o order) error {
	switch o.Kind {
	case echoes:
		_, err := io.Copy(c, c)
		return err
	case download, downloadClosed:
		if err := o.give(c); err != nil {
			return err
		}
		if o.Kind == download {
			if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
				return fmt.Errorf("the thanks: %w", err)
			}
		}
		return end(c)
	case upload, uploadClosed:
		if err := o.take(c); err != nil {
			return err
		}
		if o.Kind == uploadClosed {
			if err := end(c); err != nil {
				return err
			}
		}
		h := o.hash()
		if _, err := c.Write(h[:]); err != nil || o.Kind == uploadClosed {
			return err
		}
		return end(c)
	default:
		return exchange(c, o)
	}
}

// exchange sends and receives at once.
func exchange(c tunnelConn, o order) error {
	sent := testutil.Later(func() error {
		err := o.give(c)
		if err == nil {
			err = c.CloseWrite()
		}
		return err
	})
	err := o.take(c)
	if err == nil {
		err = end(c)
	}
	return errors.Join(err, <-sent)
}

// tunnelConn is what both ends' connections have.
type tunnelConn interface {
	net.Conn
	CloseWrite() error
}

// transfer is the client's side of an order. Without halves the client never
// ends one direction alone.
func transfer(c tunnel.Conn, o order, halves bool) error {
	if err := o.send(c); err != nil {
		return err
	}
	return o.carry(c, halves)
}

// carry is the client's side of an order that it has sent.
func (o order) carry(c tunnel.Conn, halves bool) (err error) {
	switch o.Kind {
	case downloadClosed:
		if err := c.CloseWrite(); err != nil {
			return err
		}
		err = o.take(c)
	case download:
		if err = o.take(c); err == nil {
			_, err = c.Write([]byte("!"))
		}
	case upload, uploadClosed:
		err = store(c, o)
	default:
		return exchange(c, o)
	}
	if err != nil || !halves {
		return err
	}
	if o.Kind == download || o.Kind == upload {
		if err := c.CloseWrite(); err != nil {
			return err
		}
	}
	return end(c)
}

func store(c tunnel.Conn, o order) error {
	if err := o.give(c); err != nil {
		return err
	}
	if o.Kind == uploadClosed {
		if err := c.CloseWrite(); err != nil {
			return err
		}
	}
	var got [sha256.Size]byte
	if _, err := io.ReadFull(c, got[:]); err != nil {
		return fmt.Errorf("the hash: %w", err)
	}
	if got != o.hash() {
		return errOther
	}
	return nil
}
