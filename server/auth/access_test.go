package auth

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/kubeapi"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// roles is an API that allows what its map has, and counts its calls.
type roles struct {
	mu      sync.Mutex
	allowed map[string]bool
	down    error
	denies  bool
	slow    time.Duration
	asked   atomic.Int64
	most    atomic.Int64 // at once
	running atomic.Int64
}

// described is a review as text: USER verb resource/port namespace/name.
func described(r kubeapi.SubjectAccessReviewSpec) string {
	a := r.ResourceAttributes
	return fmt.Sprintf("%s %s %s %s/%s %s/%s", r.User, a.Verb, a.Group, a.Resource, a.Subresource, a.Namespace, a.Name)
}

func (r *roles) Create(ctx context.Context, ask kubeapi.SubjectAccessReviewSpec) (answer kubeapi.SubjectAccessReviewStatus, err error) {
	r.asked.Add(1)
	defer r.running.Add(-1)
	for now := r.running.Add(1); ; {
		if most := r.most.Load(); now <= most || r.most.CompareAndSwap(most, now) {
			break
		}
	}
	if r.slow > 0 {
		select {
		case <-time.After(r.slow):
		case <-ctx.Done():
			return answer, ctx.Err()
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.down != nil {
		return answer, r.down
	}
	answer.Allowed = r.allowed[described(ask)]
	answer.Denied = r.denies // wins over Allowed
	return answer, nil
}

func (r *roles) set(what string, allowed bool, down error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.allowed[what], r.down = allowed, down
}

func newRoles() *roles { return &roles{allowed: map[string]bool{}} }

func newAccess(r *roles) *Access { return NewAccess(r, func(string, time.Duration) {}) }

func TestWhatAReviewAsks(t *testing.T) {
	for _, tc := range []struct {
		who, host string
		want      string // "": refused without a review
	}{
		{"cn:prometheus\norg:monitoring", "10.1.2.3", "prometheus connect konnectivity.internal destinations/443 /10.1.2.3"},
		{"uri:spiffe://a/b\ncn:prometheus", "::ffff:10.1.2.3", "prometheus connect konnectivity.internal destinations/443 /10.1.2.3"},
		{"serviceaccount:ns/oauth", "DB.example.", "system:serviceaccount:ns:oauth connect konnectivity.internal destinations/443 /db.example"},
		{"socket:/run/s", "db.prod.svc", "socket:/run/s connect konnectivity.internal services/443 prod/db"},
		{"cn:a", "db.prod.svc.cluster.local", "a connect konnectivity.internal services/443 prod/db"},
		{"cn:a", "db.prod.svc.attacker.example", "a connect konnectivity.internal destinations/443 /db.prod.svc.attacker.example"},
		{"cn:a", "x.db.prod.svc", "a connect konnectivity.internal destinations/443 /x.db.prod.svc"},
		{"cn:a", "db.svc", "a connect konnectivity.internal destinations/443 /db.svc"},
		{"cn:a", "svc", "a connect konnectivity.internal destinations/443 /svc"},
		{"cn:socket:/run/s", "10.1.2.3", "cn:socket:/run/s connect konnectivity.internal destinations/443 /10.1.2.3"},
		{"cn:cn:socket:/run/s", "10.1.2.3", "cn:cn:socket:/run/s connect konnectivity.internal destinations/443 /10.1.2.3"},
		{"cn:system:node:a", "10.1.2.3", "system:node:a connect konnectivity.internal destinations/443 /10.1.2.3"},
		{"", "10.1.2.3", ""},
	} {
		r := newRoles()
		err := newAccess(r).Allow(t.Context(), tunnel.CheckIdentity(tc.who), nil, tc.host, 443)
		testutil.Equal(t, tunnel.FailureOf(err), tunnel.FailDenied, "%s, %s: %v", tc.who, tc.host, err)
		said := tunnel.AsDialError("", err).Text()
		if tc.want == "" {
			testutil.Contains(t, said, "nobody knows who the client is", "%s", tc.host)
			testutil.Equal(t, r.asked.Load(), 0, "%s: it was asked for a client that nobody knows", tc.host)
			continue
		}
		r.set(tc.want, true, nil)
		r.denies = true
		testutil.Fails(t, newAccess(r).Allow(t.Context(), tunnel.CheckIdentity(tc.who), nil, tc.host, 443), "what is both allowed and denied")
		r.denies = false
		testutil.Contains(t, said, "does not let "+strings.Fields(tc.want)[0]+" connect to ", "%s, %s", tc.who, tc.host)
		testutil.Succeeds(t, newAccess(r).Allow(t.Context(), tunnel.CheckIdentity(tc.who), nil, tc.host, 443),
			"%s, %s with %q", tc.who, tc.host, tc.want)
	}
}

func TestGroups(t *testing.T) {
	for who, want := range map[string]string{
		"cn:a\norg:b\norg:c":     "b c system:authenticated",
		"serviceaccount:ns/name": "system:serviceaccounts system:serviceaccounts:ns system:authenticated",
		"socket:/s":              "system:authenticated",
	} {
		_, groups := subjectOf(tunnel.CheckIdentity(who))
		testutil.Holds(t, strings.Join(groups, " ") == want, "%q is in %q", who, groups)
	}
}

// Either answer holds for 10 s, and no longer, and one dial's answer is not another's. Dials to
// one destination at once are one question.
func TestAnswersHoldForATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRoles()
		r.slow = time.Millisecond
		a := newAccess(r)
		const grant = "a connect konnectivity.internal destinations/1 /h"
		is := func(want tunnel.Failure, calls int64) {
			t.Helper()
			var dials sync.WaitGroup
			for range 3 {
				dials.Go(func() {
					err := a.Allow(t.Context(), "cn:a", nil, "h", 1)
					testutil.Holds(t, (err == nil) == (want == 0) && (err == nil || tunnel.FailureOf(err) == want), "%v, want %v", err, want)
				})
			}
			dials.Wait()
			testutil.Equal(t, r.asked.Load(), calls, "calls")
		}
		is(tunnel.FailDenied, 1)
		r.set(grant, true, nil)
		time.Sleep(accessKept - time.Second)
		is(tunnel.FailDenied, 1)
		time.Sleep(2 * time.Second)
		is(0, 2)
		r.set(grant, false, nil)
		time.Sleep(accessKept - time.Second)
		is(0, 2)
		time.Sleep(2 * time.Second)
		is(tunnel.FailDenied, 3)
		for _, other := range []accessKey{{"cn:b", "h", 1}, {"cn:a", "i", 1}, {"cn:a", "h", 2}} {
			before := r.asked.Load()
			err := a.Allow(t.Context(), other.who, nil, other.host, other.port)
			testutil.Holds(t, err != nil && r.asked.Load() == before+1, "%v: %v", other, err)
		}
	})
}

// An API that does not answer opens nothing, and is asked again by the next dial; what it has
// allowed holds for its 10 s.
func TestAccessFailsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRoles()
		r.set("a connect konnectivity.internal destinations/1 /h", true, nil)
		a := newAccess(r)
		testutil.NoError(t, a.Allow(t.Context(), "cn:a", nil, "h", 1))
		for _, tc := range []struct {
			down error
			says string
		}{
			{errors.New("refused"), "does not answer"},
			{&kubeapi.Error{Code: 403, Reason: kubeapi.Forbidden}, "system:auth-delegator"},
		} {
			r.set("", false, tc.down)
			testutil.Succeeds(t, a.Allow(t.Context(), "cn:a", nil, "h", 1), "what was allowed a moment before")
			for range 2 {
				before := r.asked.Load()
				err := a.Allow(t.Context(), "cn:a", nil, "other", 1)
				if tunnel.FailureOf(err) != tunnel.FailUnavailable || !strings.Contains(tunnel.AsDialError("", err).Text(), tc.says) || r.asked.Load() != before+1 {
					t.Errorf("%v after %d calls", err, r.asked.Load()-before)
				}
			}
		}
		r.set("", false, nil)
		r.slow = time.Hour
		began := time.Now()
		if err := a.Allow(t.Context(), "cn:a", nil, "other", 1); tunnel.FailureOf(err) != tunnel.FailUnavailable || time.Since(began) != accessTimeout {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

// A client that leaves during its review says nothing about the API, in errors as in metrics.
func TestAClientThatLeavesDuringItsReview(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRoles()
		r.slow = time.Second
		verdicts := make(map[string]int)
		a := NewAccess(r, func(verdict string, _ time.Duration) { verdicts[verdict]++ })
		var dials sync.WaitGroup
		for range 2 { // one asks, and one waits for the answer
			dials.Go(func() {
				ctx, cancel := context.WithCancel(t.Context())
				time.AfterFunc(r.slow/2, cancel)
				testutil.Equal(t, tunnel.FailureOf(a.Allow(ctx, "cn:a", nil, "h", 1)), tunnel.FailCancelled, "one that left")
			})
		}
		dials.Wait()
		testutil.Equal(t, len(verdicts), 0, "counted: %v", verdicts)
	})
}

// A storm of one source's dials delays another's by about one review, however long it is, and
// makes no more than accessRunning at once.
func TestStormsDelayTheirOwnSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRoles()
		r.slow = time.Second
		r.set("b connect konnectivity.internal destinations/1 /h", true, nil)
		a := newAccess(r)
		var dials sync.WaitGroup
		for i := range 4000 {
			dials.Go(func() {
				_ = a.Allow(t.Context(), "cn:a", &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1)}, fmt.Sprint("h", i), 1)
			})
		}
		synctest.Wait()
		began := time.Now()
		err := a.Allow(t.Context(), "cn:b", &net.TCPAddr{IP: net.IPv4(192, 0, 2, 2)}, "h", 1)
		took := time.Since(began)
		testutil.Holds(t, err == nil && took <= 2*r.slow, "beside a storm: %v after %v", err, took)
		dials.Wait()
		testutil.Equal(t, r.most.Load(), accessRunning, "reviews at once")
	})
}
