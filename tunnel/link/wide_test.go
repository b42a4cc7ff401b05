package link_test

import (
	"encoding/binary"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel/link"
)

// A bulk stream is granted more while it has the link to itself, and no more than before from the
// first message of another one on.
func TestBulkIsGrantedMoreWhileItIsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		r := newRig(t, link.Buffered(near), far, false, link.Config{})
		_ = r.conn.SetDeadline(time.Time{})
		bulk, from := r.dialed()
		keys, other := r.dialed()
		var limit atomic.Int64 // of bulk
		var wg sync.WaitGroup
		for _, c := range []io.Reader{from, other} {
			wg.Go(func() { _, _ = io.Copy(io.Discard, c) })
		}
		wg.Go(func() {
			for f, err := r.read(); err == nil; f, err = r.read() {
				if f.typ == tCredit && f.id == bulk {
					limit.Store(int64(binary.BigEndian.Uint64(f.payload)))
				}
			}
		})
		var sent int64
		granted := func(after time.Duration) int64 { // bulk that has been sent for so long
			for end := time.Now().Add(after); time.Now().Before(end); time.Sleep(time.Millisecond) {
				r.send(frame{tData, 0, bulk, make([]byte, 8<<10)})
				sent += 8 << 10
			}
			synctest.Wait()
			return limit.Load() - sent
		}
		const window = 128 << 10
		for _, last := range []byte{0, fin} {
			r.send(frame{tData, last, keys, []byte("k")})
			testutil.Between(t, granted(150*time.Millisecond), window/2, window, "bytes granted beside another stream")
			testutil.Between(t, granted(time.Second), 2*window, 4*window, "bytes granted to bulk alone")
		}
		_, _ = r.conn.Close(), r.ses.Close()
		wg.Wait()
	})
}
