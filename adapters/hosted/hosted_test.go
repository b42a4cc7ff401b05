package hosted

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus/hooks/test"
	"go.uber.org/goleak"

	"konnectivity/internal/kubeapi"
	"konnectivity/internal/logging"
	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testutil.Settled(m)) }

func services(t testing.TB, kubeconfig string) *Services {
	s := New(Options{Kubeconfig: kubeconfig, GetTime: testutil.Patience, Log: logging.Silent()})
	t.Cleanup(s.Close)
	return s
}

func run(t testing.TB, s *Services) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); s.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
}

// watches says whether a watch follows the Services.
func watches(s *Services) bool {
	_, current := s.table.get("")
	return current
}

func awaitWatch(t testing.TB, s *Services) {
	t.Helper()
	testutil.Eventually(t, "a watch", func() bool { return watches(s) })
}

// reread has the kubeconfig's files looked at when it is used next.
func reread(s *Services) {
	s.client.mu.Lock()
	defer s.client.mu.Unlock()
	s.client.read = time.Time{}
}

func lookup(s *Services, key string) string {
	namespace, name := splitKey(key)
	addrs, err := s.ClusterIPs(context.Background(), namespace, name)
	if err != nil {
		return tunnel.FailureOf(err).Label()
	}
	return fmt.Sprint(addrs)
}

func want(t testing.TB, s *Services, outcomes map[string]string) {
	t.Helper()
	for key, want := range outcomes {
		testutil.Equal(t, lookup(s, key), want, "%s", key)
	}
}

var outcomes = map[string]string{"a/one": "[10.0.0.1]", "a/dual": "[10.0.0.2 fd00::2]", "a/headless": "no_such_host", "a/none": "no_such_host", "b/one": "no_such_host"}

func filled(t testing.TB) (*fakeAPI, string) {
	api := startAPI(t)
	api.Set("a/one", "10.0.0.1")
	api.Set("a/dual", "10.0.0.2,fd00::2")
	api.Set("a/headless", "None")
	path := filepath.Join(t.TempDir(), "kubeconfig")
	api.Kubeconfig(t, path, "secret-token")
	api.change(func() { api.Token = "secret-token" })
	return api, path
}

func TestSingleGETs(t *testing.T) {
	api, path := filled(t)
	s := services(t, path)
	want(t, s, outcomes)
	want(t, s, outcomes)
	testutil.Equal(t, api.Count("GET"), len(outcomes), "GETs for names asked twice")
	testutil.Equal(t, api.Count("LIST"), 0, "lists without Run")
}

func TestSingleFlight(t *testing.T) {
	api, path := filled(t)
	s := services(t, path)
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() { lookup(s, "a/one") })
	}
	wg.Wait()
	testutil.Equal(t, api.Count("GET"), 1, "GETs")
}

func TestWatch(t *testing.T) {
	t.Parallel() // it waits
	api, path := filled(t)
	api.change(func() { api.PageSize = 2 })
	s := services(t, path)
	s.lasts = 0
	run(t, s)
	time.Sleep(20 * time.Millisecond)
	testutil.Equal(t, api.Count("LIST"), 0, "lists before anybody asked")
	lookup(s, "a/one")
	awaitWatch(t, s)
	gets := api.Count("GET")
	want(t, s, outcomes)
	api.Set("b/one", "10.0.1.1")
	testutil.Eventually(t, "the new Service", func() bool { return lookup(s, "b/one") == "[10.0.1.1]" })
	api.Set("a/one", "10.0.0.9")
	testutil.Eventually(t, "the change", func() bool { return lookup(s, "a/one") == "[10.0.0.9]" })
	api.Delete("a/dual")
	testutil.Eventually(t, "the deletion", func() bool { return lookup(s, "a/dual") == "no_such_host" })
	testutil.Equal(t, api.Count("GET"), gets, "GETs beside the watch")
	api.EndWatches() // in order: the next goes on from there
	testutil.Eventually(t, "another watch", func() bool { return api.Count("WATCH") == 2 })
	api.Set("b/two", "10.0.1.2")
	testutil.Eventually(t, "the Service after it", func() bool { return lookup(s, "b/two") == "[10.0.1.2]" })
	testutil.Equal(t, api.Count("LIST"), 2, "pages listed")
	api.Expire()
	testutil.Eventually(t, "a list anew", func() bool { return api.Count("LIST") == 4 })
	api.Set("c/one", "10.0.2.1")
	testutil.Eventually(t, "the Service after the list", func() bool { return lookup(s, "c/one") == "[10.0.2.1]" })
}

func TestWatchForbidden(t *testing.T) {
	t.Parallel() // it waits
	api, path := filled(t)
	api.change(func() { api.ForbidList = true })
	s := services(t, path)
	run(t, s)
	want(t, s, outcomes)
	testutil.Eventually(t, "the attempt", func() bool { return api.Count("LIST") == 1 })
	time.Sleep(1500 * time.Millisecond)
	testutil.Equal(t, api.Count("LIST"), 1, "attempts at what is forbidden")
}

// A kubeconfig that is not accepted is tried again once it changes.
func TestWatchOnceCredentialsAreRenewed(t *testing.T) {
	t.Parallel() // it waits
	api, path := filled(t)
	api.change(func() { api.Token = "renewed" })
	s := services(t, path)
	s.look = time.Millisecond
	run(t, s)
	lookup(s, "a/one")
	testutil.Eventually(t, "the attempt", func() bool { return api.Count("LIST") == 1 })
	api.Kubeconfig(t, path, "renewed")
	reread(s)
	awaitWatch(t, s)
}

// Behind a restore of etcd the API's versions begin anew, below those that were seen, and
// a watch from one of these is told nothing.
func TestWatchRelistsAfterARestore(t *testing.T) {
	t.Parallel() // it waits
	api, path := filled(t)
	s := services(t, path)
	s.lasts = 0
	run(t, s)
	lookup(s, "a/one")
	awaitWatch(t, s)
	api.Restore(map[string]string{"a/one": "10.0.0.7"})
	api.EndWatches()
	testutil.Eventually(t, "another", func() bool { return api.Count("WATCH") == 2 && watches(s) })
	want(t, s, map[string]string{"a/one": "[10.0.0.7]", "a/dual": "no_such_host"})
}

func TestAPIAway(t *testing.T) {
	t.Parallel() // it waits
	api, path := filled(t)
	s := services(t, path)
	run(t, s)
	lookup(s, "a/one")
	awaitWatch(t, s)
	api.change(func() { api.Down = true })
	api.CloseClientConnections()
	testutil.Eventually(t, "the watch's end", func() bool { return !watches(s) })
	_, _, err := list(t.Context(), s.client.inUse())
	testutil.Fails(t, err, "a list, which would empty the table")
	want(t, s, map[string]string{"a/dual": "[10.0.0.2 fd00::2]", "b/new": "resolve"}) // the last addresses are still right
	api.change(func() { api.Down = false })
	awaitWatch(t, s)
	want(t, s, map[string]string{"b/new": "no_such_host"})
}

func TestWithoutAPI(t *testing.T) {
	t.Parallel() // it waits
	dir := t.TempDir()
	path := filepath.Join(dir, "kubeconfig")
	s := services(t, path)
	run(t, s)
	start := time.Now()
	want(t, s, map[string]string{"a/one": "resolve"})
	testutil.AtMost(t, time.Since(start), 10*time.Second, "time without an API")
	api := startAPI(t)
	api.Set("a/one", "10.0.0.1")
	api.Kubeconfig(t, path, "x")
	testutil.Eventually(t, "the kubeconfig picked up", func() bool { return lookup(s, "a/one") == "[10.0.0.1]" })
}

func TestBlackHoleIsBounded(t *testing.T) {
	api, path := filled(t)
	s := New(Options{Kubeconfig: path, GetTime: 50 * time.Millisecond, Log: logging.Silent()})
	t.Cleanup(s.Close)
	ctx := testutil.Context(t)
	api.Lock() // nothing is answered
	_, err := s.ClusterIPs(ctx, "a", "one")
	api.Unlock()
	testutil.Equal(t, tunnel.FailureOf(err), tunnel.FailResolve, "the failure")
	testutil.Succeeds(t, ctx.Err(), "the caller's context")
}

func TestKubeconfigReloads(t *testing.T) {
	api, path := filled(t)
	s := services(t, path)
	want(t, s, map[string]string{"a/one": "[10.0.0.1]"})
	again := func() { reread(s); s.flights.Forget("a/one") }
	testutil.NoError(t, os.WriteFile(path, []byte("{broken"), 0o600))
	again()
	want(t, s, map[string]string{"a/one": "[10.0.0.1]"}) // the old one stays in use
	api.change(func() { api.Token = "rotated" })
	api.Kubeconfig(t, path, "rotated")
	again()
	want(t, s, map[string]string{"a/one": "[10.0.0.1]"})
}

// Another API knows nothing of the first one's Services and versions, whether the
// kubeconfig changes during a watch or between two.
func TestChangedKubeconfigRelists(t *testing.T) {
	for _, during := range []bool{true, false} {
		t.Run(fmt.Sprint("during a watch: ", during), func(t *testing.T) {
			t.Parallel() // it waits
			first, path := filled(t)
			second := startAPI(t)
			second.Set("a/one", "10.9.9.9")
			s := services(t, path)
			s.lasts = 0
			if s.look = time.Hour; during {
				s.look = time.Millisecond
			}
			run(t, s)
			lookup(s, "a/one")
			awaitWatch(t, s)
			second.Kubeconfig(t, path, "secret-token")
			reread(s)
			if !during {
				first.EndWatches()
			}
			testutil.Eventually(t, "the other API's Services", func() bool { return lookup(s, "a/one") == "[10.9.9.9]" && lookup(s, "a/dual") == "no_such_host" })
		})
	}
}

// The log has one line when the kubeconfig is missing, and one when it is there.
func TestOutagesAreLoggedOnce(t *testing.T) {
	api, good := filled(t)
	path := filepath.Join(t.TempDir(), "kubeconfig")
	log, lines := test.NewNullLogger()
	s := New(Options{Kubeconfig: path, Log: log})
	t.Cleanup(s.Close)
	expect := func(key, why string, said ...string) {
		t.Helper()
		lines.Reset()
		for range 3 {
			s.flights.Forget(key)
			reread(s)
			namespace, name := splitKey(key)
			_, err := s.ClusterIPs(t.Context(), namespace, name)
			var dial *tunnel.DialError
			if why == "" && err != nil || why != "" && (!errors.As(err, &dial) || !strings.Contains(dial.Text(), why)) {
				t.Errorf("%v, want %q", err, why)
			}
		}
		var got []string
		for _, e := range lines.AllEntries() {
			got = append(got, e.Message)
		}
		for i, want := range said {
			testutil.Holds(t, i < len(got) && strings.Contains(got[i], want),
				"line %d: want %q in %q", i, want, got)
		}
		testutil.Equal(t, len(got), len(said), "lines of %q", got)
	}
	write := func(text []byte) { testutil.NoError(t, os.WriteFile(path, text, 0o600)) }
	tell := func(down bool, token string) { api.change(func() { api.Down, api.Token = down, token }) }

	expect("a/one", "no kubeconfig", "waiting for a good one")
	text := testutil.Must(os.ReadFile(good))(t)
	write(text)
	expect("a/one", "", "is in place")
	write([]byte("{broken"))
	expect("a/one", "", "the old one stays in use")
	write(text)
	expect("a/one", "", "is in place")
	tell(true, "secret-token")
	expect("a/one", "cannot be asked", "cannot be asked for Services; retrying")
	tell(false, "other")
	expect("a/one", "does not let", "does not accept the kubeconfig's credentials")
	tell(false, "secret-token")
	expect("a/one", "", "answers for Services again")
}

// Errors about requests quote the URL, so no user or password may be in it.
func TestUserinfoOfTheServerIsNoPartOfErrors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := "clusters: [{name: c, cluster: {server: 'https://anna:hunter2@127.0.0.1:1'}}]\ncontexts: [{name: x, context: {cluster: c}}]\n"
	testutil.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	a := testutil.Must(load(path))(t)
	testutil.Equal(t, a.Username+" "+a.Password, "anna hunter2", "who asks")
	_, err := services(t, path).ClusterIPs(t.Context(), "a", "b")
	testutil.Holds(t, err != nil && !strings.Contains(err.Error(), "anna") && !strings.Contains(err.Error(), "hunter2"), "%v", err)
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	ca := testutil.Must(pki.NewCA("api"))(t)
	pair := testutil.Must(ca.Issue(pki.Leaf{CommonName: "admin", Client: true}))(t)
	for name, data := range map[string][]byte{"ca.crt": ca.CertPEM, "c.crt": pair.CertPEM, "c.key": pair.KeyPEM, "token": []byte(" tok\n"), "bad-token": []byte("a\nb"), "big": make([]byte, maxFile+1), "blank": nil} {
		testutil.NoError(t, os.WriteFile(filepath.Join(dir, name), data, 0o600))
	}
	config := func(cluster, user string) string {
		return "clusters: [{name: c, cluster: {" + cluster + "}}]\nusers: [{name: u, user: {" + user + "}}]\ncontexts: [{name: x, context: {cluster: c, user: u}}]\n"
	}
	const server = "server: 'https://api:6443/base'"
	for name, c := range map[string]struct{ text, err string }{
		"plain":            {config(server, ""), ""},
		"files, relative":  {config(server+", certificate-authority: ca.crt, tls-server-name: api", "client-certificate: c.crt, client-key: c.key, tokenFile: token"), ""},
		"absolute":         {config(server, "tokenFile: '"+filepath.Join(dir, "token")+"'"), ""},
		"no host":          {config("server: 'https://:6443'", ""), "server is not an http or https URL"},
		"two tokens":       {config(server, "token: hunter2, tokenFile: token"), ""}, // as client-go has it, the file wins
		"basic":            {config(server, "username: u, password: hunter2"), ""},
		"proxy":            {config(server+", proxy-url: 'http://u:hunter2@proxy:1'", ""), ""},
		"no context":       {"current-context: other\n" + config(server, ""), `no context "other"`},
		"no cluster":       {"contexts: [{name: x, context: {cluster: c}}]", `cluster "c"`},
		"no user":          {"clusters: [{name: c, cluster: {" + server + "}}]\ncontexts: [{name: x, context: {cluster: c, user: u}}]\n", `user "u"`},
		"no server":        {config("", ""), "server is not an http or https URL"},
		"bad server":       {config("server: 'https://u:hunter2@:x'", ""), "server is not an http or https URL"},
		"bad proxy":        {config(server+", proxy-url: 'socks5://u:hunter2@x'", ""), "proxy-url is not"},
		"exec":             {config(server, "exec: {command: x}"), "credential plugin"},
		"auth-provider":    {config(server, "auth-provider: {name: x}"), "credential plugin"},
		"bad base64":       {config(server+", certificate-authority-data: 'hunter2!'", ""), "not base64"},
		"no certificate":   {config(server+", certificate-authority: token", ""), "holds no certificate"},
		"missing file":     {config(server, "tokenFile: nowhere"), "no such file"},
		"two-line token":   {config(server, "tokenFile: bad-token"), "characters that no token may have"},
		"key without cert": {config(server, "client-key: c.key"), "client certificate and key"},
		"blank CA":         {config(server+", certificate-authority: blank", ""), "blank is empty"},
		"blank key pair":   {config(server, "client-certificate: blank, client-key: blank"), "blank is empty"},
		"blank token":      {config(server, "tokenFile: blank"), "blank is empty"},
		"huge file":        {config(server, "tokenFile: big"), "larger than"},
		"not YAML":         {"{hunter2", "is not a kubeconfig"},
		"empty":            {"", "no context"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(dir, "kubeconfig")
			testutil.NoError(t, os.WriteFile(path, []byte(c.text), 0o600))
			a, err := load(path)
			switch {
			case c.err == "" && err != nil, c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)):
				t.Errorf("%v, want %q", err, c.err)
			case err != nil && strings.Contains(err.Error(), "hunter2"):
				t.Errorf("a secret in %q", err)
			case name == "two tokens" && a.Token != "tok":
				t.Errorf("%+v", a)
			case name == "files, relative" && (a.Token != "tok" || a.CA == nil || a.Cert == nil || a.Key == nil || a.ServerName != "api"):
				t.Errorf("%+v", a)
			}
		})
	}
}

// The kubeconfig's proxy-url wins over the environment.
func TestProxyOfTheAPI(t *testing.T) {
	environment, own := &url.URL{Host: "environment"}, &url.URL{Host: "own"}
	c := &client{proxy: func(*url.URL) (*url.URL, error) { return environment, nil }}
	for _, a := range []*access{{}, {proxy: own}} {
		testutil.NoError(t, c.connect(a))
		testutil.Equal(t, testutil.Must(a.trip.Proxy(&http.Request{}))(t), cmp.Or(a.proxy, environment), "the proxy")
	}
}

func TestWatchedServicesAreBounded(t *testing.T) {
	s := table{addrs: make(map[string][]netip.Addr)}
	for i := range maxServices - 1 {
		s.addrs[strconv.Itoa(i)] = nil
	}
	testutil.Succeeds(t, s.apply(kubeapi.Added, new(kubeapi.Service)), "the last for which there is room")
	one := new(kubeapi.Service)
	one.Name = "one more"
	testutil.ErrorIs(t, s.apply(kubeapi.Added, one), errTooMany, "one more")
}

func TestDigestCoversEveryFile(t *testing.T) {
	dir := t.TempDir()
	path, token := filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "token")
	_ = os.WriteFile(path, []byte("clusters: [{name: c, cluster: {server: 'https://x'}}]\nusers: [{name: u, user: {tokenFile: token}}]\ncontexts: [{name: x, context: {cluster: c, user: u}}]"), 0o600)
	_ = os.WriteFile(token, []byte("one"), 0o600)
	a := testutil.Must(load(path))(t)
	_ = os.WriteFile(token, []byte("two"), 0o600)
	b, _ := load(path)
	testutil.Equal(t, b.digest == a.digest, false, "a new token goes unnoticed")
}

func FuzzKubeconfig(f *testing.F) {
	f.Add([]byte("current-context: x\nclusters: [{name: c, cluster: {server: 'https://x', certificate-authority-data: aGk=}}]\nusers: [{name: u, user: {token: t}}]\ncontexts: [{name: x, context: {cluster: c, user: u}}]"))
	f.Add([]byte("{}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		path := filepath.Join(t.TempDir(), "k")
		testutil.NoError(t, os.WriteFile(path, data, 0o600))
		a, err := load(path)
		testutil.Equal(t, err != nil || a.Server != "", true, "there is a server or an error")
	})
}

// Answers are kept for as long as the page says.
func TestFiguresAreDocumented(t *testing.T) {
	testutil.Says(t, "../../docs/sidecars.md", "a GET of each (kept for %v s; absences for %v s)", int64(keepFound/time.Second), int64(keepAbsent/time.Second))
}

// large is an API with many Services, each with all that real ones have: labels, owners, what
// kubectl applied, and who manages which field.
type large []string

// RoundTrip implements http.RoundTripper.
func (a large) RoundTrip(r *http.Request) (*http.Response, error) {
	query := r.URL.Query()
	limit, _ := strconv.Atoi(query.Get("limit"))
	from, _ := strconv.Atoi(query.Get("continue"))
	end, next := len(a), ""
	if limit > 0 && from+limit < end {
		end, next = from+limit, strconv.Itoa(from+limit)
	}
	body := []io.Reader{strings.NewReader(`{"kind":"ServiceList","apiVersion":"v1","metadata":{"resourceVersion":"9","continue":"` + next + `"},"items":[`)}
	for i, service := range a[from:end] {
		if i > 0 {
			body = append(body, strings.NewReader(","))
		}
		body = append(body, strings.NewReader(service))
	}
	body = append(body, strings.NewReader("]}\n"))
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Request: r, Body: io.NopCloser(io.MultiReader(body...))}, nil
}

func newLarge(services int) (a large) {
	for i := range services {
		a = append(a, realService(i))
	}
	return a
}

// realService is about 3 KB.
func realService(i int) string {
	managed := strings.Repeat(`"f:app.kubernetes.io/component":{},`, 30)
	return fmt.Sprintf(`{"metadata":{"name":"service-%d","namespace":"default","uid":"0b0f5c2c-6d43-4f1c-9a55-%012d","resourceVersion":"%d",`+
		`"creationTimestamp":"2026-11-01T10:00:00Z","labels":{"app.kubernetes.io/name":"web","app.kubernetes.io/instance":"web-%d","app.kubernetes.io/managed-by":"Helm","helm.sh/chart":"web-1.2.3"},`+
		`"annotations":{"kubectl.kubernetes.io/last-applied-configuration":%q,"meta.helm.sh/release-name":"web"},`+
		`"ownerReferences":[{"apiVersion":"apps/v1","kind":"Deployment","name":"web","uid":"0b0f5c2c-6d43-4f1c-9a55-000000000000"}],"finalizers":["service.kubernetes.io/load-balancer-cleanup"],`+
		`"managedFields":[{"manager":"helm","operation":"Update","apiVersion":"v1","time":"2026-11-01T10:00:00Z","fieldsType":"FieldsV1","fieldsV1":{"f:metadata":{"f:labels":{%s".":{}}}}}]},`+
		`"spec":{"ports":[{"name":"http","protocol":"TCP","port":80,"targetPort":8080}],"selector":{"app":"web-%d"},"clusterIP":"10.%d.%d.1","clusterIPs":["10.%d.%d.1"],"type":"ClusterIP","sessionAffinity":"None","ipFamilies":["IPv4"],"ipFamilyPolicy":"SingleStack"},"status":{"loadBalancer":{}}}`,
		i, i, i, i, strings.Repeat(`{"a":"b"}`, 80), managed, i, i/250, i%250, i/250, i%250)
}

func (a large) access(t testing.TB) *access {
	return &access{services: testutil.Must(kubeapi.Access{Server: "http://api"}.NewServices(a))(t)}
}

// A list allocates at most 2 KiB for each Service, whose text has 3 KB.
func TestListTakesLittleMemory(t *testing.T) {
	const many = 2000
	from := newLarge(many).access(t)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	addrs, version, err := list(t.Context(), from)
	runtime.ReadMemStats(&after)
	testutil.Requires(t, err == nil && len(addrs) == many && version == "9", "%d at %q, %v", len(addrs), version, err)
	testutil.Equal(t, fmt.Sprint(addrs["default/service-1999"]), "[10.7.249.1]", "the last")
	testutil.AtMost(t, after.TotalAlloc-before.TotalAlloc, many*2<<10, "bytes of %d Services", many)
}

func BenchmarkList(b *testing.B) {
	from := newLarge(5000).access(b)
	b.ReportAllocs()
	for b.Loop() {
		_, _, err := list(b.Context(), from)
		testutil.NoError(b, err)
	}
}
