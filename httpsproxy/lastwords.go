package httpsproxy

import (
	"sync"
	"sync/atomic"
	"time"
)

// lastWords is how long a destination that takes no more of a request may keep
// silent and still be listened to.
const lastWords = 5 * time.Second

// listening is the reading side of a connection of the transport, by which its
// writing side knows whether somebody still reads.
type listening struct {
	reads atomic.Int64
	over  chan struct{} // closed when nothing more will be read
	once  sync.Once
}

func newListening() *listening { return &listening{over: make(chan struct{})} }

func (l *listening) end() { l.once.Do(func() { close(l.over) }) }

// await returns when nothing more will be read, or nothing was for lastWords.
func (l *listening) await() {
	timer := time.NewTimer(lastWords)
	defer timer.Stop()
	for seen := l.reads.Load(); ; {
		select {
		case <-l.over:
			return
		case <-timer.C:
		}
		now := l.reads.Load()
		if now == seen {
			return
		}
		seen = now
		timer.Reset(lastWords)
	}
}

// Read is for http.Transport.
func (d *dialed) Read(p []byte) (int, error) {
	n, err := d.Conn.Read(p)
	d.listening.reads.Add(1)
	if err != nil {
		d.listening.end()
	}
	return n, err
}

// Write is for http.Transport, which drops a connection as soon as it fails, and
// with it the answer of a destination that refuses an upload and hangs up. So it
// learns of that once the answer was read.
func (d *dialed) Write(p []byte) (int, error) {
	n, err := d.Conn.Write(p)
	if err != nil {
		d.listening.await()
	}
	return n, err
}

// Close is for http.Transport.
func (d *dialed) Close() error {
	d.listening.end()
	return d.Conn.Close()
}
