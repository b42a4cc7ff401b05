package link_test

import (
	"errors"
	"io"
	"strings"
	"testing"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// answer is what §7 says becomes of a violation.
type answer int

const (
	lives answer = iota // the link and its other streams go on
	fatal               // GOAWAY 1, then the end
)

// breach is a line of the specification. do gets a session that accepted the
// connection (the raw peer's ids are odd) with stream 1 open to an echo, or
// with initiator one that dialed it (even ids, stream 2).
type breach struct {
	name      string
	initiator bool
	do        func(r *rig, id uint64) // id: of the open stream
	want      answer
}

const protocolCode = 7

func data(id uint64, n int) frame { return frame{tData, 0, id, make([]byte, n)} }

// breaks opens stream 3, sends frames on it, and wants it to be reset for them. A dial to
// hang:1 is not answered before.
func breaks(address string, frames ...frame) func(*rig, uint64) {
	return func(r *rig, _ uint64) {
		r.send(openFrame(3, address))
		if address != "hang:1" {
			r.wantOpened(3, 0)
		}
		r.send(frames...)
		r.wantReset(3, protocolCode)
	}
}

// breaksDial is breaks for a dial of the session, by stream 2.
func breaksDial(frames ...frame) func(*rig, uint64) {
	return func(r *rig, _ uint64) {
		own := r.dial()
		r.send(frames...)
		r.wantReset(own, protocolCode)
		d := <-r.dials
		testutil.Equal(r.t, tunnel.FailureOf(d.err), tunnel.FailReset, "how the dial ended")
		testutil.Equal(r.t, tunnel.CodeOf(d.err), tunnel.CodeProtocol, "its code")
	}
}

// refused sends OPEN for stream 3 and wants it to fail for its address.
func refused(payload []byte) func(*rig, uint64) {
	return func(r *rig, _ uint64) {
		r.send(frame{tOpen, 0, 3, payload})
		r.wantOpened(3, 9)
	}
}

var breaches = []breach{
	// §2: what later versions may add.
	{"unknown frame type on the link", false, func(r *rig, id uint64) { r.send(frame{77, 0, 0, []byte("x")}) }, lives},
	{"unknown frame type on a stream", false, func(r *rig, id uint64) { r.send(frame{9, 255, id, make([]byte, largestPayload)}) }, lives},
	{"unknown frame type on a stream that never was", false, func(r *rig, id uint64) { r.send(frame{200, 0, 1 << 60, nil}) }, lives},
	{"unknown flags", false, func(r *rig, id uint64) {
		r.send(frame{tData, 0xfe, id, []byte("still data")})
		r.want(frame{tData, 0, id, []byte("still data")})
		r.send(frame{tCredit, 0xff, id, u64(firstWindow + 1)}, frame{tInfo, 0xff, 0, nil}, frame{tReset, 0xf0, id, u16(2)})
	}, lives},
	{"payload longer than the type needs", false, func(r *rig, id uint64) {
		r.send(frame{tCredit, 0, id, append(u64(firstWindow), "more"...)}, frame{tReset, 0, id, u16(2, "because")})
		r.send(frame{tPing, 0, 0, append(u64(99), "tail"...)})
		r.want(frame{tPing, ack, 0, u64(99)})
	}, lives},
	{"unknown keys", false, func(r *rig, id uint64) {
		r.send(frame{tInfo, 0, 0, fields(999, "x", 6, []byte{0, 0, 0, 9})})
		r.send(frame{tOpen, 0, id + 2, fields(2, "echo:1", 3, u64(firstWindow), 999, "x")})
		r.wantOpened(id+2, 0)
	}, lives},
	{"the last of a key counts", false, func(r *rig, id uint64) {
		r.send(frame{tOpen, 0, id + 2, fields(2, "refuse:1", 2, "echo:1", 3, u64(firstWindow))})
		r.wantOpened(id+2, 0)
	}, lives},

	// §4: frames for streams that are gone.
	{"frames for a stream that was reset", false, func(r *rig, id uint64) {
		r.send(frame{tReset, 0, id, u16(2)}, data(id, 100), frame{tCredit, 0, id, u64(1 << 40)},
			frame{tReset, 0, id, u16(1)}, frame{tOpened, 0, id, nil}, frame{tData, fin, id, nil})
	}, lives},
	{"frames for a dial that was given up", true, func(r *rig, id uint64) {
		own, conn := r.dialed()
		go func() { _ = conn.Reset(nil) }()
		r.wantType(tReset, own)
		r.send(frame{tOpened, 0, own, fields(2, u64(1))}, data(own, 5000), frame{tReset, 0, own, u16(0)}, frame{tCredit, 0, own, u64(1)})
	}, lives},
	{"DATA beyond credit for a stream that is gone", false, func(r *rig, id uint64) {
		r.send(frame{tReset, 0, id, u16(2)})
		for range 20 {
			r.send(data(id, largestPayload))
		}
	}, lives},

	// §5.
	{"CREDIT that is lower", false, func(r *rig, id uint64) {
		r.send(frame{tCredit, 0, id, u64(1)}, frame{tCredit, 0, id, u64(0)}, frame{tCredit, 0, id, u64(firstWindow)})
		r.send(frame{tData, 0, id, []byte("goes on")})
		r.want(frame{tData, 0, id, []byte("goes on")})
	}, lives},
	{"CREDIT at the bound", false, func(r *rig, id uint64) { r.send(frame{tCredit, 0, id, u64(1 << 62)}) }, lives},
	{"FIN without credit", false, func(r *rig, id uint64) {
		r.send(frame{tOpen, 0, id + 2, fields(2, "echo:1")}) // no credit at all
		r.wantOpened(id+2, 0)
		r.send(frame{tData, fin, id + 2, nil})
		f := r.wantType(tData, id+2)
		testutil.Equal(r.t, f.flags, fin, "flags")
		testutil.Equal(r.t, len(f.payload), 0, "bytes with a bare FIN")
	}, lives},
	{"empty DATA", false, func(r *rig, id uint64) { r.send(data(id, 0), data(id, 0)) }, lives},

	// §6.
	{"PONG that was not asked for", false, func(r *rig, id uint64) { r.send(frame{tPing, ack, 0, u64(1 << 50)}) }, lives},
	{"GOAWAY 0 again", false, func(r *rig, id uint64) {
		r.send(frame{tGoAway, 0, 0, u16(0, "later")}, frame{tGoAway, 0, 0, u16(0)})
	}, lives},

	// §7, line by line.
	{"frame longer than 16372", false, func(r *rig, id uint64) { r.sendBytes([]byte{tData, 0, 0x3f, 0xf5, 0, 0, 0, 0, 0, 0, 0, 1}) }, fatal},
	{"frame of 65535, unknown type", false, func(r *rig, id uint64) {
		r.sendBytes([]byte{99, 0, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0})
	}, fatal},
	{"second HELLO", false, func(r *rig, id uint64) { r.send(helloFrame(1)) }, fatal},

	{"OPEN with an id of the other side", false, func(r *rig, id uint64) { r.send(openFrame(id+1, "echo:1")) }, fatal},
	{"OPEN with an id of the other side, initiator", true, func(r *rig, id uint64) { r.send(openFrame(id+1, "echo:1")) }, fatal},
	{"OPEN twice", false, func(r *rig, id uint64) { r.send(openFrame(id, "echo:1")) }, fatal},
	{"OPEN that does not rise", false, func(r *rig, id uint64) {
		r.open(id+10, "echo:1")
		r.send(openFrame(id+8, "echo:1"))
	}, fatal},
	{"DATA for an id never used", false, func(r *rig, id uint64) { r.send(data(id+2, 10)) }, fatal},
	{"empty DATA for an id never used", false, func(r *rig, id uint64) { r.send(data(id+2, 0)) }, fatal},
	{"MOVE for an id never used", false, func(r *rig, id uint64) { r.send(frame{tMove, 0, id + 2, nil}) }, fatal},
	{"MOVE on stream 0", false, func(r *rig, id uint64) { r.send(frame{tMove, 0, 0, nil}) }, fatal},
	{"MOVE for a connection that does not outlive its stream", false, func(r *rig, id uint64) { r.send(frame{tMove, 0, id, nil}, frame{tMove, 1, id, nil}) }, lives},
	{"CREDIT for an id never used", false, func(r *rig, id uint64) { r.send(frame{tCredit, 0, id + 2, u64(1)}) }, fatal},
	{"RESET for an id never used", false, func(r *rig, id uint64) { r.send(frame{tReset, 0, id + 2, u16(0)}) }, fatal},
	{"OPENED for an id never used", false, func(r *rig, id uint64) { r.send(frame{tOpened, 0, id + 2, nil}) }, fatal},
	{"OPENED for an id of ours never used", false, func(r *rig, id uint64) { r.send(frame{tOpened, 0, 2, nil}) }, fatal},
	{"RESET for an id of ours never used", false, func(r *rig, id uint64) { r.send(frame{tReset, 0, 2, u16(0)}) }, fatal},
	{"OPENED for an id of ours never used, initiator", true, func(r *rig, id uint64) { r.send(frame{tOpened, 0, 1, nil}) }, fatal},
	{"DATA for an id of ours never used, initiator", true, func(r *rig, id uint64) { r.send(data(1, 1)) }, fatal},
	{"RESET for the largest id, initiator", true, func(r *rig, id uint64) { r.send(frame{tReset, 0, 1<<64 - 1, u16(0)}) }, fatal},
	{"CREDIT for an id of ours after the newest", true, func(r *rig, id uint64) {
		own := r.dial()
		r.send(frame{tCredit, 0, own + 2, u64(1)})
	}, fatal},

	{"short CREDIT", false, func(r *rig, id uint64) { r.send(frame{tCredit, 0, id, make([]byte, 7)}) }, fatal},
	{"short RESET", false, func(r *rig, id uint64) { r.send(frame{tReset, 0, id, []byte{1}}) }, fatal},
	{"short PING", false, func(r *rig, id uint64) { r.send(frame{tPing, 0, 0, make([]byte, 7)}) }, fatal},
	{"short PONG", false, func(r *rig, id uint64) { r.send(frame{tPing, ack, 0, nil}) }, fatal},
	{"short GOAWAY", false, func(r *rig, id uint64) { r.send(frame{tGoAway, 0, 0, []byte{0}}) }, fatal},
	{"OPEN with half a field", false, func(r *rig, id uint64) { r.send(frame{tOpen, 0, id + 2, []byte{0, 2, 0}}) }, fatal},
	{"OPEN with a field longer than the frame", false, func(r *rig, id uint64) { r.send(frame{tOpen, 0, id + 2, []byte{0, 2, 0, 9, 'x'}}) }, fatal},
	{"OPEN with credit of four bytes", false, func(r *rig, id uint64) { r.send(frame{tOpen, 0, id + 2, fields(2, "echo:1", 3, "1234")}) }, fatal},
	{"OPEN with a window and no token", false, func(r *rig, id uint64) {
		r.send(frame{tOpen, 0, id + 2, fields(2, "echo:1", 7, []byte{0, 0, 3, 0xe8})})
	}, fatal},
	{"OPEN with an epoch and no token", false, func(r *rig, id uint64) { r.send(frame{tOpen, 0, id + 2, fields(2, "echo:1", 8, []byte{0, 0, 0, 1})}) }, fatal},
	{"OPENED that does not parse", true, func(r *rig, id uint64) { r.send(frame{tOpened, 0, r.dial(), fields(1, "x")}) }, fatal},
	{"INFO that does not parse", false, func(r *rig, id uint64) { r.send(frame{tInfo, 0, 0, fields(6, "123")}) }, fatal},

	{"OPEN on stream 0", false, func(r *rig, id uint64) { r.send(openFrame(0, "echo:1")) }, fatal},
	{"OPEN on stream 0, initiator", true, func(r *rig, id uint64) { r.send(openFrame(0, "echo:1")) }, fatal},
	{"OPENED on stream 0", false, func(r *rig, id uint64) { r.send(frame{tOpened, 0, 0, nil}) }, fatal},
	{"DATA on stream 0", false, func(r *rig, id uint64) { r.send(data(0, 10)) }, fatal},
	{"empty DATA on stream 0, initiator", true, func(r *rig, id uint64) { r.send(data(0, 0)) }, fatal},
	{"CREDIT on stream 0", false, func(r *rig, id uint64) { r.send(frame{tCredit, 0, 0, u64(1)}) }, fatal},
	{"RESET on stream 0", false, func(r *rig, id uint64) { r.send(frame{tReset, 0, 0, u16(1)}) }, fatal},
	{"PING on a stream", false, func(r *rig, id uint64) { r.send(frame{tPing, 0, id, u64(1)}) }, fatal},
	{"GOAWAY on a stream", false, func(r *rig, id uint64) { r.send(frame{tGoAway, 0, id, u16(0)}) }, fatal},
	{"INFO on a stream", false, func(r *rig, id uint64) { r.send(frame{tInfo, 0, id, nil}) }, fatal},
	{"HELLO on a stream", false, func(r *rig, id uint64) { r.send(frame{tHello, 0, id, nil}) }, fatal},

	{"DATA beyond credit", false, func(r *rig, id uint64) {
		// The destination reads nothing, so no more credit can come.
		r.open(id+2, "deaf:1")
		r.send(frame{tReset, 0, id, u16(2)})
		for left := firstWindow; left > 0; left -= largestPayload {
			r.send(data(id+2, min(left, largestPayload)))
		}
		r.wantNothing()
		r.send(data(id+2, 1))
		r.wantReset(id+2, protocolCode)
	}, lives},
	{"DATA far beyond credit in one frame", false, func(r *rig, id uint64) {
		r.open(id+2, "deaf:1")
		for left := firstWindow; left > 1000; left -= largestPayload {
			r.send(data(id+2, min(left-1000, largestPayload)))
		}
		r.wantNothing()
		r.send(data(id+2, largestPayload)) // crosses the limit
		r.wantReset(id+2, protocolCode)
	}, lives},
	{"DATA after FIN", false, breaks("deaf:1", frame{tData, fin, 3, []byte("x")}, data(3, 1)), lives},
	{"FIN after FIN", false, breaks("deaf:1", frame{tData, fin, 3, nil}, frame{tData, fin, 3, nil}), lives},
	{"empty DATA after FIN", false, breaks("deaf:1", frame{tData, fin, 3, nil}, data(3, 0)), lives},
	{"DATA before OPENED, by the opener", false, breaks("hang:1", data(3, 1)), lives},
	{"empty DATA before OPENED, by the opener", false, breaks("hang:1", data(3, 0)), lives},
	{"FIN before OPENED, by the opener", false, breaks("hang:1", frame{tData, fin, 3, nil}), lives},
	{"CREDIT before OPENED, by the opener", false, breaks("hang:1", frame{tCredit, 0, 3, u64(1 << 20)}), lives},
	{"ACK before OPENED, by the opener", false, breaks("hang:1", frame{tAck, 0, 3, u64(0)}), lives},
	{"DATA before OPENED, by the acceptor", false, breaksDial(data(2, 1)), lives},
	{"CREDIT before OPENED, by the acceptor", false, breaksDial(frame{tCredit, 0, 2, u64(1 << 20)}), lives},
	{"OPENED with credit above 2^62", false, breaksDial(frame{tOpened, 0, 2, fields(2, u64(1<<63))}), lives},
	{"CREDIT above 2^62", false, breaks("deaf:1", frame{tCredit, 0, 3, u64(1<<62 + 1)}), lives},
	{"DATA after FIN, to who has not read what came before", false, func(r *rig, id uint64) {
		own, conn := r.dialed()
		r.send(frame{tData, fin, own, []byte("x")}, data(own, 1))
		r.wantReset(own, protocolCode)
		if n, err := conn.Read(make([]byte, 1)); n != 0 || tunnel.CodeOf(err) != tunnel.CodeProtocol || err == io.EOF {
			r.t.Errorf("read %d, %v: what was dropped looks like an orderly end", n, err)
		}
	}, lives},
	{"second OPENED", false, func(r *rig, id uint64) {
		own, conn := r.dialed()
		r.send(frame{tOpened, 0, own, fields(2, u64(firstWindow))})
		r.wantReset(own, protocolCode)
		testutil.Equal(r.t, tunnel.CodeOf(testutil.Err(conn.Read(make([]byte, 1)))), tunnel.CodeProtocol, "it reads")
	}, lives},
	{"OPEN without an address", false, refused(fields(3, u64(1))), lives},
	{"OPEN with an empty payload", false, refused(nil), lives},
	{"OPEN with what is no host:port", false, func(r *rig, id uint64) {
		for i, address := range []string{"echo", "echo:", ":1", "echo:0", "echo:65536", "echo:http", "a b:1", "x:1:1", "\x00:1", strings.Repeat("a", 254) + ":1", strings.Repeat("a", 600) + ":1"} {
			id := id + 2 + 2*uint64(i)
			r.send(openFrame(id, address))
			r.wantOpened(id, 9)
		}
	}, lives},

	// §8.
	{"unknown codes", false, func(r *rig, id uint64) {
		own := r.dial()
		r.send(frame{tOpened, 0, own, fields(1, u16(4711), 3, "who knows")})
		testutil.Equal(r.t, tunnel.FailureOf((<-r.dials).err), tunnel.FailInternal, "an unknown failure")
		own, conn := r.dialed()
		r.send(frame{tReset, 0, own, u16(4711)})
		var reset *tunnel.ResetError
		err := testutil.Err(conn.Read(make([]byte, 1)))
		testutil.Holds(r.t, errors.As(err, &reset) && reset.Code == tunnel.CodeUnknown, "an unknown code: %v", err)
	}, lives},
}

// Every line of the specification's §7, and every rule that something is
// ignored, frame by frame.
func TestViolations(t *testing.T) {
	noLeaks(t)
	for _, transport := range []string{"pipe", "tcp"} {
		for _, b := range breaches {
			t.Run(transport+"/"+b.name, func(t *testing.T) {
				noLeaks(t)
				near, far := transports[transport](t)
				r := newRig(t, near, far, b.initiator, link.Config{})
				defer r.end()
				id := uint64(1)
				if b.initiator {
					id = 2
				}
				r.open(id, "echo:1")
				b.do(r, id)
				if b.want == lives {
					r.wantNothing()
					r.echo(id + 1000)
					return
				}
				r.wantGoAway(1)
				<-r.ses.Done()
				testutil.ErrorSays(t, r.ses.Err(), "violation", "the session")
			})
		}
	}
}
