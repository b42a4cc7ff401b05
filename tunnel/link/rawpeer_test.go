package link_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"konnectivity/internal/testutil"
)

// The frames of docs/link-protocol.md §2, written down a second time: a test
// that used the package's own encoders would not notice a change of the wire.
const (
	tHello  = 0
	tOpen   = 1
	tOpened = 2
	tData   = 3
	tCredit = 4
	tReset  = 5
	tPing   = 6
	tGoAway = 7
	tInfo   = 8
	tAck    = 9
	tMove   = 10

	fin = 1 // of DATA
	ack = 1 // of PING

	largestPayload = 16372
	firstWindow    = 128 << 10
)

// frame is one frame as it travels.
type frame struct {
	typ, flags byte
	id         uint64
	payload    []byte
}

func (f frame) String() string {
	p := fmt.Sprintf("%x", f.payload)
	if len(p) > 80 {
		p = fmt.Sprintf("%s... (%d bytes)", p[:80], len(f.payload))
	}
	return fmt.Sprintf("{type %d flags %d id %d payload %s}", f.typ, f.flags, f.id, p)
}

func (f frame) bytes() []byte {
	b := []byte{f.typ, f.flags}
	b = binary.BigEndian.AppendUint16(b, uint16(len(f.payload)))
	b = binary.BigEndian.AppendUint64(b, f.id)
	return append(b, f.payload...)
}

// u16, u64 and fields build payloads.
func u16(v uint16, text ...string) []byte {
	b := binary.BigEndian.AppendUint16(nil, v)
	for _, t := range text {
		b = append(b, t...)
	}
	return b
}

func u64(v uint64) []byte { return binary.BigEndian.AppendUint64(nil, v) }

// fields takes key, value pairs; a value is a string or []byte.
func fields(pairs ...any) []byte {
	var b []byte
	for i := 0; i < len(pairs); i += 2 {
		var value []byte
		switch v := pairs[i+1].(type) {
		case string:
			value = []byte(v)
		case []byte:
			value = v
		}
		b = binary.BigEndian.AppendUint16(b, uint16(pairs[i].(int)))
		b = binary.BigEndian.AppendUint16(b, uint16(len(value)))
		b = append(b, value...)
	}
	return b
}

func helloFrame(role byte) frame { return frame{tHello, 0, 0, fields(1, []byte{role}, 2, "raw/1")} }

func openFrame(id uint64, address string) frame {
	return frame{tOpen, 0, id, fields(2, address, 3, u64(firstWindow))}
}

// rawPeer is the far side of a session, frame by frame.
type rawPeer struct {
	t     testing.TB
	conn  net.Conn
	pings uint64
}

// send writes frames; what the session answers meanwhile waits in its own
// goroutines, since its read loop never writes.
func (p *rawPeer) send(frames ...frame) {
	p.t.Helper()
	var b []byte
	for _, f := range frames {
		b = append(b, f.bytes()...)
	}
	p.sendBytes(b)
}

func (p *rawPeer) sendBytes(b []byte) {
	p.t.Helper()
	_ = p.conn.SetWriteDeadline(time.Now().Add(patience))
	testutil.NoError(p.t, testutil.Err(p.conn.Write(b)))
}

// read returns the next frame of any kind.
func (p *rawPeer) read() (frame, error) {
	var h [12]byte
	_ = p.conn.SetReadDeadline(time.Now().Add(patience))
	if _, err := io.ReadFull(p.conn, h[:]); err != nil {
		return frame{}, err
	}
	f := frame{typ: h[0], flags: h[1], id: binary.BigEndian.Uint64(h[4:])}
	f.payload = make([]byte, binary.BigEndian.Uint16(h[2:]))
	if len(f.payload) > largestPayload { // a tracePeer's has no t
		p.t.Errorf("a frame with %d bytes came from the session", len(f.payload))
	}
	_, err := io.ReadFull(p.conn, f.payload)
	return f, err
}

// next returns the next frame that is not one of the session's own PINGs.
func (p *rawPeer) next() frame {
	p.t.Helper()
	for {
		f := testutil.Must(p.read())(p.t)
		if f.typ != tPing || f.flags&ack != 0 {
			return f
		}
	}
}

// want fails the test unless the next frame is exactly this one.
func (p *rawPeer) want(want frame) {
	p.t.Helper()
	if got := p.next(); got.typ != want.typ || got.flags != want.flags || got.id != want.id || !bytes.Equal(got.payload, want.payload) {
		p.t.Fatalf("got frame %v, want %v", got, want)
	}
}

// wantType returns the next frame, which must be of this type and stream.
func (p *rawPeer) wantType(typ byte, id uint64) frame {
	p.t.Helper()
	f := p.next()
	testutil.Requires(p.t, f.typ == typ && f.id == id, "got frame %v, want type %d on stream %d", f, typ, id)
	return f
}

func (p *rawPeer) wantReset(id uint64, code uint16) {
	p.t.Helper()
	p.want(frame{tReset, 0, id, u16(code)})
}

func (p *rawPeer) wantOpened(id uint64, failure uint16) {
	p.t.Helper()
	f := p.wantType(tOpened, id)
	var got uint16
	if value, ok := fieldOf(f.payload, 1); ok {
		got = binary.BigEndian.Uint16(value)
	}
	testutil.Equal(p.t, got, failure, "failure in OPENED, %v", f)
	_, granted := fieldOf(f.payload, 2)
	testutil.Equal(p.t, granted, failure == 0, "credit is given with failure %d", failure)
}

func fieldOf(b []byte, key uint16) ([]byte, bool) {
	for len(b) >= 4 {
		n := int(binary.BigEndian.Uint16(b[2:]))
		if binary.BigEndian.Uint16(b) == key {
			return b[4 : 4+n], true
		}
		b = b[4+n:]
	}
	return nil, false
}

// wantGoAway expects the link to end with a code, and nothing after it.
func (p *rawPeer) wantGoAway(code uint16) {
	p.t.Helper()
	f := p.wantType(tGoAway, 0)
	testutil.Equal(p.t, binary.BigEndian.Uint16(f.payload), code, "code of GOAWAY (%q)", f.payload[2:])
	if f, err := p.read(); err == nil {
		p.t.Fatalf("frame %v after GOAWAY", f)
	} else if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrClosedPipe) && !errors.Is(err, syscall.ECONNRESET) {
		p.t.Fatalf("the connection was not closed after GOAWAY: %v", err)
	}
}

// wantNothing proves that whatever was sent last has no answer: everything the
// session has to say comes before its answer to the second of two PINGs.
func (p *rawPeer) wantNothing() {
	p.t.Helper()
	for range 2 {
		p.pings++
		p.send(frame{tPing, 0, 0, u64(p.pings)})
		p.want(frame{tPing, ack, 0, u64(p.pings)})
	}
}

// open opens a stream at the session and returns once it is answered.
func (p *rawPeer) open(id uint64, address string) {
	p.t.Helper()
	p.send(openFrame(id, address))
	p.wantOpened(id, 0)
}

// echo proves that the link carries streams: id is a stream not used before.
func (p *rawPeer) echo(id uint64) {
	p.t.Helper()
	p.open(id, "echo:1")
	p.send(frame{tData, fin, id, []byte("are you there")})
	f := p.wantType(tData, id)
	testutil.Equal(p.t, string(f.payload), "are you there", "the echo")
	if f.flags != fin { // FIN may come by itself
		p.want(frame{tData, fin, id, nil})
	}
}
