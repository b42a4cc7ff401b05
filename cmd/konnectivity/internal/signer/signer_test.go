package signer

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	promtest "github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/sirupsen/logrus/hooks/test"
	"go.uber.org/goleak"

	"konnectivity/internal/kubeapi"
	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testutil.Settled(m)) }

// cluster is an API with the two kinds of objects. It lets a request be answered once.
type cluster struct {
	mu       sync.Mutex
	version  int
	requests map[string]*kubeapi.PodCertificateRequest
	changed  chan struct{} // closed, and made anew, by each change
	bundle   *kubeapi.ClusterTrustBundle
	refuses  string // what the names begin with of requests whose answers it refuses; "": of none
	refused  int    // answers
	late     int    // answers to requests that had one
	writes   int
	forbid   int // how many more calls about bundles are refused

	twin string // what another signer publishes right before the next one; "": none does
}

// forbids takes one of the refusals.
func (c *cluster) forbids() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forbid--
	return c.forbid >= 0
}

func newCluster() *cluster {
	return &cluster{requests: map[string]*kubeapi.PodCertificateRequest{}, changed: make(chan struct{})}
}

func (c *cluster) put(r *kubeapi.PodCertificateRequest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.store(r)
}

func (c *cluster) store(r *kubeapi.PodCertificateRequest) {
	c.version++
	r.ResourceVersion = fmt.Sprint(c.version)
	c.requests[r.Name] = r
	close(c.changed)
	c.changed = make(chan struct{})
}

// verdict is how a request was answered; "": it was not.
func (c *cluster) verdict(name string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r := c.requests[name]; len(r.Status.Conditions) > 0 {
		return r.Status.Conditions[0].Type
	}
	return ""
}

// refusals is how many answers were refused.
func (c *cluster) refusals() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.refused
}

func (c *cluster) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	const requests, bundles = "/apis/certificates.k8s.io/v1/namespaces/kube-system/podcertificaterequests", "/apis/certificates.k8s.io/v1/clustertrustbundles"
	w.Header().Set("Content-Type", "application/json")
	switch at := r.Method + " " + r.URL.Path; {
	case at == "GET "+requests && r.FormValue("fieldSelector") != "spec.signerName=konnectivity.internal/agent":
		fail(w, http.StatusBadRequest, "BadRequest")
	case at == "GET "+requests && r.FormValue("watch") != "":
		c.watch(w, r)
	case at == "GET "+requests:
		c.mu.Lock()
		defer c.mu.Unlock()
		list := &kubeapi.List[*kubeapi.PodCertificateRequest]{Kind: "PodCertificateRequestList"}
		list.Metadata.ResourceVersion = fmt.Sprint(c.version)
		for _, r := range c.requests {
			list.Items = append(list.Items, r)
		}
		_ = json.NewEncoder(w).Encode(list)
	case strings.HasPrefix(at, "PUT "+requests) && strings.HasSuffix(at, "/status"):
		c.answered(w, r)
	case strings.Contains(at, bundles) && c.forbids():
		fail(w, http.StatusForbidden, "Forbidden")
	case strings.HasPrefix(at, "GET "+bundles), at == "POST "+bundles, strings.HasPrefix(at, "PUT "+bundles):
		c.trust(w, r)
	default:
		fail(w, http.StatusNotFound, "NotFound")
	}
}

func fail(w http.ResponseWriter, code int, reason string) {
	w.WriteHeader(int(code))
	_ = json.NewEncoder(w).Encode(&kubeapi.Error{Kind: "Status", Status: "Failure", Code: code, Reason: reason})
}

// watch sends each request once for each of its versions.
func (c *cluster) watch(w http.ResponseWriter, r *http.Request) {
	sent := map[string]string{}
	for {
		c.mu.Lock()
		changed := c.changed
		for name, r := range c.requests {
			if sent[name] != r.ResourceVersion {
				sent[name] = r.ResourceVersion
				r.Kind, r.APIVersion = "PodCertificateRequest", "certificates.k8s.io/v1"
				_ = json.NewEncoder(w).Encode(map[string]any{"type": "MODIFIED", "object": r})
			}
		}
		c.mu.Unlock()
		_ = http.NewResponseController(w).Flush()
		select {
		case <-r.Context().Done():
			return
		case <-changed:
		}
	}
}

func (c *cluster) answered(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := &kubeapi.PodCertificateRequest{}
	_ = json.NewDecoder(r.Body).Decode(now)
	was := c.requests[now.Name]
	switch {
	case c.refuses != "" && strings.HasPrefix(now.Name, c.refuses):
		c.refused++
		fail(w, http.StatusUnprocessableEntity, "Invalid")
	case was == nil:
		fail(w, http.StatusNotFound, "NotFound")
	case now.ResourceVersion != was.ResourceVersion || len(was.Status.Conditions) > 0:
		c.late++
		fail(w, http.StatusConflict, "Conflict")
	default:
		c.writes++
		c.store(now)
		_ = json.NewEncoder(w).Encode(now)
	}
}

func (c *cluster) trust(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.Method != http.MethodGet && c.twin != "" {
		c.bundle = &kubeapi.ClusterTrustBundle{}
		c.bundle.Name = BundleOf("konnectivity.internal/agent")
		c.bundle.Spec = kubeapi.ClusterTrustBundleSpec{SignerName: "konnectivity.internal/agent", TrustBundle: c.twin}
		c.twin = ""
		fail(w, http.StatusConflict, map[string]string{http.MethodPost: kubeapi.AlreadyExists, http.MethodPut: kubeapi.Conflict}[r.Method])
		return
	}
	if r.Method != http.MethodGet {
		c.bundle = &kubeapi.ClusterTrustBundle{}
		_ = json.NewDecoder(r.Body).Decode(c.bundle)
		c.writes++
	}
	if c.bundle == nil {
		fail(w, http.StatusNotFound, "NotFound")
		return
	}
	_ = json.NewEncoder(w).Encode(c.bundle)
}

// bundled is the bundle, as NAME=CONTENT.
func (c *cluster) bundled() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.bundle == nil {
		return ""
	}
	return c.bundle.Name + " of " + c.bundle.Spec.SignerName + "=" + c.bundle.Spec.TrustBundle
}

// signs runs a signer at the API until the test ends.
func signs(t *testing.T, c *cluster, ca func() *tls.Certificate, change func(*Options)) (*Signer, *test.Hook) {
	t.Helper()
	s, hook := idle(t, c, ca, change)
	stop := testutil.Start(t, s.Run)
	t.Cleanup(func() {
		stop()
	})
	return s, hook
}

// idle is a signer at the API that does not run.
func idle(t *testing.T, c *cluster, ca func() *tls.Certificate, change func(*Options)) (*Signer, *test.Hook) {
	t.Helper()
	api := httptest.NewServer(c)
	config := &kubeapi.Config{URL: api.URL}
	log, hook := test.NewNullLogger()
	opts := Options{Name: "konnectivity.internal/agent", Terms: terms, CA: ca, Log: log, Registerer: prometheus.NewRegistry()}
	opts.Requests = testutil.Must(kubeapi.NewPodCertificateRequests(config, "kube-system"))(t)
	opts.Bundles = testutil.Must(kubeapi.NewClusterTrustBundles(config))(t)
	change(&opts)
	t.Cleanup(func() {
		opts.Requests.CloseIdle()
		opts.Bundles.CloseIdle()
		api.Close()
	})
	return New(opts), hook
}

func TestAnswersAreDocumented(t *testing.T) {
	registry := prometheus.NewRegistry()
	New(Options{Registerer: registry})
	families := testutil.Must(registry.Gather())(t)
	testutil.Requires(t, len(families) == 1, "metrics: %v", families)
	testutil.DocumentedLabels(t, "../../../../docs/metrics.md", "Signer").Check(t, "", families)
}

// authority is a CA in memory, as a Source has it.
func authority(t *testing.T, lifetime time.Duration) *tls.Certificate {
	t.Helper()
	ca := testutil.Must(pki.NewCAFor("agents", lifetime))(t)
	pair := testutil.Must(tls.X509KeyPair(ca.CertPEM, ca.KeyPEM))(t)
	return &pair
}

// Requests that were there before and those that come later are answered, each once, though
// two signers run, and one request whose answer the API refuses holds up no other.
func TestRequestsAreAnswered(t *testing.T) {
	c, ca := newCluster(), authority(t, time.Hour*1000)
	c.refuses = "r0"
	const n = 20
	add := func(i int) {
		r := asked(t, p256(t))
		if r.Name = fmt.Sprint("r", i); i%2 == 1 {
			r.Spec.ServiceAccountName = "default"
		}
		c.put(r)
	}
	for i := range n / 2 {
		add(i)
	}
	use := func(*Options) {}
	s, _ := signs(t, c, func() *tls.Certificate { return ca }, use)
	other, _ := signs(t, c, func() *tls.Certificate { return ca }, use)
	testutil.Eventually(t, "both to know the requests", func() bool { return s.Ready() == nil && other.Ready() == nil })
	for i := n / 2; i < n; i++ {
		add(i)
	}
	testutil.Within(t, time.Minute, "all to be answered", func() bool {
		for i := range n {
			if want := []string{"Issued", "Denied"}[i%2]; i > 0 && c.verdict(fmt.Sprint("r", i)) != want {
				return false
			}
		}
		return true
	})
	got := c.verdict("r0")
	testutil.Holds(t, got == "" && c.writes == n-1, "the refused one is %q, and %d answers were written", got, c.writes)
	figure := func(result string) float64 {
		return promtest.ToFloat64(s.answers.WithLabelValues(result)) + promtest.ToFloat64(other.answers.WithLabelValues(result))
	}
	testutil.Eventually(t, "answers to be counted", func() bool {
		return figure("issued") == n/2-1 && figure("denied") == n/2 && figure("failed") > 0
	})
}

// A request that cannot be answered is put off, and the signer goes on to look as often as before.
// Where many cannot, its next look is later as well, and begins with those that have not failed.
func TestOnlyFailedRequestsWait(t *testing.T) {
	c, ca := newCluster(), authority(t, time.Hour*1000)
	c.refuses = "r0"
	s, hook := idle(t, c, func() *tls.Certificate { return ca }, func(*Options) {})
	look := func(name string) error {
		r := asked(t, p256(t))
		r.Name = name
		c.put(r)
		testutil.NoError(t, s.requests.List(t.Context()))
		return s.answerAll(t.Context())
	}
	for i := range 5 {
		name := fmt.Sprint("r", i)
		err := look(name)
		testutil.Holds(t, err == nil && (i == 0 || c.verdict(name) == "Issued"), "%s: %v, %q", name, err, c.verdict(name))
	}
	tries := c.refusals()
	testutil.Holds(t, tries >= 1 && len(hook.AllEntries()) != 0,
		"%d tries of r0, and %d lines", tries, len(hook.AllEntries()))
	testutil.Eventually(t, "another try", func() bool { _ = s.answerAll(t.Context()); return c.refusals() > tries })
	s.retries["r0"] = retry{at: time.Now().Add(time.Hour)}
	tries = c.refusals()
	testutil.NoError(t, s.answerAll(t.Context()))
	testutil.Equal(t, c.refusals(), tries, "tries of one that is put off")
	c.refuses = "s"
	for i := range 8 * mostFailures {
		r := asked(t, p256(t))
		r.Name = fmt.Sprint("s", i)
		c.put(r)
	}
	testutil.Fails(t, look("s"), "a look at many that fail")
	for i := range 8 * mostFailures {
		s.retries[fmt.Sprint("s", i)] = retry{at: time.Now().Add(-time.Second), pause: leastPause} // all have failed
	}
	testutil.Fails(t, look("good"), "another look at them")
	testutil.Equal(t, c.verdict("good"), "Issued", "a request beside many that fail")
}

// A request that is gone by now, or that another signer has answered, is no failure, and is not
// answered again.
func TestRequestsThatOthersHaveAnswered(t *testing.T) {
	c, ca := newCluster(), authority(t, time.Hour*1000)
	s, hook := idle(t, c, func() *tls.Certificate { return ca }, func(*Options) {})
	for _, name := range []string{"gone", "answered"} {
		r := asked(t, p256(t))
		r.Name = name
		c.put(r)
	}
	testutil.NoError(t, s.requests.List(t.Context()))
	delete(c.requests, "gone")
	other := *c.requests["answered"]
	other.Status.Conditions = condition("Denied", badKey, "")
	c.put(&other)
	for range 2 {
		testutil.NoError(t, s.answerAll(t.Context()))
		testutil.NoError(t, s.requests.List(t.Context()))
	}
	testutil.Equal(t, c.late, 1, "answers that came late")
	testutil.Equal(t, promtest.ToFloat64(s.answers.WithLabelValues("failed")), 0, "failures")
	testutil.Equal(t, len(hook.AllEntries()), 0, "lines")
}

// What the signer cannot sign now it signs once it can.
func TestRequestsWaitForARenewedCA(t *testing.T) {
	c := newCluster()
	var mu sync.Mutex
	ca := authority(t, time.Hour)
	_, hook := signs(t, c, func() *tls.Certificate { mu.Lock(); defer mu.Unlock(); return ca }, func(*Options) {})
	c.put(asked(t, p256(t)))
	testutil.Eventually(t, "an error about the CA", func() bool {
		return testutil.Lines(hook, "pod kube-system/konnectivity-agent-x: the CA expires at") > 0
	})
	testutil.Equal(t, c.verdict("r"), "", "its verdict")
	mu.Lock()
	ca = authority(t, time.Hour*1000)
	mu.Unlock()
	testutil.Within(t, time.Minute, "a certificate", func() bool { return c.verdict("r") == "Issued" })
}

func TestCAsArePublished(t *testing.T) {
	c, ca := newCluster(), authority(t, time.Hour*1000)
	c.forbid = 2 // the rights come a little later
	signs(t, c, func() *tls.Certificate { return ca }, func(o *Options) { o.Trust = trusting("CAS") })
	testutil.Eventually(t, "a bundle", func() bool { return c.bundled() == bundleOf("CAS") })
}

// trusting is the Trust of a file.
func trusting(file string) func() (string, error) { return func() (string, error) { return file, nil } }

func bundleOf(file string) string {
	return "konnectivity.internal:agent:servers of konnectivity.internal/agent=" + file
}

// What was published is followed, and what another signer publishes is replaced. That is told
// once, however long the two go on.
func TestSignersThatPublishOtherCAs(t *testing.T) {
	c, ca := newCluster(), authority(t, time.Hour*1000)
	signer := func(file string) (*Signer, *test.Hook) {
		return idle(t, c, func() *tls.Certificate { return ca }, func(o *Options) { o.Trust = trusting(file) })
	}
	s, said := signer("CAS")
	for range 2 {
		testutil.NoError(t, s.publish(t.Context()))
	}
	testutil.Equal(t, c.writes, 1, "writes, of which the second has nothing to change")
	s.opts.Trust = trusting("NEWER")
	testutil.NoError(t, s.publish(t.Context()))
	testutil.Equal(t, c.bundled(), bundleOf("NEWER"), "the bundle")
	testutil.Equal(t, testutil.Lines(said, "were published"), 2, "lines of one signer")

	other, otherSaid := signer("OTHER")
	for range 5 {
		testutil.NoError(t, other.publish(t.Context()))
		testutil.NoError(t, s.publish(t.Context()))
	}
	for name, hook := range map[string]*test.Hook{"the first": said, "the other": otherSaid} {
		testutil.Equal(t, testutil.Lines(hook, "something else had published others"), 1, "lines of %s about the other", name)
	}
	testutil.Equal(t, len(otherSaid.AllEntries()), 2, "lines of the other")
}

// Replicas publish at the same time. It is no failure that another one was first.
func TestSignersThatPublishAtOnce(t *testing.T) {
	c, ca := newCluster(), authority(t, time.Hour*1000)
	s, said := idle(t, c, func() *tls.Certificate { return ca }, func(o *Options) { o.Trust = trusting("CAS") })
	c.twin = "CAS"
	testutil.NoError(t, s.publish(t.Context()))
	s.opts.Trust, c.twin = trusting("NEWER"), "NEWER"
	testutil.NoError(t, s.publish(t.Context()))
	testutil.Equal(t, c.bundled(), bundleOf("NEWER"), "the bundle")
	testutil.Equal(t, c.writes+len(said.AllEntries()), 0, "writes of the one that came second, and lines of its log")
	s.opts.Trust, c.twin = trusting("NEWEST"), "NEWER"
	testutil.NoError(t, s.publish(t.Context()))
	testutil.Equal(t, c.bundled(), bundleOf("NEWEST"), "the bundle, where the other one has an older file")
}

// A signer that does not reach its API is not ready, counts that, and stops at once.
func TestAPIThatIsAway(t *testing.T) {
	c, ca := newCluster(), authority(t, time.Hour*1000)
	s, hook := signs(t, c, func() *tls.Certificate { return ca }, func(o *Options) {
		o.Requests = testutil.Must(kubeapi.NewPodCertificateRequests(&kubeapi.Config{URL: "http://" + testutil.Refusing(t)}, "kube-system"))(t)
	})
	testutil.Eventually(t, "an error", func() bool {
		e := hook.LastEntry()
		return e != nil && strings.Contains(fmt.Sprint(e.Data["error"]), "refused")
	})
	testutil.Fails(t, s.Ready(), "readiness")
	testutil.Eventually(t, "an alert can tell of it", func() bool { return promtest.ToFloat64(s.answers.WithLabelValues("failed")) > 0 })
}

// What fails is tried again after 0.5 s, and then after twice the pause, up to 30 s; what
// does not, after its own pause.
func TestRepeatPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, hook := test.NewNullLogger()
		s := &Signer{opts: Options{Log: log}}
		ctx, cancel := context.WithCancel(t.Context())
		var at []time.Duration
		from := time.Now()
		s.repeat(ctx, time.Minute, "it fails", func(context.Context) error {
			at = append(at, time.Since(from))
			from = time.Now()
			switch len(at) {
			case 9, 10:
				return nil
			case 12:
				cancel()
			}
			return io.EOF
		})
		second := time.Second
		testutil.EqualSlices(t, at, []time.Duration{0, second / 2, second, 2 * second, 4 * second, 8 * second, 16 * second, 30 * second,
			30 * second, time.Minute, time.Minute, second / 2}, "pauses")
		testutil.Equal(t, len(hook.AllEntries()), 2, "lines: one before it did not fail, and one after")
	})
}
