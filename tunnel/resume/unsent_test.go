package resume_test

import (
	"io"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// A plain connection that is closed is not over before its carrier has taken the last
// byte, however slowly the peer reads.
func TestCloseOfAPlainConnectionWaitsForCredit(t *testing.T) {
	apart(t, func(t *testing.T, w *world, c, a tunnel.Conn) {
		w.memory.Hold(memory)
		defer w.memory.Hold(-memory)
		first := make(chan int, 1)
		go func() {
			n, _ := a.Write(make([]byte, 1<<20)) // until it waits for credit
			first <- n
		}()
		synctest.Wait()
		plain := w.agent.Stats().Degraded
		testutil.Requires(t, plain == 1, "%d connections have become plain", plain)
		more := 0
		for _, n := range []int{60 << 10, tunnel.ChunkSize} { // as much as is kept
			more += n // a Write would wait for the first one
			testutil.NoError(t, a.Out().WriteChunks([]tunnel.Chunk{tunnel.CopyChunk(make([]byte, n))}))
		}
		_ = a.Close()
		got := 0
		for {
			time.Sleep(20 * time.Second)
			n, err := c.Read(make([]byte, 16<<10))
			if got += n; err != nil {
				testutil.Equal(t, err, io.EOF, "what the peer reads")
				break
			}
		}
		testutil.Equal(t, got, <-first+more, "bytes before the end")
		_ = c.Reset(nil)
	})
}
