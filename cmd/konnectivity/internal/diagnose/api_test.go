package diagnose

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"konnectivity/internal/admin"
	"konnectivity/internal/testutil"
)

// Whatever answers has been reached: the path to it is not at fault.
func TestAnAnswerWithoutTLS(t *testing.T) {
	bind := testutil.Serve(t, func(c *net.TCPConn) {
		_, _ = io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n")
		_, _ = io.Copy(io.Discard, c) // to close with bytes unread would reset the connection
	})
	found := (&API{Address: bind, Timeout: time.Minute}).Run(t.Context())
	last := found[len(found)-1]
	testutil.Holds(t, last.Result == Failed && strings.Contains(last.Cause, "does not speak TLS") && strings.HasPrefix(last.Hint, "Check --api"), "%+v", last)
}

// The agent's last failure is the cause if it is of this connection, by the agent's clock, and
// not of an earlier one, however many others there are.
func TestAgentsOldFailureIsNoCause(t *testing.T) {
	bind := testutil.Serve(t, func(*net.TCPConn) {}) // which ends every connection
	for _, c := range []struct {
		ago  time.Duration
		want bool // it is the cause
	}{{-time.Minute, true}, {time.Minute, false}} {
		now := time.Now().Add(-time.Hour)
		agent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			var answer any = admin.Status{APIVersion: admin.Version, Now: now}
			if strings.HasSuffix(r.URL.Path, "/failures") {
				answer = admin.Page[admin.Failure]{Items: append(slices.Repeat([]admin.Failure{{Time: admin.Past{Time: now}, Front: "link"}}, 199), admin.Failure{Time: admin.Past{Time: now.Add(-c.ago)}, Front: "api", Cause: "no link"})}
			}
			_ = json.NewEncoder(w).Encode(answer)
		}))
		found := (&API{Address: bind, AgentAdmin: agent.Listener.Addr().String(), Timeout: time.Minute}).Run(t.Context())
		agent.Close()
		last := found[len(found)-1]
		told := last.Cause == "the agent says: no link"
		testutil.Holds(t, last.Result == Failed && told == c.want, "a failure %v ago: %+v", c.ago, last)
	}
}
