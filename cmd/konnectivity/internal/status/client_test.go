package status

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"go.uber.org/goleak"

	"konnectivity/internal/admin"
	"konnectivity/internal/testutil"
)

// served is the address of an admin API.
func served(t *testing.T, source admin.Source) (address string) {
	t.Helper()
	s := httptest.NewServer(admin.Handler(http.NewServeMux(), source))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// newClient returns a Client without a login.
func newClient(t *testing.T) *Client {
	t.Helper()
	c := testutil.Must(NewClient(Login{}))(t)
	t.Cleanup(c.Close)
	return c
}

// A redirect must not receive the token.
func TestRedirectIsNotFollowed(t *testing.T) {
	var asked atomic.Bool
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Store(true) }))
	defer elsewhere.Close()
	given := httptest.NewServer(http.RedirectHandler(elsewhere.URL, http.StatusFound))
	defer given.Close()
	token := filepath.Join(t.TempDir(), "token")
	testutil.NoError(t, os.WriteFile(token, admin.NewToken(), 0o600))
	c := testutil.Must(NewClient(Login{Token: token}))(t)
	defer c.Close()
	err := c.Report(t.Context(), &Report{Address: given.Listener.Addr().String()}, "", 1)
	testutil.Holds(t, err != nil && strings.Contains(err.Error(), "redirect (302)") && !asked.Load(),
		"%v; another was asked: %v", err, asked.Load())
}

// Without an address, only that of a port where nothing listens is passed over.
func TestStatusOfUsualPorts(t *testing.T) {
	usual := UsualAdmin
	defer func() { UsualAdmin = usual }()
	agent := served(t, admin.Source{Component: "konnectivity-agent", Table: admin.NewTable()})
	login := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }))
	defer login.Close()
	server := login.Listener.Addr().String()
	closed := testutil.Refusing(t)
	for name, c := range map[string]struct {
		ports []string
		fails bool
		shown []string
		not   string
	}{
		"one listens":             {[]string{closed, agent}, false, []string{"konnectivity-agent"}, closed},
		"one asks for a token":    {[]string{server, agent}, true, []string{server + ": it wants a token", "konnectivity-agent"}, "no answer"},
		"the other does not, too": {[]string{server, closed}, true, []string{server + ": it wants a token"}, closed},
		"none listens":            {[]string{closed, closed}, true, []string{closed + ": no answer"}, "token"},
	} {
		UsualAdmin = c.ports
		var out strings.Builder
		err := (&View{Limit: 10}).Show(t.Context(), &out, nil)
		testutil.Holds(t, (err != nil) == c.fails && !strings.Contains(out.String(), c.not),
			"%s: %v\n%s", name, err, out.String())
		for _, want := range c.shown {
			testutil.Contains(t, out.String(), want, "%s", name)
		}
	}
}

// A question that was given up leaves no connection behind: with --watch there is
// one every second, for hours.
func TestHungHandshakeIsClosed(t *testing.T) {
	l := testutil.Listen(t)
	c := newClient(t)
	c.http.Timeout = 500 * time.Millisecond
	var hung net.Conn
	testutil.Eventually(t, "a connection", func() bool { // for which a busy machine may need longer
		testutil.Fails(t, c.Report(t.Context(), &Report{Address: Secure + l.Addr().String()}, "", 1),
			"a question that hangs")
		_ = l.(*net.TCPListener).SetDeadline(time.Now().Add(time.Second))
		var err error
		hung, err = l.Accept()
		return err == nil
	})
	defer hung.Close()
	_ = hung.SetReadDeadline(time.Now().Add(testutil.Patience))
	testutil.Succeeds(t, testutil.Err(io.Copy(io.Discard, hung)), "the end of the connection")
}

// One that is back is not missed, however few are listed.
func TestReconnectedPeerIsNotReported(t *testing.T) {
	table := admin.NewTable()
	table.Gone(admin.Departure{Role: admin.RoleAgent, Tenant: "a", ID: "agent-1", Remote: "10.0.0.1:5"}, time.Now(), io.EOF)
	var others []admin.Peer
	for i := range 20 {
		others = append(others, admin.Peer{Role: admin.RoleAgent, Tenant: "a", ID: fmt.Sprint("agent-1", i)})
	}
	for name, c := range map[string]struct {
		tenant string // whose agent-1 is connected
		want   string
	}{
		"it":                        {"a", ""},
		"one of the same name":      {"b", "agent agent-1 at 10.0.0.1:5 was lost"},
		"one of the server's flags": {"", "agent agent-1 at 10.0.0.1:5 was lost"},
	} {
		peers := slices.Concat(others, []admin.Peer{{Role: admin.RoleAgent, Tenant: c.tenant, ID: "agent-1"}})
		address := served(t, admin.Source{
			Component: serverComponent, Table: table, Peers: func() []admin.Peer { return slices.Clone(peers) },
			More: func(s *admin.Status) { s.Peers[admin.RoleAgent] = len(peers) },
		})
		for _, filter := range []string{"", "10.0.0.1:5"} {
			r := Report{Address: address}
			testutil.NoError(t, newClient(t).Report(t.Context(), &r, filter, 2))
			if got := strings.Join(r.Troubles, "; "); !strings.HasPrefix(got, c.want) || c.want == "" && got != "" {
				t.Errorf("%s, filter %q: %q, want %q", name, filter, got, c.want)
			}
		}
	}
}

// A refusal says what to do.
func TestRefusals(t *testing.T) {
	api := served(t, admin.Source{Table: admin.NewTable()})
	web := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(web.Close)
	secure := httptest.NewUnstartedServer(nil)
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS()
	t.Cleanup(secure.Close)
	proxy := testutil.Serve(t, func(c *net.TCPConn) {
		_, _ = http.ReadRequest(bufio.NewReader(c)) // an answer that comes earlier is none
		_, _ = io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n")
	})
	other, hidden := web.Listener.Addr().String(), secure.Listener.Addr().String()
	c := newClient(t)
	for _, r := range []struct{ address, resource, want string }{
		{api, "status", ""},
		{api, "tenants", "it has no tenants: give the admin port of a server with --tenants-dir"},
		{other, "tenants", "it has no admin API"},
		{proxy, "status", "it answers 400 Bad Request, which is no admin API's"},
		{hidden, "status", "it speaks TLS: ask https://" + hidden + ", if that is the admin port"},
		{Secure + api, "status", "over TLS: it speaks none: leave out https://"},
	} {
		err := c.get(t.Context(), r.address, r.resource, nil, new(any))
		testutil.ErrorSays(t, err, r.want, "%s of %s", r.resource, r.address)
	}
}

// An agent is found by its tenant and its whole id among more than a usual page of others.
func TestAgentIsFoundAmongMany(t *testing.T) {
	var peers []admin.Peer
	for i := range 300 {
		peers = append(peers, admin.Peer{Role: admin.RoleAgent, Tenant: "a", ID: fmt.Sprint("node-1", i)})
	}
	for _, tenant := range []string{"b", "a", ""} {
		peers = append(peers, admin.Peer{Role: admin.RoleAgent, Tenant: tenant, ID: "node-1", Remote: "of " + tenant})
	}
	address := served(t, admin.Source{Table: admin.NewTable(), Peers: func() []admin.Peer { return slices.Clone(peers) }})
	c := newClient(t)
	for _, tenant := range []string{"", "a", "b"} {
		p := c.Agent(t.Context(), address, tenant, "node-1")
		testutil.Holds(t, p != nil && p.Remote == "of "+tenant, "tenant %q: found %+v", tenant, p)
	}
	p := c.Agent(t.Context(), address, "b", "node-12")
	testutil.Holds(t, p == nil, "found another tenant's: %+v", p)
}

// Ages are by the clock of the process that tells them.
func TestAgesUseClockOfProcess(t *testing.T) {
	now := time.Now().Add(-time.Hour)
	var out strings.Builder
	p := &printer{out: &out}
	p.report(Report{Status: admin.Status{Now: now}, Connections: []admin.Connection{{ID: "a", Since: admin.Past{Time: now.Add(-5 * time.Minute)}}}})
	testutil.Contains(t, out.String(), " 5 min ", "an age")
}

// All that are silent count, however few are listed.
func TestAllSilentPeersAreCounted(t *testing.T) {
	var peers []admin.Peer
	for i := range 30 {
		peers = append(peers, admin.Peer{Role: admin.RoleAgent, ID: fmt.Sprint("agent-", i), Silent: 8})
	}
	address := served(t, admin.Source{
		Component: serverComponent, Table: admin.NewTable(), Peers: func() []admin.Peer { return slices.Clone(peers) },
		More: func(s *admin.Status) { s.Peers[admin.RoleAgent] = len(peers) },
	})
	for _, limit := range []int{0, 2, 10, 30, 1000} {
		r := Report{Address: address}
		testutil.NoError(t, newClient(t).Report(t.Context(), &r, "", limit))
		if got := strings.Join(r.Troubles, "; "); !strings.HasSuffix(got, "; nor do 27 more") || len(r.Peers) != min(limit, 30) {
			t.Errorf("limit %d: %d listed, %q", limit, len(r.Peers), got)
		}
	}
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(testutil.Settled(m)) }

// Whatever answers at an address, the question ends, and its error is short.
func TestForeignAnswers(t *testing.T) {
	for want, answer := range map[string]http.HandlerFunc{
		`its apiVersion is "", want "v1"`: func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{}`) },
		"the admin API answers 500": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusInternalServerError)
			_, _ = fmt.Fprintf(w, `{"error": "%s"}`, strings.Repeat("a", 1<<20))
		},
	} {
		s := httptest.NewServer(answer)
		defer s.Close()
		err := newClient(t).Report(t.Context(), &Report{Address: s.Listener.Addr().String()}, "", 1)
		if testutil.ErrorSays(t, err, want, "an answer"); err != nil && len(err.Error()) > 200 {
			t.Errorf("the error has %d bytes", len(err.Error()))
		}
	}
	long := io.MultiReader(strings.NewReader(`{"id":"`), strings.NewReader(strings.Repeat("a", maxAnswer)))
	testutil.ErrorSays(t, decode(long, new(any)), "it has more than 8 MiB", "an answer that goes on")
	begun := io.MultiReader(strings.NewReader("{"), iotest.ErrReader(context.DeadlineExceeded))
	testutil.ErrorSays(t, decode(begun, new(any)), "began to answer, and did not end", "an answer that hangs")
}

// A list of tenants that goes on and on is given up.
func TestEndlessTenants(t *testing.T) {
	pages := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if pages++; pages > 1000 {
			t.Error("it is asked on and on")
			w.WriteHeader(http.StatusInternalServerError)
		}
		_, _ = io.WriteString(w, `{"total": 4611686018427387904, "matched": 4611686018427387904, "items": [{"name": "a"}, {"name": "b"}]}`)
	}))
	defer s.Close()
	c, address := newClient(t), s.Listener.Addr().String()
	_, err := c.tenants(t.Context(), address, &Tenants{})
	testutil.ErrorSays(t, err, "more than any server has", "a list without end")
	page, err := c.tenants(t.Context(), address, &Tenants{Limit: 3})
	testutil.Succeeds(t, err, "three tenants")
	testutil.Equal(t, len(page.Items), 4, "tenants where three were asked for, two at a time")
}
