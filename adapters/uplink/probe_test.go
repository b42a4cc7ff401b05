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
	for name, server := range map[string]*fakeServer{"link": newFake(t), "old": newFake(t).Old()} {
		t.Run(name, func(t *testing.T) {
			server.Start(t)
			s := client(t, at("192.0.2.1", server.Addr(), "192.0.2.2", testutil.Refusing(t)), nil)
			addrs := testutil.Must(s.Addresses(t.Context()))(t)
			testutil.Requires(t, len(addrs) == 2, "the name leads to %v", addrs)
			testutil.Equal(t, addrs[0].String(), "192.0.2.1:8090", "the first address")
			err := testutil.Err(s.Probe(t.Context(), addrs[1]))
			testutil.Equal(t, tunnel.FailureOf(err), tunnel.FailRefused, "a port without listener")
			probe := testutil.Must(s.Probe(t.Context(), addrs[0]))(t)
			defer probe.Close()
			state := testutil.Must(probe.Secure(t.Context()))(t)
			testutil.AtLeast(t, len(state.PeerCertificates), 1, "certificates")
			testutil.Equal(t, probe.Linked(), name == "link", "linked")
			if probe.Linked() {
				testutil.NoError(t, testutil.Must(probe.Link(t.Context()))(t).Close())
			} else {
				testutil.NoError(t, probe.Admitted())
			}
			testutil.Equal(t, len(s.Links()), 0, "links")
			testutil.Equal(t, s.Stats().Connects, 0, "connections that a probe counts as")
		})
	}
}

// What is wrong with the server's certificate comes as it does to a Dial.
func TestProbeJudgesTheServer(t *testing.T) {
	server := newFake(t).Start(t)
	s := client(t, at("192.0.2.1", server.Addr()), func(o *Options) { o.TLS = newPKI(t) })
	addrs := testutil.Must(s.Addresses(t.Context()))(t)
	probe := testutil.Must(s.Probe(t.Context(), addrs[0]))(t)
	defer probe.Close()
	var unknown x509.UnknownAuthorityError
	_, err := probe.Secure(t.Context())
	testutil.Equal(t, errors.As(err, &unknown), true, "a stranger's certificate: %v", err)
}
