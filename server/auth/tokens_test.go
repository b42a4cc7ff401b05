package auth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spf13/pflag"
	"google.golang.org/grpc/codes"
	"k8s.io/client-go/transport"
	"k8s.io/klog/v2"

	"konnectivity/internal/cli"
	"konnectivity/internal/kubeapi"
	"konnectivity/internal/testutil"
)

const agentUser = "system:serviceaccount:kube-system:konnectivity-agent"

// answering is an API that answers at once, and checks what it is asked for.
func answering(t *testing.T) reviewFunc {
	return func(_ context.Context, r kubeapi.TokenReviewSpec) (kubeapi.TokenReviewStatus, error) {
		testutil.Holds(t, len(r.Audiences) == 1 && r.Audiences[0] == "konnectivity", "audiences %q", r.Audiences)
		return answer(r.Token), nil
	}
}

func answer(token string) kubeapi.TokenReviewStatus {
	s := kubeapi.TokenReviewStatus{Authenticated: true, Audiences: []string{"konnectivity"}}
	s.User.Username = agentUser
	switch {
	case strings.HasPrefix(token, "good"):
	case token == "expired":
		return kubeapi.TokenReviewStatus{Error: "token has expired SECRET-DETAIL"}
	case token == "unknown":
		return kubeapi.TokenReviewStatus{}
	case token == "other-account":
		s.User.Username = "system:serviceaccount:kube-system:default"
	case token == "other-namespace":
		s.User.Username = "system:serviceaccount:evil:konnectivity-agent"
	case token == "person":
		s.User.Username = "admin"
	case token == "other-audience":
		s.Audiences = []string{"https://kubernetes.default.svc"}
	case token == "no-audience":
		s.Audiences = nil
	}
	return s
}

func newTokens(r Reviews) *Tokens {
	return NewTokens(TokensConfig{Reviews: r, Accounts: []Account{{"kube-system", "konnectivity-agent"}}, Audience: "konnectivity", PerSecond: 1000, Burst: 1000})
}

func TestReviewVerdicts(t *testing.T) {
	tokens := newTokens(answering(t))
	for token, want := range map[string]codes.Code{
		"good":                      codes.OK,
		"":                          codes.Unauthenticated,
		"expired":                   codes.Unauthenticated,
		"unknown":                   codes.Unauthenticated,
		"other-audience":            codes.Unauthenticated,
		"no-audience":               codes.Unauthenticated,
		"other-account":             codes.PermissionDenied,
		"other-namespace":           codes.PermissionDenied,
		"person":                    codes.PermissionDenied,
		strings.Repeat("x", 17<<10): codes.Unauthenticated,
	} {
		err := reviewed(tokens, t.Context(), token, nil)
		testutil.Equal(t, codeOf(err), want, "%.20s: %v", token, err)
		_, admitted := (&Gate{Tokens: tokens}).Admit(t.Context(), Peer{ID: "a", Token: token})
		testutil.Equal(t, codeOf(admitted), want, "%.20s at the gate: %v", token, admitted)
		testutil.Holds(t, err == nil || !strings.Contains(err.Error(), "SECRET") &&
			(token == "" || !strings.Contains(err.Error(), token+" ")), "%s: the refusal tells too much: %v", token, err)
	}
}

func TestReviewIsCachedForABoundedTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		tokens := newTokens(reviewFunc(func(_ context.Context, r kubeapi.TokenReviewSpec) (kubeapi.TokenReviewStatus, error) {
			calls++
			return answer(r.Token), nil
		}))
		ask := func(token string, want int) {
			t.Helper()
			for range 5 {
				_ = reviewed(tokens, t.Context(), token, nil)
			}
			testutil.Requires(t, calls == want, "%d calls, want %d", calls, want)
		}
		ask("good", 1)
		ask("expired", 2)
		time.Sleep(badFor + time.Second)
		ask("expired", 3)
		ask("good", 3)
		time.Sleep(goodFor)
		ask("good", 4)
	})
}

type reviewFunc func(context.Context, kubeapi.TokenReviewSpec) (kubeapi.TokenReviewStatus, error)

func (f reviewFunc) Create(ctx context.Context, r kubeapi.TokenReviewSpec) (kubeapi.TokenReviewStatus, error) {
	return f(ctx, r)
}

// TestReconnectStorm: 5,000 agents at once never cost more than 50 calls in any
// second; those that cannot be served in time hear so and come again.
func TestReconnectStorm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var at []time.Time
		tokens := NewTokens(TokensConfig{Accounts: []Account{{"kube-system", "konnectivity-agent"}}, Audience: "konnectivity",
			Reviews: reviewFunc(func(_ context.Context, r kubeapi.TokenReviewSpec) (kubeapi.TokenReviewStatus, error) {
				mu.Lock()
				at = append(at, time.Now())
				mu.Unlock()
				time.Sleep(5 * time.Millisecond)
				return answer(r.Token), nil
			})})
		var wg sync.WaitGroup
		var later atomic.Int64
		for i := range 5000 {
			wg.Go(func() {
				for {
					switch err := reviewed(tokens, t.Context(), fmt.Sprint("good", i), nil); codeOf(err) {
					case codes.OK:
						return
					case codes.Unavailable:
						later.Add(1)
						time.Sleep(10 * time.Second)
					default:
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		testutil.Holds(t, later.Load() != 0, "nobody had to come again: the test shows nothing")
		for i := range at {
			n := 0
			for j := i; j < len(at) && at[j].Sub(at[i]) < time.Second; j++ {
				n++
			}
			testutil.Requires(t, n <= 50, "%d calls in one second", n)
		}
		testutil.AtMost(t, at[len(at)-1].Sub(at[0]), 3*time.Minute, "the last agent is back after")
	})
}

func TestSlowOrBrokenAPI(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen atomic.Int64
		tokens := NewTokens(TokensConfig{Reviews: reviewFunc(func(ctx context.Context, _ kubeapi.TokenReviewSpec) (kubeapi.TokenReviewStatus, error) {
			<-ctx.Done()
			return kubeapi.TokenReviewStatus{}, ctx.Err()
		}), Called: func(took time.Duration, err error) {
			if took > 0 && err != nil {
				seen.Add(1)
			}
		}})
		var other sync.WaitGroup
		other.Go(func() {
			time.Sleep(reviewTimeout / 2)
			ctx, leave := context.WithTimeout(t.Context(), time.Second)
			defer leave()
			testutil.Equal(t, codeOf(reviewed(tokens, ctx, "good", nil)), codes.Unavailable, "to one that leaves before another's review of the token has ended")
		})
		defer other.Wait()
		start := time.Now()
		err := reviewed(tokens, t.Context(), "good", nil)
		testutil.Holds(t, codeOf(err) == codes.Unavailable && errors.Is(err, context.DeadlineExceeded), "%v", err)
		took := time.Since(start)
		testutil.Holds(t, took <= reviewTimeout && seen.Load() == 1, "took %v, told of %d calls", took, seen.Load())
		_ = reviewed(tokens, t.Context(), "good", nil)
		testutil.Equal(t, seen.Load(), 2, "calls, since no verdict is remembered as none:")
	})
	forbids := reviewFunc(func(context.Context, kubeapi.TokenReviewSpec) (kubeapi.TokenReviewStatus, error) {
		return kubeapi.TokenReviewStatus{}, &kubeapi.Error{Code: 403, Reason: kubeapi.Forbidden}
	})
	err := reviewed(newTokens(forbids), t.Context(), "good", nil)
	testutil.Holds(t, codeOf(err) == codes.Unavailable && strings.Contains(err.Error(), "system:auth-delegator"), "%v", err)
}

// What an API says of a token is remembered with it, so not all of it is.
func TestLongAPIMessagesAreCut(t *testing.T) {
	tokens := NewTokens(TokensConfig{Accounts: []Account{{"kube-system", "konnectivity-agent"}}, Audience: "a"})
	long := strings.Repeat("x", 1<<16)
	for _, status := range []kubeapi.TokenReviewStatus{
		{Error: long},
		{Authenticated: true, Audiences: []string{"a"}, User: kubeapi.UserInfo{Username: long}},
	} {
		var refusal *Refusal
		_, err := tokens.judge(status)
		testutil.Requires(t, errors.As(err, &refusal), "%.2000v", err)
		said := fmt.Sprint(refusal.Reason, refusal.Err)
		testutil.Holds(t, len(said) <= 1000 && strings.Contains(said, long[:200]), "%.2000s", said)
	}
}

// reviewed is what a review says of a token.
func reviewed(tokens *Tokens, ctx context.Context, token string, remote net.Addr) error {
	_, err := tokens.Review(ctx, token, remote)
	return err
}

// Of several accounts each token has its own, also when the verdict is remembered.
func TestAccountsAreToldApart(t *testing.T) {
	api := reviewFunc(func(_ context.Context, r kubeapi.TokenReviewSpec) (kubeapi.TokenReviewStatus, error) {
		return kubeapi.TokenReviewStatus{Authenticated: true, Audiences: []string{"konnectivity"}, User: kubeapi.UserInfo{Username: "system:serviceaccount:" + r.Token}}, nil
	})
	tokens := NewTokens(TokensConfig{Reviews: api, Clients: true, Accounts: []Account{{"a", "one"}, {"b", "one"}}, Audience: "konnectivity", PerSecond: 1000, Burst: 1000})
	for range 2 {
		for token, want := range map[string]string{"a:one": "serviceaccount:a/one", "b:one": "serviceaccount:b/one"} {
			testutil.Equal(t, testutil.Must(tokens.Review(t.Context(), token, nil))(t).Identity(), want, "%s", token)
		}
		for token, says := range map[string]string{"c:one": `the client's token belongs to "system:serviceaccount:c:one"`, "a:two": "none of the accounts", "": "neither a certificate nor a token"} {
			if account, err := tokens.Review(t.Context(), token, nil); err == nil || !strings.Contains(err.Error(), says) || account != (Account{}) {
				t.Errorf("%q: %v, %v", token, account, err)
			}
		}
	}
}

// The API's refusal counts as its verdict, though the peer has left since it asked. A call that
// the peer's end cuts off says nothing about the API.
func TestRefusalCountsThoughThePeerHasLeft(t *testing.T) {
	for cut, want := range map[error][]codes.Code{nil: {codes.Unauthenticated}, context.Canceled: nil} {
		ctx, leave := context.WithCancel(t.Context())
		tokens := newTokens(reviewFunc(func(context.Context, kubeapi.TokenReviewSpec) (kubeapi.TokenReviewStatus, error) {
			leave()
			return kubeapi.TokenReviewStatus{}, cut
		}))
		var called []codes.Code
		tokens.cfg.Called = func(_ time.Duration, err error) { called = append(called, codeOf(err)) }
		_ = reviewed(tokens, ctx, "bad", nil)
		testutil.EqualSlices(t, called, want, "what counts where the API says %v", cut)
	}
}

// Times and bounds are what the page says.
func TestFiguresAreDocumented(t *testing.T) {
	const page = "../../docs/security.md"
	testutil.Says(t, page, "An accepted token is trusted for %v minutes", int64(goodFor/time.Minute))
	testutil.Says(t, page, "a refused one is refused for %v seconds", int64(badFor/time.Second))
	testutil.Says(t, page, "that sent a bad one in the last %v minutes", int64(suspectFor/time.Minute))
	testutil.Says(t, page, "an answer holds for %v s, one destination is asked about once at a time, and %v at once", int64(accessKept/time.Second), accessRunning)
}

// Whatever an operator turns up, no token of an agent gets into a log: client-go
// itself writes the bodies of requests and responses at a high verbosity.
func TestTokensStayOutOfLogsAtEveryLevel(t *testing.T) {
	const token = "hunter2-hunter2-hunter2"
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review kubeapi.TokenReview
		err := json.NewDecoder(r.Body).Decode(&review)
		testutil.Holds(t, err == nil && review.Spec.Token == token, "the API got %q, %v", review.Spec.Token, err)
		review.Status.Error = "no such token"
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(review)
	}))
	defer api.Close()
	for _, args := range []string{"--log-level=debug", "--log-level=trace", "-v=10", "-v=10 --log-level=trace", "--vmodule=*=10"} {
		flags, set, out := new(cli.LogFlags), pflag.NewFlagSet("test", pflag.ContinueOnError), new(testutil.Output)
		flags.AddTo(set)
		testutil.NoError(t, set.Parse(strings.Fields(args)))
		testutil.Must(flags.New("test", out))(t)
		reviews := testutil.Must(kubeapi.NewTokenReviews(&kubeapi.Config{URL: api.URL, Transport: transport.Config{BearerToken: "the-servers-own-hunter2"}}))(t)
		testutil.Fails(t, reviewed(NewTokens(TokensConfig{Reviews: reviews, Audience: "x"}), t.Context(), token, nil), "the token was accepted")
		klog.Background().V(7).Info("still talking")
		if said := out.String(); strings.Contains(said, "hunter2") {
			t.Errorf("%s: a token is in the log: %.800s", args, said)
		} else if !strings.Contains(said, "still talking") {
			t.Errorf("%s: the libraries were not heard at all: %q", args, said)
		}
	}
}
