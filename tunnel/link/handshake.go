package link

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// handshake is the exchange of HELLOs (§3).
type handshake struct {
	conn    net.Conn
	cfg     *Config
	peer    Hello
	release func() bool // ends the bound of the context; false: the context has ended
}

// shake performs the whole handshake. The initiator speaks first; the other
// side judges before it answers.
func (hs *handshake) shake(ctx context.Context, initiator bool) error {
	hello, err := hs.cfg.Hello.encode()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, HandshakeTimeout)
	defer cancel()
	hs.bind(ctx)
	defer hs.release()
	if initiator {
		if err := hs.sayHello(ctx, hello); err != nil {
			return err
		}
	}
	if err := hs.hearHello(ctx); err != nil {
		return err
	}
	// From here on nothing interrupts a write: TLS could say no farewell behind it. A
	// peer that has heard our HELLO would take that for a cut.
	if !hs.release() {
		return hs.refuse(givenUp(ctx), handshakeError(ctx, context.Cause(ctx)))
	}
	if initiator {
		return nil
	}
	deadline, _ := ctx.Deadline()
	_ = hs.conn.SetWriteDeadline(deadline)
	if err := hs.sayHello(ctx, hello); err != nil {
		return err
	}
	return hs.conn.SetWriteDeadline(time.Time{})
}

// bind has the end of ctx unblock reads and writes that wait, by a deadline in the past,
// until release. No such deadline comes later than release returns.
func (hs *handshake) bind(ctx context.Context) {
	unblocked := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(unblocked)
		_ = hs.conn.SetDeadline(time.Unix(1, 0))
	})
	hs.release = sync.OnceValue(func() bool {
		if !stop() {
			<-unblocked
		}
		return ctx.Err() == nil // it may have ended just before stop
	})
}

// givenUp returns the code that tells a peer why ctx has ended, for no fault of its own.
func givenUp(ctx context.Context) GoAwayCode {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) { // Verify was late
		return GoAwayInternal
	}
	return GoAwayShutdown
}

func (hs *handshake) sayHello(ctx context.Context, hello []byte) error {
	if _, err := hs.conn.Write(appendFrame(nil, frameHello, 0, 0, hello)); err != nil {
		return handshakeError(ctx, err)
	}
	return nil
}

// hearHello reads the peer's HELLO, byte for byte, so that nothing behind it
// is taken from the read loop.
func (hs *handshake) hearHello(ctx context.Context) error {
	var b [headerSize]byte
	if _, err := io.ReadFull(hs.conn, b[:]); err != nil {
		return hs.unheard(ctx, err)
	}
	h, err := parseHeader(b[:])
	if err != nil || h.stream != 0 || (h.typ != frameHello && h.typ != frameGoAway) {
		return hs.refuse(GoAwayProtocol, violation("the first frame is not HELLO"))
	}
	payload := make([]byte, h.length)
	if _, err := io.ReadFull(hs.conn, payload); err != nil {
		return hs.unheard(ctx, err)
	}
	if h.typ == frameGoAway {
		if len(payload) < 2 {
			return errShort
		}
		return &GoAwayError{Code: GoAwayCode(binary.BigEndian.Uint16(payload)), Text: cut(payload[2:])}
	}
	if err := hs.peer.decode(payload); err != nil {
		return hs.refuse(GoAwayProtocol, violation("HELLO: "+err.Error()))
	}
	if verify := hs.cfg.Verify; verify != nil {
		err = verify(ctx, hs.peer)
	}
	if err = cmp.Or(err, hs.peer.CheckID()); err != nil {
		return hs.refuse(GoAwayRefused, err)
	}
	return nil
}

// unheard ends a link whose peer's HELLO did not come. A peer that is late is
// told so (§7).
func (hs *handshake) unheard(ctx context.Context, err error) error {
	err = handshakeError(ctx, err)
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return hs.refuse(GoAwayProtocol, err)
	}
	return err
}

// refuse tells the peer why it is not wanted and returns cause.
func (hs *handshake) refuse(code GoAwayCode, cause error) error {
	hs.release()
	_ = hs.conn.SetWriteDeadline(time.Now().Add(farewell))
	_, _ = hs.conn.Write(appendGoAway(nil, code, cause.Error()))
	return cause
}

func handshakeError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("link handshake with the peer did not finish in time: %w", context.Cause(ctx))
	}
	return fmt.Errorf("link handshake: %w", err)
}
