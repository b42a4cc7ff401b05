package auth

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"konnectivity/internal/admission"
	"konnectivity/internal/logging/silent"

	"github.com/sirupsen/logrus"
	"google.golang.org/grpc/codes"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// reviewsPerSecond, with a burst of one, keeps every second at or below 50
	// calls to the API server, even when thousands of agents reconnect at once.
	reviewsPerSecond = 49

	// reviewTimeout bounds a review, including the wait for a turn. An agent
	// that does not get one in time is asked to retry.
	reviewTimeout = 10 * time.Second

	// goodFor is how long a token that was accepted is not reviewed again; a
	// kubelet trusts its own reviews as long (authentication.webhook.cacheTTL).
	// So reconnecting after an outage costs no call.
	goodFor = 2 * time.Minute

	// badFor keeps an agent with a bad token from costing a call per attempt.
	badFor = 10 * time.Second

	// maxCached bounds the cache: three times the agents of a large cluster,
	// below 2 MiB.
	maxCached = 16384

	// provenFor is how long an accepted token, or another one of the same pod,
	// is reviewed before those of strangers. A kubelet renews a pod's token
	// within a day.
	provenFor = 24 * time.Hour

	// suspectFor is how long tokens wait behind others after a bad one came
	// from the same source, and maxSuspects bounds how many such sources are
	// remembered.
	suspectFor  = 10 * time.Minute
	maxSuspects = 4096

	// maxToken bounds the size of a token that is reviewed; a service account's
	// has about 1 KiB.
	maxToken = 16 << 10
)

// Reviews creates TokenReviews; client-go's typed client is one
// (authentication/v1 TokenReviewInterface).
type Reviews interface {
	Create(ctx context.Context, review *authenticationv1.TokenReview, opts metav1.CreateOptions) (*authenticationv1.TokenReview, error)
}

// NoReviews are Reviews that cannot be had, for a reason that is logged.
type NoReviews struct{ Err error }

// Create returns the reason.
func (n NoReviews) Create(context.Context, *authenticationv1.TokenReview, metav1.CreateOptions) (*authenticationv1.TokenReview, error) {
	return nil, n.Err
}

// TokensConfig configures Tokens: whose tokens are accepted.
type TokensConfig struct {
	Reviews        Reviews
	Namespace      string  // of the agents' service account
	ServiceAccount string  // its name
	Audience       string  // audience that the token must have
	PerSecond      float32 // calls to the API a second; 0 means reviewsPerSecond
	Burst          int     // size of a burst; 0 means 1

	// SigningKeys reads the keys with which the API signs tokens, a JSON Web
	// Key Set. nil means that they are unknown.
	SigningKeys func(context.Context) ([]byte, error)

	// Log gets a line when the keys can be read or no longer can; nil logs
	// nothing.
	Log logrus.FieldLogger

	// Called, if set, receives the outcome of each call, with err as review
	// returns it.
	Called func(took time.Duration, err error)
}

// Tokens checks bearer tokens by TokenReview. Outcomes are cached for a bounded
// time, calls are limited and made for the likeliest tokens first, and a token
// is never reviewed twice at the same time. It may be used by any number of
// goroutines.
type Tokens struct {
	cfg     TokensConfig
	user    string
	keys    *keys
	reviews *admission.Queue

	mu       sync.Mutex              // never held over a call
	known    memory[tokenKey, error] // nil: accepted
	flights  map[tokenKey]*flight
	proven   memory[tokenKey, struct{}]     // tokens that were accepted, and their pods
	suspects memory[netip.Prefix, struct{}] // sources of plausible tokens that turned out bad
}

// tokenKey identifies a token, so that memory holds none.
type tokenKey [sha256.Size]byte

func tokenKeyOf(token string) tokenKey { return sha256.Sum256([]byte(token)) }

// flight is a review in progress on the goroutine of its first caller.
type flight struct {
	done chan struct{}
	err  error // valid once done is closed
	left bool  // the first caller left before there was an outcome
}

// NewTokens returns a checker for the service account of cfg.
func NewTokens(cfg TokensConfig) *Tokens {
	if cfg.PerSecond <= 0 {
		cfg.PerSecond = reviewsPerSecond
	}
	if cfg.Log == nil {
		cfg.Log = silent.Log()
	}
	return &Tokens{
		cfg:      cfg,
		user:     "system:serviceaccount:" + cfg.Namespace + ":" + cfg.ServiceAccount,
		keys:     newKeys(cfg.SigningKeys, cfg.Log),
		reviews:  newReviews(float64(cfg.PerSecond), max(cfg.Burst, 1)),
		known:    newMemory[tokenKey, error](maxCached),
		flights:  make(map[tokenKey]*flight),
		proven:   newMemory[tokenKey, struct{}](maxCached),
		suspects: newMemory[netip.Prefix, struct{}](maxSuspects),
	}
}

// Run keeps the API's signing keys fresh until ctx ends. Reviews work without
// it, but then forged tokens can pass for plausible ones.
func (t *Tokens) Run(ctx context.Context) {
	if t.cfg.SigningKeys != nil {
		t.keys.run(ctx, t.reviews.Spend)
	}
}

// review returns nil if token is a valid one of the configured account, else a
// *Refusal: Unauthenticated where the token is to blame, Unavailable where no
// verdict could be had. It blocks for at most reviewTimeout. remote is where the
// agent is; those of one source wait for each other rather than for all.
func (t *Tokens) review(ctx context.Context, token string, remote net.Addr) error {
	if token == "" {
		return refuse(codes.Unauthenticated, "the agent sent no token: set --service-account-token-path")
	}
	if len(token) > maxToken {
		return refuse(codes.Unauthenticated, "the agent's token is longer than %d bytes", maxToken)
	}
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	key := tokenKeyOf(token)
	for {
		f, mine, err := t.start(key)
		if f == nil {
			return err
		}
		if mine {
			t.finish(ctx, key, f, t.ask(ctx, token, key, admission.SourceOf(remote)))
			return f.err
		}
		select {
		case <-f.done:
			if !f.left {
				return f.err
			}
		case <-ctx.Done():
			return unavailable(ctx.Err())
		}
	}
}

// start returns a known outcome (f is nil), or the flight to wait for. If mine
// is true, the caller must carry it out.
func (t *Tokens) start(key tokenKey) (f *flight, mine bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err, ok := t.known.get(key); ok {
		return nil, false, err
	}
	if f := t.flights[key]; f != nil {
		return f, false, nil
	}
	f = &flight{done: make(chan struct{})}
	t.flights[key] = f
	return f, true, nil
}

func (t *Tokens) finish(ctx context.Context, key tokenKey, f *flight, err error) {
	f.err = err
	f.left = errors.Is(ctx.Err(), context.Canceled)
	t.mu.Lock()
	delete(t.flights, key)
	switch {
	case err == nil:
		t.known.put(key, nil, goodFor)
	case blamed(err):
		t.known.put(key, err, badFor)
	}
	t.mu.Unlock()
	close(f.done)
}

// blamed reports whether a review found fault with the token itself.
func blamed(err error) bool {
	var refusal *Refusal
	return errors.As(err, &refusal) && refusal.Code != codes.Unavailable
}

// ask waits for its turn and calls the API.
func (t *Tokens) ask(ctx context.Context, token string, key tokenKey, from netip.Prefix) error {
	seen := t.lookAt(token)
	ticket := &admission.Ticket{Class: t.rank(seen, key, from), Source: from}
	if err := t.reviews.Wait(ctx, ticket); err != nil {
		return unavailable(fmt.Errorf("%w: %w", errCrowded, err))
	}
	err := t.call(ctx, token)
	t.reviews.Done(ticket)
	t.learn(seen, key, from, err)
	return err
}

// rank combines the memory of earlier reviews with the contents of the token.
func (t *Tokens) rank(seen look, key tokenKey, from netip.Prefix) rank {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.proven.has(key), seen.rank == plausible && t.proven.has(seen.pod):
		return proven
	case seen.rank == plausible && t.suspects.has(from):
		return suspect
	default:
		return seen.rank
	}
}

// learn records the outcome of a review for the ranks of later ones.
func (t *Tokens) learn(seen look, key tokenKey, from netip.Prefix, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case err == nil:
		t.suspects.forget(from)
		t.proven.put(key, struct{}{}, provenFor)
		if seen.pod != (tokenKey{}) {
			t.proven.put(seen.pod, struct{}{}, provenFor)
		}
	case blamed(err):
		if seen.rank == plausible {
			t.suspects.put(from, struct{}{}, suspectFor)
		}
		t.proven.forget(key)
		t.proven.forget(seen.pod)
	}
}

// call lets the API review a token.
func (t *Tokens) call(ctx context.Context, token string) error {
	start := time.Now()
	review, err := t.cfg.Reviews.Create(ctx, &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: []string{t.cfg.Audience}},
	}, metav1.CreateOptions{})
	if err != nil {
		err = unavailable(err)
	} else {
		err = t.judge(&review.Status)
	}
	if t.cfg.Called != nil {
		t.cfg.Called(time.Since(start), err)
	}
	return err
}

func (t *Tokens) judge(s *authenticationv1.TokenReviewStatus) error {
	switch {
	case s.Error != "", !s.Authenticated:
		r := refuse(codes.Unauthenticated, "the agent's token is not valid, or not for the audience %q", t.cfg.Audience)
		if s.Error != "" {
			r.Err = fmt.Errorf("%.200s", s.Error) // remembered with it
		}
		return r
	case !slices.Contains(s.Audiences, t.cfg.Audience):
		// By the API's documentation, the authenticator may otherwise have
		// ignored the audience.
		return refuse(codes.Unauthenticated, "the agent's token is not for the audience %q", t.cfg.Audience)
	case s.User.Username != t.user:
		return refuse(codes.PermissionDenied, "the agent's token belongs to %.200q, not to %q", s.User.Username, t.user)
	}
	return nil
}

// unavailable is for errors that say nothing about the token.
func unavailable(err error) *Refusal {
	reason := "the agent's token could not be reviewed just now, try again"
	if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) {
		reason = "the server may not create TokenReviews: bind it to the cluster role system:auth-delegator"
	}
	return &Refusal{Code: codes.Unavailable, Reason: reason, Err: err}
}
