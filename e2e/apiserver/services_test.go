package apiserver

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"konnectivity/internal/pki"
)

// What serves in the data plane by a cluster IP.
const (
	widgetsIP = "127.96.0.10"
	judgeIP   = "127.96.0.11"
)

// serveWidgets is an API of its own with one resource. It wants
// kube-apiserver's certificate as a front proxy, as such APIs do.
func serveWidgets(t *testing.T, z *zone, p *controlPlane) (port int) {
	const version = "/apis/example.test/v1"
	answer := func(body any) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(body)
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+version, answer(metav1.APIResourceList{
		TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: "example.test/v1",
		APIResources: []metav1.APIResource{{Name: "widgets", SingularName: "widget", Namespaced: true, Kind: "Widget", Verbs: []string{"list"}}}}))
	mux.HandleFunc("GET "+version+"/namespaces/{namespace}/widgets", answer(map[string]any{
		"kind": "WidgetList", "apiVersion": "example.test/v1", "metadata": map[string]any{},
		"items": []any{map[string]any{"kind": "Widget", "apiVersion": "example.test/v1", "metadata": map[string]any{"name": "first", "namespace": "apps"}}}}))
	return serveTLS(t, z, widgetsIP, p.ca, p.front, pki.Leaf{CommonName: "widgets", DNS: []string{"widgets.apps.svc"}}, mux)
}

// serveJudge is a webhook that forbids config maps whose verdict is "deny".
func serveJudge(t *testing.T, z *zone, p *controlPlane) (port int) {
	judge := func(w http.ResponseWriter, req *http.Request) {
		var review admissionv1.AdmissionReview
		var asked corev1.ConfigMap
		if err := json.NewDecoder(req.Body).Decode(&review); err != nil || json.Unmarshal(review.Request.Object.Raw, &asked) != nil {
			http.Error(w, "no review", http.StatusBadRequest)
			return
		}
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: asked.Data["verdict"] != "deny",
			Result: &metav1.Status{Message: "the judge said no"}}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review)
	}
	return serveTLS(t, z, judgeIP, p.ca, nil, pki.Leaf{CommonName: "judge", DNS: []string{"judge.apps.svc"}}, http.HandlerFunc(judge))
}

// dataPlane is a node with a pod, an aggregated API and a webhook.
type dataPlane struct {
	zone  *zone
	node  *node
	judge string // port of the webhook
}

// newDataPlane serves all of it in a zone of its own, and registers it.
func newDataPlane(t *testing.T, p *controlPlane) *dataPlane {
	t.Helper()
	d := &dataPlane{zone: newZone()}
	d.node = newNode(t, d.zone, p.ca)
	bundle := base64.StdEncoding.EncodeToString(p.ca.CertPEM)
	p.do("create", "namespace", "apps")
	p.apply(fmt.Sprintf(nodeObjects, nodeIP, d.node.port))
	p.do("patch", "pod", "hello", "-n", "apps", "--subresource=status", "-p", `{"status": {"phase": "Running"}}`)
	p.apply(fmt.Sprintf(widgetObjects, widgetsIP, serveWidgets(t, d.zone, p), bundle))
	judge := serveJudge(t, d.zone, p)
	p.apply(fmt.Sprintf(judgeObjects, judgeIP, judge, bundle))
	d.judge = strconv.Itoa(judge)
	return d
}

// nodeObjects are what a kubelet would register, and a pod on it.
const nodeObjects = `
apiVersion: v1
kind: Node
metadata: {name: node-1}
status:
  addresses: [{type: InternalIP, address: %s}]
  daemonEndpoints: {kubeletEndpoint: {Port: %d}}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: default, namespace: apps}
---
apiVersion: v1
kind: Pod
metadata: {name: hello, namespace: apps}
spec:
  nodeName: node-1
  containers: [{name: hello, image: hello:example, ports: [{containerPort: 8080}]}]
`

// kube-apiserver looks for endpoints before it dials, and then dials the cluster IP.
const widgetObjects = `
apiVersion: v1
kind: Service
metadata: {name: widgets, namespace: apps}
spec: {clusterIP: %[1]s, ports: [{name: https, port: %[2]d}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: widgets-1, namespace: apps, labels: {kubernetes.io/service-name: widgets}}
addressType: IPv4
ports: [{name: https, port: %[2]d}]
endpoints: [{addresses: [192.0.2.10]}]
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1.example.test}
spec:
  group: example.test
  version: v1
  groupPriorityMinimum: 1000
  versionPriority: 10
  caBundle: %[3]s
  service: {name: widgets, namespace: apps, port: %[2]d}
`

const judgeObjects = `
apiVersion: v1
kind: Service
metadata: {name: judge, namespace: apps}
spec: {clusterIP: %[1]s, ports: [{name: https, port: %[2]d}]}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: judge}
webhooks:
  - name: judge.example.test
    admissionReviewVersions: [v1]
    sideEffects: None
    matchPolicy: Exact
    rules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [configmaps]}]
    objectSelector: {matchLabels: {judged: "true"}}
    clientConfig:
      caBundle: %[3]s
      service: {name: judge, namespace: apps, port: %[2]d, path: /judge}
`
