package auth

import (
	"context"
	"encoding/json"
	"errors"
	"sync/atomic"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/sirupsen/logrus"

	"konnectivity/internal/kubeapi"
	"konnectivity/internal/wait"
)

const (
	// keysEvery is how often the API's keys are read. keysAgain is the least
	// time between two reads: after a failure, or for a token that names an
	// unknown key.
	keysEvery = 10 * time.Minute
	keysAgain = 30 * time.Second

	// keysTimeout bounds one reading.
	keysTimeout = 10 * time.Second

	// maxKeys bounds how many are kept. An API server has one or two, and some
	// more during a rotation.
	maxKeys = 64
)

// keys holds the keys with which the API signs service accounts' tokens, as far
// as it publishes them. With them, a forged token is recognised without a call.
type keys struct {
	read  func(context.Context) ([]byte, error) // nil: there are none
	log   logrus.FieldLogger
	known atomic.Pointer[map[string][]jose.JSONWebKey] // by id
	newer chan struct{}                                // holds one item if a token names an unknown key
}

func newKeys(read func(context.Context) ([]byte, error), log logrus.FieldLogger) *keys {
	return &keys{read: read, log: log, newer: make(chan struct{}, 1)}
}

// rank returns proven for a token that one of the keys signed, and doubtful for
// one that falsely claims so. About all others the keys say nothing.
func (k *keys) rank(token *jwt.JSONWebToken) rank {
	known := k.known.Load()
	if known == nil {
		return plausible
	}
	id := token.Headers[0].KeyID
	candidates := (*known)[id]
	if len(candidates) == 0 {
		if id != "" {
			wait.Signal(k.newer)
		}
		return plausible
	}
	for _, key := range candidates {
		if token.Claims(key) == nil {
			return proven
		}
	}
	return doubtful
}

// run keeps the keys fresh until ctx ends. It calls spend for each call. A failure is logged
// if it is a refusal or the second in a row: a kube-apiserver that starts beside the server, in
// one pod with it, does not answer the first call.
func (k *keys) run(ctx context.Context, spend func()) {
	said, failed := "", false
	for ctx.Err() == nil {
		spend()
		next := keysEvery
		line := "tokens that the Kubernetes API has signed are reviewed before others"
		err := k.refresh(ctx)
		if err != nil {
			line, next = "the keys of the Kubernetes API's tokens cannot be read (GET /openid/v1/jwks), so a flood of forged tokens can delay agents", keysAgain
			if kubeapi.Denied(err) {
				line += ": bind the server to the cluster role system:service-account-issuer-discovery"
			}
		}
		early := err != nil && !failed && !kubeapi.Denied(err)
		failed = err != nil
		if line != said && !early && ctx.Err() == nil {
			log := k.log
			if err != nil {
				log = log.WithError(err)
			}
			log.Info(line)
			said = line
		}
		k.pause(ctx, next)
	}
}

// pause waits for d, or until a token needs newer keys, but for keysAgain at
// least.
func (k *keys) pause(ctx context.Context, most time.Duration) {
	if !wait.For(ctx, keysAgain) {
		return
	}
	select {
	case <-time.After(most - keysAgain):
	case <-k.newer:
	case <-ctx.Done():
	}
}

func (k *keys) refresh(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, keysTimeout)
	defer cancel()
	text, err := k.read(ctx)
	if err != nil {
		return err
	}
	known, err := parseKeys(text)
	if err == nil {
		k.known.Store(&known)
	}
	return err
}

// parseKeys reads a JSON Web Key Set (RFC 7517 §5). Keys of an unknown type are
// left out, as it requires.
func parseKeys(text []byte) (map[string][]jose.JSONWebKey, error) {
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(text, &set); err != nil {
		return nil, err
	}
	known := make(map[string][]jose.JSONWebKey)
	for _, raw := range set.Keys[:min(len(set.Keys), maxKeys)] {
		var key jose.JSONWebKey
		if key.UnmarshalJSON(raw) == nil && key.Valid() && key.IsPublic() && key.KeyID != "" {
			known[key.KeyID] = append(known[key.KeyID], key)
		}
	}
	if len(known) == 0 {
		return nil, errors.New("the answer has no key of a known type")
	}
	return known, nil
}
