package server

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
	"konnectivity/internal/tlsreload"
	"konnectivity/server/auth"
	"konnectivity/server/tenant"
)

// Tenants come and go while their clients, and those of another, ask.
func TestTenantsChangeUnderLoad(t *testing.T) {
	dir := t.TempDir()
	ca, err := pki.NewCA("ca")
	if err != nil {
		t.Fatal(err)
	}
	put := func(name string, text string) {
		folder := filepath.Join(dir, name)
		for file, content := range map[string]string{
			"agents-ca.crt": string(ca.CertPEM), "clients-ca.crt": string(ca.CertPEM), "tenant.yaml": text,
		} {
			if err := os.MkdirAll(folder, 0o755); err != nil {
				t.Error(err)
			}
			if err := os.WriteFile(filepath.Join(folder, file), []byte(content), 0o644); err != nil {
				t.Error(err)
			}
		}
	}
	put("stays", "serverNames: [stays.example]")
	var tenants *tenant.Dir
	r := startServer(t, func(o *Options) {
		if tenants, err = tenant.Open(dir, o.Log); err != nil {
			t.Fatal(err)
		}
		o.Tenants, o.TenantTokens = tenants, func(*tenant.Tokens) *auth.TokensConfig { return nil }
		for _, listeners := range [][]Listener{o.Clients, o.Agents} {
			for i := range listeners {
				if listeners[i].TLS != nil {
					listeners[i].TLSFor = guestsOf(listeners[i].TLS)
				}
			}
		}
	})
	pair := testutil.Must(ca.Issue(pki.Leaf{CommonName: "client", Client: true}))(t)
	ask := func(name string) (int, error) {
		transport := &http.Transport{TLSClientConfig: &tls.Config{
			ServerName: name, InsecureSkipVerify: true, Certificates: []tls.Certificate{pair.TLS()}, NextProtos: []string{"http/1.1"},
		}}
		defer transport.CloseIdleConnections()
		resp, err := (&http.Client{Transport: transport}).Get("https://" + r.tcp + "/")
		if err != nil {
			return 0, err
		}
		defer resp.Body.Close()
		return resp.StatusCode, nil
	}
	var asking sync.WaitGroup
	stop := make(chan struct{})
	for _, name := range []string{"stays.example", "comes.example"} {
		asking.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if status, err := ask(name); name == "stays.example" && status != http.StatusMethodNotAllowed {
					t.Errorf("%d, %v", status, err)
					return
				}
			}
		})
	}
	for i := range 10 {
		put("comes", fmt.Sprintf("serverNames: [comes.example]\nbounds: {connections: %d}", i+1))
		tenants.Look()
		if status, err := ask("comes.example"); status != http.StatusMethodNotAllowed {
			t.Errorf("%d, %v", status, err)
		}
		if err := os.RemoveAll(filepath.Join(dir, "comes")); err != nil {
			t.Error(err)
		}
		tenants.Look()
		tenants.Look()
		if status, err := ask("comes.example"); err == nil {
			t.Errorf("one that was removed answers %d", status)
		}
	}
	close(stop)
	asking.Wait()
	if n := len(r.tenants.states()); n != 1 {
		t.Errorf("%d states", n)
	}
}

// guestsOf has a listener of the rig serve guests.
func guestsOf(plain func(...string) *tls.Config) func(tlsreload.Choose, ...string) *tls.Config {
	return func(choose tlsreload.Choose, protos ...string) *tls.Config {
		own := plain(protos...)
		listener := own.Clone()
		listener.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			g, err := choose(hello)
			if g == nil || err != nil {
				return own, err
			}
			c := own.Clone()
			c.ClientCAs = g.CAs
			return c, nil
		}
		return listener
	}
}
