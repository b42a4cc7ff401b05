package link_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// The reference: what either end of a stream must see. Between operations
// everything has arrived (synctest waits for it), so there is one right result.
type modelEnd struct {
	name string
	conn tunnel.Conn
	peer *modelEnd

	wrote, read int // bytes accepted from and given to the application
	finSent     bool
	finArrived  bool
	closed      bool         // here: Close or Reset
	lost        *tunnel.Code // why both directions are void, as this end knows
	readLate    bool         // the read deadline has passed
	writeLate   bool
}

// world is two sessions, their streams, and the model of both.
type world struct {
	t     *testing.T
	ses   [2]*link.Session
	ends  [2]hand
	all   []*modelEnd
	ended bool
}

// pattern is the byte at an offset of what an end writes.
func (e *modelEnd) pattern(offset int) byte {
	return byte(offset*7 + offset>>8 + len(e.name) + int(e.name[0]))
}

const (
	modelStreams = 4
	modelWait    = time.Second // synctest's
)

func (w *world) open(side int) {
	if len(w.all) >= 2*modelStreams {
		return
	}
	near, err := w.ses[side].Dial(context.Background(), tunnel.NewFlow("tcp", "x:1"))
	if w.ended {
		testutil.Equal(w.t, tunnel.FailureOf(err), tunnel.FailUnavailable, "a dial on a link that has ended: %v", err)
		return
	}
	testutil.NoError(w.t, err)
	n := len(w.all) / 2
	a := &modelEnd{name: fmt.Sprintf("opener%d", n), conn: near}
	b := &modelEnd{name: fmt.Sprintf("acceptor%d", n), conn: <-w.ends[1-side], peer: a}
	a.peer = b
	w.all = append(w.all, a, b)
}

// write offers n bytes and checks the error; how many were taken is checked by
// what arrives.
func (w *world) write(e *modelEnd, n int) {
	p := make([]byte, n)
	for i := range p {
		p[i] = e.pattern(e.wrote + i)
	}
	if !e.writeLate {
		_ = e.conn.SetWriteDeadline(time.Now().Add(modelWait))
	}
	got, err := e.conn.Write(p)
	late := errors.Is(err, os.ErrDeadlineExceeded)
	switch {
	case e.closed:
		w.must(errors.Is(err, net.ErrClosed) && got == 0, e, "write after Close: %d, %v", got, err)
	case e.lost != nil:
		w.must(err != nil && got == 0, e, "write to a stream that is void: %d, %v", got, err)
		if !e.finSent {
			w.must(tunnel.CodeOf(err) == *e.lost, e, "write says %v, want code %d", err, *e.lost)
		}
	case e.finSent:
		w.must(err != nil && !late && got == 0, e, "write after CloseWrite: %d, %v", got, err)
	case e.writeLate:
		w.must(late && got == 0, e, "write after its deadline: %d, %v", got, err)
	default:
		w.must(err == nil && got == n || late && got < n, e, "write of %d: %d, %v", n, got, err)
		unread := e.wrote - e.peer.read
		w.must(err == nil || unread+n > smallWindow/2, e, "no credit for %d with %d unread", n, unread)
		w.must(unread+got <= 16<<20, e, "%d unread are beyond the largest window", unread+got)
	}
	e.wrote += got
	if !e.writeLate {
		_ = e.conn.SetWriteDeadline(time.Time{})
	}
}

// read takes up to n bytes and checks each of them.
func (w *world) read(e *modelEnd, n int) {
	if !e.readLate {
		_ = e.conn.SetReadDeadline(time.Now().Add(modelWait))
	}
	p := make([]byte, n)
	got, err := e.conn.Read(p)
	available := e.peer.wrote - e.read
	switch {
	case e.closed:
		w.must(errors.Is(err, net.ErrClosed) && got == 0, e, "read after Close: %d, %v", got, err)
	case e.readLate:
		w.must(errors.Is(err, os.ErrDeadlineExceeded) && got == 0, e, "read after its deadline: %d, %v", got, err)
	case available > 0:
		w.must(err == nil && got == min(n, available), e, "read %d, %v with %d there", got, err, available)
	case e.finArrived:
		w.must(err == io.EOF, e, "read %d, %v after FIN", got, err)
	case e.lost != nil:
		w.must(got == 0 && err != io.EOF && tunnel.CodeOf(err) == *e.lost, e, "read %d, %v, want code %d", got, err, *e.lost)
	default:
		w.must(got == 0 && errors.Is(err, os.ErrDeadlineExceeded), e, "read %d, %v with nothing there", got, err)
	}
	for i := range got {
		w.must(p[i] == e.peer.pattern(e.read+i), e, "byte %d is wrong", e.read+i)
	}
	e.read += got
	if !e.readLate {
		_ = e.conn.SetReadDeadline(time.Time{})
	}
}

func (w *world) must(ok bool, e *modelEnd, format string, args ...any) {
	w.t.Helper()
	if !ok {
		w.t.Fatalf("%s: "+format, append([]any{e.name}, args...)...)
	}
}

func (w *world) closeWrite(e *modelEnd) {
	err := e.conn.CloseWrite()
	w.must((err == nil) == (!e.closed && e.lost == nil), e, "CloseWrite: %v", err)
	if err == nil {
		e.sendFin()
	}
}

// sendFin is FIN on its way, which has arrived at once.
func (e *modelEnd) sendFin() {
	e.finSent = true
	if !e.peer.closed && e.peer.lost == nil {
		e.peer.finArrived = true
	}
}

// void is a RESET that arrives at e, unless e is through with the stream.
func (e *modelEnd) void(code tunnel.Code) {
	if !e.closed && e.lost == nil && !(e.finSent && e.finArrived) {
		e.lost = &code
	}
}

func (w *world) close(e *modelEnd) {
	w.must(e.conn.Close() == nil, e, "Close failed")
	if !e.closed && e.lost == nil {
		if !e.finSent {
			e.sendFin()
		}
		if !e.finArrived {
			e.peer.void(tunnel.CodeCancelled)
		}
	}
	e.closed = true
}

func (w *world) reset(e *modelEnd, code tunnel.Code) {
	w.must(e.conn.Reset(&tunnel.ResetError{Code: code}) == nil, e, "Reset failed")
	if !e.closed && e.lost == nil && !(e.finSent && e.finArrived) {
		e.peer.void(code)
	}
	e.closed = true
}

func (w *world) deadline(e *modelEnd, how int) {
	past := time.Now().Add(-time.Second)
	var err error
	switch how % 4 {
	case 0:
		err, e.readLate = e.conn.SetReadDeadline(past), true
	case 1:
		err, e.writeLate = e.conn.SetWriteDeadline(past), true
	case 2:
		err, e.readLate, e.writeLate = e.conn.SetDeadline(past), true, true
	default:
		err, e.readLate, e.writeLate = e.conn.SetDeadline(time.Time{}), false, false
	}
	w.must(e.closed == (err != nil), e, "deadline: %v", err)
}

func (w *world) drain(side int) {
	w.ses[side].Drain()
	synctest.Wait()
	select {
	case <-w.ses[1-side].Drains().Done():
	default:
		testutil.Equal(w.t, w.ended, true, "the peer knows of the drain")
	}
}

// end closes the link from one side.
func (w *world) end(side int) {
	_ = w.ses[side].Close()
	synctest.Wait()
	w.ended = true
	for _, e := range w.all {
		if !e.closed && e.lost == nil && !(e.finSent && e.finArrived) {
			lost := tunnel.CodeLost
			e.lost = &lost
		}
	}
	for _, ses := range w.ses {
		testutil.Fails(w.t, ses.Err(), "the link, on both sides")
	}
}

// sizes are what reads and writes come in.
var sizes = []int{1, 0, 5, 100, 2000, 4096, 5000, 16372, 16373, 70000, 200000}

// step does one operation of three bytes.
func (w *world) step(op, which, amount byte) {
	size := sizes[int(amount)%len(sizes)]
	if op %= 32; op == 0 || len(w.all) == 0 {
		w.open(int(which) % 2)
		return
	}
	e := w.all[int(which)%len(w.all)]
	switch {
	case op < 12:
		if size > 0 {
			w.write(e, size)
		}
	case op < 22:
		if size > 0 {
			w.read(e, size)
		}
	case op < 25:
		w.closeWrite(e)
	case op < 27:
		w.close(e)
	case op < 28:
		w.reset(e, tunnel.Code(amount%9))
	case op < 30:
		w.deadline(e, int(amount))
	case op < 31:
		w.drain(int(which) % 2)
	case amount < 20: // seldom, since little follows it
		w.end(int(which) % 2)
	}
}

// runOperations plays ops on two sessions and checks every result, then that
// nothing is left.
func runOperations(t *testing.T, ops []byte) {
	synctest.Test(t, func(t *testing.T) {
		budgets := [2]*link.Budget{link.NewBudget(256 << 20), link.NewBudget(256 << 20)}
		w := &world{t: t, ends: [2]hand{make(hand, 1), make(hand, 1)}}
		near, far := net.Pipe()
		w.ses[0], w.ses[1] = sessions(t, near, far,
			link.Config{Handler: w.ends[0], Budget: budgets[0]}, link.Config{Handler: w.ends[1], Budget: budgets[1]})
		for ; len(ops) >= 3; ops = ops[3:] {
			w.step(ops[0], ops[1], ops[2])
			synctest.Wait()
		}
		for _, e := range w.all { // all that was written and not void is read
			for !e.closed && !e.readLate && e.peer.wrote > e.read {
				w.read(e, 100000)
			}
			w.close(e)
		}
		synctest.Wait()
		for i, ses := range w.ses {
			if n, s := ses.Streams(), ses.Stats(); n != 0 || s.Unread != 0 || budgets[i].Used() != 0 {
				t.Errorf("%d streams, %d unread, %d of the budget left", n, s.Unread, budgets[i].Used())
			}
		}
	})
}

// FuzzOperations: any sequence of operations on both ends of a few streams
// gives what the model says.
func FuzzOperations(f *testing.F) {
	f.Add([]byte{0, 0, 0, 1, 0, 3, 12, 1, 10, 22, 0, 0, 12, 1, 3, 25, 1, 0, 25, 0, 0})   // open, write, read, FIN, EOF, close
	f.Add([]byte{0, 1, 0, 1, 0, 10, 1, 1, 10, 1, 0, 10, 12, 1, 10, 12, 1, 10, 27, 0, 5}) // windows fill, reset
	f.Add([]byte{0, 0, 0, 0, 1, 0, 1, 0, 4, 31, 0, 0, 12, 1, 10, 12, 1, 10, 12, 2, 2})   // the link ends
	f.Add([]byte{0, 0, 0, 28, 0, 0, 12, 0, 1, 28, 0, 3, 12, 0, 1, 28, 1, 1, 1, 1, 1, 30, 0, 0})
	f.Fuzz(func(t *testing.T, ops []byte) {
		if len(ops) > 3*400 {
			return
		}
		runOperations(t, ops)
	})
}

// Long random sequences against the model of FuzzOperations.
func TestOperations(t *testing.T) {
	seeds := uint64(60)
	if testing.Short() {
		seeds /= 4
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 2))
			ops := make([]byte, 3*300)
			for i := range ops {
				ops[i] = byte(rnd.Uint32())
			}
			runOperations(t, ops)
		})
	}
}
