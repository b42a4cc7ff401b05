package resume_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// An agent that resets each carrier as soon as a connection is resumed by it does not have
// its opener resume for ever, nor often: the connection ends, with the loss as the cause,
// whether its client is there or has left.
func TestAPeerThatResetsEachCarrier(t *testing.T) {
	const tooMany = 100
	for _, left := range []bool{false, true} {
		t.Run(fmt.Sprint("its client has left: ", left), func(t *testing.T) {
			onRoute(t, 30*time.Second, func(t *testing.T, r *route) {
				var resumes atomic.Int64
				r.cut(toAgent)
				r.spite = func() bool { return resumes.Add(1) < tooMany } // it is to fail, not to spin
				r.linkFar()
				client, dest := r.dial()
				defer dest.Close()
				time.Sleep(time.Second)
				testutil.Must(client.Write(make([]byte, 1000)))(t)
				r.cut(toAgent)
				if left {
					_ = client.Close()
				}
				r.linkFar()
				time.Sleep(25 * time.Second)
				time.Sleep(time.Minute)
				if n := resumes.Load(); n > 20 || r.opener.Len() != 0 {
					t.Errorf("%d resumes, and %d connections", n, r.opener.Len())
				}
				if s := r.opener.Stats(); s.GivenUp["fruitless"]+s.GivenUp["unknown"] != 1 { // unknown: the agent's own end may not outlive what is done to it
					t.Errorf("given up: %v", s.GivenUp)
				}
				if left {
					return
				}
				_ = client.SetReadDeadline(time.Now().Add(time.Second))
				if _, err := client.Read(make([]byte, 1)); tunnel.CodeOf(err) != tunnel.CodePeerReset {
					t.Errorf("the client reads %v", err)
				}
			})
		})
	}
}
