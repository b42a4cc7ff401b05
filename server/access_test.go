package server

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"

	"konnectivity/internal/kubeapi"
	"konnectivity/tunnel"
)

// oneDestination is an API that allows everybody echo:1, unless it is closed, and nothing else.
type oneDestination struct {
	mu     sync.Mutex
	closed bool
	asked  int
}

func (o *oneDestination) Create(_ context.Context, ask kubeapi.SubjectAccessReviewSpec) (answer kubeapi.SubjectAccessReviewStatus, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.asked++
	answer.Allowed = !o.closed && ask.ResourceAttributes.Name == "echo" && ask.ResourceAttributes.Subresource == "1"
	return answer, nil
}

// Whatever protocol a client speaks, the API has a say in what it reaches, and only in new
// connections.
func TestAccessIsReviewed(t *testing.T) {
	api := &oneDestination{}
	r := startServer(t, func(o *Options) { o.AccessReviews = api })
	r.agent("link", agentHello{id: "a"}, echoing)
	for _, kind := range clientKinds {
		open := r.mustDial(kind, "echo:1")
		if _, err := r.dial(kind, "echo:2"); err == nil {
			t.Errorf("%s reaches what nobody may", kind)
		}
		r.roundTrip(open, 1000)
	}
	r.failsToDial("echo:2", http.StatusForbidden, "does not let")
	r.hasMetrics(fmt.Sprintf("policy_denials_total %d", len(clientKinds)+2),
		// By certificate and by socket they are two clients.
		`access_review_duration_seconds_count{verdict="allowed"} 2`, `access_review_duration_seconds_count{verdict="denied"} 2`)
	api.mu.Lock()
	defer api.mu.Unlock()
	asked := api.asked
	f := tunnel.NewFlow("tcp", "other:1")
	f.Resume = &tunnel.Resume{Epoch: 1}
	if err := r.own.newDialer().review(t.Context(), f); err != nil || api.asked != asked {
		t.Errorf("a connection that is resumed is reviewed: %v", err)
	}
}
