package kubeapi_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"k8s.io/client-go/transport"

	"konnectivity/internal/kubeapi"
	"konnectivity/internal/testutil"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testutil.Settled(m)) }

// api answers every request with body and notes the requests, with what deletes and
// updates send.
func api(t *testing.T, body string) (config *kubeapi.Config, asked *[]string) {
	asked = new([]string)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent := ""
		if r.Method == http.MethodDelete || r.Method == http.MethodPut {
			text, _ := io.ReadAll(r.Body)
			sent = strings.TrimRight(" "+strings.TrimSpace(string(text)), " ")
		}
		*asked = append(*asked, r.Method+" "+r.URL.RequestURI()+sent)
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(body))
	}))
	t.Cleanup(srv.Close)
	return &kubeapi.Config{URL: srv.URL}, asked
}

// Secrets are of the core group, and are listed by selectors and in pages.
func TestSecrets(t *testing.T) {
	config, asked := api(t, `{"kind":"SecretList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":[{"metadata":{"name":"a"},"data":{"k":"dg=="}}]}`)
	secrets := testutil.Must(kubeapi.NewSecrets(config, "ns"))(t)
	defer secrets.CloseIdle()
	list, err := secrets.List(t.Context(), kubeapi.ListOptions{Labels: "k=v", Limit: 3})
	testutil.Holds(t, err == nil && list.Metadata.ResourceVersion == "7" && len(list.Items) == 1 &&
		list.Items[0].Name == "a" && string(list.Items[0].Data["k"]) == "v" && !list.Time.IsZero(), "%+v, %v", list, err)
	testutil.Equal(t, (*asked)[0], "GET /api/v1/namespaces/ns/secrets?labelSelector=k%3Dv&limit=3", "asked")
	testutil.Equal(t, config.Transport.UserAgent, "", "the caller's config was changed")
	testutil.Equal(t, secrets.String(), "ns", "where they are")
}

// A watch sends what changes until the API refuses to go on.
func TestWatchOfSecrets(t *testing.T) {
	config, asked := api(t, `{"type":"ADDED","object":{"kind":"Secret","apiVersion":"v1","metadata":{"name":"a","resourceVersion":"1"},"data":{"k":"dg=="}}}
{"type":"BOOKMARK","object":{"kind":"Secret","apiVersion":"v1","metadata":{"resourceVersion":"2"}}}
{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","code":410}}
`)
	secrets := testutil.Must(kubeapi.NewSecrets(config, "ns"))(t)
	defer secrets.CloseIdle()
	var told []string
	var now time.Time
	began := func() {
		told = append(told, "began")
		testutil.Holds(t, !now.IsZero(), "the time of the answer is unknown as the watch begins")
	}
	err := secrets.Watch(t.Context(), kubeapi.WatchOptions{Labels: "k=v", From: "0", Time: time.Minute, Now: &now}, began, func(what kubeapi.Event, s *kubeapi.Secret) {
		told = append(told, fmt.Sprintf("%s %s %s %s", what, s.Name, s.ResourceVersion, s.Data["k"]))
	})
	if want := []string{"began", "ADDED a 1 v", "BOOKMARK  2 "}; !slices.Equal(told, want) || kubeapi.ReasonOf(err) != kubeapi.Expired {
		t.Errorf("%q, %v, want %q", told, err, want)
	}
	if want := "GET /api/v1/namespaces/ns/secrets?allowWatchBookmarks=true&labelSelector=k%3Dv&resourceVersion=0&timeoutSeconds=60&watch=true"; (*asked)[0] != want {
		t.Errorf("asked %q, want %q", *asked, want)
	}
}

// An answer of another kind, without end or without sense is an error.
func TestWrongAnswers(t *testing.T) {
	ctx := context.Background() // no end of it closes an answer that was left open
	long := strings.Repeat(" ", 9<<20)
	for body, want := range map[string]string{
		`{"type":"ADDED","object":{"kind":"Pod"}}`: "a \"Pod\", not a Secret",
		`{"type":"ADDED","object":null}`:           "null",
		`{"type":"ADDED","object":7}`:              "cannot unmarshal",
		`{"type":"ERROR","object":7}`:              "cannot unmarshal",
		`<html>`:                                   "invalid character",
		`{"type":"ADDED",` + long + `"object":{}}`: "too long",
		`{"type":"ADDED","object":{}}` + long + `{"type":"ADDED","object":{}}`:      "too long",
		`{"type":"ADDED","object":{}}{"type":"ADDED",`:                              "",
		`{"type":"ADDED","object":{"kind":"Secret"}}{"type":"X","object":{}}`:       "",
		`{"type":"ERROR","object":{"kind":"Status","code":403,"message":"enough"}}`: "enough",
	} {
		config, _ := api(t, body)
		secrets := testutil.Must(kubeapi.NewSecrets(config, "ns"))(t)
		err := secrets.Watch(ctx, kubeapi.WatchOptions{}, func() {}, func(kubeapi.Event, *kubeapi.Secret) {})
		testutil.ErrorSays(t, err, want, "a watch of %.60q", body)
		secrets.CloseIdle()
	}
	for body, want := range map[string]string{
		`{"kind":"PodList","items":[]}`:      "a \"PodList\", not a SecretList",
		`{"kind":"Status","status":"Maybe"}`: "a \"Status\"",
		`{"items":[{},null]}`:                "null",
		`{"items":[{"kind":"Pod"}]}`:         "a \"Pod\", not a Secret",
		`{"items":[{"data":7}]}`:             "cannot unmarshal",
		`{"items":{}}`:                       "{ in place of [",
		`{"items":[{}}`:                      "invalid character",
		`{"other":{`:                         "EOF",
		`[]`:                                 "[ in place of {",
		`null`:                               "null in place of {",
		``:                                   "answer: EOF",
		`{"items":[],`:                       "unexpected EOF",
		`{"items":`:                          "unexpected EOF",
		`{"items":[{}`:                       "unexpected EOF",
		`<html>`:                             "invalid character",
		`{"items":"` + long[:1000] + `"}`:    "  in place of [",

		`{"items":[{}` + strings.Repeat(",{}", 900_000) + `]}`: "too long: more than 819200 objects",
	} {
		config, _ := api(t, body)
		secrets := testutil.Must(kubeapi.NewSecrets(config, "ns"))(t)
		list, err := secrets.List(ctx, kubeapi.ListOptions{})
		testutil.Holds(t, err != nil && strings.Contains(err.Error(), want) && len(err.Error()) < 300, "a list of %.60q: %+v, %v", body, list, err)
		secrets.CloseIdle()
	}
	config, _ := api(t, `null`)
	secrets := testutil.Must(kubeapi.NewSecrets(config, "ns"))(t)
	defer secrets.CloseIdle()
	s, err := secrets.Get(ctx, "a")
	testutil.Holds(t, err != nil, "null is %+v", s)
}

func TestWebPagesAreNoAPI(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = io.WriteString(w, "<html>log in</html>")
	}))
	t.Cleanup(srv.Close)
	config := &kubeapi.Config{URL: srv.URL}
	ctx := context.Background() // no end of it closes an answer that was left open
	secrets := testutil.Must(kubeapi.NewSecrets(config, "ns"))(t)
	defer secrets.CloseIdle()
	keys := testutil.Must(kubeapi.NewSigningKeys(config))(t)
	for what, err := range map[string]error{
		"a list":    testutil.Err(secrets.List(ctx, kubeapi.ListOptions{})),
		"an object": testutil.Err(secrets.Get(ctx, "a")),
		"a watch":   secrets.Watch(ctx, kubeapi.WatchOptions{}, func() { t.Error("the watch has begun") }, nil),
		"keys":      testutil.Err(keys(ctx)),
	} {
		testutil.ErrorSays(t, err, "not a Kubernetes API", "%s", what)
	}
}

// Much space in a list, in small parts, is not looked at again with each of them.
func TestListWithMuchSpace(t *testing.T) {
	body := iotest.OneByteReader(strings.NewReader("{" + strings.Repeat(" ", 1<<20) + "}"))
	config := &kubeapi.Config{URL: "http://api", Transport: transport.Config{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusOK, Request: r, Body: io.NopCloser(body)}, nil
	})}}
	secrets := testutil.Must(kubeapi.NewSecrets(config, "ns"))(t)
	done := make(chan error, 1)
	go func() { done <- testutil.Err(secrets.List(t.Context(), kubeapi.ListOptions{})) }()
	testutil.NoError(t, testutil.Receive(t, "the list", done))
}

// A review is asked for again where the API says when, and other objects are not. What the
// API refuses is an error of its kind, in its words.
func TestRetryAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		config := &kubeapi.Config{URL: "http://api", Transport: transport.Config{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
			sent, err := io.ReadAll(r.Body)
			review := r.Method == http.MethodPost && r.URL.Path == "/apis/authentication.k8s.io/v1/tokenreviews" && strings.Contains(string(sent), `"token":"t"`)
			if asked++; err != nil || !review && r.Method != http.MethodGet {
				t.Errorf("%s %s sent %q, %v", r.Method, r.URL, sent, err)
			}
			w := httptest.NewRecorder()
			switch asked {
			case 3:
				_, _ = w.WriteString(`{"kind":"TokenReview","status":{"authenticated":true}}`)
			default:
				w.Header().Set("Retry-After", "2")
				w.WriteHeader(http.StatusTooManyRequests)
				_, _ = w.WriteString("slowly")
			}
			return w.Result(), nil
		})}}
		reviews := testutil.Must(kubeapi.NewTokenReviews(config))(t)
		began := time.Now()
		if got, err := reviews.Create(t.Context(), kubeapi.TokenReviewSpec{Token: "t"}); err != nil || !got.Authenticated || time.Since(began) != 4*time.Second {
			t.Errorf("%+v, %v after %v", got, err, time.Since(began))
		}
		began = time.Now()
		if _, err := reviews.Create(t.Context(), kubeapi.TokenReviewSpec{Token: "t"}); kubeapi.ReasonOf(err) != kubeapi.TooMany || asked != 3+11 || time.Since(began) != 20*time.Second {
			t.Errorf("%v after %v, asked %d times", err, time.Since(began), asked)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := reviews.Create(ctx, kubeapi.TokenReviewSpec{Token: "t"})
		testutil.Holds(t, kubeapi.ReasonOf(err) == kubeapi.TooMany && ctx.Err() != nil, "%v for a caller that leaves", err)
		before := asked
		secrets := testutil.Must(kubeapi.NewSecrets(config, "ns"))(t)
		if _, err := secrets.List(t.Context(), kubeapi.ListOptions{}); kubeapi.ReasonOf(err) != kubeapi.TooMany || asked != before+1 {
			t.Errorf("%v, asked %d times", err, asked-before)
		}
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// An API that hangs up is away, and not one that ended a watch.
func TestWatchThatHangsUp(t *testing.T) {
	var asked atomic.Int32
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		asked.Add(1)
		panic(http.ErrAbortHandler)
	}))
	defer srv.Close()
	secrets := testutil.Must(kubeapi.NewSecrets(&kubeapi.Config{URL: srv.URL}, "ns"))(t)
	defer secrets.CloseIdle()
	testutil.Fails(t, testutil.Err(secrets.List(t.Context(), kubeapi.ListOptions{})), "a list of nothing")
	testutil.Fails(t, secrets.Watch(t.Context(), kubeapi.WatchOptions{}, func() { t.Error("a watch began") }, nil), "a watch of nothing")
	testutil.Equal(t, asked.Load(), 2, "how often it was asked")
}

// Every call asks for its own object, in the namespace, by the right verb.
func TestRequests(t *testing.T) {
	config, asked := api(t, `{"kind":"Lease","apiVersion":"coordination.k8s.io/v1","metadata":{"name":"a"}}`)
	leases := testutil.Must(kubeapi.NewLeases(config, "ns"))(t)
	defer leases.CloseIdle()
	ctx := context.Background() // no end of it closes an answer that was left open
	lease := new(kubeapi.Lease)
	lease.Name = "a"
	const path = "/apis/coordination.k8s.io/v1/namespaces/ns/leases"
	for _, c := range []struct {
		want string
		call func() (*kubeapi.Lease, error)
	}{
		{"GET " + path + "/a", func() (*kubeapi.Lease, error) { return leases.Get(ctx, "a") }},
		{"POST " + path, func() (*kubeapi.Lease, error) { return leases.Create(ctx, lease) }},
		{"PUT " + path + `/a {"kind":"Lease","apiVersion":"coordination.k8s.io/v1","metadata":{"name":"a"}}`, func() (*kubeapi.Lease, error) { return leases.Update(ctx, lease) }},
		{"DELETE " + path + `/a {"kind":"DeleteOptions","apiVersion":"v1","preconditions":{"resourceVersion":"7"}}`, func() (*kubeapi.Lease, error) {
			return lease, leases.Delete(ctx, "a", "7")
		}},
		{"DELETE " + path + "/a", func() (*kubeapi.Lease, error) { return lease, leases.Delete(ctx, "a", "") }},
		{"GET " + path + "?allowWatchBookmarks=true&resourceVersion=5&timeoutSeconds=7&watch=true", func() (*kubeapi.Lease, error) {
			_ = leases.Watch(ctx, kubeapi.WatchOptions{From: "5", Time: 7 * time.Second}, func() {}, nil) // the answer is no event
			return lease, nil
		}},
	} {
		got, err := c.call()
		testutil.Holds(t, err == nil && got.Name == "a", "%s: %+v, %v", c.want, got, err)
		testutil.Equal(t, (*asked)[len(*asked)-1], c.want, "asked for")
	}
}

// Callers keep and log the texts of a refusal, so each is cut to 1,000 characters.
func TestLongRefusalsAreCut(t *testing.T) {
	long := strings.Repeat("x", 20<<10)
	text := `{"kind":"Status","reason":"` + long + `","code":500,"message":"` + long + `"}`
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("watch") == "" {
			http.Error(w, text, http.StatusInternalServerError)
			return
		}
		_, _ = io.WriteString(w, `{"type":"ERROR","object":`+text+`}`)
	}))
	defer srv.Close()
	leases := testutil.Must(kubeapi.NewLeases(&kubeapi.Config{URL: srv.URL}, "ns"))(t)
	defer leases.CloseIdle()
	for what, err := range map[string]error{
		"an answer": testutil.Err(leases.List(t.Context(), kubeapi.ListOptions{})),
		"a watch":   leases.Watch(t.Context(), kubeapi.WatchOptions{}, func() {}, func(kubeapi.Event, *kubeapi.Lease) {}),
	} {
		refused, ok := errors.AsType[*kubeapi.Error](err)
		testutil.Holds(t, ok && refused.Code == 500 && len(refused.Message+refused.Reason) == 2000, "%s: %.3000v", what, err)
	}
}

// Of answers that are no Status, a refusal tells what they say, and its kind by their code. None
// but those that ask for it are asked for again.
func TestOtherRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			code         int
			body         string
			asked        int
			reason, says string
		}{
			{403, "<html>", 1, kubeapi.Forbidden, `403 Forbidden: "<html>"`},
			{404, `{"kind":"Pod","message":"not it"}`, 1, kubeapi.NotFound, "404 Not Found"},
			{410, `{"kind":"Status","reason":"Expired","message":"too old"}`, 1, kubeapi.Expired, "too old"},
			{429, "", 11, kubeapi.TooMany, "429"},
			{500, "", 11, "", "500"},
		} {
			asked := 0
			config := &kubeapi.Config{URL: "http://api", Transport: transport.Config{Transport: roundTripper(func(*http.Request) (*http.Response, error) {
				asked++
				w := httptest.NewRecorder()
				w.Header().Set("Retry-After", "1")
				w.WriteHeader(c.code)
				_, _ = w.WriteString(c.body)
				return w.Result(), nil
			})}}
			_, err := testutil.Must(kubeapi.NewTokenReviews(config))(t).Create(t.Context(), kubeapi.TokenReviewSpec{})
			testutil.ErrorSays(t, err, c.says, "%d", c.code)
			testutil.Equal(t, fmt.Sprint(asked, kubeapi.ReasonOf(err)), fmt.Sprint(c.asked, c.reason), "%d", c.code)
		}
	})
}

func TestBadConfig(t *testing.T) {
	bad := &kubeapi.Config{URL: "http://[::1"}
	testutil.Fails(t, testutil.Err(kubeapi.NewLeases(bad, "ns")), "a client of leases of nowhere")
	testutil.Fails(t, testutil.Err(kubeapi.NewTokenReviews(bad)), "a client of reviews of nowhere")
	testutil.Fails(t, testutil.Err(kubeapi.NewSecrets(bad, "ns")), "a client of secrets of nowhere")
	testutil.ErrorSays(t, testutil.Err(kubeapi.NewSecrets(&kubeapi.Config{URL: "https:"}, "ns")), "no host", "of an API without a host")
}

// The package is there to leave out what client-go links: a quarter of a program.
func TestNothingElseIsLinked(t *testing.T) {
	out := testutil.Must(exec.Command("go", "list", "-deps", "konnectivity/internal/kubeapi").Output())(t)
	for line := range strings.Lines(string(out)) {
		for _, banned := range []string{
			"k8s.io/client-go/kubernetes", "k8s.io/client-go/rest", "k8s.io/client-go/tools/clientcmd", "k8s.io/api/", "k8s.io/apimachinery/pkg/apis/",
		} {
			testutil.Holds(t, !strings.HasPrefix(line, banned), "links %s", strings.TrimSpace(line))
		}
	}
}

// Where there is no way to the API, the error says who needs one and what to
// give.
func TestConfig(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	testutil.ErrorSays(t, testutil.Err(kubeapi.Load("", "--some-flag")), "--some-flag needs --kubeconfig", "no file")
	file := filepath.Join(t.TempDir(), "kubeconfig")
	testutil.ErrorSays(t, testutil.Err(kubeapi.Load(file, "--some-flag")), "--kubeconfig="+file, "a file that is none")
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
			config, err := kubeapi.Load(file, "--some-flag")
			testutil.Holds(t, err != nil && strings.Contains(err.Error(), "--kubeconfig="+file) &&
				!strings.Contains(err.Error(), "KUBERNETES_"), "%v, %v", config, err)
			t.Log(err)
		})
	}
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	testutil.NoError(t, os.WriteFile(path, []byte(text), 0o600))
}
