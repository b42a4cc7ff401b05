package e2e

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"konnectivity/e2e/suite"
	"konnectivity/tunnel"
	"konnectivity/tunnel/legacy"
)

// tokenKey signs service accounts' tokens.
type tokenKey struct {
	t   testing.TB
	key *ecdsa.PrivateKey
}

func newTokenKey(t testing.TB) tokenKey {
	return tokenKey{t, must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)}
}

// set is the key as an API server publishes it.
func (k tokenKey) set() []byte {
	return must(json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: k.key.Public(), KeyID: "k1", Algorithm: "ES256", Use: "sig"}}}))(k.t)
}

// token is one of the agents' account.
func (k tokenKey) token(id string) string {
	sign := must(jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: k.key, KeyID: "k1"}}, nil))(k.t)
	return must(jwt.Signed(sign).Claims(jwt.Claims{
		Issuer: "https://kubernetes.default.svc", Subject: agentAccount, ID: id, Audience: jwt.Audience{"konnectivity"},
		Expiry: jwt.NewNumericDate(time.Now().Add(time.Hour)),
	}).Serialize())(k.t)
}

// tokenPeer comes to the agents' port with tokens, over one connection.
type tokenPeer struct{ conn *grpc.ClientConn }

func newTokenPeer(t testing.TB, s *suite.Suite, srv *suite.Server) tokenPeer {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(must(os.ReadFile(s.PKI("ca.crt")))(t))
	creds := credentials.NewTLS(&tls.Config{RootCAs: pool, ServerName: "localhost"})
	return tokenPeer{must(grpc.NewClient(suite.Loopback(srv.AgentPort), grpc.WithTransportCredentials(creds)))(t)}
}

// comes is nil if the token is accepted within ctx.
func (p tokenPeer) comes(ctx context.Context, id, token string) error {
	server, err := legacy.ConnectAgent(ctx, p.conn, legacy.AgentConfig{ID: id, Forwarder: &tunnel.Forwarder{}, Token: func() (string, error) { return token, nil }})
	if err == nil {
		server.Close()
	}
	return err
}

// floodTokens comes with invented tokens over so many connections, with as many
// tokens at once on each, until it is stopped.
func floodTokens(t testing.TB, s *suite.Suite, srv *suite.Server, conns, each int, invent func(int64) string) (stop func() int64) {
	ctx, cancel := context.WithCancel(t.Context())
	var sent atomic.Int64
	var wg sync.WaitGroup
	for range conns {
		peer := newTokenPeer(t, s, srv)
		for range each {
			wg.Go(func() {
				for ctx.Err() == nil {
					n := sent.Add(1)
					_ = peer.comes(ctx, fmt.Sprint("stranger", n), invent(n))
					time.Sleep(100 * time.Millisecond)
				}
			})
		}
		wg.Go(func() { <-ctx.Done(); peer.conn.Close() })
	}
	return func() int64 { cancel(); wg.Wait(); return sent.Load() }
}

// inLine is well below what a good token would wait behind a thousand bad ones,
// which are reviewed at some 20 a second; 50 ms on an idle machine.
const inLine = 20 * time.Second

// Bad tokens from the very address that good agents have do not keep them out:
// neither junk, nor tokens that say all the right things without the signature
// of an API that publishes its keys.
func TestFloodOfBadTokens(t *testing.T) {
	good, forger := newTokenKey(t), newTokenKey(t)
	var forged []string
	for i := range 500 {
		forged = append(forged, forger.token(fmt.Sprint("forged", i)))
	}
	for name, c := range map[string]struct {
		keys   []byte
		invent func(int64) string
	}{
		"junk":   {nil, func(n int64) string { return fmt.Sprintf("%032x", n) }},
		"forged": {good.set(), func(n int64) string { return forged[n%int64(len(forged))] }},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSuite(t)
			api := newKubeAPI(t, s)
			api.publish(c.keys)
			srv := must(s.StartServer(append(api.apiArgs(), "--cluster-ca-cert=", "--agent-namespace=kube-system",
				"--agent-service-account=konnectivity-agent", "--authentication-audience=konnectivity")...))(t)
			stop := floodTokens(t, s, srv, 25, 40, c.invent)
			time.Sleep(time.Second) // until the flood stands
			worst := time.Duration(0)
			for i := range 8 {
				token := good.token(fmt.Sprint("good", i))
				api.allow(token, identity{agentAccount, "konnectivity"})
				peer := newTokenPeer(t, s, srv)
				start := time.Now()
				err := peer.comes(within(t, inLine), fmt.Sprint("agent", i), token)
				worst = max(worst, time.Since(start))
				peer.conn.Close()
				if err != nil {
					t.Errorf("agent %d: after %v: %v", i, time.Since(start), err)
				}
			}
			t.Logf("%d bad tokens came; a good one took %v at most", stop(), worst)
		})
	}
}
