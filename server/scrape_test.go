package server

import (
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
	"konnectivity/server/auth"
	"konnectivity/server/tenant"
)

// crowdedServer is a server of so many tenants that does not run, so that nothing
// but what is measured allocates.
func crowdedServer(t *testing.T, crowd int) *Server {
	log, _ := logtest.NewNullLogger()
	folder, ca := t.TempDir(), testutil.Must(pki.NewCA("ca"))(t)
	for i := range crowd {
		writeTenant(t, folder, fmt.Sprintf("tenant-%d", i), fmt.Sprintf("serverNames: [t%d.example]", i), ca)
	}
	dir := testutil.Must(tenant.Open(folder, log))(t)
	plain := []Listener{{Listener: testutil.Listen(t)}}
	s := testutil.Must(New(Options{
		ID: "server", Clients: plain, Agents: plain, Log: log, Registry: prometheus.NewRegistry(),
		Tenants: dir, TenantTokens: func(*tenant.Tokens) *auth.TokensConfig { return nil },
	}))(t)
	dir.OnChange(s.tenants.apply)
	return s
}

// Of many tenants, a scrape costs little more than the series that each has.
func TestAScrapeOfManyTenantsIsCheap(t *testing.T) {
	const crowd = 100
	s := crowdedServer(t, crowd)
	scrape := func() {
		if _, err := s.gatherer().Gather(); err != nil {
			t.Error(err)
		}
	}
	const alone, perTenant = 1500, 15
	if got := testing.AllocsPerRun(5, scrape); got > alone+crowd*perTenant {
		t.Errorf("%v allocations, of which a tenant has %v; %d are enough", got, (got-alone)/crowd, perTenant)
	}
}
