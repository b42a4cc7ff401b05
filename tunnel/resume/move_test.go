package resume_test

import (
	"context"
	"testing"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// Who is asked to move goes on by the server that asks, for it has another lane,
// and says what it moves for until it has; one that has lost its carrier goes on by
// any.
func TestMoveAsksTheSameServerFirst(t *testing.T) {
	w := &world{t: t, serve: make(grab, 1)}
	w.begin(1, time.Minute)
	type asking struct {
		first string
		bulk  bool
	}
	asked, by := make(chan asking, 10), make(chan link.Watcher, 10)
	refused := false
	c, err := w.opener.Dialer(tunnel.DialerFunc(func(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
		asked <- asking{f.Resume.First, f.Resume.Bulk}
		if f.Resume.Bulk && !refused {
			refused = true
			return nil, &tunnel.DialError{Failure: tunnel.FailUnavailable}
		}
		return overheard{watches: func(w link.Watcher) { by <- w }}.by(w.Dial(ctx, f))
	})).Dial(t.Context(), tunnel.NewFlow("tcp", "dest:1"))
	testutil.NoError(t, err)
	defer func() { _ = c.Reset(nil) }()
	(<-by).Move()
	for _, want := range []asking{{}, {"x", true}, {"", true}} {
		testutil.Equal(t, <-asked, want, "what is asked for")
	}
	again := <-by
	testutil.Eventually(t, "both ends know why it was resumed", func() bool {
		return w.opener.Stats().ByCause[tunnel.LossReplaced] == 1 && w.agent.Stats().ByCause[tunnel.LossReplaced] == 1
	})
	again.Lost(&tunnel.ResetError{Code: tunnel.CodeLost})
	testutil.Equal(t, <-asked, (asking{}), "what is asked for after a loss")
}
