package e2e

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"konnectivity/e2e/suite"
	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/legacy"
	"konnectivity/tunnel/link"
)

// roleCA signs with the suite's own CA.
func roleCA(t *testing.T, s *suite.Suite) *pki.CA {
	return must(pki.ParseCA(must(os.ReadFile(s.PKI("ca.crt")))(t), must(os.ReadFile(s.PKI("ca.key")))(t)))(t)
}

// holder is a certificate whose holder has a role; "" is none.
func holder(t *testing.T, ca *pki.CA, role pki.Role, domain string) pki.Pair {
	leaf := pki.Leaf{CommonName: "a-" + string(role), IPs: []net.IP{net.IPv4(127, 0, 0, 1)}, Client: true, Server: true}
	if role != "" {
		leaf.Holder = pki.Holder{Role: role, TrustDomain: domain}
	}
	return must(ca.Issue(leaf))(t)
}

// pairFlags writes a pair and returns the flags that name its files.
func pairFlags(t *testing.T, s *suite.Suite, p pki.Pair, cert, key string) []string {
	base := must(os.MkdirTemp(s.Dir, "pair"))(t)
	for name, text := range map[string][]byte{"crt": p.CertPEM, "key": p.KeyPEM} {
		testutil.NoError(t, os.WriteFile(filepath.Join(base, name), text, 0o600))
	}
	return []string{cert + "=" + filepath.Join(base, "crt"), key + "=" + filepath.Join(base, "key")}
}

// ways are all by which a peer with a certificate comes to a server.
func ways(t *testing.T, srv *suite.Server, target string) map[string]func(context.Context, *tls.Config) error {
	byLink := func(role link.Role, port int) func(context.Context, *tls.Config) error {
		return func(ctx context.Context, config *tls.Config) error {
			config.NextProtos = []string{link.ALPN}
			conn, err := (&tls.Dialer{Config: config}).DialContext(ctx, "tcp", suite.Loopback(port))
			if err != nil {
				return err
			}
			defer conn.Close()
			session, err := link.Connect(ctx, tunnel.Wrap(conn), link.Config{Hello: link.Hello{Role: role, ID: "peer"}})
			if err == nil {
				_ = session.Close()
			}
			return err
		}
	}
	return map[string]func(context.Context, *tls.Config) error{
		"client CONNECT": func(_ context.Context, config *tls.Config) error {
			return try(t, viaConnect("tcp", suite.Loopback(srv.ClientPort), config), target)
		},
		"client gRPC": func(_ context.Context, config *tls.Config) error {
			return try(t, overGRPC(suite.Loopback(srv.ClientPort), credentials.NewTLS(config)), target)
		},
		"client link": byLink(link.RoleClient, srv.ClientPort),
		"agent gRPC": func(ctx context.Context, config *tls.Config) error {
			conn, err := grpc.NewClient(suite.Loopback(srv.AgentPort), grpc.WithTransportCredentials(credentials.NewTLS(config)))
			if err != nil {
				return err
			}
			defer conn.Close()
			session, err := legacy.ConnectAgent(ctx, conn, legacy.AgentConfig{ID: "peer", Forwarder: &tunnel.Forwarder{}})
			if err == nil {
				session.Close()
			}
			return err
		},
		"agent link": byLink(link.RoleAgent, srv.AgentPort),
	}
}

// Every port takes the role it is for, by every protocol, and refuses others;
// certificates without a role are taken unless a role is required.
func TestPortsTakeOnlyTheirRole(t *testing.T) {
	s := newSuite(t)
	ca, target := roleCA(t, s), testutil.Echo(t)
	pairs := map[pki.Role]tls.Certificate{}
	for _, role := range []pki.Role{"", pki.RoleAgent, pki.RoleClient, pki.RoleServer} {
		pairs[role] = holder(t, ca, role, "cluster.local").TLS()
	}
	for mode, flags := range map[string][]string{"default": nil, "required": {"--require-peer-role"}, "trust domain": {"--peer-trust-domain=other.test"}} {
		began := time.Now()
		srv := must(s.StartServer(flags...))(t)
		var agentFlags []string
		if mode == "trust domain" {
			agentFlags = pairFlags(t, s, holder(t, ca, pki.RoleAgent, "other.test"), "--agent-cert", "--agent-key")
		}
		must(s.StartAgent(srv, agentFlags...))(t)
		refused := 0
		for name, way := range ways(t, srv, target) {
			for role, pair := range pairs {
				want := mode != "trust domain" && strings.HasPrefix(name, string(role)+" ") || role == "" && mode != "required"
				config := &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: ca.Pool(), ServerName: "127.0.0.1"}
				err := way(within(t, patience), config)
				testutil.Holds(t, (err == nil) == want,
					"%s, %s with the role %q: %v", mode, name, role, err)
				if !want {
					refused++
				}
			}
		}
		eventually(t, patience, fmt.Sprintf("%s: at least %d refusals are counted", mode, refused), func() (bool, any) {
			counted := 0.0
			for _, name := range []string{"server", "cluster"} {
				counted += metric(srv.HealthURL("/metrics"), fmt.Sprintf(`konnectivity_tls_peers_refused_total{name=%q}`, name))
			}
			return counted >= float64(refused), counted // gRPC's library tries again
		})
		const line = "a peer was refused" // by each of two ports, once a minute
		logged(t, srv.Process, patience, line)
		testutil.AtMost(t, strings.Count(srv.Output(), line), 2*(1+int(time.Since(began)/time.Minute)),
			"%s: refusals in the log", mode)
	}
}

// Agents and sidecars hold servers to their role, and both sides of a refusal
// say what is wrong.
func TestRolesOfServersAndWhatRefusalsSay(t *testing.T) {
	s := newSuite(t)
	ca := roleCA(t, s)
	posing := pairFlags(t, s, holder(t, ca, pki.RoleAgent, "cluster.local"), "--cluster-cert", "--cluster-key")
	posing = append(posing, pairFlags(t, s, holder(t, ca, pki.RoleAgent, "cluster.local"), "--server-cert", "--server-key")...)
	srv := must(s.StartServer(posing...))(t)
	logged(t, srv.Process, patience, "peers that check roles refuse this program's own certificate")
	a := must(s.LaunchAgent(srv))(t)
	rejected(t, a, "has the role agent, and here only the role server is accepted")
	sidecar := must(s.StartSOCKS5(srv))(t)
	logged(t, sidecar.Process, patience, "has the role agent, and here only the role server is accepted")
	check := must(s.Run("konnectivity", nil, "check", "--konnectivity-hostname=127.0.0.1", fmt.Sprintf("--konnectivity-port=%d", srv.ClientPort),
		"--ca-cert-path="+s.PKI("ca.crt"), "--tls-cert-path="+s.PKI("client.crt"), "--tls-key-path="+s.PKI("client.key")))(t)
	logged(t, check, patience, "has the role agent, and here only the role server is accepted")

	plain := pairFlags(t, s, holder(t, ca, "", ""), "--cluster-cert", "--cluster-key")
	old := must(s.StartServer(plain...))(t)
	connected(t, must(s.StartAgent(old))(t), 1, patience)
	strict := must(s.LaunchAgent(old, "--require-peer-role", "--agent-id=strict"))(t)
	rejected(t, strict, "has no role, and --require-peer-role wants the role server")

	wrong := must(s.LaunchAgent(old, "--agent-id=wrong", "--agent-cert="+s.PKI("client.crt"), "--agent-key="+s.PKI("client.key")))(t)
	rejected(t, wrong, "it does not take this agent's certificate, whose role may not be agent")
	logged(t, wrong.Process, patience, "peers that check roles refuse this program's own certificate")
	logged(t, old.Process, patience, "has the role client, and here only the role agent is accepted")
}
