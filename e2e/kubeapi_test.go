package e2e

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"

	"konnectivity/e2e/suite"
	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
)

// kubeAPI is the part of a Kubernetes API server that the suite uses: objects with
// versions, and watches that go on from any of them, and token reviews. It is for who
// has its token, over TLS with a CA of its own.
type kubeAPI struct {
	*httptest.Server
	ca         *pki.CA
	token      string
	kubeconfig string // of newKubeAPI

	mu      sync.Mutex
	down    bool // hang up on everybody
	objects map[place]*unstructured.Unstructured
	history []event             // the version is how many there were
	news    chan struct{}       // closed when something changes
	tokens  map[string]identity // that reviews know
	asked   int                 // how often Services were asked for
}

type event struct {
	Type   string                     `json:"type"`
	Object *unstructured.Unstructured `json:"object"`
	place  place
}

// place is where an object is, or with an empty name a list.
type place struct{ resource, namespace, name string }

// identity is whose token it is, and for which audience.
type identity struct{ user, audience string }

// newKubeAPI starts one, and writes a kubeconfig.
func newKubeAPI(t *testing.T, s *suite.Suite) *kubeAPI {
	t.Helper()
	k := startAPI(t, "127.0.0.1:0")
	k.kubeconfig = filepath.Join(s.Dir, "kubeconfig")
	k.writeKubeconfig(t, k.kubeconfig)
	return k
}

// startAPI serves at address.
func startAPI(t *testing.T, address string) *kubeAPI {
	t.Helper()
	k := &kubeAPI{ca: must(pki.NewCA("cluster"))(t), token: "token-for-the-api",
		objects: map[place]*unstructured.Unstructured{}, news: make(chan struct{}), tokens: map[string]identity{}}
	l := must(net.Listen("tcp", address))(t)
	pair := must(k.ca.Issue(pki.Leaf{CommonName: "kube-apiserver", IPs: []net.IP{l.Addr().(*net.TCPAddr).IP}, Server: true}))(t)
	k.Server = httptest.NewUnstartedServer(k)
	_ = k.Listener.Close()
	k.Listener = l
	k.TLS = serverTLS(pair)
	k.StartTLS()
	t.Cleanup(func() {
		k.setDown(true) // which ends watches
		k.CloseClientConnections()
		k.Close()
	})
	return k
}

func (k *kubeAPI) writeKubeconfig(t *testing.T, path string) {
	t.Helper()
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: admin\npreferences: {}\n"+
		"clusters:\n- cluster:\n    certificate-authority-data: %s\n    server: %s\n  name: cluster\n"+
		"contexts:\n- context:\n    cluster: cluster\n    namespace: default\n    user: admin\n  name: admin\n"+
		"users:\n- name: admin\n  user:\n    token: %s\n", base64.StdEncoding.EncodeToString(k.ca.CertPEM), k.URL, k.token)
	testutil.NoError(t, os.WriteFile(path, []byte(text), 0o600))
}

// apiArgs make a program use a kubeAPI, which speaks JSON but for reviews.
func (k *kubeAPI) apiArgs() []string {
	return []string{"--kubeconfig=" + k.kubeconfig, "--kube-api-content-type=application/json"}
}

func (k *kubeAPI) setDown(down bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.down = down
	k.changed()
}

func (k *kubeAPI) allow(token string, who identity) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.tokens[token] = who
}

func (k *kubeAPI) disallow(token string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.tokens, token)
}

// put stores an object, or deletes it where there is none.
func (k *kubeAPI) put(at place, object map[string]any) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if object == nil {
		k.remove(at)
		return
	}
	o := &unstructured.Unstructured{Object: object}
	o.SetName(at.name)
	k.store(at, o)
}

// object is what is stored; nil: nothing.
func (k *kubeAPI) object(at place) *unstructured.Unstructured {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.objects[at]
}

var paths = regexp.MustCompile(`^/apis?/(?:[a-z0-9.]+/){1,2}(?:namespaces/([^/]+)/)?(leases|secrets|services|tokenreviews)(?:/([^/]+))?$`)

func (k *kubeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.down {
		panic(http.ErrAbortHandler)
	}
	path := paths.FindStringSubmatch(r.URL.Path)
	if r.Header.Get("Authorization") != "Bearer "+k.token {
		refuseCall(w, http.StatusUnauthorized, metav1.StatusReasonUnauthorized)
		return
	}
	if path == nil {
		refuseCall(w, http.StatusNotFound, metav1.StatusReasonNotFound)
		return
	}
	at := place{resource: path[2], namespace: path[1], name: path[3]}
	if at.resource == "services" {
		k.asked++
	}
	switch {
	case at.resource == "tokenreviews":
		k.review(w, r)
	case r.Method != http.MethodGet:
		k.write(w, r, at)
	case at.name != "":
		if o := k.objects[at]; o != nil {
			respond(w, http.StatusOK, o)
			return
		}
		refuseCall(w, http.StatusNotFound, metav1.StatusReasonNotFound)
	case r.URL.Query().Get("watch") != "":
		k.watch(w, r, at)
	default:
		k.list(w, r, at)
	}
}

func (k *kubeAPI) review(w http.ResponseWriter, r *http.Request) {
	var review authenticationv1.TokenReview
	body, err := io.ReadAll(r.Body)
	if err != nil || json.Unmarshal(body, &review) != nil {
		refuseCall(w, http.StatusBadRequest, metav1.StatusReasonBadRequest)
		return
	}
	who, known := k.tokens[review.Spec.Token]
	if known && slices.Contains(review.Spec.Audiences, who.audience) {
		review.Status = authenticationv1.TokenReviewStatus{
			Authenticated: true, Audiences: []string{who.audience}, User: authenticationv1.UserInfo{Username: who.user}}
	} else {
		review.Status.Error = "the token is not valid for the audiences asked for"
	}
	review.TypeMeta = metav1.TypeMeta{APIVersion: "authentication.k8s.io/v1", Kind: "TokenReview"}
	respond(w, http.StatusCreated, review)
}

// wanted says whether a list or a watch of at has an object.
func wanted(r *http.Request, at, of place, o *unstructured.Unstructured) bool {
	selector, err := labels.Parse(r.URL.Query().Get("labelSelector"))
	return err == nil && selector.Matches(labels.Set(o.GetLabels())) && of.resource == at.resource && (at.namespace == "" || of.namespace == at.namespace)
}

func (k *kubeAPI) list(w http.ResponseWriter, r *http.Request, at place) {
	items := []*unstructured.Unstructured{}
	for of, o := range k.objects {
		if wanted(r, at, of, o) {
			items = append(items, o)
		}
	}
	kinds := map[string][2]string{"leases": {"coordination.k8s.io/v1", "LeaseList"}, "secrets": {"v1", "SecretList"}, "services": {"v1", "ServiceList"}}
	respond(w, http.StatusOK, map[string]any{"apiVersion": kinds[at.resource][0], "kind": kinds[at.resource][1],
		"metadata": map[string]string{"resourceVersion": strconv.Itoa(len(k.history))}, "items": items})
}

// watch sends what has happened since a version. k.mu is held but while it waits.
func (k *kubeAPI) watch(w http.ResponseWriter, r *http.Request, at place) {
	next, err := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	if err != nil || next > len(k.history) {
		refuseCall(w, http.StatusGone, metav1.StatusReasonExpired)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	for !k.down && r.Context().Err() == nil {
		for ; next < len(k.history); next++ {
			if e := k.history[next]; wanted(r, at, e.place, e.Object) {
				_ = json.NewEncoder(w).Encode(e)
			}
		}
		news := k.news
		k.mu.Unlock()
		_ = http.NewResponseController(w).Flush()
		select {
		case <-news:
		case <-r.Context().Done():
		}
		k.mu.Lock()
	}
	panic(http.ErrAbortHandler)
}

// write creates, updates or deletes an object, as far as the client knows its version.
func (k *kubeAPI) write(w http.ResponseWriter, r *http.Request, at place) {
	body := &unstructured.Unstructured{}
	_ = json.NewDecoder(r.Body).Decode(&body.Object)
	known := body.GetResourceVersion()
	if r.Method == http.MethodPost {
		at.name = body.GetName()
	}
	if r.Method == http.MethodDelete {
		known, _, _ = unstructured.NestedString(body.Object, "preconditions", "resourceVersion")
	}
	old, found := k.objects[at]
	switch {
	case found && r.Method == http.MethodPost:
		refuseCall(w, http.StatusConflict, metav1.StatusReasonAlreadyExists)
	case !found && r.Method != http.MethodPost:
		refuseCall(w, http.StatusNotFound, metav1.StatusReasonNotFound)
	case found && known != old.GetResourceVersion() && (known != "" || r.Method == http.MethodPut):
		refuseCall(w, http.StatusConflict, metav1.StatusReasonConflict)
	case r.Method == http.MethodDelete:
		k.remove(at)
		respond(w, http.StatusOK, metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusSuccess})
	default:
		k.store(at, body)
		respond(w, map[bool]int{true: http.StatusOK, false: http.StatusCreated}[found], k.objects[at])
	}
}

// store keeps o under a new version. k.mu is held, as for remove and changed.
func (k *kubeAPI) store(at place, o *unstructured.Unstructured) {
	kind := "ADDED"
	if _, found := k.objects[at]; found {
		kind = "MODIFIED"
	}
	o.SetNamespace(at.namespace)
	o.SetResourceVersion(strconv.Itoa(len(k.history) + 1))
	k.objects[at] = o
	k.history = append(k.history, event{kind, o, at})
	k.changed()
}

func (k *kubeAPI) remove(at place) {
	k.history = append(k.history, event{"DELETED", k.objects[at], at})
	delete(k.objects, at)
	k.changed()
}

// changed wakes the watches.
func (k *kubeAPI) changed() {
	close(k.news)
	k.news = make(chan struct{})
}

func respond(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body)
}

func refuseCall(w http.ResponseWriter, status int, reason metav1.StatusReason) {
	respond(w, status, metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
		Status:   metav1.StatusFailure, Reason: reason, Code: int32(status), Message: string(reason),
	})
}
