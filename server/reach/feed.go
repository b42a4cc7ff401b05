package reach

import (
	"context"
	"io"
	"net"
	"sync"

	"konnectivity/internal/wait"
	"konnectivity/server/routes"
	"konnectivity/tunnel"
)

// pieceSize is how much of the routes is sent at once: about a frame.
const pieceSize = 12 << 10

// feeds are the streams on which other servers receive routes.
type feeds struct {
	running sync.WaitGroup

	mu   sync.Mutex
	open map[*feed]struct{}
}

// feed is one of them.
type feed struct {
	wake chan struct{} // capacity 1
	end  context.CancelFunc

	mu    sync.Mutex
	tells routes.Feed
}

// Tell notes that agents of this server have a key, or none has it any more. It does not
// block.
func (s *Servers) Tell(cluster string, k routes.Key, there bool) {
	s.feeds.mu.Lock()
	defer s.feeds.mu.Unlock()
	for f := range s.feeds.open {
		if !f.put(cluster, k, there) {
			delete(s.feeds.open, f)
			f.end()
			s.opts.Fault("slow")
			s.opts.Log.Warn("another server does not read what it asked to be told; it has to ask anew")
		}
	}
}

func (f *feed) put(cluster string, k routes.Key, there bool) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	defer wait.Signal(f.wake)
	return f.tells.Put(cluster, k, there)
}

// Feed is where another server's request for routes leads. It implements
// tunnel.DialerFunc.
func (s *Servers) Feed(context.Context, *tunnel.Flow) (tunnel.Conn, error) {
	near, far := net.Pipe()
	life, end := context.WithCancel(context.Background())
	f := &feed{wake: make(chan struct{}, 1), end: end}
	s.feeds.mu.Lock()
	s.feeds.open[f] = struct{}{}
	s.feeds.mu.Unlock()
	s.opts.TellAll(func(cluster string, k routes.Key) { f.put(cluster, k, true) })
	f.mu.Lock()
	f.tells.PutAll()
	f.mu.Unlock()
	wait.Signal(f.wake)
	s.feeds.running.Go(func() {
		defer end()
		defer func() {
			s.feeds.mu.Lock()
			delete(s.feeds.open, f)
			s.feeds.mu.Unlock()
		}()
		f.run(life, far)
	})
	s.feeds.running.Go(func() {
		_, _ = io.Copy(io.Discard, far) // until the stream has ended
		end()
	})
	context.AfterFunc(life, func() { _ = far.Close() })
	return tunnel.Wrap(near), nil
}

// run writes until the other side is gone, or life ends.
func (f *feed) run(life context.Context, to net.Conn) {
	for {
		f.mu.Lock()
		piece := f.tells.Take(pieceSize)
		f.mu.Unlock()
		if len(piece) > 0 {
			if _, err := to.Write(piece); err != nil {
				return
			}
			continue
		}
		select {
		case <-f.wake:
		case <-life.Done():
			return
		}
	}
}
