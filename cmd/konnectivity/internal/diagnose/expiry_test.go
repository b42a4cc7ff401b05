package diagnose

import (
	"crypto/tls"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"konnectivity/adapters/uplink"
	"konnectivity/cmd/konnectivity/internal/status"
	"konnectivity/internal/logging"
	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
	"konnectivity/internal/tlsreload"
)

// Every certificate on the path that expires soon is a warning, not only the client's.
func TestExpiringCertificatesAreWarnings(t *testing.T) {
	ca := testutil.Must(pki.NewCA("lab-ca"))(t)
	pair := testutil.Must(ca.Issue(pki.Leaf{CommonName: "lab-server", DNS: []string{"localhost"}, Server: true}))(t)
	files := tlsreload.Files{CA: filepath.Join(t.TempDir(), "ca.crt")}
	testutil.NoError(t, pki.WriteCert(files.CA, ca.CertPEM))
	source := testutil.Must(tlsreload.New(files, tlsreload.Options{Name: "test", Log: logging.Silent()}))(t)
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.TLS = &tls.Config{Certificates: []tls.Certificate{pair.TLS()}}
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	defer server.Close()
	address := server.Listener.Addr().String()
	way := testutil.Must(uplink.New(uplink.Options{Address: address, ServerName: "localhost", TLS: source, Log: logging.Silent()}))(t)
	defer way.Close()
	for _, c := range []struct {
		left       time.Duration
		of         time.Time
		ca, server string
	}{
		{48 * time.Hour, pair.TLS().Leaf.NotAfter, OK, Warning},
		{48 * time.Hour, ca.Certificate().NotAfter, Warning, Warning},
		{364 * 24 * time.Hour, pair.TLS().Leaf.NotAfter, OK, OK},
	} {
		checker := &pathChecker{opts: &Subject{Timeout: time.Minute}, now: func() time.Time { return c.of.Add(-c.left) }}
		checker.checkCA(files)
		checker.secureServer(t.Context(), way, netip.MustParseAddrPort(address))
		for step, want := range map[string]string{"CA": c.ca, "certificate of the server": c.server} {
			for _, f := range checker.findings {
				if f.Step == step && (f.Result != want || want == Warning && (!strings.Contains(f.Cause, "expires in") || f.Hint == "")) {
					t.Errorf("%v before the end: %+v, want %s", c.left, f, want)
				}
			}
		}
		testutil.AtLeast(t, len(checker.findings), 2, "findings")
	}
}

// A step of less than a microsecond is printed with its duration too.
func TestPrintOfShortDuration(t *testing.T) {
	var out strings.Builder
	Print(&out, []Finding{{Step: "name", Result: OK, Milliseconds: milliseconds(0)}}, status.Paint{}, 80)
	testutil.Contains(t, out.String(), "name (0.0 ms)", "a step")
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(testutil.Settled(m)) }
