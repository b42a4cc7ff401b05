package e2e

import (
	"math/rand/v2"
	"testing"
	"time"

	"konnectivity/e2e/suite"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// Connections that end in the server, for kube-apiserver, outlive the agent's
// link.
func TestConnectionsOfTheServerOutliveLinks(t *testing.T) {
	t.Parallel()
	t.Run("CONNECT", func(t *testing.T) {
		t.Parallel()
		f := newFleet(t, 1, flags{})
		tls := (&whole{Suite: f.Suite}).clientTLS(t)
		f.cutAgent(t, halves, viaConnect("tcp", suite.Loopback(f.servers[0].ClientPort), tls), viaConnect("unix", f.servers[0].UDS, nil))
	})
	t.Run("gRPC", func(t *testing.T) {
		t.Parallel()
		f := newFleet(t, 1, flags{})
		f.cutAgent(t, wholes, viaGRPC(f.servers[0].UDS))
	})
}

func (f *fleet) cutAgent(t *testing.T, kinds []byte, ways ...tunnel.Dialer) {
	for _, way := range ways { // what is lazily made, is
		testutil.NoError(t, try(t, way, f.vault.address))
	}
	base := f.rests()
	s := startStorm(t, f.vault, scaled(6*time.Second, 30*time.Second), kinds, ways...)
	for range scaled(10, 100) {
		f.toAgents[0].linked(t)
		s.harm()
		f.toAgents[0].cut()
		time.Sleep(rand.N(500 * time.Millisecond))
	}
	s.end()
	f.settles(base)
}
