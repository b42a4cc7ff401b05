package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"konnectivity/e2e/suite"
)

// apiArgs make a program use a kubeAPI, which speaks JSON.
func (k *kubeAPI) apiArgs() []string {
	return []string{"--kubeconfig=" + k.kubeconfig, "--kube-api-content-type=application/json"}
}

// kubeAPI is the part of a Kubernetes API server that the suite uses: leases
// and token reviews, with resource versions and watches.
type kubeAPI struct {
	kubeconfig string

	mu       sync.Mutex
	down     bool // hang up on everybody
	version  int
	leases   map[string]*coordinationv1.Lease
	watchers map[chan event]struct{}
	tokens   map[string]identity
}

type event struct {
	Type   string                `json:"type"`
	Object *coordinationv1.Lease `json:"object"`
}

// identity is whose token it is, and for which audience.
type identity struct{ user, audience string }

func newKubeAPI(t *testing.T, s *suite.Suite) *kubeAPI {
	t.Helper()
	k := &kubeAPI{leases: map[string]*coordinationv1.Lease{}, watchers: map[chan event]struct{}{}, tokens: map[string]identity{}}
	const leases = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
	mux := http.NewServeMux()
	mux.HandleFunc("POST /apis/authentication.k8s.io/v1/tokenreviews", k.review)
	mux.HandleFunc("GET "+leases, k.list)
	mux.HandleFunc("POST "+leases, k.create)
	mux.HandleFunc("GET "+leases+"/{name}", k.get)
	mux.HandleFunc("PUT "+leases+"/{name}", k.update)
	mux.HandleFunc("DELETE "+leases+"/{name}", k.delete)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		k.mu.Lock()
		down := k.down
		k.mu.Unlock()
		if down {
			panic(http.ErrAbortHandler)
		}
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	k.kubeconfig = filepath.Join(s.Dir, "kubeconfig")
	config := fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: c, cluster: {server: %q}}]\n"+
		"contexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {}}]\n", server.URL)
	if err := os.WriteFile(k.kubeconfig, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	return k
}

func (k *kubeAPI) setDown(down bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.down = down
}

func (k *kubeAPI) allow(token string, who identity) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.tokens[token] = who
}

// lease is a copy of the lease of a server, or nil.
func (k *kubeAPI) lease(server string) *coordinationv1.Lease {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.leases["konnectivity-proxy-server-"+server].DeepCopy()
}

func (k *kubeAPI) review(w http.ResponseWriter, r *http.Request) {
	var review authenticationv1.TokenReview
	if !decode(w, r, &review) {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
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

func (k *kubeAPI) list(w http.ResponseWriter, r *http.Request) {
	if r.URL.Query().Get("watch") != "" {
		k.watch(w, r)
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	list := coordinationv1.LeaseList{TypeMeta: metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "LeaseList"}}
	list.ResourceVersion = strconv.Itoa(k.version)
	for _, l := range k.leases {
		if want := r.URL.Query().Get("labelSelector"); want == "" || "k8s-app="+l.Labels["k8s-app"] == want {
			list.Items = append(list.Items, *l)
		}
	}
	respond(w, http.StatusOK, list)
}

func (k *kubeAPI) watch(w http.ResponseWriter, r *http.Request) {
	events := make(chan event, 1000)
	k.mu.Lock()
	k.watchers[events] = struct{}{}
	k.mu.Unlock()
	defer func() {
		k.mu.Lock()
		delete(k.watchers, events)
		k.mu.Unlock()
	}()
	w.Header().Set("Content-Type", "application/json")
	flush := http.NewResponseController(w).Flush
	_ = flush()
	for {
		select {
		case <-r.Context().Done():
			return
		case e := <-events:
			_ = json.NewEncoder(w).Encode(e)
			_ = flush()
		}
	}
}

func (k *kubeAPI) get(w http.ResponseWriter, r *http.Request) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if l := k.leases[r.PathValue("name")]; l != nil {
		respond(w, http.StatusOK, l)
		return
	}
	refuseCall(w, http.StatusNotFound, metav1.StatusReasonNotFound)
}

func (k *kubeAPI) create(w http.ResponseWriter, r *http.Request) {
	var l coordinationv1.Lease
	if !decode(w, r, &l) {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.leases[l.Name] != nil {
		refuseCall(w, http.StatusConflict, metav1.StatusReasonAlreadyExists)
		return
	}
	k.store(&l, "ADDED")
	respond(w, http.StatusCreated, l)
}

func (k *kubeAPI) update(w http.ResponseWriter, r *http.Request) {
	var l coordinationv1.Lease
	if !decode(w, r, &l) {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	old := k.leases[l.Name]
	switch {
	case old == nil:
		refuseCall(w, http.StatusNotFound, metav1.StatusReasonNotFound)
	case l.ResourceVersion != old.ResourceVersion:
		refuseCall(w, http.StatusConflict, metav1.StatusReasonConflict)
	default:
		k.store(&l, "MODIFIED")
		respond(w, http.StatusOK, l)
	}
}

func (k *kubeAPI) delete(w http.ResponseWriter, r *http.Request) {
	var options metav1.DeleteOptions
	body, _ := io.ReadAll(r.Body)
	_ = json.Unmarshal(body, &options)
	k.mu.Lock()
	defer k.mu.Unlock()
	l := k.leases[r.PathValue("name")]
	switch p := options.Preconditions; {
	case l == nil:
		refuseCall(w, http.StatusNotFound, metav1.StatusReasonNotFound)
	case p != nil && p.ResourceVersion != nil && *p.ResourceVersion != l.ResourceVersion:
		refuseCall(w, http.StatusConflict, metav1.StatusReasonConflict)
	default:
		k.version++
		delete(k.leases, l.Name)
		k.tell(event{"DELETED", l})
		respond(w, http.StatusOK, metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusSuccess})
	}
}

// store keeps l under a new version. k.mu is held, as for tell.
func (k *kubeAPI) store(l *coordinationv1.Lease, kind string) {
	k.version++
	l.ResourceVersion, l.Namespace = strconv.Itoa(k.version), "kube-system"
	l.TypeMeta = metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"}
	k.leases[l.Name] = l.DeepCopy()
	k.tell(event{kind, k.leases[l.Name]})
}

func (k *kubeAPI) tell(e event) {
	for w := range k.watchers {
		w <- e
	}
}

func decode(w http.ResponseWriter, r *http.Request, into any) bool {
	if err := json.NewDecoder(r.Body).Decode(into); err != nil {
		refuseCall(w, http.StatusBadRequest, metav1.StatusReasonBadRequest)
		return false
	}
	return true
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
