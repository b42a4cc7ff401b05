package via

import (
	"crypto/tls"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
)

func TestIdentify(t *testing.T) {
	secure := httptest.NewUnstartedServer(http.NotFoundHandler())
	ca := testutil.Must(pki.NewCA("lab-ca"))(t)
	pair := testutil.Must(ca.Issue(pki.Leaf{CommonName: "lab-server", Server: true}))(t)
	secure.TLS = &tls.Config{Certificates: []tls.Certificate{pair.TLS()}, ClientCAs: ca.Pool(), ClientAuth: tls.RequireAndVerifyClientCert}
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS()
	t.Cleanup(secure.Close)
	for what, c := range map[string]struct {
		at   string
		kind Protocol
		who  string
	}{
		"nobody":          {testutil.Refusing(t), NoAnswer, "nobody"},
		"a server's port": {secure.Listener.Addr().String(), SpeaksTLS, "a TLS server (certificate of lab-server"},
		"web server":      {shop(t), SpeaksHTTP, "an HTTP server (shop/1.0)"},
		"ssh":             {says(t, "SSH-2.0-OpenSSH_9.2\r\n"), SpeaksOther, "an SSH server"},
		"mail":            {says(t, "220 mail.test ESMTP\r\n"), SpeaksOther, `a program that says "220 mail.test ESMTP`},
		"silence":         {says(t, ""), UnknownAnswer, "a program that says nothing"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			var s Answer
			for range 5 { // a busy machine may take longer for an answer than is waited for
				if s = Identify(t.Context(), c.at); s.Kind == c.kind && strings.HasPrefix(s.Who, c.who) {
					return
				}
			}
			t.Errorf("%d %q, want %d %q", s.Kind, s.Who, c.kind, c.who)
		})
	}
}

// shop is one that calls itself a shop.
func shop(t *testing.T) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.Header().Set("Server", "shop/1.0") }))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// says is a server that sends text first, as SSH servers do, and reads then.
func says(t *testing.T, text string) string {
	return testutil.Serve(t, func(c *net.TCPConn) {
		_, _ = io.WriteString(c, text)
		_, _ = io.Copy(io.Discard, c)
	})
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(testutil.Settled(m)) }
