package server

import (
	"crypto/x509"
	"fmt"
	"strings"
	"testing"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/server/tenant"
	"konnectivity/tunnel/link"
)

// revoke gives the cluster a list of these certificates, good until then.
func (c *sharer) revoke(more string, until time.Time, certs ...*x509.Certificate) {
	c.of.t.Helper()
	list := testutil.Must(c.ca.Revoke(until, certs...))(c.of.t)
	c.write(more, [2]string{tenant.ListsFile, string(list)})
}

// Whom a tenant's list names is cut and refused, by name and by certificate, and sees nothing
// by the admin port, over a connection that is open either. The neighbour's certificate has
// the same issuer by name. When its list is to be replaced is shown of each tenant that has
// one, and to the tenant's own reader.
func TestATenantsListCutsItsPeers(t *testing.T) {
	operators, setting := adminCA(t, false)
	s := startSharers(t, setting)
	until := time.Now().Add(time.Hour)
	red, blue := s.add("red", told), s.add("blue", told)
	red.revoke(told, until)
	leaf := testutil.Must(x509.ParseCertificate(red.cert.Certificate[0]))(t)
	sees := s.holder(operators, red.cert)
	code, body := sees.get("/api/v1/status", "")
	testutil.Requires(t, code == 200, "%d %s", code, body)
	want := fmt.Sprintf("tenant_revocations_expiry_timestamp_seconds{tenant=\"red\"} %v", float64(until.Unix()))
	_, body = sees.get("/metrics", "")
	testutil.Holds(t, strings.Contains(body, want) && !strings.Contains(body, "blue"), "want %s: %s", want, body)
	links := map[string]*link.Session{
		"by name":        testutil.Must(red.agentLink(link.Hello{Role: link.RoleAgent, ID: "by-name"}))(t),
		"by certificate": testutil.Must(red.unnamed(link.RoleAgent, ""))(t),
	}
	neighbour := testutil.Must(blue.unnamed(link.RoleAgent, ""))(t)
	red.has(2)
	blue.has(1)
	open := red.reaches("connect", "a:1")
	red.revoke(told, until, leaf)
	for what, l := range links {
		s.ends("the end of the agent that came "+what, l.Done())
	}
	red.has(0)
	s.isCut("what a client has open", open)
	testutil.Fails(t, testutil.Err(red.dial("connect", "a:1")), "a revoked client is served")
	testutil.Fails(t, testutil.Err(red.unnamed(link.RoleAgent, "")), "a revoked agent is let in by certificate")
	testutil.Fails(t, testutil.Err(red.agentLink(link.Hello{Role: link.RoleAgent, ID: "again"})), "a revoked agent is let in by name")
	code, body = sees.get("/api/v1/status", "")
	testutil.Holds(t, code == 401, "a revoked reader over an open connection: %d %s", code, body)
	code, body = s.holder(operators, red.cert).get("/api/v1/status", "")
	testutil.Holds(t, code == 0, "a revoked reader: %d %s", code, body)
	select {
	case <-neighbour.Done():
		t.Error("the neighbour was cut")
	default:
		blue.has(1)
	}
}
