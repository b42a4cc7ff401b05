package apiserver

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"konnectivity/internal/testutil"
)

// A pump sends a block at a time, as an application that is at work all the
// while does, and not as fast as it can.
const (
	pumpBlock = 32 << 10
	pumpPause = 20 * time.Millisecond
)

// pump sends bytes to an echo, and checks them, until it is stopped.
type pump struct {
	name    string
	stop    context.CancelFunc
	got     atomic.Int64
	done    chan struct{}
	pause   time.Duration // the longest between two blocks; from here on valid once done is closed
	sent    hash.Hash
	back    hash.Hash
	written int64
	err     error
}

// newPump begins at once. When it is to end, it calls end, which the other side
// sees, and reads out to its end; exited then says how the program ended.
func newPump(name string, in io.Writer, end func() error, out io.Reader, exited func() error) *pump {
	ctx, stop := context.WithCancel(context.Background())
	p := &pump{name: name, stop: stop, done: make(chan struct{}), sent: sha256.New(), back: sha256.New()}
	var work sync.WaitGroup
	var sent, received error
	work.Go(func() { sent = p.send(ctx, in, end) })
	work.Go(func() { received = p.receive(out) })
	go func() {
		defer close(p.done)
		work.Wait()
		p.err = errors.Join(sent, received, exited())
	}()
	return p
}

func (p *pump) send(ctx context.Context, w io.Writer, end func() error) error {
	random, block := rand.NewChaCha8([32]byte{}), make([]byte, pumpBlock)
	for tick := time.NewTicker(pumpPause); ctx.Err() == nil; <-tick.C {
		_, _ = random.Read(block)
		n, err := w.Write(block)
		p.sent.Write(block[:n])
		p.written += int64(n)
		if err != nil {
			return fmt.Errorf("send after %d bytes: %w", p.written, err)
		}
	}
	return end()
}

func (p *pump) receive(out io.Reader) error {
	last := time.Now()
	for buf := make([]byte, pumpBlock); ; {
		n, err := out.Read(buf)
		p.back.Write(buf[:n])
		p.got.Add(int64(n))
		p.pause, last = max(p.pause, time.Since(last)), time.Now()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("receive after %d bytes: %w", p.got.Load(), err)
		}
	}
}

// finish ends it and expects every byte back.
func (p *pump) finish(t *testing.T) {
	p.stop()
	<-p.done
	same := bytes.Equal(p.sent.Sum(nil), p.back.Sum(nil))
	if got := p.got.Load(); p.err != nil || got != p.written || !same {
		t.Errorf("%s: %d bytes sent, %d back, the same: %v; %v", p.name, p.written, got, same, p.err)
	}
	t.Logf("%s: %d bytes there and back, at most %v without any", p.name, p.written, p.pause.Round(time.Millisecond))
}

// pumpExec has kubectl exec run cat.
func (w *world) pumpExec() *pump {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	w.t.Cleanup(cancel)
	cmd := w.kubectl(ctx, "", "exec", "-i", "-n", "apps", "hello", "--", "cat")
	cmd.Stdin = nil
	in, out := must(cmd.StdinPipe())(w.t), must(cmd.StdoutPipe())(w.t)
	testutil.NoError(w.t, cmd.Start())
	return newPump("exec", in, in.Close, out, cmd.Wait)
}

// pumpForward has kubectl port-forward lead to what echoes.
func (w *world) pumpForward() *pump {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cmd := w.kubectl(ctx, "", "port-forward", "-n", "apps", "pod/hello", ":8080")
	out := must(cmd.StdoutPipe())(w.t)
	testutil.NoError(w.t, cmd.Start())
	w.t.Cleanup(func() { cancel(); _ = cmd.Wait() })
	line := must(bufio.NewReader(out).ReadString('\n'))(w.t)
	c := must(net.Dial("tcp", strings.TrimPrefix(strings.Split(line, " -> ")[0], "Forwarding from ")))(w.t)
	return newPump("port-forward", c, c.(*net.TCPConn).CloseWrite, c, c.Close)
}

// outlive replaces every server in order and then kills each. Open connections go on,
// and requests that come meanwhile are answered.
func (w *world) outlive(t *testing.T) {
	w.t = t
	pumps := []*pump{w.pumpExec(), w.pumpForward()}
	followers := []*follower{w.follow(), w.follow()}
	l := w.press()
	time.Sleep(breath)
	for i, s := range w.servers {
		told := time.Now()
		w.stopServer(i)
		t.Logf("server %d left %.1f s after it was told to", i, time.Since(told).Seconds())
		w.goOn(pumps)
		w.restartServer(i)
		w.join(s)
	}
	for i, s := range w.servers {
		w.killServer(s)
		w.goOn(pumps)
		w.restartServer(i)
		w.join(s)
	}
	time.Sleep(breath)
	l.end()
	t.Logf("requests: %v; %d were cut, %d lost", l.sent, len(l.cut), len(l.lost))
	for _, f := range append(l.cut, l.lost...) {
		t.Errorf("%s failed: %.300v", f.kind, f.err)
	}
	for _, p := range pumps {
		p.finish(t)
	}
	for i, f := range followers {
		testutil.Holds(t, f.runs(), "follower %d ended after %d lines", i, f.lines)
	}
	checkFollowers(t, followers, nil)
}

// goOn waits until each pump has had some more.
func (w *world) goOn(pumps []*pump) {
	w.t.Helper()
	for _, p := range pumps {
		from := p.got.Load() + 1<<20
		wait(w.t, p.name+" goes on", func() bool {
			select {
			case <-p.done:
				w.t.Fatalf("%s ended: %v", p.name, p.err)
			default:
			}
			return p.got.Load() > from
		})
	}
}

// killServer kills a server, and then takes it out of the Service.
func (w *world) killServer(s *server) {
	s.Kill()
	time.Sleep(endpointLag)
	s.endpoint.Store(false)
}
