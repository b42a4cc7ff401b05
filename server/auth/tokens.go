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
	"konnectivity/internal/kubeapi"
	"konnectivity/internal/logging"
	"konnectivity/internal/memory"

	"github.com/sirupsen/logrus"
	"google.golang.org/grpc/codes"
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

// Reviews creates TokenReviews; kubeapi.TokenReviews is one.
type Reviews interface {
	Create(ctx context.Context, ask kubeapi.TokenReviewSpec) (kubeapi.TokenReviewStatus, error)
}

// NoReviews are Reviews that cannot be had, for a reason that is logged.
type NoReviews struct{ Err error }

// Create returns the reason.
func (n NoReviews) Create(context.Context, kubeapi.TokenReviewSpec) (kubeapi.TokenReviewStatus, error) {
	return kubeapi.TokenReviewStatus{}, n.Err
}

// Account is a service account.
type Account struct{ Namespace, Name string }

// user is what the API calls the account.
func (a Account) user() string { return "system:serviceaccount:" + a.Namespace + ":" + a.Name }

// Identity is what the holder of a token of the account has proved.
func (a Account) Identity() string { return "serviceaccount:" + a.Namespace + "/" + a.Name }

// TokensConfig configures Tokens: whose tokens are accepted.
type TokensConfig struct {
	Reviews   Reviews
	Accounts  []Account // whose tokens are accepted; at least one
	Audience  string    // audience that the token must have
	PerSecond float32   // calls to the API a second; 0 means reviewsPerSecond
	Burst     int       // size of a burst; 0 means 1

	// Clients says that the tokens are clients', not agents'. It changes nothing but
	// what a refusal says.
	Clients bool

	// SigningKeys reads the keys with which the API signs tokens, a JSON Web
	// Key Set. nil means that they are unknown.
	SigningKeys func(context.Context) ([]byte, error)

	// Log gets a line when the keys can be read or no longer can; nil logs
	// nothing.
	Log logrus.FieldLogger

	// Called, if set, receives the outcome of each call, but for those that failed
	// because the peer had left, with err as review returns it.
	Called func(took time.Duration, err error)
}

// Tokens checks bearer tokens by TokenReview. Outcomes are cached for a bounded
// time, calls are limited and made for the likeliest tokens first, and a token
// is never reviewed twice at the same time. It may be used by any number of
// goroutines.
type Tokens struct {
	cfg     TokensConfig
	users   map[string]Account // of cfg.Accounts, by what the API calls them
	keys    *keys
	reviews *admission.Queue

	known *memory.Shared[tokenKey, verdict]

	mu       sync.Mutex                            // never held over a call
	proven   memory.Memory[tokenKey, struct{}]     // tokens that were accepted, and their pods
	suspects memory.Memory[netip.Prefix, struct{}] // sources of plausible tokens that turned out bad
}

// tokenKey identifies a token, so that memory holds none.
type tokenKey [sha256.Size]byte

func tokenKeyOf(token string) tokenKey { return sha256.Sum256([]byte(token)) }

// verdict is whose a token is; or err, why it is not accepted.
type verdict struct {
	account Account
	err     error
}

// NewTokens returns a checker for the service accounts of cfg.
func NewTokens(cfg TokensConfig) *Tokens {
	if cfg.PerSecond <= 0 {
		cfg.PerSecond = reviewsPerSecond
	}
	if cfg.Log == nil {
		cfg.Log = logging.Silent()
	}
	users := make(map[string]Account)
	for _, a := range cfg.Accounts {
		users[a.user()] = a
	}
	return &Tokens{
		cfg:      cfg,
		users:    users,
		keys:     newKeys(cfg.SigningKeys, cfg.Log),
		reviews:  newReviews(float64(cfg.PerSecond), max(cfg.Burst, 1)),
		known:    memory.NewShared[tokenKey, verdict](maxCached),
		proven:   memory.New[tokenKey, struct{}](maxCached),
		suspects: memory.New[netip.Prefix, struct{}](maxSuspects),
	}
}

// Run keeps the API's signing keys fresh until ctx ends. Reviews work without
// it, but then forged tokens can pass for plausible ones.
func (t *Tokens) Run(ctx context.Context) {
	if t.cfg.SigningKeys != nil {
		t.keys.run(ctx, t.reviews.Spend)
	}
}

// holder is who sends tokens, in what a refusal says.
func (t *Tokens) holder() string {
	if t.cfg.Clients {
		return "client"
	}
	return "agent"
}

// Review returns the account whose token it is, or a *Refusal: Unauthenticated or
// PermissionDenied where the token is to blame, Unavailable where no verdict could be had.
// It blocks for at most reviewTimeout. remote is where the peer is; those of one source
// wait for each other rather than for all.
func (t *Tokens) Review(ctx context.Context, token string, remote net.Addr) (Account, error) {
	switch {
	case token == "" && t.cfg.Clients:
		return Account{}, refuse(codes.Unauthenticated, "the client has neither a certificate nor a token: set --tls-cert-path and --tls-key-path, or --token-path")
	case token == "":
		return Account{}, refuse(codes.Unauthenticated, "the agent sent no token: set --service-account-token-path")
	case len(token) > maxToken:
		return Account{}, refuse(codes.Unauthenticated, "the %s's token is longer than %d bytes", t.holder(), maxToken)
	}
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	key := tokenKeyOf(token)
	v, err := t.known.Get(ctx, key, func() (v verdict, keep time.Duration) {
		v = t.ask(ctx, token, key, admission.SourceOf(remote))
		switch {
		case v.err == nil:
			keep = goodFor
		case blamed(v.err):
			keep = badFor
		}
		return v, keep
	})
	if err != nil {
		return Account{}, t.unavailable(err)
	}
	return v.account, v.err
}

// blamed reports whether a review found fault with the token itself.
func blamed(err error) bool {
	var refusal *Refusal
	return errors.As(err, &refusal) && refusal.Code != codes.Unavailable
}

// ask waits for its turn and calls the API.
func (t *Tokens) ask(ctx context.Context, token string, key tokenKey, from netip.Prefix) verdict {
	seen := t.lookAt(token)
	ticket := &admission.Ticket{Class: t.rank(seen, key, from), Source: from}
	if err := t.reviews.Wait(ctx, ticket); err != nil {
		return verdict{err: t.unavailable(fmt.Errorf("%w: %w", errCrowded, err))}
	}
	account, err := t.call(ctx, token)
	t.reviews.Done(ticket)
	t.learn(seen, key, from, err)
	return verdict{account, err}
}

// rank combines the memory of earlier reviews with the contents of the token.
func (t *Tokens) rank(seen look, key tokenKey, from netip.Prefix) rank {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.proven.Has(key), seen.rank == plausible && t.proven.Has(seen.pod):
		return proven
	case seen.rank == plausible && t.suspects.Has(from):
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
		t.suspects.Forget(from)
		t.proven.Put(key, struct{}{}, provenFor)
		if seen.pod != (tokenKey{}) {
			t.proven.Put(seen.pod, struct{}{}, provenFor)
		}
	case blamed(err):
		if seen.rank == plausible {
			t.suspects.Put(from, struct{}{}, suspectFor)
		}
		t.proven.Forget(key)
		t.proven.Forget(seen.pod)
	}
}

// call lets the API review a token.
func (t *Tokens) call(ctx context.Context, token string) (account Account, err error) {
	start := time.Now()
	verdict, err := t.cfg.Reviews.Create(ctx, kubeapi.TokenReviewSpec{Token: token, Audiences: []string{t.cfg.Audience}})
	cut := err != nil && left(ctx)
	if err != nil {
		err = t.unavailable(err)
	} else {
		account, err = t.judge(verdict)
	}
	if t.cfg.Called != nil && !cut {
		t.cfg.Called(time.Since(start), err)
	}
	return account, err
}

func (t *Tokens) judge(s kubeapi.TokenReviewStatus) (Account, error) {
	account, ours := t.users[s.User.Username]
	switch {
	case s.Error != "", !s.Authenticated:
		r := refuse(codes.Unauthenticated, "the %s's token is not valid, or not for the audience %q", t.holder(), t.cfg.Audience)
		if s.Error != "" {
			r.Err = fmt.Errorf("%.200s", s.Error) // remembered with it
		}
		return Account{}, r
	case !slices.Contains(s.Audiences, t.cfg.Audience):
		// By the API's documentation, the authenticator may otherwise have
		// ignored the audience.
		return Account{}, refuse(codes.Unauthenticated, "the %s's token is not for the audience %q", t.holder(), t.cfg.Audience)
	case !ours && len(t.cfg.Accounts) == 1:
		return Account{}, refuse(codes.PermissionDenied, "the %s's token belongs to %.200q, not to %q", t.holder(), s.User.Username, t.cfg.Accounts[0].user())
	case !ours:
		return Account{}, refuse(codes.PermissionDenied, "the %s's token belongs to %.200q, which is none of the accounts that the server accepts", t.holder(), s.User.Username)
	}
	return account, nil
}

// unavailable is for errors that say nothing about the token.
func (t *Tokens) unavailable(err error) *Refusal {
	reason := "the " + t.holder() + "'s token could not be reviewed just now, try again"
	if kubeapi.Denied(err) {
		reason = "the server may not create TokenReviews: bind it to the cluster role system:auth-delegator"
	}
	return &Refusal{Code: codes.Unavailable, Reason: reason, Err: err}
}
