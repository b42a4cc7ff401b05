package page

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"konnectivity/internal/admin"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// hosted is a server of many clusters: a thousand, of which a few have troubles
// and a few are busy.
func hosted(t *testing.T) *scene {
	since := admin.Past{Time: time.Now().Add(-9 * 24 * time.Hour)}
	var tenants []admin.Tenant
	for i := range 1000 {
		v := admin.Tenant{
			Name: fmt.Sprintf("cluster-%04d", i), State: "serving", Since: since, Ready: true, Agents: 2 + i%3, Clients: 1 + i%2,
			ServerNames: []string{fmt.Sprintf("cluster-%04d.konnectivity.example.com", i)}, UpBytes: int64(i) * 81234567, DownBytes: int64(i) * 912345678,
			Connections: admin.Connections{Open: i % 37, Total: int64(i) * 977}, Dials: admin.Dials{Total: int64(i) * 981, Failed: int64(i) * 4, Failures: map[string]int64{}},
		}
		switch {
		case i == 613:
			v.State, v.Ready, v.Agents, v.Clients, v.Error, v.Reason = "broken", false, 0, 0, "tenant.yaml: bounds.connections: want a whole number", "it is not served"
			v.Connections.Open = 0
		case i == 77, i == 402:
			v.State, v.Error = "stale", "agents-ca.crt: not all that begins with -----BEGIN is a whole PEM block; is the file cut short?"
		case i%171 == 5:
			v.Ready, v.Agents, v.Reason, v.Connections.Open = false, 0, "no connection to any proxy agent", 0
		}
		v.Dials.Failures["bound"] = int64(i % 5)
		tenants = append(tenants, v)
	}
	peersOf := func(v admin.Tenant) (peers []admin.Peer) {
		for i := range v.Clients {
			peers = append(peers, admin.Peer{Tenant: v.Name, Role: admin.RoleClient, ID: fmt.Sprint(i), Software: "konnectivity-socks5-proxy/v1.4.0", Protocol: "link",
				Remote: fmt.Sprintf("10.128.%d.31:5041%d", v.Dials.Total%200, i), Since: since, Streams: 3, RoundTrip: 0.00042})
		}
		for i := range v.Agents {
			peers = append(peers, admin.Peer{Tenant: v.Name, Role: admin.RoleAgent, ID: fmt.Sprintf("node-%d", i+1), Software: "konnectivity-agent/v1.4.0", Protocol: "link",
				Remote: fmt.Sprintf("203.0.113.7:6182%d", i), Since: since, Streams: 4, RoundTrip: 0.031})
		}
		return peers
	}
	s := newScene(t, func(o *admin.Source) {
		o.Tenants = func() []admin.Tenant { return slices.Clone(tenants) }
		o.Peers = func() (all []admin.Peer) {
			for _, v := range tenants {
				all = append(all, peersOf(v)...)
			}
			return all
		}
		o.More = func(s *admin.Status) {
			s.ServerCount, s.Peers, s.Tenants = 3, map[string]int{admin.RoleAgent: 2990, admin.RoleClient: 1500}, map[string]int{"serving": 997, "stale": 2, "broken": 1}
		}
		whole := *o
		o.Of = func(name string) (admin.Source, bool) {
			i := slices.IndexFunc(tenants, func(v admin.Tenant) bool { return v.Name == name })
			if i < 0 {
				return admin.Source{}, false
			}
			own := whole
			own.Tenant, own.Tenants, own.Peers = name, func() []admin.Tenant { return []admin.Tenant{tenants[i]} }, func() []admin.Peer { return peersOf(tenants[i]) }
			own.More = func(s *admin.Status) { s.ServerCount = 3 }
			return own, true
		}
	})
	for i := range 40 {
		of := fmt.Sprintf("cluster-%04d", i*i%1000)
		for k := range 3 {
			s.connect(&tunnel.Flow{Request: tunnel.Request{Client: &tunnel.Client{Tenant: of}, ID: tunnel.NewID(), Front: "link", Source: addr("10.128.0.31:50412"), Address: fmt.Sprintf("172.30.14.%d:10250", k+7)}, Result: tunnel.Result{Hop: agentHop(fmt.Sprintf("node-%d", k%2+1))}},
				400+i*i*37, 2000+i*i*i*91)
		}
	}
	stuck := s.connect(&tunnel.Flow{Request: tunnel.Request{Client: &tunnel.Client{Tenant: "cluster-0036"}, ID: tunnel.NewID(), Front: "link", Source: addr("10.128.0.31:50412"), Address: "backup.prod.svc:9000"}, Result: tunnel.Result{Hop: agentHop("node-1")}}, 0, 0)
	stuck.Carry(false, 8<<20)
	stuck.Hold(false, true)
	for i, failure := range []tunnel.Failure{tunnel.FailTimeout, tunnel.FailRefused, tunnel.FailBound} {
		s.table.Dialed(&tunnel.Flow{Request: tunnel.Request{Client: &tunnel.Client{Tenant: fmt.Sprintf("cluster-%04d", 36*(i%2))}, ID: tunnel.NewID(), Front: "link", Source: addr("10.128.0.31:50412"), Address: "registry.internal:443"}, Result: tunnel.Result{Hop: agentHop("node-1")}},
			3*time.Second, &tunnel.DialError{Failure: failure})
	}
	return s
}

// firstTenants are the names in the first rows of the overview.
func firstTenants(n int) string {
	return fmt.Sprintf(`[...document.querySelectorAll('#tenants-rows tr:not(.gap)')].slice(0, %d).map(r => r.dataset.name).join(' ')`, n)
}

func TestLooksOfManyTenants(t *testing.T) {
	s := hosted(t)
	look(t, s, "tenants", func(b *tab) {
		b.until("the tenants", `document.querySelector('#tenants-rows tr.broken') !== null && document.querySelector('#tenants-rows tr.stalled') !== null`)
		b.until("the peers", `document.querySelector('#right .peer') !== null`)
	})
	s.path = "/#tenant=cluster-0036"
	look(t, s, "tenant", func(b *tab) {
		b.until("the tenant", `document.querySelector('#tenant-facts dd')?.textContent.includes('cluster-0036')`)
		b.until("its stall", `document.querySelector('#rows tr.stalled') !== null`)
	})
}

// A thousand tenants are listed with the failing ones first, found by a part of their
// names, sorted by their traffic, and opened one by one.
func TestThousandTenants(t *testing.T) {
	s := hosted(t)
	b := openTab(t)
	b.open(s.url())
	b.until("the failing first", firstTenants(3)+` === 'cluster-0613 cluster-0077 cluster-0402'`)
	testutil.Equal(t, b.eval(`document.querySelectorAll('#tenants-rows tr').length < 200`), "true",
		"the document holds few of the rows")
	b.until("how many are what", `document.querySelector('#tenants-conditions').textContent === 'all 1,000broken 1stale 2not ready 6stalled 1ready 990'`)
	b.eval(`document.querySelector('.chip.not-ready').click()`)
	b.until("those that are not ready", `document.querySelector('#tenants-count').textContent === '6 tenants of 1,000' && document.querySelectorAll('#tenants-rows tr.not-ready').length === 6`)
	b.eval(`document.querySelector('.chip').click()`)
	b.eval(`document.querySelector('#tenants-heads th[data-key=down] button').click()`)
	b.until("the busiest first", firstTenants(1)+` === 'cluster-0521'`)
	b.press("/")
	testutil.Equal(t, b.focused(), "tenants-filter", "/ leads to")
	b.write("CLUSTER-0036.konn")
	b.until("the one", `document.querySelector('#tenants-count').textContent === '1 tenant of 1,000' && `+firstTenants(2)+` === 'cluster-0036'`)
	b.eval(`document.querySelector('#tenants-rows tr:not(.gap) button').focus()`)
	b.press("Enter")
	b.until("its view", `location.hash === '#tenant=cluster-0036' && document.body.dataset.view === 'tenant' && document.querySelector('#tenants').hidden && document.querySelector('#tenant-title').textContent === 'Tenant cluster-0036'`)
	b.until("its connections alone", `document.querySelector('#count').textContent === '4 open'`)
	b.until("its failures alone", `document.querySelectorAll('#failures li').length === 1`)
	b.until("its peers alone", `document.querySelectorAll('#right .peer').length === 2`)
	b.eval(`history.back()`)
	b.until("all again", `document.body.dataset.view === 'many' && !document.querySelector('#tenants').hidden && document.querySelector('#count').textContent === '121 open'`)
	b.eval(`location.hash = '#tenant=nobody'`)
	b.until("all, since that one does not exist", `location.hash === '' && document.body.dataset.view === 'many'`)
	b.faults = slices.DeleteFunc(b.faults, func(f string) bool { return strings.Contains(f, "404") })
	b.quiet(s.url())
}

// Who has a tenant's token sees that one by the same page, which a browser opens
// with it as the password.
func TestATenantsReaderHasThePage(t *testing.T) {
	s := hosted(t)
	s.stop()
	s.source.Login = func(r *http.Request) (admin.Reader, bool) {
		_, password, _ := r.BasicAuth()
		return admin.Reader{Tenant: "cluster-0036", Proven: true}, password == "secret"
	}
	s.serve()
	b := openTab(t)
	b.open("http://anybody:secret@" + s.address)
	b.until("its view", `document.body.dataset.view === 'tenant' && document.querySelector('#tenant-title').textContent === 'Tenant cluster-0036' && document.querySelector('#tenant-all').hidden`)
	b.until("its connections alone", `document.querySelector('#count').textContent === '4 open'`)
	b.until("its peers alone", `document.querySelectorAll('#right .peer').length === 2`)
	text := b.eval(`document.body.textContent`)
	testutil.Holds(t, !strings.Contains(text, "cluster-0000"), "another tenant is on the page")
	b.picture("reader-light-1280", true)
	for i, url := range b.asked {
		b.asked[i] = strings.Replace(url, "anybody:secret@", "", 1)
	}
	b.quiet(s.url())
}
