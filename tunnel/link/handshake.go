package link

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"
)

// shakeHands exchanges HELLOs (§3). The initiator speaks first; the other side
// judges before it answers.
func (ses *Session) shakeHands(ctx context.Context, initiator bool) error {
	hello, err := ses.cfg.Hello.encode()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, ses.cfg.HandshakeTimeout)
	defer cancel()
	// A deadline in the past is what unblocks reads and writes that wait. The
	// read's comes last, so that whom it wakes may set another for a farewell.
	stop := context.AfterFunc(ctx, func() {
		_ = ses.out.conn.SetWriteDeadline(time.Unix(1, 0))
		_ = ses.out.conn.SetReadDeadline(time.Unix(1, 0))
	})
	defer stop()

	if initiator {
		if err := ses.sayHello(ctx, hello); err != nil {
			return err
		}
	}
	if err := ses.hearHello(ctx); err != nil {
		return err
	}
	if !initiator {
		if err := ses.sayHello(ctx, hello); err != nil {
			return err
		}
	}
	if !stop() {
		return handshakeError(ctx, context.Cause(ctx))
	}
	return nil
}

func (ses *Session) sayHello(ctx context.Context, hello []byte) error {
	if err := ses.out.write(appendFrame(nil, frameHello, 0, 0, hello)); err != nil {
		return handshakeError(ctx, err)
	}
	return nil
}

// hearHello reads the peer's HELLO, byte for byte, so that nothing behind it
// is taken from the read loop.
func (ses *Session) hearHello(ctx context.Context) error {
	var b [headerSize]byte
	if _, err := io.ReadFull(ses.out.conn, b[:]); err != nil {
		return ses.unheard(ctx, err)
	}
	h, err := parseHeader(b[:])
	if err != nil || h.stream != 0 || (h.typ != frameHello && h.typ != frameGoAway) {
		return ses.refuse(GoAwayProtocol, violation("the first frame is not HELLO"))
	}
	payload := make([]byte, h.length)
	if _, err := io.ReadFull(ses.out.conn, payload); err != nil {
		return ses.unheard(ctx, err)
	}
	if h.typ == frameGoAway {
		if len(payload) < 2 {
			return errShort
		}
		return &GoAwayError{Code: GoAwayCode(binary.BigEndian.Uint16(payload)), Text: cut(string(payload[2:]))}
	}
	if err := ses.peer.decode(payload); err != nil {
		return ses.refuse(GoAwayProtocol, violation("HELLO: "+err.Error()))
	}
	ses.news = Hello{ServerCount: ses.peer.ServerCount, Serving: ses.peer.Serving}
	if ses.cfg.Verify == nil {
		return nil
	}
	if err := ses.cfg.Verify(ctx, ses.peer); err != nil {
		return ses.refuse(GoAwayRefused, err)
	}
	return nil
}

// unheard is what becomes of a link whose peer's HELLO did not come. A peer
// that is late is told so (§7).
func (ses *Session) unheard(ctx context.Context, err error) error {
	err = handshakeError(ctx, err)
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return ses.refuse(GoAwayProtocol, err)
	}
	return err
}

// refuse tells the peer why it is not wanted and returns cause.
func (ses *Session) refuse(code GoAwayCode, cause error) error {
	_ = ses.out.conn.SetWriteDeadline(time.Now().Add(farewell))
	_ = ses.out.write(appendGoAway(nil, code, cause.Error()))
	return cause
}

func handshakeError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("link handshake with the peer did not finish in time: %w", context.Cause(ctx))
	}
	return fmt.Errorf("link handshake: %w", err)
}
