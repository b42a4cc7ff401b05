package kubeapi_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"konnectivity/internal/kubeapi"
	"konnectivity/internal/testutil"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// api answers every request with body and notes the requests, with what deletes and
// updates send.
func api(t *testing.T, body string) (config *rest.Config, asked *[]string) {
	asked = new([]string)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent := ""
		if r.Method == http.MethodDelete || r.Method == http.MethodPut {
			text, _ := io.ReadAll(r.Body)
			sent = " " + strings.TrimSpace(string(text))
		}
		*asked = append(*asked, r.Method+" "+r.URL.RequestURI()+sent)
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(body))
	}))
	t.Cleanup(srv.Close)
	return &rest.Config{Host: srv.URL}, asked
}

func TestLeases(t *testing.T) {
	config, asked := api(t, `{"kind":"LeaseList","apiVersion":"coordination.k8s.io/v1","items":[{"metadata":{"name":"a"}}]}`)
	leases, err := kubeapi.NewLeases(config, "ns")
	if err != nil {
		t.Fatal(err)
	}
	list, err := leases.List(t.Context(), metav1.ListOptions{LabelSelector: "k=v"})
	if err != nil || len(list.Items) != 1 || list.Items[0].Name != "a" {
		t.Errorf("%+v, %v", list, err)
	}
	if want := "GET /apis/coordination.k8s.io/v1/namespaces/ns/leases?labelSelector=k%3Dv"; (*asked)[0] != want {
		t.Errorf("asked %q, want %q", *asked, want)
	}
	if config.GroupVersion != nil {
		t.Error("the caller's config was changed")
	}
	leases.CloseIdle()
}

func TestTokenReviews(t *testing.T) {
	config, asked := api(t, `{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1","status":{"authenticated":true}}`)
	reviews, err := kubeapi.NewTokenReviews(config)
	if err != nil {
		t.Fatal(err)
	}
	got, err := reviews.Create(t.Context(), kubeapi.TokenReviewSpec{})
	if err != nil || !got.Authenticated {
		t.Errorf("%+v, %v", got, err)
	}
	if want := "POST /apis/authentication.k8s.io/v1/tokenreviews"; (*asked)[0] != want {
		t.Errorf("asked %q, want %q", *asked, want)
	}
	reviews.CloseIdle()
}

// Secrets are of the core group, and spoken of in JSON whatever the config says.
func TestSecrets(t *testing.T) {
	config, asked := api(t, `{"kind":"SecretList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":[{"metadata":{"name":"a"},"data":{"k":"dg=="}}]}`)
	config.ContentType = "application/vnd.kubernetes.protobuf"
	secrets, err := kubeapi.NewSecrets(config, "ns")
	if err != nil {
		t.Fatal(err)
	}
	defer secrets.CloseIdle()
	list, err := secrets.List(t.Context(), metav1.ListOptions{LabelSelector: "k", Limit: 3})
	if err != nil || list.ResourceVersion != "7" || len(list.Items) != 1 || list.Items[0].Name != "a" || string(list.Items[0].Data["k"]) != "v" {
		t.Errorf("%+v, %v", list, err)
	}
	if want := "GET /api/v1/namespaces/ns/secrets?labelSelector=k&limit=3"; (*asked)[0] != want {
		t.Errorf("asked %q, want %q", *asked, want)
	}
	if secrets.String() != "ns" {
		t.Errorf("they are in %s", secrets)
	}
	copied := list.DeepCopyObject().(*kubeapi.List[*kubeapi.Secret])
	copied.Items[0].Data["k"][0] = 'w'
	if string(list.Items[0].Data["k"]) != "v" {
		t.Error("a copy shares its data")
	}
}

// A watch sends what changes until the API refuses to go on.
func TestWatchOfSecrets(t *testing.T) {
	config, asked := api(t, `{"type":"ADDED","object":{"kind":"Secret","apiVersion":"v1","metadata":{"name":"a","resourceVersion":"1"},"data":{"k":"dg=="}}}
{"type":"BOOKMARK","object":{"kind":"Secret","apiVersion":"v1","metadata":{"resourceVersion":"2"}}}
{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","code":410}}
`)
	secrets := testutil.Must(kubeapi.NewSecrets(config, "ns"))(t)
	defer secrets.CloseIdle()
	w := testutil.Must(secrets.Watch(t.Context(), metav1.ListOptions{ResourceVersion: "0"}))(t)
	defer w.Stop()
	added, bookmark, end := <-w.ResultChan(), <-w.ResultChan(), <-w.ResultChan()
	if s, ok := added.Object.(*kubeapi.Secret); !ok || added.Type != watch.Added || s.Name != "a" || string(s.Data["k"]) != "v" {
		t.Errorf("%+v", added)
	}
	if s, ok := bookmark.Object.(*kubeapi.Secret); !ok || bookmark.Type != watch.Bookmark || s.ResourceVersion != "2" {
		t.Errorf("%+v", bookmark)
	}
	if err := apierrors.FromObject(end.Object); end.Type != watch.Error || !apierrors.IsResourceExpired(err) {
		t.Errorf("%+v", end)
	}
	if want := "GET /api/v1/namespaces/ns/secrets?resourceVersion=0&watch=true"; (*asked)[0] != want {
		t.Errorf("asked %q, want %q", *asked, want)
	}
}

// An API that hangs up is away, and not one that ended a watch.
func TestWatchThatHangsUp(t *testing.T) {
	var asked atomic.Int32
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		asked.Add(1)
		panic(http.ErrAbortHandler)
	}))
	defer srv.Close()
	secrets := testutil.Must(kubeapi.NewSecrets(&rest.Config{Host: srv.URL}, "ns"))(t)
	defer secrets.CloseIdle()
	if _, err := secrets.List(t.Context(), metav1.ListOptions{}); err == nil {
		t.Error("a list of nothing")
	}
	if _, err := secrets.Watch(t.Context(), metav1.ListOptions{}); err == nil {
		t.Error("a watch of nothing")
	}
	if n := asked.Load(); n != 2 {
		t.Errorf("it was asked %d times, want 2", n)
	}
}

// Every call asks for its own object, in the namespace, by the right verb.
func TestRequests(t *testing.T) {
	config, asked := api(t, `{"kind":"Lease","apiVersion":"coordination.k8s.io/v1","metadata":{"name":"a"}}`)
	config.ContentType = "application/json"
	leases := testutil.Must(kubeapi.NewLeases(config, "ns"))(t)
	defer leases.CloseIdle()
	ctx, seconds := t.Context(), int64(7)
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	const path = "/apis/coordination.k8s.io/v1/namespaces/ns/leases"
	for _, c := range []struct {
		want string
		call func() (*coordinationv1.Lease, error)
	}{
		{"GET " + path + "/a", func() (*coordinationv1.Lease, error) { return leases.Get(ctx, "a", metav1.GetOptions{}) }},
		{"POST " + path, func() (*coordinationv1.Lease, error) { return leases.Create(ctx, lease, metav1.CreateOptions{}) }},
		{"PUT " + path + `/a {"kind":"Lease","apiVersion":"coordination.k8s.io/v1","metadata":{"name":"a"},"spec":{}}`, func() (*coordinationv1.Lease, error) { return leases.Update(ctx, lease, metav1.UpdateOptions{}) }},
		{"DELETE " + path + `/a {"kind":"DeleteOptions","apiVersion":"coordination.k8s.io/v1","preconditions":{"resourceVersion":"7"}}`, func() (*coordinationv1.Lease, error) {
			return lease, leases.Delete(ctx, "a", *metav1.NewRVDeletionPrecondition("7"))
		}},
		{"GET " + path + "?allowWatchBookmarks=true&timeout=7s&timeoutSeconds=7&watch=true", func() (*coordinationv1.Lease, error) {
			w, err := leases.Watch(ctx, metav1.ListOptions{AllowWatchBookmarks: true, TimeoutSeconds: &seconds})
			if err == nil {
				w.Stop()
			}
			return lease, err
		}},
	} {
		got, err := c.call()
		if err != nil || got.Name != "a" {
			t.Errorf("%s: %+v, %v", c.want, got, err)
		}
		if last := (*asked)[len(*asked)-1]; last != c.want {
			t.Errorf("asked %q, want %q", last, c.want)
		}
	}
}

// A refusal keeps its type, which callers look at.
func TestRefusal(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`))
	}))
	defer srv.Close()
	leases := testutil.Must(kubeapi.NewLeases(&rest.Config{Host: srv.URL}, "ns"))(t)
	defer leases.CloseIdle()
	if _, err := leases.Get(t.Context(), "a", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("%v", err)
	}
}

// The content type is what the config says, and protobuf where it says nothing.
func TestContentType(t *testing.T) {
	sent := make(chan string, 1)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent <- r.Header.Get("Content-Type")
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"kind":"Lease","apiVersion":"coordination.k8s.io/v1"}`))
	}))
	defer srv.Close()
	for given, want := range map[string]string{
		"":                                    "application/vnd.kubernetes.protobuf",
		"application/json":                    "application/json",
		"application/vnd.kubernetes.protobuf": "application/vnd.kubernetes.protobuf",
	} {
		leases := testutil.Must(kubeapi.NewLeases(&rest.Config{Host: srv.URL, ContentConfig: rest.ContentConfig{ContentType: given}}, "ns"))(t)
		if _, err := leases.Create(t.Context(), &coordinationv1.Lease{}, metav1.CreateOptions{}); err != nil {
			t.Error(err)
		}
		if got := <-sent; got != want {
			t.Errorf("with %q sent %q, want %q", given, got, want)
		}
		leases.CloseIdle()
	}
}

func TestBadConfig(t *testing.T) {
	bad := &rest.Config{Host: "http://[::1"}
	if _, err := kubeapi.NewLeases(bad, "ns"); err == nil {
		t.Error("a client of leases of nowhere")
	}
	if _, err := kubeapi.NewTokenReviews(bad); err == nil {
		t.Error("a client of reviews of nowhere")
	}
	if _, err := kubeapi.NewSecrets(bad, "ns"); err == nil {
		t.Error("a client of secrets of nowhere")
	}
}

// The package is there to leave other API groups and the parts for fakes and
// apply out.
func TestNothingElseIsLinked(t *testing.T) {
	out := testutil.Must(exec.Command("go", "list", "-deps", "konnectivity/internal/kubeapi").Output())(t)
	for line := range strings.Lines(string(out)) {
		for _, banned := range []string{
			"k8s.io/client-go/kubernetes", "k8s.io/client-go/gentype", "k8s.io/client-go/testing", "k8s.io/api/core",
			"github.com/google/gnostic-models", "sigs.k8s.io/structured-merge-diff/v6/typed",
		} {
			if strings.HasPrefix(line, banned) {
				t.Errorf("links %s", strings.TrimSpace(line))
			}
		}
	}
}

// Where there is no way to the API, the error says who needs one and what to
// give.
func TestConfig(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	if _, err := kubeapi.Config("", "x", "--some-flag"); err == nil || !strings.Contains(err.Error(), "--some-flag needs --kubeconfig") {
		t.Error(err)
	}
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if _, err := kubeapi.Config(file, "x", "--some-flag"); err == nil || !strings.Contains(err.Error(), "--kubeconfig="+file) {
		t.Error(err)
	}
	writeFile(t, file, `{"clusters": [{"name": "c", "cluster": {"server": "https://api.example:6443", "certificate-authority": "ca.crt"}}],
		"users": [{"name": "u", "user": {"tokenFile": "token"}}],
		"contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}], "current-context": "x"}`)
	for _, name := range []string{"ca.crt", "token"} {
		writeFile(t, filepath.Join(filepath.Dir(file), name), "abc")
	}
	config, err := kubeapi.Config(file, "application/json", "--some-flag")
	if err != nil || config.Host != "https://api.example:6443" || config.ContentType != "application/json" {
		t.Fatalf("%v, %v", config, err)
	}
	if config.CAFile != filepath.Join(filepath.Dir(file), "ca.crt") || config.BearerToken != "abc" {
		t.Errorf("files that it names are beside it: %v", config)
	}
}

// A kubeconfig that leads nowhere does not lead to the pod's own cluster.
func TestConfigThatLeadsNowhere(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
	t.Setenv("KUBERNETES_SERVICE_PORT", "1")
	const cluster = `"clusters": [{"name": "c", "cluster": {"server": "https://api.example:6443"}}]`
	const contexts = `"contexts": [{"name": "x", "context": {"cluster": "c"}}]`
	for name, text := range map[string]string{
		"empty":               "",
		"of nothing":          `{"kind": "Config"}`,
		"no current context":  `{` + cluster + `, ` + contexts + `}`,
		"an unknown context":  `{` + cluster + `, ` + contexts + `, "current-context": "y"}`,
		"an unknown cluster":  `{` + contexts + `, "current-context": "x"}`,
		"a context of none":   `{` + cluster + `, "contexts": [{"name": "x", "context": {}}], "current-context": "x"}`,
		"a cluster of none":   `{"clusters": [{"name": "c", "cluster": {}}], ` + contexts + `, "current-context": "x"}`,
		"what is larger by 1": strings.Repeat(" ", 1<<20+1),
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "kubeconfig")
			writeFile(t, file, text)
			config, err := kubeapi.Config(file, "x", "--some-flag")
			if err == nil || !strings.Contains(err.Error(), "--kubeconfig="+file) || strings.Contains(err.Error(), "KUBERNETES_") {
				t.Errorf("%v, %v", config, err)
			}
			t.Log(err)
		})
	}
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	testutil.NoError(t, os.WriteFile(path, []byte(text), 0o600))
}
