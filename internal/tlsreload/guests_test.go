package tlsreload_test

import (
	"crypto/tls"
	"errors"
	"strings"
	"testing"

	"konnectivity/internal/tlsreload"
)

// A listener that serves guests shows each its own certificate, trusts for each
// its own CA alone, and resumes sessions only where they began.
func TestGuestsAreApart(t *testing.T) {
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		t.Run(tls.VersionName(version), func(t *testing.T) {
			own, a, b := newCA(t), newCA(t), newCA(t)
			d := newDir(t)
			d.put(issue(t, own, "own server"), own)
			shown := issue(t, a, "server of a").TLS()
			owner := ""
			guest := &tlsreload.Guest{Key: "a 1", Cert: &shown, CAs: a.Pool()}
			s := source(t, d.files(), tlsreload.Options{Name: "server"})
			server := s.ServerFor(func(*tls.ClientHelloInfo) (*tlsreload.Guest, error) {
				switch owner {
				case "a":
					return guest, nil
				case "gone":
					return nil, errors.New("gone")
				}
				return nil, nil
			})
			pair := issue(t, a, "client of a").TLS()
			client := &tls.Config{
				ServerName: "server.test", InsecureSkipVerify: true, Certificates: []tls.Certificate{pair},
				MaxVersion: version, ClientSessionCache: tls.NewLRUClientSessionCache(4),
			}
			owner = "a"
			if o := mustPass(t, handshake(t, server, client)); serverCN(o) != "server of a" || clientCN(o) != "client of a" {
				t.Errorf("got %q and %q", serverCN(o), clientCN(o))
			}
			if o := mustPass(t, handshake(t, server, client)); !o.client.DidResume {
				t.Error("a guest's session is not resumed")
			}

			// The same session, where it did not begin.
			owner = ""
			if o := handshake(t, server, client); o.err() == nil {
				t.Error("a guest's client is let in by the listener itself")
			}
			owner = "a"
			mustPass(t, handshake(t, server, client))
			guest = &tlsreload.Guest{Key: "b", CAs: b.Pool()}
			if o := handshake(t, server, client); o.err() == nil {
				t.Error("a guest's client is let in by another")
			}
			guest = &tlsreload.Guest{Key: "a 2", Cert: &shown, CAs: a.Pool()}
			mustPass(t, handshake(t, server, client))
			guest = &tlsreload.Guest{Key: "a 3", Cert: &shown, CAs: a.Pool()}
			if o := mustPass(t, handshake(t, server, client)); o.client.DidResume {
				t.Error("a session is resumed under another key")
			}

			owner = "gone"
			if o := handshake(t, server, client); o.clientErr == nil || !strings.Contains(o.clientErr.Error(), "unrecognized name") {
				t.Errorf("nobody's client hears %v", o.clientErr)
			}
		})
	}
}
