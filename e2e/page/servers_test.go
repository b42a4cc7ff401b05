package page

import (
	"context"
	"slices"
	"testing"
	"time"

	"konnectivity/internal/admin"
	"konnectivity/internal/version"
)

// several is hosted as one of four servers: one is well, one has a problem, and one cannot be
// reached.
func several(t *testing.T) *scene {
	s := hosted(t)
	s.stop()
	s.source.Others = func(context.Context) []admin.Member {
		member := func(id string, change func(*admin.Status, []admin.Tenant)) admin.Member {
			now := time.Now()
			state := &admin.State{Status: admin.Status{Component: "konnectivity-server", ID: id, Build: version.Get(), Started: admin.Past{Time: now.Add(-75 * time.Hour)}, Now: now, Ready: true,
				Peers: map[string]int{admin.RoleAgent: 2988, admin.RoleClient: 1490, admin.RoleServer: 2}, Connections: admin.Connections{Open: 17720}}}
			for _, v := range s.source.Tenants() {
				v.Condition = map[bool]string{true: "ready", false: "not-ready"}[v.Ready]
				if v.State != "serving" {
					v.Condition = v.State
				}
				state.Tenants = append(state.Tenants, v)
			}
			change(&state.Status, state.Tenants)
			return admin.Member{ID: id, Remote: "10.0.3." + id[len(id)-1:] + ":8096", State: state}
		}
		two := member("server-2", func(_ *admin.Status, all []admin.Tenant) {
			all[500].State, all[500].Condition, all[500].Error = "broken", "broken", "agents-ca.crt: no certificate"
		})
		three := member("server-3", func(s *admin.Status, _ []admin.Tenant) {
			s.Ready, s.Reason = false, "the server is shutting down"
			s.Unlinked = []admin.Unlinked{{Address: "10.0.3.4:8096", Cause: "no route to host"}}
		})
		three.State.Tenants = slices.Delete(three.State.Tenants, 7, 8)
		return []admin.Member{two, three, {Remote: "10.0.3.4:8096", Error: "there is no link to it: no route to host"}}
	}
	more := s.source.More
	s.source.More = func(status *admin.Status) {
		more(status)
		status.Peers[admin.RoleServer] = 2
		status.AuditError = "no space left on device"
	}
	s.serve()
	return s
}

// One server's page shows the others, those with troubles first, and the tenants as ill as
// they are anywhere, with the servers where they are so.
func TestLooksOfSeveralServers(t *testing.T) {
	look(t, several(t), "servers", func(b *tab) {
		b.until("the servers", `document.querySelectorAll('#servers-list li').length === 4`)
		b.until("the tenants", `document.querySelector('#tenants-rows tr.missing') !== null`)
	})
}

func TestServersOfASet(t *testing.T) {
	s := several(t)
	b := openTab(t)
	b.open(s.url())
	b.until("the servers, the ill ones first", `document.querySelector('#servers-count').textContent === '4 servers, 3 with problems' &&
		[...document.querySelectorAll('#servers-list strong')].map(e => e.textContent).join(' ') === 'server-1 server-3 10.0.3.4:8096 server-2'`)
	b.until("what is wrong with this one", `document.querySelector('#reason').textContent === 'Audit records cannot be written: no space left on device.'`)
	b.until("why", `['audit records cannot be written: no space left on device▲ 1 connection stalled', 'the server is shutting down▲ no link to 10.0.3.4:8096: no route to host', 'there is no link to it: no route to host', '✓ ready'].every((w, i) => document.querySelectorAll('#servers-list li')[i].textContent.includes(w))`)
	b.until("the tenants that are ill anywhere", firstTenants(3)+` === 'cluster-0007 cluster-0500 cluster-0613' &&
		['on server-3: other servers have it', 'on server-2: agents-ca.crt: no certificate', 'tenant.yaml: bounds.connections: want a whole number'].every((w, i) => document.querySelectorAll('#tenants-rows td.c-wrong')[i].textContent === w)`)
	b.until("how many are what", `document.querySelector('#tenants-conditions').textContent === 'all 1,000missing 1broken 2stale 2not ready 6stalled 1ready 988'`)
	b.eval(`document.querySelector('.chip.missing').click()`)
	b.until("the one that is missing", `document.querySelector('#tenants-count').textContent === '1 tenant of 1,000'`)
	b.eval(`location.hash = '#tenant=cluster-0500'`)
	b.until("one tenant is as ill as anywhere", `document.querySelector('#tenant-wrong').textContent === 'on server-2: agents-ca.crt: no certificate' && document.querySelector('#tenant-state').textContent === '▲ broken'`)
	b.until("no servers there", `getComputedStyle(document.querySelector('#servers')).display === 'none'`)
	b.quiet(s.url())
}

// A server that does not answer holds up neither the page's connections nor its status.
func TestASilentServerHoldsUpNothing(t *testing.T) {
	s := several(t)
	s.stop()
	others := s.source.Others
	s.source.Others = func(ctx context.Context) []admin.Member {
		<-ctx.Done()
		return others(ctx)
	}
	s.serve()
	b := openTab(t)
	b.open(s.url())
	b.until("its connections before the servers", `document.querySelector('#count').textContent === '121 open' && document.querySelector('#servers').hidden`)
	b.until("the servers", `document.querySelectorAll("#servers-list li").length === 4`)
}
