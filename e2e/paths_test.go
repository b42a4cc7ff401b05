package e2e

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"konnectivity/e2e/suite"
	"konnectivity/internal/testutil"
)

// whole is a suite with everything running, and a target behind the agent.
type whole struct {
	*suite.Suite
	server *suite.Server
	agent  *suite.Agent
	socks  *suite.Sidecar
	https  *suite.Sidecar
	target *target
}

// newWhole starts all, and a target.
func newWhole(t *testing.T) *whole {
	t.Helper()
	w := newWholeOf(t, flags{})
	w.target = newTarget(t)
	return w
}

// newWholeOf starts all with flags of its own, without a target.
func newWholeOf(t *testing.T, of flags) *whole {
	t.Helper()
	w := &whole{Suite: newSuite(t)}
	w.server = must(w.StartServer(of.server...))(t)
	w.agent = must(w.StartAgent(w.server, of.agent...))(t)
	w.socks = must(w.StartSOCKS5(w.server, slices.Concat(of.sidecars, of.socks)...))(t)
	w.https = must(w.StartHTTPS(w.server, slices.Concat(of.sidecars, of.https)...))(t)
	return w
}

// way is how curl goes through the suite.
type way struct {
	name string
	args []string
	tls  bool // to the target with TLS
}

func (w *whole) ways(t *testing.T) []way {
	ca := filepath.Join(w.Dir, "target-ca.crt")
	testutil.NoError(t, os.WriteFile(ca, w.target.ca.CertPEM, 0o644))
	proxyTLS := []string{"--proxytunnel", "--proxy", "https://" + suite.Loopback(w.server.ClientPort),
		"--proxy-cacert", w.PKI("ca.crt"), "--proxy-cert", w.PKI("client.crt"), "--proxy-key", w.PKI("client.key")}
	return []way{
		{"socks5-hostname", []string{"--socks5-hostname", w.socks.Address()}, false},
		{"socks5", []string{"--socks5", w.socks.Address()}, false},
		{"proxy", []string{"--proxy", "http://" + w.https.Address()}, false},
		{"proxytunnel", []string{"--proxytunnel", "--proxy", "http://" + w.https.Address()}, false},
		{"proxy to https", []string{"--proxy", "http://" + w.https.Address(), "--cacert", ca}, true},
		{"server, CONNECT over mTLS", proxyTLS, false},
	}
}

func (w *whole) url(wy way, path string) string {
	base := w.target.plain.URL
	if wy.tls {
		base = w.target.secure.URL
	}
	return strings.Replace(base, "127.0.0.1", "localhost", 1) + path
}

// curl reaches the target by every way, and hears why it does not reach others.
func TestCurl(t *testing.T) {
	w := newWhole(t)
	const size = 5<<20 + 3
	upload := filepath.Join(w.Dir, "upload")
	f := must(os.Create(upload))(t)
	testutil.Must(io.Copy(f, newPayload(2, size)))(t)
	f.Close()
	for _, wy := range w.ways(t) {
		t.Run(wy.name, func(t *testing.T) {
			got := testutil.Must(curl(t, append(wy.args, w.url(wy, fmt.Sprintf("/1/%d", size)))...))(t)
			testutil.Equal(t, testutil.Must(hashOf(bytes.NewReader(got)))(t), sum(1, size),
				"the hash of the download of %d bytes", len(got))
			got = testutil.Must(curl(t, append(wy.args, "--upload-file", upload, w.url(wy, "/"))...))(t)
			testutil.Equal(t, string(got), sum(2, size), "the target's hash of the upload")
		})
	}
	closed := testutil.Refusing(t)
	connect := w.ways(t)[5].args
	for _, c := range []struct {
		name string
		args []string
		want string
	}{
		{"refused by SOCKS5", []string{"--socks5-hostname", w.socks.Address(), "http://" + closed}, "(5)"}, // RFC 1928 §6: connection refused
		{"refused by CONNECT", append(connect, "http://"+closed), "502"},
		{"no such host", append(connect, "http://no-such-host.invalid"), "502"},
		{"refused by the HTTPS sidecar", []string{"--proxy", "http://" + w.https.Address(), "http://" + closed}, "502"},
	} {
		t.Run(c.name, func(t *testing.T) {
			testutil.ErrorSays(t, testutil.Err(curl(t, c.args...)), c.want, "curl")
		})
	}
	t.Run("the cause by wget", func(t *testing.T) {
		_, err := command(t, []string{"https_proxy=http://" + w.https.Address()}, "wget", "--tries=1", "https://"+closed)
		testutil.ErrorSays(t, err, "Proxy tunneling failed: Connection refused", "wget, which shows no content")
	})
}
