package server

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"konnectivity/internal/pki"
	"konnectivity/server/auth"
	"konnectivity/server/tenancy"
)

// crowdOfFolders is a directory of so many tenants.
func crowdOfFolders(t testing.TB, crowd int) string {
	dir := t.TempDir()
	ca, err := pki.NewCA("ca")
	if err != nil {
		t.Fatal(err)
	}
	for i := range crowd {
		folder := filepath.Join(dir, fmt.Sprintf("tenant-%d", i))
		if err := os.Mkdir(folder, 0o755); err != nil {
			t.Fatal(err)
		}
		for file, content := range map[string]string{
			"agents-ca.crt": string(ca.CertPEM), "clients-ca.crt": string(ca.CertPEM), "tenant.yaml": fmt.Sprintf("serverNames: [t%d.example]", i),
		} {
			if err := os.WriteFile(filepath.Join(folder, file), []byte(content), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	return dir
}

// Of many tenants, a scrape costs little more than the series that each has.
func TestAScrapeOfManyTenantsIsCheap(t *testing.T) {
	const crowd = 100
	dir := crowdOfFolders(t, crowd)
	var err error
	registry := prometheus.NewRegistry()
	r := startServer(t, func(o *Options) {
		if o.Tenants, err = tenancy.Open(dir, o.Log); err != nil {
			t.Fatal(err)
		}
		o.TenantTokens = func(*tenancy.Tokens) *auth.TokensConfig { return nil }
		o.Registry = registry
	})
	r.eventually("all tenants are served", func() bool {
		n := 0
		r.tenants.each(func(*cluster) { n++ })
		return n == crowd
	})
	scrape := func() {
		if _, err := r.gatherer().Gather(); err != nil {
			t.Error(err)
		}
	}
	const alone, perTenant = 1500, 15
	if got := testing.AllocsPerRun(5, scrape); got > alone+crowd*perTenant {
		t.Errorf("%v allocations, of which a tenant has %v; %d are enough", got, (got-alone)/crowd, perTenant)
	}
}
