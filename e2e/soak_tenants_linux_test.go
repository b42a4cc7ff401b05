package e2e

import (
	"crypto/tls"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"konnectivity/client"
	"konnectivity/e2e/suite"
	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
)

// tenantChange is something that is done to a tenant's files, and undone.
type tenantChange struct {
	name    string
	clients bool // whether it cuts those of the tenant
	agents  bool // the same
	edit    func(w *town, files map[string]string)
}

var tenantChanges = []tenantChange{
	{name: "change a tenant's settings", edit: func(w *town, files map[string]string) {
		files["tenant.yaml"] += fmt.Sprintf("bounds: {connections: %d, mbitPerSecond: %d}\n", 10+w.r.IntN(1000), 10+w.r.IntN(1000))
	}},
	{name: "break a tenant's settings", edit: func(_ *town, files map[string]string) { files["tenant.yaml"] = "serverNames: [" }},
	{name: "add a CA to a tenant", edit: func(w *town, files map[string]string) { files["agents-ca.crt"] += w.otherCA() }},
	{name: "replace the CA of a tenant's clients", clients: true, edit: func(w *town, files map[string]string) { files["clients-ca.crt"] = w.otherCA() }},
	{name: "remove a tenant and add it again", clients: true, agents: true, edit: func(_ *town, files map[string]string) { clear(files) }},
}

func (w *town) otherCA() string { return string(must(pki.NewCA("ca"))(w.t).CertPEM) }

// residents are tenants with an agent each: one that changes, and its neighbour.
func (w *town) residents() {
	w.changing, w.neighbour = w.tenants.tenant(w.t, "changing"), w.tenants.tenant(w.t, "neighbour")
	for _, c := range []*clusterOfMany{w.changing, w.neighbour} {
		w.tenants.reaches(w.t, c, http.StatusServiceUnavailable) // it has no agent
		w.guests = append(w.guests, w.tenants.agent(w.t, c, "--sync-interval-cap=2s"))
	}
}

// changeTenant changes a tenant and takes that back, while connections of it and of its
// neighbour carry bytes. Only the tenant's own end, and only if the change cuts them: none outlives
// its link, so that no link is cut without notice.
func (w *town) changeTenant(k tenantChange) {
	c, l := w.changing, newLoad(w.t)
	defer l.close()
	for _, of := range []*clusterOfMany{c, w.neighbour} {
		config := &tls.Config{ServerName: of.serverName(), RootCAs: of.ca.Pool(), Certificates: []tls.Certificate{of.client}, NextProtos: []string{"http/1.1"}}
		at := suite.Loopback(w.servers[0].ClientPort)
		library := must(client.New(client.Options{Address: at, TLS: config, ResumeWindow: -1}))(w.t)
		defer library.Close()
		for range 2 {
			l.add(w.t, of.name+" by CONNECT", again(viaConnect("tcp", at, config)), of.target, k.clients && of == c)
			l.add(w.t, of.name+" by a link", again(viaLibrary(library)), of.target, k.clients && of == c)
		}
	}
	before, agent := c.files, w.agentOf(c)
	c.files = maps.Clone(before)
	k.edit(w, c.files)
	w.putTenant(c)
	l.only(w.t, time.Now())
	if k.clients {
		w.ended += 4
	}
	now := w.agentOf(c)
	testutil.Holds(w.t, (now != agent) == k.agents, "%s: the agent's address was %q, and is %q", k.name, agent, now)
	c.files = before
	w.putTenant(c)
	w.tenants.reaches(w.t, c, http.StatusOK)
}

// putTenant puts a tenant's files in place, or removes a tenant that has none, and waits until the
// server has noticed.
func (w *town) putTenant(c *clusterOfMany) {
	w.t.Helper()
	before := w.taken(c)
	if len(c.files) > 0 {
		w.tenants.put(w.t, c)
	} else {
		testutil.NoError(w.t, os.Rename(filepath.Join(w.tenants.dir, c.name), w.file("gone")))
		testutil.NoError(w.t, os.RemoveAll(w.file("gone")))
	}
	eventually(w.t, patience, "the server notices the change", func() (bool, any) {
		now := w.taken(c)
		return now != before, now
	})
}

// taken says what the server makes of a tenant's files, and since when; "": it has none.
func (w *town) taken(c *clusterOfMany) string {
	for _, item := range must(listed(suite.Loopback(w.servers[0].AdminPort), "tenants?filter="+c.name))(w.t) {
		return fmt.Sprint(item["state"], " ", item["since"])
	}
	return ""
}

// agentOf is the address of a tenant's agent at the server; "" without one.
func (w *town) agentOf(c *clusterOfMany) string {
	for _, item := range must(listed(suite.Loopback(w.servers[0].AdminPort), "peers?tenant="+c.name))(w.t) {
		if item["role"] == "agent" {
			return fmt.Sprint(item["remote"])
		}
	}
	return ""
}
