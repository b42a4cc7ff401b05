package resume

import (
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/testutil"
)

// A dial that is asked for again, while the opener is being told of the connection that
// has come of the first attempt, waits until it has a carrier, or has come to nothing.
func TestAskedForAgainAsTheFirstIsAnswered(t *testing.T) {
	for name, told := range map[string]bool{"the opener was told": true, "the opener was lost": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newEnds(t)
				token := [16]byte{1}
				first := &dial{answered: make(chan struct{}), cancel: func(error) { t.Error("the connection was given up") }}
				testutil.Must(e.registerDial(t.Context(), token, first))(t)
				c := e.newConn(nil, time.Minute, 0, token, "dest:1")
				testutil.NoError(t, e.add(c, first))
				entered := make(chan bool, 1)
				go func() {
					done, err := e.registerDial(t.Context(), token, &dial{number: 1, answered: make(chan struct{})})
					if err != nil {
						t.Error(err)
					}
					entered <- done
				}()
				synctest.Wait()
				if len(entered) > 0 {
					t.Error("it goes on while the connection has no carrier")
				}
				if !told {
					_ = c.Reset(nil)
				}
				e.unregister(token, first)
				if done := <-entered; done != told {
					t.Errorf("it is told that there is a connection: %v", done)
				}
			})
		})
	}
}
