package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"konnectivity/client"
	"konnectivity/e2e/suite"
	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

func standStill(b *balancer, r *rand.Rand, longest time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(r.Int64N(int64(longest))))
	defer cancel()
	b.stands(ctx)
}

// anyServer is one of those that faults end. The first server goes on, so that the test sees what
// a server holds after a long time.
func (w *town) anyServer() *suite.Server { return w.servers[1+w.r.IntN(len(w.servers)-1)] }

// end ends servers, and then starts each again.
func (w *town) end(how func(*suite.Process), servers ...*suite.Server) {
	for _, srv := range servers {
		how(srv.Process)
	}
	for _, srv := range servers {
		w.restart(srv)
		w.serves(srv)
	}
}

// freeze stops a process, as a machine that hangs.
func (w *town) freeze(p *suite.Process, longest time.Duration) {
	testutil.Succeeds(w.t, p.Signal(suite.Freeze), "freeze")
	time.Sleep(time.Duration(w.r.Int64N(int64(longest))))
	testutil.Succeeds(w.t, p.Signal(suite.Thaw), "thaw")
}

// handOver replaces an agent by another that has its connections.
func (w *town) handOver(role string, agent **suite.Agent, start func() *suite.Agent) {
	before := *agent
	*agent = start()
	stopInOrder(w.t, before.Process)
	w.plays(role, *agent)
}

// cutHandoverShort kills either side at any moment of it. Connections may end.
func (w *town) cutHandoverShort() {
	w.strike(w.mortalEcho, false, func() {
		holder, next := w.mortal, w.newMortal()
		_ = holder.Signal(syscall.SIGTERM)
		time.Sleep(time.Duration(w.r.Int64N(int64(300 * time.Millisecond))))
		if w.r.IntN(2) == 0 {
			holder.Kill()
		} else {
			next.Kill()
			next = w.newMortal()
			_, _ = holder.Wait(time.Minute)
		}
		w.mortal = next
	}, w.fronts()...)
}

// again makes a dial again until it succeeds.
func again(by tunnel.Dialer) tunnel.Dialer {
	return tunnel.DialerFunc(func(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
		for {
			c, err := by.Dial(ctx, tunnel.NewFlow(f.Network, f.Address))
			if err == nil || ctx.Err() != nil {
				return c, err
			}
			pause(ctx, 100*time.Millisecond)
		}
	})
}

// strike opens connections to a target, and does what ends them. With all, each must end. None
// may bring other bytes.
func (w *town) strike(target string, all bool, do func(), ways ...tunnel.Dialer) {
	w.t.Helper()
	l := newLoad(w.t)
	defer l.close()
	for i := range 3 * len(ways) {
		l.add(w.t, fmt.Sprint("victim ", i), again(ways[i%len(ways)]), target, all)
	}
	do()
	if all {
		l.only(w.t, time.Now())
	}
	w.ended += l.lost(w.t)
}

// dialByPeers has a server without agents, and a client that knows no other. The first server
// keeps those of its tenants.
func (w *town) dialByPeers() {
	i := 1 + w.r.IntN(len(w.servers)-1)
	srv, leg := w.servers[i], w.toAgents[i]
	leg.set()
	leg.cut()
	reaches(w.t, time.Minute, srv.HealthURL("/metrics"), "server_ready_backend_connections", 0)
	for n, kind := range halves {
		c := dialed(w.t, again(viaConnect("unix", srv.UDS, nil)), w.vault.address)
		testutil.Succeeds(w.t, transfer(patient{c}, order{Kind: kind, Seed: uint8(n), Size: 1 << 20}, true),
			"by a server without agents: transfer %c", kind)
		_ = c.Close()
	}
	leg.set(agentSide(srv)...)
}

// renewCertificates replaces those of all programs by others of the same CA.
func (w *town) renewCertificates() {
	w.times++
	next := w.file(fmt.Sprint("pki", w.times))
	must(command(w.t, nil, w.Bin.Path("konnectivity"), "certs", next, "--from="+w.PKI("")))(w.t)
	shown := map[int]*x509.Certificate{}
	for name, port := range map[string]int{"server": w.servers[0].ClientPort, "cluster": w.servers[0].AgentPort, "client": 0, "agent": 0} {
		cert, key := filepath.Join(next, name+".crt"), filepath.Join(next, name+".key")
		shown[port] = must(tls.LoadX509KeyPair(cert, key))(w.t).Leaf
		testutil.NoError(w.t, errors.Join(os.Rename(key, w.PKI(name+".key")), os.Rename(cert, w.PKI(name+".crt"))))
	}
	delete(shown, 0)
	for port, cert := range shown {
		eventually(w.t, rotationBound, "the new certificate is shown", func() (bool, any) {
			c := handshake(w.t, port, (&whole{Suite: w.Suite}).clientTLS(w.t).Certificates[0])
			return c.Equal(cert), c.SerialNumber
		})
	}
}

// revoke replaces the revocation list.
func (w *town) revoke(certs ...*x509.Certificate) {
	replace(w.t, w.file("crl"), must(w.ca.Revoke(time.Now().Add(24*time.Hour), certs...))(w.t))
}

// revokeClient has a client of its own, by CONNECT and by links, that is revoked.
func (w *town) revokeClient() {
	cert, key := w.file("victim.crt"), w.file("victim.key")
	pair := (&authority{CA: w.ca}).write(w.t, pki.Leaf{CommonName: "victim", Client: true}, cert, key)
	at := suite.Loopback(w.servers[0].ClientPort)
	config := (&whole{Suite: w.Suite}).clientTLS(w.t)
	config.Certificates[0] = pair.TLS()
	library := must(client.New(client.Options{Address: at, CAFile: w.PKI("ca.crt"), CertFile: cert, KeyFile: key}))(w.t)
	defer library.Close()
	w.strike(w.echo, true, func() { w.revoke(pair.TLS().Leaf) }, viaConnect("tcp", at, config), viaLibrary(library))
	w.revoke()
}

// viaLibrary dials as a Go program does.
func viaLibrary(library *client.Client) tunnel.Dialer {
	return tunnel.DialerFunc(func(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
		c, err := library.DialContext(ctx, f.Network, f.Address)
		if err != nil {
			return nil, err
		}
		return tunnel.Wrap(c), nil
	})
}

// deny has a policy file deny the victims' destination for a while.
func (w *town) deny(path string) {
	w.strike(w.echo, true, func() {
		writePolicy(w.t, path, denying(w.echo))
	}, w.fronts()...)
	writePolicy(w.t, path, noDenial)
	for _, way := range w.fronts() {
		reachable(w.t, way, w.echo)
	}
}

// replaceToken replaces the sidecar's, and has it need the new one.
func (w *town) replaceToken() {
	w.replaceTokenFile()
	w.toClients.cut()
}

func (w *town) replaceTokenFile() {
	w.reviews.disallow(w.token)
	w.times++
	w.token = fmt.Sprint("token-", w.times)
	w.reviews.allow(w.token, identity{"system:serviceaccount:control:https", "konnectivity"})
	replace(w.t, w.file("token"), []byte(w.token))
}

// rotateAudit does what logrotate does, and waits until all write to new files.
func (w *town) rotateAudit() {
	for _, name := range []string{"servers", "agents", "sidecars"} {
		path := w.file(name + ".jsonl")
		testutil.NoError(w.t, os.Rename(path, path+".1"))
		eventually(w.t, patience, "a new audit log of "+name, func() (bool, any) {
			info, err := os.Stat(path)
			return err == nil && info.Size() > 0, err
		})
		testutil.NoError(w.t, os.Remove(path+".1"))
	}
}
