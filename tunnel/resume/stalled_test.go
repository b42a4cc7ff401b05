package resume_test

import (
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
	"konnectivity/tunnel/resume"
)

// What a reader that stalls has not read waits at its opener, in the first window of
// the link, and once more at the agent, to be acknowledged. The server between them
// holds next to none of it, also where the agent keeps much, because bytes have moved
// for a time.
func TestAStalledReaderCostsTheServerLittle(t *testing.T) {
	onRoute(t, time.Minute, func(t *testing.T, r *route) {
		c, dest, _ := r.download()
		defer c.Close()
		defer dest.Close()
		go func() { _, _ = io.Copy(dest, zeroes{}) }()
		for range 20 { // too slow for windows to grow, and not long enough for wide ones
			testutil.Must(io.ReadFull(c, make([]byte, 64<<10)))(t)
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		testutil.AtMost(t, r.near.a.Stats().Unread, 128<<10, "bytes that wait at the opener, of the first window")
		// A record, and what it was passing on when there was no more credit, which counts
		// until all of that has gone. It would be 128 KiB if it did not follow.
		testutil.AtMost(t, r.far.b.Stats().Unread, 5*tunnel.RecordSize, "bytes that wait at the server")
	})
}

// A response that has ended is delivered whole, however long its reader stalls, and
// though the destination takes nothing more meanwhile. Who closes such a connection in
// order has to have read its end before there is room for more.
func TestAResponseOutlastsAStall(t *testing.T) {
	const size = 128 << 10
	onRoute(t, time.Minute, func(t *testing.T, r *route) {
		c, dest, _ := r.download()
		defer c.Close()
		testutil.Must(dest.Write(make([]byte, size)))(t)
		_ = dest.Close()
		time.Sleep(time.Second)
		for range 3 {
			_, _ = c.Write([]byte("more"))
			time.Sleep(time.Minute)
		}
		testutil.Equal(t, len(testutil.Must(io.ReadAll(c))(t)), size, "bytes that came")
	})
}

// Bulk transfers to destinations that take their time leave enough memory for
// others to outlive their links, too.
func TestBulkLeavesMemoryToOthers(t *testing.T) {
	w := newWorld(t, 1, 30*time.Second)
	w.opener = resume.New(resume.Options{Window: 30 * time.Second, Budget: link.NewBudget(4 << 20)})
	w.dest = testutil.Serve(t, func(c *net.TCPConn) {
		for p := make([]byte, 256<<10); ; time.Sleep(5 * time.Millisecond) {
			if _, err := c.Read(p); err != nil {
				return
			}
		}
	})
	dialer := w.opener.Dialer(w)
	dial := func() tunnel.Conn {
		return testutil.Must(dialer.Dial(t.Context(), tunnel.NewFlow("tcp", "dest:1")))(t)
	}
	var work sync.WaitGroup
	var bulk []tunnel.Conn
	for range 8 {
		c := dial()
		bulk = append(bulk, c)
		work.Go(func() { _, _ = io.Copy(c, zeroes{}) })
	}
	most, dials, plain := int64(0), 0, 0
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		c := dial()
		most = max(most, w.opener.Stats().Kept)
		if _, lasts := c.(*resume.Conn); !lasts {
			plain++
		}
		dials++
		_ = c.Close()
	}
	// On a busy machine, a few bytes more may be kept for a moment.
	testutil.AtMost(t, plain, dials/10, "plain connections of %d, with %d bytes kept at most", dials, most)
	for _, c := range bulk {
		_ = c.Reset(&tunnel.ResetError{Code: tunnel.CodeCancelled})
	}
	work.Wait()
}
