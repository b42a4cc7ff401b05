package e2e

import (
	"crypto/tls"
	"strings"
	"testing"

	"konnectivity/e2e/suite"
	"konnectivity/internal/testutil"
)

// In FIPS 140-3 mode the suite uses approved algorithms alone: it works, and refuses peers
// that have others only, which it serves in its usual mode.
func TestFIPS(t *testing.T) {
	t.Parallel() // it waits
	testutil.EachOf(t, []string{"off", "on", "only"}, func(t *testing.T, mode string) {
		t.Parallel()
		s := newSuite(t)
		s.Env = []string{"GODEBUG=fips140=" + mode}
		server := must(s.StartServer())(t)
		must(s.StartAgent(server))(t)
		ready(t, server, 1, patience)
		socks, target := must(s.StartSOCKS5(server))(t), testutil.Echo(t)
		testutil.Succeeds(t, echoOnce(viaSOCKS5(socks.Address()), target).err, "an echo")
		for what, limit := range map[string]func(*tls.Config){
			"X25519 alone": func(c *tls.Config) { c.CurvePreferences = []tls.CurveID{tls.X25519} },
			"ChaCha20-Poly1305 alone": func(c *tls.Config) {
				c.MaxVersion, c.CipherSuites = tls.VersionTLS12, []uint16{tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256}
			},
		} {
			config := (&whole{Suite: s}).clientTLS(t)
			limit(config)
			conn, err := tls.Dial("tcp", suite.Loopback(server.ClientPort), config)
			if err == nil {
				_ = conn.Close()
			}
			testutil.Equal(t, err != nil && strings.Contains(err.Error(), "handshake failure"), mode != "off",
				"%s is refused: %v", what, err)
		}
		shown := must(s.Run("konnectivity", nil, "version"))(t)
		if _, err := shown.Wait(patience); err != nil || strings.Contains(shown.Output(), "FIPS 140-3 mode") != (mode != "off") {
			t.Errorf("%q, %v", shown.Output(), err)
		}
	})
}
