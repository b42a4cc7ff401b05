package hosted

import (
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"konnectivity/internal/testutil"
)

// fakeAPI is as much of a kube-apiserver as knows Services. Its fields may be changed by change.
type fakeAPI struct {
	sync.Mutex
	Token      string   // required of requests, if set
	ForbidList bool     // RBAC lets single GETs pass only
	Down       bool     // answers 503
	PageSize   int      // ignores the limit asked for and pages by this, if set
	requests   []string // "GET name", "LIST", "WATCH version", with the token's owner unseen

	*httptest.Server
	services map[string]string // namespace/name -> clusterIPs, comma-separated
	version  int
	past     []event            // since the versions began
	watches  map[chan event]int // by the version they are from
}

type event struct {
	Type   string         `json:"type"`
	Object map[string]any `json:"object"`

	version int
}

// startAPI serves over TLS, HTTP/2 included, until the test ends.
func startAPI(t testing.TB) *fakeAPI {
	a := &fakeAPI{services: make(map[string]string), watches: make(map[chan event]int), version: 1}
	a.Server = httptest.NewUnstartedServer(a)
	a.EnableHTTP2 = true
	a.Config.ErrorLog = log.New(io.Discard, "", 0) // clients may leave at any time
	a.StartTLS()
	t.Cleanup(func() { a.EndWatches(); a.CloseClientConnections(); a.Close() })
	return a
}

// change changes fields.
func (a *fakeAPI) change(do func()) {
	a.Lock()
	defer a.Unlock()
	do()
}

// Set creates or changes a Service; clusterIPs are comma-separated.
func (a *fakeAPI) Set(key, clusterIPs string) {
	a.Lock()
	defer a.Unlock()
	a.version++
	typ := "MODIFIED"
	if _, ok := a.services[key]; !ok {
		typ = "ADDED"
	}
	a.services[key] = clusterIPs
	a.send(event{typ, a.object(key), a.version})
}

// Delete removes a Service.
func (a *fakeAPI) Delete(key string) {
	a.Lock()
	defer a.Unlock()
	a.version++
	gone := a.object(key)
	delete(a.services, key)
	a.send(event{"DELETED", gone, a.version})
}

// Expire ends all watches with 410 Gone, inside the watch.
func (a *fakeAPI) Expire() {
	a.Lock()
	defer a.Unlock()
	for w := range a.watches {
		w <- event{Type: "ERROR", Object: map[string]any{"kind": "Status", "code": 410}}
	}
}

// Restore replaces all Services and begins versions anew, as a restore of etcd does.
// Watches hear neither of that nor of changes until versions have reached theirs.
func (a *fakeAPI) Restore(services map[string]string) {
	a.Lock()
	defer a.Unlock()
	a.services, a.version, a.past = services, 1, nil
}

// EndWatches ends all watches in order.
func (a *fakeAPI) EndWatches() {
	a.Lock()
	defer a.Unlock()
	for w := range a.watches {
		close(w)
		delete(a.watches, w)
	}
}

// Count is how many requests began with prefix.
func (a *fakeAPI) Count(prefix string) (n int) {
	a.Lock()
	defer a.Unlock()
	for _, r := range a.requests {
		if strings.HasPrefix(r, prefix) {
			n++
		}
	}
	return n
}

// Kubeconfig writes a kubeconfig for the fakeAPI with token to path.
func (a *fakeAPI) Kubeconfig(t testing.TB, path, token string) {
	t.Helper()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.Certificate().Raw})
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: admin
clusters:
- name: hosted
  cluster: {server: %q, certificate-authority-data: %s}
users:
- name: admin
  user: {token: %q}
contexts:
- name: admin
  context: {cluster: hosted, user: admin}
`, a.URL, base64.StdEncoding.EncodeToString(ca), token)
	testutil.NoError(t, os.WriteFile(path, []byte(text), 0o600))
}

func (a *fakeAPI) send(e event) {
	a.past = append(a.past, e)
	for w, from := range a.watches {
		if a.version > from {
			w <- e
		}
	}
}

func (a *fakeAPI) object(key string) map[string]any {
	namespace, name, _ := strings.Cut(key, "/")
	ips := strings.Split(a.services[key], ",")
	return map[string]any{
		"metadata": map[string]any{"namespace": namespace, "name": name, "resourceVersion": strconv.Itoa(a.version), "labels": map[string]string{"a": "b"}},
		"spec":     map[string]any{"clusterIP": ips[0], "clusterIPs": ips, "ports": []any{map[string]any{"port": 53}}},
	}
}

func (a *fakeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.Lock()
	path := strings.Split(strings.Trim(r.URL.Path, "/"), "/") // api v1 [namespaces NS] services [NAME]
	kind := "LIST"
	switch {
	case len(path) == 6:
		kind = "GET " + path[3] + "/" + path[5]
	case r.URL.Query().Get("watch") != "":
		kind = "WATCH " + r.URL.Query().Get("resourceVersion")
	}
	a.requests = append(a.requests, kind)
	refuse := 0
	switch {
	case a.Down:
		refuse = http.StatusServiceUnavailable
	case a.Token != "" && r.Header.Get("Authorization") != "Bearer "+a.Token:
		refuse = http.StatusUnauthorized
	case a.ForbidList && len(path) != 6:
		refuse = http.StatusForbidden
	}
	if refuse != 0 {
		a.Unlock()
		http.Error(w, `{"kind":"Status"}`, refuse)
		return
	}
	switch {
	case len(path) == 6:
		a.serveGet(w, path[3]+"/"+path[5])
	case strings.HasPrefix(kind, "WATCH"):
		a.serveWatch(w, r)
	default:
		a.serveList(w, r)
	}
}

// The three below are called with the lock held and give it back.

func (a *fakeAPI) serveGet(w http.ResponseWriter, key string) {
	defer a.Unlock()
	if _, ok := a.services[key]; !ok {
		http.Error(w, `{"kind":"Status","code":404}`, http.StatusNotFound)
		return
	}
	_ = json.NewEncoder(w).Encode(a.object(key))
}

func (a *fakeAPI) serveList(w http.ResponseWriter, r *http.Request) {
	defer a.Unlock()
	var keys []string
	for key := range a.services {
		keys = append(keys, key)
	}
	from, _ := strconv.Atoi(r.URL.Query().Get("continue"))
	size := len(keys)
	if a.PageSize > 0 {
		size = a.PageSize
	}
	slices.Sort(keys)
	end := min(from+size, len(keys))
	meta := map[string]any{"resourceVersion": strconv.Itoa(a.version)}
	if end < len(keys) {
		meta["continue"] = strconv.Itoa(end)
	}
	items := []any{}
	for _, key := range keys[from:end] {
		items = append(items, a.object(key))
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"metadata": meta, "items": items})
}

func (a *fakeAPI) serveWatch(w http.ResponseWriter, r *http.Request) {
	events := make(chan event, 64+len(a.past))
	from, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	a.watches[events] = from
	for _, e := range a.past {
		if e.version > from { // it came between the list and the watch
			events <- e
		}
	}
	a.Unlock()
	defer func() {
		a.Lock()
		delete(a.watches, events)
		a.Unlock()
	}()
	w.WriteHeader(http.StatusOK)
	w.(http.Flusher).Flush()
	for {
		select {
		case <-r.Context().Done():
			return
		case e, ok := <-events:
			if !ok {
				return
			}
			_ = json.NewEncoder(w).Encode(e)
			w.(http.Flusher).Flush()
		}
	}
}
