package auth

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/sirupsen/logrus"
	"github.com/sirupsen/logrus/hooks/test"
	"google.golang.org/grpc/codes"

	"konnectivity/internal/admission"
	"konnectivity/internal/kubeapi"
	"konnectivity/internal/logging"
	"konnectivity/internal/testutil"
)

// signer makes tokens as an API server does.
type signer struct {
	t   *testing.T
	key *ecdsa.PrivateKey
	id  string
}

func newSigner(t *testing.T, id string) *signer {
	key := testutil.Must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	return &signer{t: t, key: key, id: id}
}

// published is the key as /openid/v1/jwks has it.
func (s *signer) published(context.Context) ([]byte, error) {
	return json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: s.key.Public(), KeyID: s.id, Algorithm: "ES256", Use: "sig"}}})
}

// token signs what an agent's token says, with changes.
func (s *signer) token(name string, changes map[string]any) string {
	claims := map[string]any{
		"iss": "https://kubernetes.default.svc", "sub": agentUser, "jti": name, "aud": []string{"konnectivity"},
		"exp": time.Now().Add(time.Hour).Unix(), "nbf": time.Now().Unix(),
		"kubernetes.io": map[string]any{"pod": map[string]any{"uid": "pod of " + name}},
	}
	for k, v := range changes {
		if claims[k] = v; v == nil {
			delete(claims, k)
		}
	}
	sign := testutil.Must(jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: s.key, KeyID: s.id}}, nil))(s.t)
	return testutil.Must(jwt.Signed(sign).Claims(claims).Serialize())(s.t)
}

func at(ip string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(ip), Port: 1} }

func TestLookAtTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, forger, foreign := newSigner(t, "k1"), newSigner(t, "k1"), newSigner(t, "k2")
		blind := newTokens(nil)
		seeing := newTokens(nil)
		seeing.keys.read = api.published
		testutil.NoError(t, seeing.keys.refresh(t.Context()))
		brackets := "eyJhbGciOiJFUzI1NiJ9." + base64.RawURLEncoding.EncodeToString([]byte(`{"aud":`+strings.Repeat("[", 9000))) + ".AAAA"
		ago := func(d time.Duration) int64 { return time.Now().Add(-d).Unix() }
		for name, c := range map[string]struct {
			token         string
			blind, seeing rank
		}{
			"the API's":                        {api.token("a", nil), plausible, proven},
			"with one audience as text":        {api.token("a", map[string]any{"aud": "konnectivity"}), plausible, proven},
			"with several audiences":           {api.token("a", map[string]any{"aud": []string{"vault", "konnectivity"}}), plausible, proven},
			"out of a secret":                  {api.token("a", map[string]any{"aud": nil, "exp": nil, "nbf": nil, "kubernetes.io": nil}), plausible, proven},
			"with a forged signature":          {forger.token("a", nil), plausible, doubtful},
			"with a key that nobody knows":     {foreign.token("a", nil), plausible, plausible},
			"for others":                       {api.token("a", map[string]any{"aud": []string{"vault"}}), doubtful, doubtful},
			"of another account":               {api.token("a", map[string]any{"sub": "system:serviceaccount:default:default"}), doubtful, doubtful},
			"expired long ago":                 {api.token("a", map[string]any{"exp": ago(time.Hour)}), doubtful, doubtful},
			"expired by a clock that is wrong": {api.token("a", map[string]any{"exp": ago(time.Minute)}), plausible, proven},
			"of tomorrow":                      {api.token("a", map[string]any{"nbf": ago(-24 * time.Hour)}), doubtful, doubtful},
			"of no form":                       {api.token("a", map[string]any{"sub": 7}), doubtful, doubtful},
			"of brackets":                      {brackets, doubtful, doubtful},
			"with brackets where the pod is":   {api.token("a", map[string]any{"kubernetes.io": json.RawMessage(strings.Repeat("[", 100) + strings.Repeat("]", 100))}), doubtful, doubtful},
			"opaque":                           {"0123456789abcdef", doubtful, doubtful},
			"of dots":                          {"..", doubtful, doubtful},
			"without a signature":              {"eyJhbGciOiJub25lIn0.e30.", doubtful, doubtful},
		} {
			testutil.Equal(t, blind.lookAt(c.token).rank, c.blind, "a token %s, without keys", name)
			testutil.Equal(t, seeing.lookAt(c.token).rank, c.seeing, "a token %s, with keys", name)
		}
	})
}

// More brackets than maxNesting are not left to a parser.
func TestNestedTokensAreNotParsed(t *testing.T) {
	for _, bracket := range []string{"[", "{"} {
		for n, safe := range map[int]bool{maxNesting: true, maxNesting + 1: false} {
			nested := base64.RawURLEncoding.EncodeToString([]byte(strings.Repeat(bracket, n)))
			testutil.Holds(t, shallow(nested+".e30.x") == safe && shallow("e30."+nested+".x") == safe, "with %d %s", n, bracket)
		}
	}
	testutil.Holds(t, !shallow("e30.!.x"), "what cannot be decoded is safe to parse")
}

// flooded is a Tokens that an attacker keeps busy from the addresses given,
// with as many tokens at a time from each, for as long as f takes.
func flooded(t *testing.T, api *signer, cfg TokensConfig, invent func(i int64) string, from []string, each int, f func(*Tokens)) {
	cfg.Accounts, cfg.Audience = []Account{{"kube-system", "konnectivity-agent"}}, "konnectivity"
	cfg.Reviews = reviewFunc(func(ctx context.Context, r kubeapi.TokenReviewSpec) (kubeapi.TokenReviewStatus, error) {
		time.Sleep(5 * time.Millisecond)
		parsed, err := jwt.ParseSigned(r.Token, algorithms)
		if r.Token != "opaque and good" && (err != nil || parsed.Claims(api.key.Public()) != nil) {
			return kubeapi.TokenReviewStatus{}, ctx.Err()
		}
		return answer("good"), ctx.Err()
	})
	tokens := NewTokens(cfg)
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { tokens.Run(ctx) })
	synctest.Wait() // the keys are read
	var n atomic.Int64
	for _, ip := range from {
		for range each {
			wg.Go(func() {
				for ctx.Err() == nil {
					_ = reviewed(tokens, ctx, invent(n.Add(1)), at(ip))
					time.Sleep(250 * time.Millisecond)
				}
			})
		}
	}
	time.Sleep(5 * time.Second)
	f(tokens)
	stop()
	wg.Wait()
}

// A flood of bad tokens delays a good agent that is new by two seconds at most,
// whatever the tokens look like and wherever they come from.
func TestFloodOfBadTokens(t *testing.T) {
	const same, other = "192.0.2.1", "198.51.100.1"
	var many []string
	for i := range 250 {
		many = append(many, fmt.Sprintf("203.0.113.%d", i))
	}
	api, forger := newSigner(t, "k1"), newSigner(t, "k1")
	pool := []string{}
	synctest.Test(t, func(t *testing.T) {
		for i := range 1000 { // signing costs real time
			pool = append(pool, forger.token(fmt.Sprint("forged", i), map[string]any{"exp": nil, "nbf": nil}))
		}
	})
	opaque := func(i int64) string { return fmt.Sprint("junk", i) }
	forged := func(i int64) string { return pool[i%int64(len(pool))] }
	for _, c := range []struct {
		name   string
		keys   bool
		invent func(int64) string
		from   []string
		each   int
		token  string // of the good agent; "" for one of the API's
	}{
		{"junk from another address", false, opaque, []string{other}, 600, ""},
		{"junk from the same address", false, opaque, []string{same}, 600, ""},
		{"forged from another address", false, forged, []string{other}, 600, ""},
		{"forged from the same address, with keys", true, forged, []string{same}, 600, ""},
		{"forged from the same address, 25 at a time, without keys", false, forged, []string{same}, 25, ""},
		{"forged from 80 addresses, without keys", false, forged, many[:80], 8, ""},
		{"forged from 250 addresses, with keys", true, forged, many, 4, ""},
		{"junk with some forged from the same address", false, func(i int64) string {
			if i%100 == 0 {
				return forged(i)
			}
			return opaque(i)
		}, []string{same}, 600, ""},
		{"junk from another address, good ones opaque", false, opaque, []string{other}, 600, "opaque and good"},
	} {
		synctest.Test(t, func(t *testing.T) {
			var cfg TokensConfig
			if c.keys {
				cfg.SigningKeys = api.published
			}
			flooded(t, api, cfg, c.invent, c.from, c.each, func(tokens *Tokens) {
				for i := range 8 {
					token := c.token
					if token == "" {
						token = api.token(fmt.Sprint("good", i), nil)
					}
					start := time.Now()
					err := reviewed(tokens, t.Context(), token, at(same))
					took := time.Since(start)
					testutil.Holds(t, err == nil && took <= 2*time.Second, "%s: a good agent waited %v: %v", c.name, took, err)
				}
			})
		})
	}
}

// Where signatures cannot be checked, an agent whose token was renewed is known
// by its pod, and one that comes again by its token; until such a token is
// refused.
func TestAgentsThatWereAcceptedComeFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newSigner(t, "k1")
		verdict := answer("good")
		tokens := newTokens(reviewFunc(func(_ context.Context, r kubeapi.TokenReviewSpec) (kubeapi.TokenReviewStatus, error) {
			return verdict, nil
		}))
		old, renewed := api.token("a", nil), api.token("a", map[string]any{"jti": "b"})
		worth := func(token string) rank {
			return tokens.rank(tokens.lookAt(token), tokenKeyOf(token), admission.SourceOf(at("192.0.2.1")))
		}
		testutil.Holds(t, worth(old) == plausible && worth(renewed) == plausible,
			"agents are proven before they were accepted")
		_ = reviewed(tokens, t.Context(), old, at("192.0.2.1"))
		testutil.Holds(t, worth(old) == proven && worth(renewed) == proven && worth(api.token("c", nil)) == plausible,
			"after one was accepted: not it and its pod alone are proven")
		verdict = answer("expired")
		_ = reviewed(tokens, t.Context(), renewed, at("192.0.2.1"))
		testutil.Holds(t, worth(renewed) == suspect && worth(api.token("c", nil)) == suspect,
			"after one was refused: others from there are not suspect")
		time.Sleep(suspectFor)
		testutil.Equal(t, worth(api.token("c", nil)), plausible, "the suspicion does not end")
		verdict = answer("good")
		podless := map[string]any{"exp": nil, "kubernetes.io": nil}
		alone := api.token("d", podless)
		_ = reviewed(tokens, t.Context(), alone, at("192.0.2.1"))
		testutil.Holds(t, worth(alone) == proven && worth(api.token("e", podless)) == plausible,
			"after one without a pod was accepted: not it alone is proven")
		verdict = answer("expired")
		time.Sleep(goodFor + time.Second)
		_ = reviewed(tokens, t.Context(), alone, at("192.0.2.1"))
		testutil.Equal(t, worth(alone), suspect, "one that was accepted, then refused")
		time.Sleep(provenFor)
		testutil.Holds(t, worth(old) != proven, "the proof does not end")
	})
}

// Keys are read at the start, again for a token with an unknown one but not at
// once, and kept while the API does not answer.
func TestSigningKeysAreKeptFresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second := newSigner(t, "k1"), newSigner(t, "k2")
		var calls atomic.Int64
		var now atomic.Pointer[signer]
		var denied atomic.Bool
		now.Store(first)
		log, said := test.NewNullLogger()
		tokens := NewTokens(TokensConfig{Accounts: []Account{{"kube-system", "konnectivity-agent"}}, Audience: "konnectivity", Log: log,
			SigningKeys: func(ctx context.Context) ([]byte, error) {
				calls.Add(1)
				if s := now.Load(); s != nil {
					return s.published(ctx)
				}
				if denied.Load() {
					return nil, &kubeapi.Error{Code: 403, Reason: kubeapi.Forbidden}
				}
				return nil, errors.New("connection refused")
			}})
		stop := testutil.Start(t, tokens.Run)
		synctest.Wait()
		now.Store(second)
		for range 1000 {
			tokens.lookAt(second.token("a", map[string]any{"exp": nil}))
			time.Sleep(keysAgain / 1000)
		}
		synctest.Wait()
		testutil.Equal(t, calls.Load(), 2, "readings")
		testutil.Equal(t, tokens.lookAt(second.token("b", nil)).rank, proven, "the new key is not in use: rank")
		now.Store(nil)
		time.Sleep(2 * keysEvery)
		testutil.Equal(t, tokens.lookAt(second.token("c", nil)).rank, proven, "the keys are lost while the API is down: rank")
		testutil.AtMost(t, calls.Load(), 2+int64(2*keysEvery/keysAgain), "readings while the API is down")
		denied.Store(true)
		time.Sleep(keysEvery)
		stop()
		lines := said.AllEntries()
		testutil.Requires(t, len(lines) == 3, "%d lines are logged", len(lines))
		err, ok := lines[0].Data[logrus.ErrorKey]
		testutil.Holds(t, !ok, "that keys are read is logged with the error %v", err)
		testutil.Holds(t, lines[1].Data[logrus.ErrorKey] != nil, "that they cannot be is logged without the cause")
		for i, want := range []bool{false, false, true} {
			testutil.Equal(t, strings.Contains(lines[i].Message, ": bind the server to the cluster role"), want, "a role is asked for in %q", lines[i].Message)
		}
	})
}

// Nothing is logged of the first call to an API that is still starting. The keys are read half a
// minute later.
func TestKeysOfAnAPIThatStarts(t *testing.T) {
	for name, c := range map[string]struct {
		failures []error // of the first calls
		lines    []string
	}{
		"it starts":     {[]error{errors.New("connection refused")}, []string{"are reviewed before others"}},
		"it stays away": {[]error{errors.New("connection refused"), errors.New("connection refused")}, []string{"cannot be read", "are reviewed before others"}},
		"it refuses":    {[]error{&kubeapi.Error{Code: 403, Reason: kubeapi.Forbidden}}, []string{"bind the server to the cluster role", "are reviewed before others"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				signer, failures := newSigner(t, "k1"), c.failures
				log, said := test.NewNullLogger()
				k := newKeys(func(ctx context.Context) ([]byte, error) {
					if len(failures) > 0 {
						err := failures[0]
						failures = failures[1:]
						return nil, err
					}
					return signer.published(ctx)
				}, log)
				stop := testutil.Start(t, func(ctx context.Context) { k.run(ctx, func() {}) })
				time.Sleep(3 * keysAgain)
				stop()
				lines := said.AllEntries()
				testutil.Requires(t, len(lines) == len(c.lines), "%d lines are logged", len(lines))
				for i, want := range c.lines {
					testutil.Holds(t, strings.Contains(lines[i].Message, want), "%q is logged, not %q", lines[i].Message, want)
				}
			})
		})
	}
}

// What an API answers in place of its keys leaves those that are known.
func TestBrokenKeySetsChangeNothing(t *testing.T) {
	keys := newKeys(newSigner(t, "k1").published, logging.Silent())
	testutil.NoError(t, keys.refresh(t.Context()))
	for _, answer := range []string{"<html>", "{}", `{"keys":[{},{"kty":"new","kid":"a"}]}`, `{"keys":[{"kty":"oct","k":"c2VjcmV0","kid":"k1"}]}`} {
		keys.read = func(context.Context) ([]byte, error) { return []byte(answer), nil }
		testutil.Fails(t, keys.refresh(t.Context()), "%s was taken for keys", answer)
		testutil.Equal(t, len((*keys.known.Load())["k1"]), 1, "keys after %s:", answer)
	}
}

// A turn that is given while its waiter leaves is not lost.
func TestTurnOfALeavingCallerIsNotLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tokens := newTokens(reviewFunc(func(ctx context.Context, r kubeapi.TokenReviewSpec) (kubeapi.TokenReviewStatus, error) {
			time.Sleep(time.Millisecond)
			return answer(r.Token), ctx.Err()
		}))
		var wg sync.WaitGroup
		for i := range 2000 {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i%50)*time.Millisecond)
				defer cancel()
				_ = reviewed(tokens, ctx, fmt.Sprint("left", i), at("192.0.2.1"))
			})
		}
		wg.Wait()
		testutil.Equal(t, codeOf(reviewed(tokens, t.Context(), "good", at("192.0.2.1"))), codes.OK, "the next one")
	})
}

func FuzzLookAt(f *testing.F) {
	f.Add("eyJhbGciOiJFUzI1NiIsImtpZCI6ImsxIn0.eyJzdWIiOiJ4In0.AAAA")
	f.Add("..")
	f.Add("opaque")
	tokens := newTokens(nil)
	f.Fuzz(func(t *testing.T, token string) {
		testutil.Holds(t, tokens.lookAt(token).rank != proven, "%q is proven without a key", token)
	})
}
