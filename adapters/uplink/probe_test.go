package uplink

import (
	"crypto/x509"
	"errors"
	"testing"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// A probe goes step by step where a Dial goes at once, and leaves nothing in the
// pool.
func TestProbe(t *testing.T) {
	p := newPKI(t)
	for name, server := range map[string]*fakeServer{"link": newFake(p), "old": newFake(p).Old()} {
		t.Run(name, func(t *testing.T) {
			server.Start(t)
			s := client(t, p, at("192.0.2.1", server.Addr(), "192.0.2.2", testutil.Refusing(t)), nil)
			addrs, err := s.Addresses(t.Context())
			testutil.NoError(t, err)
			if len(addrs) != 2 || addrs[0].String() != "192.0.2.1:8090" {
				t.Fatalf("the name leads to %v", addrs)
			}
			if _, err := s.Probe(t.Context(), addrs[1]); tunnel.FailureOf(err) != tunnel.FailRefused {
				t.Errorf("of a port without listener it says %v", err)
			}
			probe, err := s.Probe(t.Context(), addrs[0])
			testutil.NoError(t, err)
			defer probe.Close()
			state, err := probe.Secure(t.Context())
			testutil.NoError(t, err)
			if len(state.PeerCertificates) == 0 || probe.Linked() != (name == "link") {
				t.Errorf("linked %v, state %+v", probe.Linked(), state)
			}
			if probe.Linked() {
				session, err := probe.Link(t.Context())
				testutil.NoError(t, err)
				testutil.NoError(t, session.Close())
			} else {
				testutil.NoError(t, probe.Admitted())
			}
			if len(s.Links()) != 0 || s.Stats().Connects != 0 {
				t.Errorf("a probe counts as a connection: %+v", s.Stats())
			}
		})
	}
}

// What is wrong with the server's certificate comes as it does to a Dial.
func TestProbeJudgesTheServer(t *testing.T) {
	server := newFake(newPKI(t)).Start(t)
	s := client(t, newPKI(t), at("192.0.2.1", server.Addr()), nil)
	addrs, err := s.Addresses(t.Context())
	testutil.NoError(t, err)
	probe, err := s.Probe(t.Context(), addrs[0])
	testutil.NoError(t, err)
	defer probe.Close()
	var unknown x509.UnknownAuthorityError
	if _, err := probe.Secure(t.Context()); !errors.As(err, &unknown) {
		t.Errorf("a stranger's certificate: %v", err)
	}
}
