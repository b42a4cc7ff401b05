package auth

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"konnectivity/internal/admission"
	"konnectivity/internal/kubeapi"
	"konnectivity/internal/memory"
	"konnectivity/tunnel"
)

const (
	// AccessGroup, verb and the two resources are what SubjectAccessReviews ask for, and
	// what roles grant. They are of a group of their own, so that of the roles that are there
	// for other reasons only those for everything open the tunnel. The port is the subresource.
	AccessGroup  = "konnectivity.internal"
	connect      = "connect"
	services     = "services"     // by NAME.NAMESPACE.svc, namespaced
	destinations = "destinations" // all others, by name or address

	// accessKept is how long an answer holds for new dials.
	accessKept = 10 * time.Second

	// accessTimeout bounds a review, with the wait for its turn, and accessRunning those at
	// once: an API that takes long has no more to do for that.
	accessTimeout = 10 * time.Second
	accessRunning = 64
)

// AccessReviews creates SubjectAccessReviews; kubeapi.SubjectAccessReviews is one.
type AccessReviews interface {
	Create(ctx context.Context, ask kubeapi.SubjectAccessReviewSpec) (kubeapi.SubjectAccessReviewStatus, error)
}

// Access has an API say what each client may reach. It may be used by any number of
// goroutines.
type Access struct {
	api    AccessReviews
	called func(verdict string, took time.Duration)
	known  *memory.Shared[accessKey, review]
	turns  *admission.Queue // so that one source's storm delays no other's dials
}

// accessKey is a client and a destination.
type accessKey struct {
	who  tunnel.Identity
	host string
	port uint16
}

// review is what one has come to.
type review struct {
	denied bool  // why is worded for each dial, since the words take more memory than the key
	err    error // there is no answer
}

// NewAccess returns an Access that asks api. called is called after each call of the API, but
// for those that failed because the client had left, with its verdict (allowed, denied or
// unavailable) and how long it took.
func NewAccess(api AccessReviews, called func(verdict string, took time.Duration)) *Access {
	turns := admission.NewQueue(admission.QueueConfig{Precedence: [][]int{{0}}, Limit: accessRunning})
	return &Access{api: api, called: called, known: memory.NewShared[accessKey, review](maxCached), turns: turns}
}

// Allow is nil if the client may make a new connection to a destination; else a
// *tunnel.DialError with FailDenied; FailUnavailable, where the API does not answer; or
// FailCancelled, if ctx was cancelled before it did. It blocks for at most accessTimeout, or
// until ctx ends. remote is where the client is; reviews of one source wait for each other
// rather than for all.
func (a *Access) Allow(ctx context.Context, who tunnel.Identity, remote net.Addr, host string, port uint16) error {
	ctx, cancel := context.WithTimeout(ctx, accessTimeout)
	defer cancel()
	key := accessKey{who, normal(host), port}
	got, err := a.known.Get(ctx, key, func() (review, time.Duration) {
		allowed, err := a.ask(ctx, key, admission.SourceOf(remote))
		if err != nil {
			return review{err: err}, 0
		}
		return review{denied: !allowed}, accessKept
	})
	switch err := cmp.Or(err, got.err); {
	case err != nil && left(ctx):
		return &tunnel.DialError{Failure: tunnel.FailCancelled, Address: tunnel.JoinAddress(key.host, key.port), Err: err}
	case err != nil:
		return noAnswer(key, err)
	case got.denied:
		return denied(key)
	}
	return nil
}

// left reports whether the peer has left, which says nothing about the API.
func left(ctx context.Context) bool { return errors.Is(ctx.Err(), context.Canceled) }

// normal is the spelling in which a host is asked for.
func normal(host string) string {
	if addr, err := netip.ParseAddr(host); err == nil {
		return addr.Unmap().String()
	}
	return tunnel.CanonicalHost(host)
}

// ask has the API review one dial.
func (a *Access) ask(ctx context.Context, key accessKey, from netip.Prefix) (allowed bool, err error) {
	user, groups := subjectOf(key.who)
	if user == "" {
		return false, nil
	}
	ticket := &admission.Ticket{Source: from}
	if err := a.turns.Wait(ctx, ticket); err != nil {
		return false, err
	}
	defer a.turns.Done(ticket)
	began := time.Now()
	got, err := a.api.Create(ctx, kubeapi.SubjectAccessReviewSpec{User: user, Groups: groups, ResourceAttributes: attributesOf(key)})
	allowed = err == nil && got.Allowed && !got.Denied
	switch {
	case err != nil && left(ctx):
	case err != nil:
		a.called("unavailable", time.Since(began))
	case allowed:
		a.called("allowed", time.Since(began))
	default:
		a.called("denied", time.Since(began))
	}
	return allowed, err
}

// subjectOf is who a client is to the API: as that knows the holder of a certificate
// (k8s.io/apiserver/pkg/authentication/request/x509) or of a service account's token, or by
// its first name. "": it has none. A common name that reads like a name of another kind, such
// as socket:PATH, stays cn:socket:PATH: who chooses it is not the client of that socket.
func subjectOf(who tunnel.Identity) (user string, groups []string) {
	names := who.Names()
	for _, name := range names {
		kind, value, _ := strings.Cut(name, ":")
		switch kind {
		case "serviceaccount":
			namespace, account, _ := strings.Cut(value, "/")
			return Account{namespace, account}.user(), []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"}
		case "cn":
			if like, _, _ := strings.Cut(value, ":"); !slices.Contains(tunnel.IdentityKinds(), like) {
				user = cmp.Or(user, value)
			}
		case "org":
			groups = append(groups, value)
		}
	}
	if user == "" && len(names) > 0 {
		user = names[0]
	}
	return user, append(groups, "system:authenticated")
}

// attributesOf is what a dial needs. A Service is known by the two spellings that only the
// cluster's own DNS answers: under another domain, its owner would choose the address.
func attributesOf(key accessKey) kubeapi.ResourceAttributes {
	wants := kubeapi.ResourceAttributes{
		Verb: connect, Group: AccessGroup, Version: "v1",
		Resource: destinations, Subresource: strconv.Itoa(int(key.port)), Name: key.host,
	}
	rest, inside := strings.CutSuffix(strings.TrimSuffix(key.host, ".cluster.local"), ".svc")
	if name, namespace, two := strings.Cut(rest, "."); inside && two && !strings.Contains(namespace, ".") {
		wants.Resource, wants.Namespace, wants.Name = services, namespace, name
	}
	return wants
}

// denied says what the client lacks.
func denied(key accessKey) error {
	why := "nobody knows who the client is"
	if user, _ := subjectOf(key.who); user != "" {
		wants := attributesOf(key)
		why = fmt.Sprintf("the Kubernetes API does not let %s %s to %s/%s %s of %s", user, connect, wants.Resource, wants.Subresource,
			strings.TrimPrefix(wants.Namespace+"/"+wants.Name, "/"), AccessGroup)
	}
	return &tunnel.DialError{Failure: tunnel.FailDenied, Address: tunnel.JoinAddress(key.host, key.port), Reason: why}
}

// noAnswer is for errors that say nothing about the client.
func noAnswer(key accessKey, err error) error {
	why := "the Kubernetes API that says what clients may reach does not answer"
	if kubeapi.Denied(err) {
		why = "the server may not create SubjectAccessReviews: bind it to the cluster role system:auth-delegator"
	}
	return &tunnel.DialError{Failure: tunnel.FailUnavailable, Address: tunnel.JoinAddress(key.host, key.port), Reason: why, Err: err}
}
