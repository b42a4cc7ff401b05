package server

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"konnectivity/internal/admin"
	"konnectivity/internal/testutil"
)

// ask is one resource of the admin API.
func ask[T any](r *rig, name string) (out T) {
	r.t.Helper()
	code, body := r.get(r.admin, "/api/v1/"+name)
	err := json.Unmarshal([]byte(body), &out)
	testutil.Requires(r.t, code == 200 && err == nil, "%s: %d %v %s", name, code, err, body)
	return out
}

// What the API tells is what happened: who is connected, by whom a connection
// goes, why a dial failed.
func TestAdminAPI(t *testing.T) {
	r := startServer(t)
	r.agent("link", agentHello{id: "a-link", identifiers: "default-route=true&cidr=10.0.0.0/8"}, echoing)
	sidecar := testutil.Opened(r.clientLink())(t)
	for _, kind := range []string{"connect-tls", "grpc-uds"} {
		r.roundTrip(r.mustDial(kind, "echo:1"), 1000)
	}
	_, err := r.dial("connect-tls", "refused:1")
	testutil.Requires(t, err != nil, "that should be refused")
	var s admin.Status
	r.eventually("the sidecar is known", func() bool { s = ask[admin.Status](r, "status"); return s.Peers["client"] == 1 })
	if s.Component != "konnectivity-server" || s.ID != "server-1" || !s.Ready || s.ServerCount != 3 || s.Strategies["default"] != 1 ||
		s.Peers["agent"] != 1 || s.Peers["client"] != 1 || s.Dials.Total != 3 || s.Dials.Failures["refused"] != 1 || s.Buffers["link"].Limit == 0 {
		t.Errorf("%+v", s)
	}
	var conns admin.Page[admin.Connection]
	r.eventually("all bytes are counted", func() bool { // which they are once they have passed
		conns = ask[admin.Page[admin.Connection]](r, "connections?sort=front")
		return !slices.ContainsFunc(conns.Items, func(c admin.Connection) bool { return c.UpBytes < 1000 || c.DownBytes < 1000 })
	})
	testutil.Requires(t, len(conns.Items) == 2 && conns.Items[0].Front == "connect" && conns.Items[1].Front == "grpc",
		"%+v", conns)
	for _, c := range conns.Items {
		testutil.Holds(t, c.Next == "agent a-link" && c.Destination == "echo:1" && c.UpBytes == 1000 &&
			c.DownBytes == 1000 && len(c.ID) == 16, "%+v", c)
	}
	f := ask[admin.Page[admin.Failure]](r, "failures").Items
	testutil.Holds(t, len(f) == 1 && f[0].Failure == "refused" && f[0].Next == "agent a-link", "%+v", f)
	peers := ask[admin.Page[admin.Peer]](r, "peers").Items
	if len(peers) != 2 || peers[0].Role != admin.RoleAgent || peers[0].Identifiers != "default-route 10.0.0.0/8" || peers[0].Protocol != "link" ||
		peers[1].Role != admin.RoleClient || peers[1].Remote == "" {
		t.Errorf("%+v", peers)
	}
	code, page := r.get(r.admin, "/")
	testutil.Holds(t, code == 200 && strings.Contains(page, "/page.js"), "the page: %d", code)
	code, _ = r.get(r.health, "/api/v1/status")
	testutil.Holds(t, code == 404, "the health port tells it to everybody: %d", code)
	sidecar.Close()
	r.eventually("the sidecar is gone", func() bool { return ask[admin.Status](r, "status").Peers["client"] == 0 })
}
