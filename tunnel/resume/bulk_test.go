package resume_test

import (
	"context"
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
	l := w.listen(t)
	var work sync.WaitGroup
	work.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			work.Go(func() {
				defer c.Close()
				p := make([]byte, 256<<10)
				for {
					if _, err := c.Read(p); err != nil {
						return
					}
					time.Sleep(5 * time.Millisecond)
				}
			})
		}
	})
	dial := func() tunnel.Conn {
		c := testutil.Must(w.opener.Dialer(w).Dial(context.Background(), tunnel.NewFlow("tcp", "dest:1")))(t)
		return c
	}
	var bulk []tunnel.Conn
	for range 8 {
		c := dial()
		bulk = append(bulk, c)
		work.Go(func() {
			p := make([]byte, 64<<10)
			for {
				if _, err := c.Write(p); err != nil {
					return
				}
			}
		})
	}
	most := int64(0)
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		c := dial()
		most = max(most, w.opener.Stats().Kept)
		if _, lasts := c.(*resume.Conn); !lasts {
			t.Errorf("a plain connection, while %d bytes are kept", w.opener.Stats().Kept)
			_ = c.Close()
			break
		}
		_ = c.Close()
	}
	t.Logf("at most %d bytes were kept", most)
	for _, c := range bulk {
		_ = c.Reset(&tunnel.ResetError{Code: tunnel.CodeCancelled})
	}
	_ = l.Close()
	work.Wait()
}
