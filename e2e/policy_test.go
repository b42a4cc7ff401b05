package e2e

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"konnectivity/e2e/suite"
	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// errAltered tells that a connection lost or changed bytes.
var errAltered = errors.New("other bytes came back")

// load is connections that carry bytes until they are ended.
type load struct {
	running sync.WaitGroup
	conns   []*carried
}

// carried is one of them.
type carried struct {
	what   string
	denied bool // by the change of the test
	conn   tunnel.Conn
	rounds atomic.Int64
	ended  atomic.Pointer[error]
	at     time.Time
}

func newLoad(t *testing.T) *load {
	l := &load{}
	t.Cleanup(l.close)
	return l
}

func (l *load) close() {
	for _, c := range l.conns {
		_ = c.conn.Close()
	}
	l.running.Wait()
}

// add opens a connection to an echo that carries bytes from now on.
func (l *load) add(t *testing.T, what string, by tunnel.Dialer, target string, denied bool) {
	t.Helper()
	c := &carried{what: what, denied: denied, conn: dialed(t, by, target)}
	l.conns = append(l.conns, c)
	l.running.Go(func() {
		sent, got := make([]byte, 1000), make([]byte, 1000)
		for i := byte(0); ; i++ {
			for j := range sent {
				sent[j] = i + byte(j)
			}
			_, err := c.conn.Write(sent)
			if err == nil {
				_, err = io.ReadFull(c.conn, got)
			}
			if err == nil && !bytes.Equal(sent, got) {
				err = errAltered
			}
			if err != nil {
				c.at = time.Now()
				c.ended.Store(&err)
				return
			}
			c.rounds.Add(1)
			time.Sleep(5 * time.Millisecond)
		}
	})
}

// only waits until exactly those that are denied have ended, and the others go on. It returns
// how long the last one took.
func (l *load) only(t *testing.T, since time.Time) (last time.Duration) {
	t.Helper()
	for _, c := range l.conns {
		if c.denied {
			eventually(t, patience, c.what+" is ended", func() (bool, any) { return c.ended.Load() != nil, "open" })
			last = max(last, c.at.Sub(since))
		}
	}
	for _, c := range l.conns {
		if c.denied {
			continue
		}
		before := c.rounds.Load()
		eventually(t, patience, c.what+" goes on", func() (bool, any) {
			if err := c.ended.Load(); err != nil {
				t.Fatalf("%s was ended: %v", c.what, *err)
			}
			return c.rounds.Load() > before+2, "still"
		})
	}
	return last
}

// lost is how many have ended, or stand still for as long as a test waits. It fails the test
// for those of which other bytes came back.
func (l *load) lost(t *testing.T) (n int) {
	t.Helper()
	end := time.Now().Add(patience)
	for _, c := range l.conns {
		before := c.rounds.Load()
		for c.ended.Load() == nil && c.rounds.Load() <= before+1 { // one may have been under way
			if time.Now().After(end) {
				n++
				break
			}
			time.Sleep(5 * time.Millisecond)
		}
		if err := c.ended.Load(); err != nil {
			n++
			testutil.Holds(t, !errors.Is(*err, errAltered), "%s: %v", c.what, *err)
		}
	}
	return n
}

// A change of the server's policy file, or of the agent's, ends exactly the open connections
// that it denies, by all fronts, while all of them carry bytes; and lets others in. All who
// write down why a connection ended name the policy.
func TestPolicyReachesOpenConnections(t *testing.T) {
	t.Parallel()
	testutil.EachOf(t, []string{"server", "agent"}, func(t *testing.T, at string) {
		var targets, ports [2]string
		for i := range targets {
			targets[i] = testutil.Echo(t)
			_, ports[i], _ = net.SplitHostPort(targets[i])
		}
		deny := func(i int) string { return denying("127.0.0.0/8:" + ports[i]) }
		path := policyFile(t, noDenial)
		decides := map[string][]string{at: {"--policy-file=" + path, "--audit-log=-"}}
		w := newWholeOf(t, flags{server: decides["server"], agent: decides["agent"]})
		fronts := append(w.routes(t), route{"grpc", viaGRPC(w.server.UDS)})
		decider, health := w.server.Process, w.server.HealthURL("/metrics")
		if at == "agent" {
			decider, health = w.agent.Process, w.agent.HealthURL("/metrics")
		}
		l, n := newLoad(t), 0
		for range scaled(3, 50) {
			for _, f := range fronts {
				for i, target := range targets {
					l.add(t, f.name+" to "+target, f, target, i == 0)
					l.add(t, f.name+" by name to "+target, f, net.JoinHostPort("localhost", ports[i]), i == 0)
					n += 1 - i
				}
			}
		}
		n *= 2
		changed := time.Now()
		writePolicy(t, path, deny(0))
		t.Logf("%d of %d connections were ended within %v of the change", n, len(l.conns), l.only(t, changed))
		logged(t, decider, patience, fmt.Sprintf(`"connections":%d`, n))
		eventually(t, patience, "the records name the policy", func() (bool, any) {
			ends := 0
			for _, r := range records(t, decider.Output()) {
				if r.Event == "closed" && r.End == "policy" && r.Rule == "denied" {
					ends++
				}
			}
			return ends == n, ends
		})
		reaches(t, patience, health, at+`_connection_resets_total{cause="policy"}`, float64(n))
		for _, f := range fronts {
			refused(t, f.name+" reaches what is denied", f, targets[0])
		}

		// The other way round.
		writePolicy(t, path, deny(1))
		for _, c := range l.conns {
			c.denied = true
		}
		for _, f := range fronts {
			eventually(t, patience, f.name+" is let in", func() (bool, any) {
				err := try(t, f, targets[0])
				return err == nil, err
			})
		}
		l.only(t, changed)
	})
}

// A client, and an agent, whose certificate is revoked is disconnected with all that it has
// open, and refused from then on; others do not notice. One whose CA is taken away goes on
// if it can prove itself anew.
func TestRevokedPeersAreDisconnected(t *testing.T) {
	t.Parallel()
	w := &whole{Suite: newSuite(t)}
	ca := newAuthority(t, w.Suite, "ours")
	cert := func(name string) (pki.Pair, []string) {
		base := filepath.Join(w.Dir, name)
		pair := ca.write(t, pki.Leaf{CommonName: name, Client: true}, base+".crt", base+".key")
		return pair, []string{"--tls-cert-path=" + base + ".crt", "--tls-key-path=" + base + ".key"}
	}
	list := filepath.Join(w.Dir, "ours.crl")
	revoke := func(pairs ...pki.Pair) {
		all := make([]*x509.Certificate, 0, len(pairs))
		for _, p := range pairs {
			all = append(all, p.TLS().Leaf)
		}
		replace(t, list, must(ca.Revoke(time.Now().Add(time.Hour), all...))(t))
	}
	revoke()
	bad, badFlags := cert("bad")
	_, goodFlags := cert("good")
	agentCert, _ := cert("agent-cert")
	agent := func() []string {
		return []string{"--agent-cert=" + filepath.Join(w.Dir, "agent-cert.crt"), "--agent-key=" + filepath.Join(w.Dir, "agent-cert.key")}
	}
	w.server = must(w.StartServer("--server-ca-cert="+ca.file, "--server-ca-crl="+list, "--cluster-ca-cert="+ca.file, "--cluster-ca-crl="+list))(t)
	w.agent = must(w.StartAgent(w.server, agent()...))(t)
	badSocks, badHTTPS := must(w.StartSOCKS5(w.server, badFlags...))(t), must(w.StartHTTPS(w.server, append(badFlags, "--link=off")...))(t)
	goodSocks := must(w.StartSOCKS5(w.server, goodFlags...))(t)
	config := w.clientTLS(t)
	config.Certificates = []tls.Certificate{bad.TLS()}
	l, target := newLoad(t), testutil.Echo(t)
	for range 5 {
		l.add(t, "revoked, by link", viaSOCKS5(badSocks.Address()), target, true)
		l.add(t, "revoked, by gRPC", viaConnect("tcp", badHTTPS.Address(), nil), target, true)
		l.add(t, "revoked, by CONNECT", viaConnect("tcp", suite.Loopback(w.server.ClientPort), config), target, true)
		l.add(t, "other, by link", viaSOCKS5(goodSocks.Address()), target, false)
		l.add(t, "other, by socket", viaConnect("unix", w.server.UDS, nil), target, false)
	}
	changed := time.Now()
	revoke(bad)
	t.Logf("connections were ended within %v of the change", l.only(t, changed))
	logged(t, w.server.Process, patience, "peers were disconnected")
	for what, by := range map[string]tunnel.Dialer{"link": viaSOCKS5(badSocks.Address()), "CONNECT": viaConnect("tcp", suite.Loopback(w.server.ClientPort), config)} {
		refused(t, "a revoked client is served by "+what, by, target)
	}

	// The agent: its connections end at both sides.
	for _, c := range l.conns {
		c.denied = true
	}
	revoke(bad, agentCert)
	l.only(t, changed)
	eventually(t, patience, "no agent serves", func() (bool, any) {
		err := try(t, viaSOCKS5(goodSocks.Address()), target)
		return err != nil, err
	})
	_, _ = cert("agent-cert") // a new one
	reachable(t, viaSOCKS5(goodSocks.Address()), target)
}

// reachable waits until a target is reached.
func reachable(t *testing.T, by tunnel.Dialer, target string) {
	t.Helper()
	eventually(t, rotationBound, "reached again", func() (bool, any) {
		err := try(t, by, target)
		return err == nil, err
	})
}

// refused fails the test with that complaint if a target is reached.
func refused(t *testing.T, what string, by tunnel.Dialer, target string) {
	t.Helper()
	testutil.Fails(t, try(t, by, target), "%s", what)
}

// dialed is a connection to a target, which ends with the test.
func dialed(t testing.TB, by tunnel.Dialer, target string) tunnel.Conn {
	t.Helper()
	c := must(by.Dial(within(t, patience), tunnel.NewFlow("tcp", target)))(t)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// try dials a target and hangs up.
func try(t *testing.T, by tunnel.Dialer, target string) error {
	c, err := by.Dial(within(t, patience), tunnel.NewFlow("tcp", target))
	if err == nil {
		c.Close()
	}
	return err
}

// Both the server and the agent refuse destinations by policy, cloud metadata
// without being told. The client hears 403, the operator has a metric and a
// line.
func TestPolicyIsKeptByServerAndAgent(t *testing.T) {
	s := newSuite(t)
	target := newTarget(t).plain.URL
	host, port, _ := net.SplitHostPort(strings.TrimPrefix(target, "http://"))
	srv := must(s.StartServer("--deny-destination=*.internal.example"))(t)
	a := must(s.StartAgent(srv, "--deny-destination=127.0.0.0/8:1-1024", "--deny-destination=::1/128"))(t)
	dial := viaConnect("unix", srv.UDS, nil)
	status := func(address string) int {
		t.Helper()
		err := try(t, dial, address)
		if err == nil {
			return http.StatusOK
		}
		var refusal *statusError
		if !errors.As(err, &refusal) {
			t.Errorf("%s: %v", address, err)
			return 0
		}
		return refusal.status
	}
	denials := func(by string) float64 {
		if by == "server" {
			return metric(srv.HealthURL("/metrics"), "server_policy_denials_total")
		}
		return metric(a.HealthURL("/metrics"), "agent_policy_denials_total")
	}
	for _, c := range []struct {
		name, address, by string
	}{
		{"a name that the server denies", "db.internal.example:443", "server"},
		{"the metadata address", "169.254.169.254:80", "server"},
		{"an address that the agent denies", "127.0.0.1:22", "agent"},
		{"a name that leads to it", "localhost:22", "agent"},
	} {
		before := denials(c.by)
		testutil.Equal(t, status(c.address), http.StatusForbidden, "%s, %s", c.name, c.address)
		testutil.Equal(t, denials(c.by)-before, 1, "%s: denials that the %s counts", c.name, c.by)
	}
	logged(t, srv.Process, patience, "refused by policy")
	logged(t, a.Process, patience, "denied by policy")
	testutil.Equal(t, status(net.JoinHostPort(host, port)), http.StatusOK, "what no rule denies")
}

// policyFile writes a policy file with these rules, and returns its path.
func policyFile(t *testing.T, rules string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "policy.yaml")
	writePolicy(t, path, rules)
	return path
}

// noDenial are rules that deny nothing of a test's.
const noDenial = "rules:\n- {name: none, action: deny, who: ['*'], where: ['192.0.2.1']}\n"

// denying returns rules that deny a destination to all clients.
func denying(where string) string {
	return "rules:\n- {name: denied, action: deny, who: ['*'], where: ['" + where + "']}\n"
}

// writePolicy replaces a policy file as a whole, as those who change files in use should.
func writePolicy(t testing.TB, path, rules string) {
	t.Helper()
	next := path + ".next"
	testutil.NoError(t, errors.Join(os.WriteFile(next, []byte("version: 1\nmode: enforce\n"+rules), 0o600), os.Rename(next, path)))
}
