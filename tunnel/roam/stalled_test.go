package roam_test

import (
	"io"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/tunnel"
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
		for range 100 { // too slow for windows to grow
			if _, err := io.ReadFull(c, make([]byte, 64<<10)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if at := r.near.a.Stats().Unread; at > 128<<10 {
			t.Errorf("%d bytes wait at the opener, more than the first window", at)
		}
		if at := r.far.b.Stats().Unread; at > 2*tunnel.RecordSize {
			t.Errorf("%d bytes wait at the server, want a record or two", at)
		}
	})
}

// An agent takes no more from a destination than it has room to keep: where it has
// none, nothing is read that would have to wait for some.
func TestAnAgentReadsNoMoreThanItKeeps(t *testing.T) {
	onRoute(t, time.Minute, func(t *testing.T, r *route) {
		c, dest, _ := r.download()
		defer c.Close()
		wrote := make(chan int64)
		go func() {
			n, _ := io.Copy(dest, zeroes{})
			wrote <- n
		}()
		time.Sleep(time.Minute)
		synctest.Wait()
		_ = dest.Close()
		if taken := <-wrote - wireRoom; taken > 144<<10 {
			t.Errorf("%d bytes were taken that nobody reads, want 128 KiB and one small read", taken)
		}
	})
}
