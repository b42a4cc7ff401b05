package resume_test

import (
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
	"konnectivity/tunnel/resume"
)

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
