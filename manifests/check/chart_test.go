//go:build helm

// Helm brings 264 packages of its own, 40 s of processor time to compile: these
// tests are in make chart and make release-test, not in make test.

package check

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	"konnectivity/internal/testutil"
)

// chartFolder is Helm's view of the manifests.
const chartFolder = "../../charts/konnectivity"

var packedChart = flag.String("chart", "", "chart of a release to test, konnectivity-VERSION.tgz")

func loadChart(t *testing.T) *chart.Chart {
	t.Helper()
	log.SetOutput(io.Discard) // Helm mentions the symbolic link
	defer log.SetOutput(os.Stderr)
	return testutil.Must(loader.Load(chartFolder))(t)
}

// render is what `helm template` prints, by file: or `helm install`, if the
// namespace has objects.
func render(t *testing.T, c *chart.Chart, values string, objects ...runtime.Object) (map[string]string, error) {
	t.Helper()
	return renderIn(t, c, values, controlPlane, chartutil.DefaultCapabilities, objects...)
}

// renderIn is render for a namespace, and an API that can what capabilities say.
func renderIn(t *testing.T, c *chart.Chart, values, namespace string, capabilities *chartutil.Capabilities, objects ...runtime.Object) (map[string]string, error) {
	t.Helper()
	given := map[string]any{}
	testutil.NoError(t, yaml.Unmarshal([]byte(values), &given))
	release := chartutil.ReleaseOptions{Name: "konnectivity", Namespace: namespace, IsInstall: true}
	all, err := chartutil.ToRenderValues(c, given, release, capabilities) // checks the schema
	if err != nil {
		return nil, err
	}
	if objects == nil {
		return engine.Engine{Strict: true}.Render(c, all)
	}
	return engine.RenderWithClientProvider(c, all, cluster{fake.NewSimpleDynamicClient(scheme.Scheme, objects...)})
}

// cluster is what a chart may look up.
type cluster struct{ dynamic.Interface }

func (c cluster) GetClientFor(apiVersion, kind string) (dynamic.NamespaceableResourceInterface, bool, error) {
	resource, _ := meta.UnsafeGuessKindToResource(schema.FromAPIVersionAndKind(apiVersion, kind))
	return c.Resource(resource), true, nil
}

// byName are objects as the API gets them, by kind and name.
type byName map[string]map[string]any

func (b byName) add(t *testing.T, text string) {
	t.Helper()
	var o map[string]any
	err := yaml.UnmarshalStrict([]byte(text), &o)
	testutil.Requires(t, err == nil, "%v in %s", err, text)
	if len(o) == 0 {
		return
	}
	name := o["kind"].(string) + " " + o["metadata"].(map[string]any)["name"].(string)
	testutil.Holds(t, b[name] == nil, "%s is there twice", name)
	b[name] = o
}

func rendered(t *testing.T, values string) byName {
	t.Helper()
	files, err := render(t, loadChart(t), values)
	testutil.Requires(t, err == nil, "%s: %v", values, err)
	objects := byName{}
	for name, text := range files {
		if filepath.Ext(name) != ".yaml" {
			continue
		}
		for document := range strings.SplitSeq("\n"+text, "\n---\n") {
			objects.add(t, document)
			if strings.TrimSpace(document) != "" {
				decode(t, name, []byte(document))
			}
		}
	}
	return objects
}

// hashed are the names that kustomize gives config maps by their content, which
// the chart puts into an annotation of the pods.
var hashed = regexp.MustCompile(`(konnectivity-agent(?:-control-plane)?)-[a-z0-9]{10}\b`)

// clusterWide are the chart's objects that are in no namespace, whose names have the release's.
var clusterWide = regexp.MustCompile(`\b(konnectivity-signer)-` + controlPlane + `\b`)

func kustomized(t *testing.T, folders ...string) byName {
	t.Helper()
	objects := byName{}
	for _, folder := range folders {
		for _, text := range kustomize(t, filepath.Join(manifests, folder)) {
			objects.add(t, hashed.ReplaceAllString(text, "$1"))
		}
	}
	return objects
}

// plain takes away in what chart and kustomization may differ.
func plain(t *testing.T, o map[string]any) string {
	t.Helper()
	meta := o["metadata"].(map[string]any)
	delete(meta, "namespace") // Helm's is the release's
	if annotations, _ := meta["annotations"].(map[string]any); annotations["helm.sh/resource-policy"] != nil {
		delete(meta, "annotations") // kustomize removes nothing
	}
	if spec, ok := o["spec"].(map[string]any); ok {
		if template, ok := spec["template"].(map[string]any); ok {
			delete(template["metadata"].(map[string]any), "annotations")
			for _, kind := range []string{"containers", "initContainers"} {
				containers, _ := template["spec"].(map[string]any)[kind].([]any)
				for _, c := range containers {
					delete(c.(map[string]any), "imagePullPolicy")
				}
			}
		}
	}
	text := testutil.Must(json.MarshalIndent(o, "", " "))(t)
	return string(text)
}

// The chart and the kustomizations are one truth.
func TestChartMakesWhatKustomizationsMake(t *testing.T) {
	const off = "{server: {enabled: false}, agent: {enabled: false}, pki: {mode: existing}}"
	for _, test := range []struct {
		values  string
		folders []string
	}{
		{"{agent: {enabled: false}, pki: {mode: existing}}", []string{"server/hosted"}},
		{"{agent: {enabled: false}, pki: {mode: existing}, server: {service: {type: NodePort, nodePort: 30091}}}", []string{"server/hosted-node-port"}},
		{"{agent: {enabled: false}, pki: {mode: existing}, server: {service: {proxyProtocolFrom: [192.0.2.0/24]}}}", []string{"server/hosted-proxy-protocol"}},
		{"{agent: {enabled: false}, pki: {mode: existing}, server: {route: {host: konnectivity-server.example.com}}}", []string{"server/hosted-route"}},
		{"{agent: {enabled: false}, pki: {mode: existing}, server: {tlsRoute: {host: konnectivity-server.example.com, gateway: {name: konnectivity}}}}", []string{"server/hosted-tls-route"}},
		{"{agent: {enabled: false}, pki: {mode: existing}, server: {peers: {enabled: true}}}", []string{"server/hosted-peers"}},
		{"{agent: {enabled: false}, pki: {mode: existing}, server: {tenants: [cluster-a]}}", []string{"shared/server", "shared/tenant"}},
		{"{agent: {enabled: false}, pki: {mode: existing}, server: {watchTenants: true}}", []string{"shared/server-secrets"}},
		{"{agent: {enabled: false}, pki: {mode: existing}, server: {watchTenants: true, tenants: [cluster-a]}}", []string{"shared/server-secrets", "shared/tenant"}},
		{"{server: {enabled: false}, pki: {mode: existing}, agent: {serverHost: konnectivity-server.example.com}}", []string{"agent/daemonset"}},
		{"{server: {enabled: false}, pki: {mode: existing}, agent: {serverHost: konnectivity-server.example.com, hostNetwork: true}}", []string{"agent/daemonset-host-network"}},
		{"{server: {enabled: false}, pki: {mode: existing}, agent: {serverHost: konnectivity-server.example.com, hostNetwork: true, authentication: token}}", []string{"agent/daemonset-token"}},
		{"{server: {enabled: false}, pki: {mode: existing}, agent: {serverHost: konnectivity-server.example.com, hostNetwork: true, authentication: pod-certificate}}",
			[]string{"agent/daemonset-pod-certificate"}},
		{"{server: {enabled: false}, agent: {enabled: false}, pki: {mode: existing}, signer: {enabled: true}}", []string{"signer"}},
		{"{server: {enabled: false}, agent: {enabled: false}, pki: {mode: existing}, " +
			"controlPlaneAgent: {enabled: true, identifiers: ipv4=172.31.0.11&ipv4=172.31.0.12&ipv4=172.31.0.13}}", []string{"agent/control-plane"}},
		{"{server: {enabled: false}, agent: {enabled: false}, pki: {mode: cert-manager}}", []string{"pki/cert-manager"}},
		{"{server: {enabled: false}, agent: {enabled: false}, pki: {mode: existing}, monitoring: {enabled: true}}", []string{"monitoring"}},
		{"{server: {enabled: false}, agent: {enabled: false}, pki: {mode: existing}, monitoring: {enabled: true, labels: {release: kube-prometheus-stack}}}",
			[]string{"monitoring-kube-prometheus-stack"}},
		{off, nil},
	} {
		ours, theirs := byName{}, kustomized(t, test.folders...)
		for _, o := range rendered(t, test.values) {
			ours.add(t, clusterWide.ReplaceAllString(string(testutil.Must(yaml.Marshal(o))(t)), "$1"))
		}
		if a, b := slices.Sorted(maps.Keys(ours)), slices.Sorted(maps.Keys(theirs)); !slices.Equal(a, b) {
			t.Errorf("%s makes\n%q, and %v\n%q", test.values, a, test.folders, b)
			continue
		}
		for name := range theirs {
			a, b := plain(t, ours[name]), plain(t, theirs[name])
			testutil.Holds(t, a == b, "%s: the chart makes\n%s\nand %v\n%s", name, a, test.folders, b)
		}
	}
}

// What the chart has beyond them: values, and parts of the objects that they make.
func TestChartsValues(t *testing.T) {
	type parts map[string][]string // by object
	digest := strings.Repeat("0a", 32)
	const (
		scaled = "agent: {kind: Deployment, autoscaling: {enabled: true}, "
		image  = `"image":"registry.example.com/konnectivity:v1.0.0"`
		routes = "server: {route: {host: a.example.com}, tlsRoute: {host: b.example.com, gateway: {name: g, namespace: gw, sectionName: tls}}}"
	)
	for values, want := range map[string]parts{
		"{" + scaled + "extraArgs: [--v=5], extraEnv: [{name: HTTPS_PROXY, value: 'http://proxy:3128'}]}, " +
			"image: {repository: registry.example.com/konnectivity, tag: v1.0.0}, server: {replicas: 5, service: {type: NodePort, nodePort: 30091}}, pki: {clusterSANs: [203.0.113.7, a.example.com]}}": {
			"Deployment konnectivity-agent":              {image, `"--v=5"]`, `{"name":"HTTPS_PROXY","value":"http://proxy:3128"}`, `"podAntiAffinity"`},
			"PodDisruptionBudget konnectivity-agent":     {`"maxUnavailable":1`},
			"HorizontalPodAutoscaler konnectivity-agent": {`"maxReplicas":10`},
			"Deployment konnectivity-server":             {`"replicas":5`, image},
			"Service konnectivity-server":                {`"nodePort":30091`, `"type":"NodePort"`},
			"Job konnectivity-certs": {`"--cluster-san=203.0.113.7","--cluster-san=a.example.com"`,
				`"--namespace=` + controlPlane + `"`, `"activeDeadlineSeconds":240`},
		},
		"{pki: {mode: cert-manager, clusterSANs: [203.0.113.7, '2001:db8::7', a.example.com]}}": {
			"Certificate konnectivity-cluster": {`"ipAddresses":["203.0.113.7","2001:db8::7"]`, `"a.example.com"]`},
		},
		// A percentage of next to nothing would add agents for any traffic.
		"{" + scaled + "resources: {}}}":                                 {"Deployment konnectivity-agent": {`"requests":{"cpu":"250m","memory":"32Mi"}`}},
		"{" + scaled + "resources: {requests: {memory: 64Mi}}}}":         {"Deployment konnectivity-agent": {`"requests":{"cpu":"250m","memory":"64Mi"}`}},
		"{" + scaled + "resources: {requests: {cpu: 1}}}}":               {"Deployment konnectivity-agent": {`"requests":{"cpu":1}`}},
		"{" + scaled + "resources: {limits: {cpu: 100m}}}}":              {"Deployment konnectivity-agent": {`"limits":{"cpu":"100m"}}`}}, // which is the request, then
		"{" + scaled + "resources: {limits: {memory: 128Mi}}}}":          {"Deployment konnectivity-agent": {`"requests":{"cpu":"250m"}`}},
		"{server: {tenants: [red], resources: {limits: {memory: 4Gi}}}}": {"Deployment konnectivity-server": {`"limits":{"memory":"4Gi"},"requests":{"cpu":"500m"}`}},
		// Each tenant has its own folder and Service, and values of the user override the
		// chart's.
		"{server: {tenants: [red, blue], extraArgs: [--v=5], resources: {requests: {cpu: '2'}}}}": {
			"Deployment konnectivity-server": {`"secret":{"items":[{"key":"agents-ca.crt","path":"red/agents-ca.crt"}`,
				`"path":"blue/policy.yaml"},{"key":"ca.crl","path":"blue/ca.crl"}],"name":"konnectivity-tenant-blue","optional":true}`,
				`"--tenants-dir=/etc/konnectivity/tenants","--v=5"]`, `"resources":{"requests":{"cpu":"2"}}`},
			"HorizontalPodAutoscaler konnectivity-server": {`"minReplicas":3`, `"maxReplicas":9`},
			"NetworkPolicy konnectivity-server":           {`"konnectivity-clients":"true"`},
			"Service red":                                 {`"targetPort":"client"`},
			"Service blue":                                {`"targetPort":"client"`},
		},
		"{server: {tenants: [red], extraArgs: [--memory-budget-mib=1024], autoscaling: {minReplicas: 5, maxReplicas: 20, targetCPUUtilizationPercentage: 70, targetMemory: 1Gi}}}": {
			"HorizontalPodAutoscaler konnectivity-server": {`"minReplicas":5`, `"maxReplicas":20`, `"averageUtilization":70`, `"averageValue":"1Gi"`},
		},
		// Values of the user come last, and policies of both kinds let servers meet.
		"{server: {peers: {enabled: true}, watchTenants: true, extraArgs: [--v=5]}}": {
			"Deployment konnectivity-server":    {`"--tenants-namespace=$(POD_NAMESPACE)","--peer-servers=konnectivity-server-peers:8097","--peer-port=8097","--peer-server-name=konnectivity-server","--v=5"]`},
			"NetworkPolicy konnectivity-server": {`"konnectivity-clients":"true"`, `"port":"peer"`},
			"Service konnectivity-server-peers": {`"clusterIP":"None"`},
		},
		// A policy is mounted as a folder, so that it is followed, and is not optional.
		"{server: {policyConfigMap: who, auditLog: true, tenants: [red], extraArgs: [--v=5]}, agent: {policyConfigMap: nodes.a, auditLog: true}}": {
			"Deployment konnectivity-server": {`"--policy-file=/etc/konnectivity/policy/policy.yaml","--audit-log=-","--v=5"]`,
				`{"mountPath":"/etc/konnectivity/policy","name":"policy","readOnly":true}`, `{"configMap":{"name":"who"},"name":"policy"}`},
			"DaemonSet konnectivity-agent": {`"--policy-file=/etc/konnectivity/policy/policy.yaml","--audit-log=-"]`,
				`{"mountPath":"/etc/konnectivity/policy","name":"policy","readOnly":true}`, `{"configMap":{"name":"nodes.a"},"name":"policy"}`},
		},
		// Nodes reach the API through the tunnel.
		"{server: {apiServers: ['kube-apiserver:6443', '10.0.0.9:6443']}, agent: {hostNetwork: true, apiBind: ['127.0.0.1:6443', 'unix:/run/a.sock']}}": {
			"Deployment konnectivity-server": {`"--api-server=kube-apiserver:6443","--api-server=10.0.0.9:6443"]`},
			"DaemonSet konnectivity-agent":   {`"--api-bind=127.0.0.1:6443","--api-bind=unix:/run/a.sock"]`},
		},
		// A node may have two agents of a Deployment.
		"{agent: {kind: Deployment, autoscaling: {enabled: true}, authentication: pod-certificate}}": {
			"Deployment konnectivity-agent": {`"userAnnotations":{"konnectivity.internal/agent-id":"pod"}`, `"metadata.name"`},
		},
		// cert-manager's secret of a CA has keys of its own.
		"{pki: {mode: cert-manager}, signer: {enabled: true, kubeconfigSecret: nodes, resources: {requests: {cpu: '1'}}, extraArgs: ['--lifetime=2h']}}": {
			"Deployment konnectivity-signer": {`"--ca-cert=/etc/konnectivity/ca/tls.crt","--ca-key=/etc/konnectivity/ca/tls.key","--publish-ca=/etc/konnectivity/ca/ca.crt"`,
				`"--lifetime=2h"]`, `"secretName":"nodes"`, `"resources":{"requests":{"cpu":"1"}}`},
		},
		// A signer answers agents beside it.
		"{signer: {enabled: true, extraArgs: [--v=5]}, agent: {authentication: pod-certificate}}": {
			"Deployment konnectivity-signer": {`"--agent-namespace=` + controlPlane + `","--v=5"]`},
		},
		// Agents know the servers by the name of the route.
		"{pki: {clusterSANs: [203.0.113.7, a.example.com]}, " + routes + "}": {
			"Job konnectivity-certs":       {`"--cluster-san=203.0.113.7","--cluster-san=a.example.com","--cluster-san=b.example.com"]`},
			"Service konnectivity-server":  {`"type":"ClusterIP"`},
			"TLSRoute konnectivity-server": {`"parentRefs":[{"group":"gateway.networking.k8s.io","kind":"Gateway","name":"g","namespace":"gw","sectionName":"tls"}]`},
		},
		// Of clouds with more than one kind of load balancer, or with one address family.
		"{server: {service: {loadBalancerClass: example.com/nlb, loadBalancerSourceRanges: [192.0.2.0/24], externalTrafficPolicy: Local, ipFamilyPolicy: SingleStack}}}": {
			"Service konnectivity-server": {`"externalTrafficPolicy":"Local","ipFamilyPolicy":"SingleStack","loadBalancerClass":"example.com/nlb","loadBalancerSourceRanges":["192.0.2.0/24"],"ports"`},
		},
		// The API refuses the policy for a Service that only its cluster reaches.
		"{server: {service: {proxyProtocolFrom: [10.0.0.0/24]}, tlsRoute: {host: b.example.com, gateway: {name: g}}}}": {
			"Deployment konnectivity-server": {`"value":"10.0.0.0/24"`},
			"Service konnectivity-server":    {`"spec":{"ipFamilyPolicy":`, `"type":"ClusterIP"`},
		},
		// The control plane's agents have what the others have.
		"{controlPlaneAgent: {enabled: true, identifiers: ipv4=192.0.2.1, replicas: 2, policyConfigMap: who, auditLog: true, resources: {requests: {cpu: 1}}, extraArgs: [--agent-id=konnectivity-agent], extraEnv: [{name: A, value: b}]}}": {
			"Deployment konnectivity-agent-control-plane": {`"replicas":2`, `"--policy-file=/etc/konnectivity/policy/policy.yaml","--audit-log=-","--agent-id=konnectivity-agent"]`,
				`{"configMap":{"name":"who"},"name":"policy"}`, `"resources":{"requests":{"cpu":1}}`, `{"name":"A","value":"b"}`},
		},
		// The user's id of agents overrides the chart's.
		"{" + scaled + "extraEnv: [{name: AGENT_ID, value: a}]}}": {"Deployment konnectivity-agent": {`{"name":"AGENT_ID","value":"a"}`, `"metadata.name"`}},
		// A digest takes the tag's place.
		"{image: {repository: registry.example.com/konnectivity, tag: v1.0.0, digest: 'sha256:" + digest + "'}, agent: {hostNetwork: true}}": {
			"DaemonSet konnectivity-agent":   {`"image":"registry.example.com/konnectivity@sha256:` + digest + `","imagePullPolicy":"IfNotPresent","name":"handover-folder"`},
			"Deployment konnectivity-server": {`"image":"registry.example.com/konnectivity@sha256:` + digest + `"`},
			"Job konnectivity-certs":         {`"image":"registry.example.com/konnectivity@sha256:` + digest + `"`},
		},
		// A value is no YAML.
		"{image: {repository: 'a: b', pullSecrets: ['123']}, pki: {kubectlImage: 'c: d', clusterSANs: ['a: b']}}": {
			"Job konnectivity-certs": {`"image":"a: b:`, `"image":"c: d"`, `"--cluster-san=a: b"`, `{"name":"123"}`},
		},
		"{pki: {mode: cert-manager}, " + routes + "}": {"Certificate konnectivity-cluster": {`"a.example.com","b.example.com"]`}},
	} {
		objects := rendered(t, values)
		for name, wanted := range want {
			text, err := json.Marshal(objects[name])
			for _, part := range wanted {
				testutil.Holds(t, err == nil && strings.Contains(string(text), part),
					"%s: %s lacks %s: %s", values, name, part, text)
			}
			testutil.Holds(t, name != "Deployment konnectivity-agent" || !strings.Contains(string(text), `"replicas"`),
				"%s: replicas are set, though the autoscaler sets them", values)
		}
	}
}

func TestChartRefusesWrongValues(t *testing.T) {
	for values, want := range map[string]string{
		"{agent: {kind: StatefulSet}}":                                                    "agent",
		"{server: {replica: 2}}":                                                          "replica",
		"{server: {service: {type: ExternalName}}}":                                       "type",
		"{pki: {mode: none}}":                                                             "mode",
		"{controlPlaneAgent: {enabled: true}}":                                            "identifiers",
		"{server: {tenants: [Cluster_A]}}":                                                "tenants",
		"{agent: {policyConfigMap: A_b}}":                                                 "policyConfigMap",
		"{server: {tenants: [a], route: {host: b}}}":                                      "a Route for each",
		"{server: {watchTenants: true, route: {host: b}}}":                                "a Route for each",
		"{server: {tlsRoute: {host: b.example.com}}}":                                     "gateway",
		"{server: {service: {loadBalancerClass: a}, route: {host: b}}}":                   "server.service.loadBalancerClass: a Service of type ClusterIP",
		"{server: {service: {type: NodePort, loadBalancerSourceRanges: [192.0.2.0/24]}}}": "server.service.loadBalancerSourceRanges: a Service of type NodePort",
		"{server: {service: {nodePort: 30000}, tlsRoute: {host: b, gateway: {name: g}}}}": "server.service.nodePort: a Service of type ClusterIP",
		"{server: {service: {type: ClusterIP, externalTrafficPolicy: Local}}}":            "server.service.externalTrafficPolicy: a Service of type ClusterIP",
		"{server: {tenants: [a], apiServers: [b]}}":                                       "each has apiServers of its own",
		"{server: {apiServers: [a, b, c, d, e]}}":                                         "apiServers",
		"{agent: {apiBind: ['127.0.0.1:6443']}}":                                          "agent.hostNetwork=true",
		"{agent: null}":                                                                   "missing property 'agent'",
		"{image: {digest: v1.0.0}}":                                                       "digest",
		"{agent: {terminationGracePeriodSeconds: 19}}":                                    "terminationGracePeriodSeconds",
		"{server: {autoscaling: {targetMemory: 256K}}}":                                   "targetMemory",
		"{agent: {healthPort: 8094}}":                                                     "are both 8094",
	} {
		testutil.ErrorSays(t, testutil.Err(render(t, loadChart(t), values)), want, "%s", values)
	}
}

// A key of a values file with nothing behind it is null, which for Helm takes the chart's value
// away: the same as one that is empty, or the chart says what it needs.
func TestChartTakesNulls(t *testing.T) {
	c := loadChart(t)
	here := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "elsewhere", Name: "a"}} // so that missing keys are no errors, as for Helm
	const (
		plain  = "controlPlaneAgent: {enabled: true, identifiers: a}, signer: {enabled: true}, monitoring: {enabled: true}"
		scaled = plain + ", agent: {kind: Deployment, autoscaling: {enabled: true}}, pki: {mode: cert-manager}, server: {tenants: [a], resources: {limits: null}}"
		routed = plain + ", server: {route: {host: a.example.com}}"
	)
	for _, base := range []string{plain, scaled, routed} {
		want := testutil.Must(render(t, c, "{"+base+"}", here))(t)
		for _, path := range keys("", c.Values) {
			given := map[string]any{}
			testutil.NoError(t, yaml.Unmarshal([]byte("{"+base+"}"), &given))
			parts := strings.Split(path, ".")
			parent, value := given, any(c.Values)
			for i, part := range parts {
				value = value.(map[string]any)[part]
				if i == len(parts)-1 {
					break
				}
				if parent[part] == nil {
					parent[part] = map[string]any{}
				}
				parent = parent[part].(map[string]any)
			}
			last := parts[len(parts)-1]
			if _, set := parent[last]; set {
				continue // by base
			}
			parent[last] = nil
			got, err := render(t, c, string(testutil.Must(yaml.Marshal(given))(t)), here)
			switch {
			case err != nil:
				testutil.ErrorSays(t, err, "missing property", "%s: null in {%s}", path, base)
			case slices.Contains([]string{"<nil>", "", "false", "[]", "map[]"}, fmt.Sprint(value)):
				for name := range want {
					testutil.Holds(t, got[name] == want[name],
						"%s: null in {%s} changes %s:\n%s", path, base, name, got[name])
				}
			default:
				for name, text := range got {
					if strings.Contains(text, "<nil>") || strings.Contains(text, "%!") || strings.Contains(text, "<no value>") {
						t.Errorf("%s: null in {%s} shows in %s:\n%s", path, base, name, text)
					}
				}
			}
		}
	}
}

// A kube-apiserver that mounts the config map of the chart would not start once that is gone.
func TestChartLeavesWhatTheAPIServerMounts(t *testing.T) {
	config := testutil.Must(json.Marshal(rendered(t, "{}")["ConfigMap konnectivity-egress-selector"]))(t)
	testutil.Contains(t, string(config), `"helm.sh/resource-policy":"keep"`, "the config map")
}

// helm upgrade --reuse-values has the values of the chart before in place of the chart's own. What
// those lack is as in the manifests.
func TestChartReusesValues(t *testing.T) {
	const values = "{controlPlaneAgent: {enabled: true, identifiers: ipv4=192.0.2.1}, monitoring: {enabled: true}}"
	c := loadChart(t)
	here := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "elsewhere", Name: "a"}} // as above
	want := testutil.Must(render(t, c, values, here))(t)
	c.Values = nil
	testutil.NoError(t, yaml.Unmarshal(testutil.Must(os.ReadFile("testdata/reused-values.yaml"))(t), &c.Values))
	got := testutil.Must(render(t, c, values, here))(t)
	for name := range want {
		testutil.Equal(t, got[name], want[name], "%s", name)
	}
}

// keys are the paths of all values in a table.
func keys(prefix string, table map[string]any) (all []string) {
	for _, key := range slices.Sorted(maps.Keys(table)) {
		all = append(all, prefix+key)
		if inner, ok := table[key].(map[string]any); ok {
			all = append(all, keys(prefix+key+".", inner)...)
		}
	}
	return all
}

// Where an SCC chooses users, no pod asks for one; where none applies, all do.
func TestChartLeavesUsersToOpenShift(t *testing.T) {
	const agents = "controlPlaneAgent: {enabled: true, identifiers: ipv4=192.0.2.1}"
	openShift := chartutil.DefaultCapabilities.Copy()
	openShift.APIVersions = append(slices.Clone(openShift.APIVersions), "security.openshift.io/v1")
	for _, test := range []struct {
		values, namespace string
		capabilities      *chartutil.Capabilities
		pods              int // that ask for a user
	}{
		{"{" + agents + "}", controlPlane, chartutil.DefaultCapabilities, 4},
		{"{" + agents + "}", controlPlane, openShift, 0},
		{"{" + agents + ", server: {tenants: [a]}}", controlPlane, openShift, 0},
		{"{" + agents + ", server: {route: {host: a.example.com}}}", controlPlane, chartutil.DefaultCapabilities, 0},
		{"{server: {enabled: false}, agent: {hostNetwork: true}}", controlPlane, openShift, 0},
		{"{server: {enabled: false}}", "kube-system", openShift, 1},
		{"{server: {enabled: false}}", "default", openShift, 1},
	} {
		files := testutil.Must(renderIn(t, loadChart(t), test.values, test.namespace, test.capabilities))(t)
		text := strings.Join(slices.Collect(maps.Values(files)), "\n")
		for _, field := range []string{"runAsUser: ", "runAsGroup: ", "fsGroup: "} {
			testutil.Equal(t, strings.Count(text, field), test.pods,
				"%s in %s: pods with %s", test.values, test.namespace, field)
		}
	}
}

// The Job makes all certificates of one CA, or none.
func TestChartsJobLeavesWhatIsThereAlone(t *testing.T) {
	in := func(namespace, name string) runtime.Object {
		if name == "konnectivity-ca-bundle" {
			return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
		}
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	}
	leaves := []string{"konnectivity-server", "konnectivity-cluster", "konnectivity-client", "konnectivity-agent", "konnectivity-ca-bundle"}
	all := append([]string{"konnectivity-signer"}, leaves...)
	for _, test := range []struct {
		namespace string
		names     []string
		job       bool
		missing   []string
	}{
		{"elsewhere", all, true, nil},
		{controlPlane, all, false, nil},
		{controlPlane, leaves, false, nil}, // the CA's key is kept elsewhere
		{controlPlane, all[:1], false, leaves},
		{controlPlane, all[:5], false, all[5:]},
		{controlPlane, all[3:], false, all[1:3]},
	} {
		var objects []runtime.Object
		for _, name := range test.names {
			objects = append(objects, in(test.namespace, name))
		}
		files, err := render(t, loadChart(t), "{}", objects...)
		if (err != nil) != (test.missing != nil) {
			t.Errorf("%s has %v: %v", test.namespace, test.names, err)
			continue
		}
		for _, name := range test.missing {
			if _, lacks, _ := strings.Cut(err.Error(), "lacks"); !strings.Contains(lacks, "/"+name) {
				t.Errorf("%s has %v, and %s is not said to be missing: %v", test.namespace, test.names, name, err)
			}
		}
		testutil.Equal(t, strings.Contains(files["konnectivity/templates/certs-job.yaml"], "kind: Job"), test.job,
			"%s has %v: a job", test.namespace, test.names)
	}
}

func TestChartPullsEveryImageByItsSecrets(t *testing.T) {
	objects := rendered(t, "{image: {pullSecrets: [a, b]}, controlPlaneAgent: {enabled: true, identifiers: ipv4=192.0.2.1}}")
	pods := 0
	for name, o := range objects {
		text := testutil.Must(json.Marshal(o))(t)
		if !strings.Contains(string(text), `"containers"`) {
			continue
		}
		pods++
		testutil.Contains(t, string(text), `"imagePullSecrets":[{"name":"a"},{"name":"b"}]`, "%s", name)
	}
	testutil.Equal(t, pods, 4, "kinds of pods: servers, agents, the control plane's agents, and the job")
}

// A new address for agents: what the notes say works, with the CA that is there.
func TestChartsNotesSignForANewAddress(t *testing.T) {
	files := testutil.Must(render(t, loadChart(t), "{agent: {enabled: false}}"))(t)
	notes := files["konnectivity/templates/NOTES.txt"]
	for _, want := range []string{
		`kubectl -n ` + controlPlane + ` get secret konnectivity-signer -o 'jsonpath={.data.ca\.crt}' | base64 -d > ca/ca.crt`,
		`kubectl -n ` + controlPlane + ` get secret konnectivity-signer -o 'jsonpath={.data.ca\.key}' | base64 -d > ca/ca.key`,
		"kubectl apply -f pki/kubernetes-control-plane.yaml",
	} {
		testutil.Contains(t, notes, want, "the notes")
	}
	dir := t.TempDir()
	ca := filepath.Join(dir, "ca")
	secret := runCerts(t, filepath.Join(dir, "first")).secrets["konnectivity-signer"]
	for name, content := range secret {
		testutil.NoError(t, errors.Join(os.MkdirAll(ca, 0o700), os.WriteFile(filepath.Join(ca, name), content, 0o600)))
	}
	_, line, _ := strings.Cut(notes, "konnectivity certs ")
	line, _, _ = strings.Cut(line, "\n")
	pki := filepath.Join(dir, "pki")
	line = strings.NewReplacer("pki ", pki+" ", "--from=ca", "--from="+ca, "ADDRESS", "203.0.113.7").Replace(line)
	konnectivity(t, append([]string{"certs"}, strings.Fields(line)...)...)
	pair := testutil.Must(tls.LoadX509KeyPair(filepath.Join(pki, "cluster.crt"), filepath.Join(pki, "cluster.key")))(t)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(secret["ca.crt"])
	for _, name := range []string{"203.0.113.7", "konnectivity-server." + controlPlane + ".svc"} {
		testutil.Succeeds(t, testutil.Err(pair.Leaf.Verify(x509.VerifyOptions{DNSName: name, Roots: roots})), "verify")
	}
}

// Whatever is installed, the notes say what to do next, and nothing that does
// not belong to it.
func TestChartsNotesSayTheNextStep(t *testing.T) {
	const (
		here     = "kubectl -n " + controlPlane + " "
		servers  = here + "rollout status deployment/konnectivity-server\n"
		shows    = here + "get service konnectivity-server\n"
		patch    = here + "patch deployment kube-apiserver"
		copied   = here + "get secret konnectivity-agent -o yaml"
		signer   = "konnectivity-signer"
		upgrade  = "helm upgrade konnectivity charts/konnectivity --namespace " + controlPlane + " --reset-then-reuse-values --set 'pki.clusterSANs={ADDRESS}'"
		nodes    = "helm --kubeconfig nodes install konnectivity charts/konnectivity --namespace kube-system --set image.repository=konnectivity,server.enabled=false,pki.mode=existing"
		agents   = "rollout status daemonset/konnectivity-agent"
		clients  = "--clients-at=NAME." + controlPlane + ".svc:8090"
		creating = "konnectivity certs pki --kubernetes --namespace=" + controlPlane
	)
	for _, test := range []struct {
		values     string
		want, lack []string
	}{
		{"{}", []string{servers, shows, signer, patch, agents, "at konnectivity-server, port 8091."}, []string{copied, "They need", clients}},
		{"{agent: {enabled: false}}", []string{shows, signer, patch, copied, nodes + ",agent.serverHost=ADDRESS\n"}, []string{agents}},
		{"{server: {service: {type: ClusterIP}}}", []string{"inside this cluster only", patch, agents}, []string{shows, signer, "ADDRESS"}},
		{"{agent: {enabled: false}, server: {service: {type: NodePort}}}", []string{"any node's address", shows, ",agent.serverPort=PORT,agent.serverHost=ADDRESS\n"}, nil},
		{"{agent: {enabled: false}, signer: {enabled: true}}", []string{nodes + ",agent.authentication=pod-certificate,agent.serverHost=ADDRESS\n"}, []string{copied}},
		{"{agent: {enabled: false}, server: {route: {host: a.example.com}}}",
			[]string{"connect to a.example.com", "--cluster-san=a.example.com\n", ",agent.serverPort=443,agent.serverHost=a.example.com\n"}, []string{shows, "ADDRESS"}},
		{"{agent: {enabled: false}, server: {tlsRoute: {host: b.example.com, gateway: {name: g}}}}",
			[]string{"connect to b.example.com", ",agent.serverPort=PORT,agent.serverHost=b.example.com\n"}, []string{shows, "ADDRESS"}},
		{"{pki: {mode: cert-manager}}", []string{upgrade}, []string{signer, creating}},
		{"{pki: {mode: cert-manager}, server: {route: {host: a.example.com}}}", nil, []string{signer, "helm upgrade"}},
		{"{pki: {mode: existing}}", []string{creating + " --cluster-san=ADDRESS\n"}, []string{signer, "helm upgrade"}},
		{"{pki: {mode: existing}, server: {service: {type: ClusterIP}}}", []string{creating + "\n"}, []string{"ADDRESS"}},
		{"{agent: {enabled: false}, server: {tenants: [red, blue]}}", []string{servers, "Tenants: red, blue. For each:", clients, "agent.serverHost=NAME.example.com", "konnectivity-clients=true"},
			[]string{patch, copied, signer, "an agent has connected"}},
		{"{agent: {enabled: false}, server: {watchTenants: true}, image: {tag: v1.0.0}}", []string{"the label konnectivity-tenant", clients, "--set image.tag=v1.0.0,"}, []string{patch, signer}},
		{"{agent: {enabled: false}, image: {digest: 'sha256:" + strings.Repeat("0a", 32) + "'}}", []string{"--set image.digest=sha256:" + strings.Repeat("0a", 32) + ",image.repository=konnectivity,"}, nil},
		{"{server: {enabled: false}, pki: {mode: existing}, agent: {kind: Deployment, serverHost: '2001:db8::7,a.example.com'}}",
			[]string{"rollout status deployment/konnectivity-agent\n", "at 2001:db8::7,a.example.com, port 8091.", "They need the secret konnectivity-agent here"}, []string{servers, patch}},
		{"{server: {enabled: false}, pki: {mode: existing}, agent: {authentication: token}}", []string{"They need the config map konnectivity-ca-bundle here"}, nil},
		{"{server: {enabled: false}, pki: {mode: existing}, agent: {authentication: pod-certificate}}", []string{agents}, []string{"They need"}},
		{"{server: {enabled: false}, pki: {mode: existing}, agent: {enabled: false}, controlPlaneAgent: {enabled: true, identifiers: ipv4=192.0.2.1}}",
			[]string{"rollout status deployment/konnectivity-agent-control-plane"}, []string{servers, agents}},
	} {
		files, err := render(t, loadChart(t), test.values)
		if err != nil {
			t.Errorf("%s: %v", test.values, err)
			continue
		}
		notes := strings.TrimSpace(files["konnectivity/templates/NOTES.txt"]) + "\n" // as Helm prints them
		t.Logf("%s\n%s", test.values, notes)
		for _, want := range test.want {
			testutil.Contains(t, notes, want, "%s: the notes", test.values)
		}
		for _, lack := range append(test.lack, "\n\n\n", " \n", "<no value>") {
			testutil.Holds(t, !strings.Contains(notes, lack),
				"%s: the notes have %q:\n%s", test.values, lack, notes)
		}
	}
}

// The README's post-renderer gives another chart's pods the sidecar.
func TestChartsREADMEInjectsASidecar(t *testing.T) {
	readme := testutil.Must(os.ReadFile(filepath.Join(chartFolder, "README.md")))(t)
	_, section, _ := strings.Cut(string(readme), "\n## Sidecars\n")
	_, text, _ := strings.Cut(section, "```yaml\n")
	text, _, _ = strings.Cut(text, "```\n")
	_, script, _ := strings.Cut(section, "```sh\n")
	script, _, _ = strings.Cut(script, "```\n")
	dir := t.TempDir()
	if err := errors.Join(os.CopyFS(filepath.Join(dir, "manifests"), os.DirFS(filepath.Join(manifests, "sidecars"))),
		os.Mkdir(filepath.Join(dir, "sidecar"), 0o755), os.Mkdir(filepath.Join(dir, "bin"), 0o755)); err != nil {
		t.Fatal(err)
	}
	text = strings.ReplaceAll(text, "path/to/manifests/sidecars", "../manifests")
	for name, content := range map[string]string{"sidecar/kustomization.yaml": text, "sidecar/inject": script, "bin/kubectl": "#!/bin/sh\nexit 0\n"} {
		testutil.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o755))
	}
	inject := exec.Command(filepath.Join(dir, "sidecar/inject"))
	inject.Env = []string{"PATH=" + filepath.Join(dir, "bin") + ":" + os.Getenv("PATH")}
	inject.Stdin = strings.NewReader("apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: my-app, namespace: my-control-plane}\n" +
		"spec: {selector: {matchLabels: {app: a}}, template: {metadata: {labels: {app: a}}, spec: {containers: [{name: my-app, image: my-app:v1}]}}}\n")
	if out, err := inject.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	made := strings.Join(kustomize(t, filepath.Join(dir, "sidecar")), "---\n")
	for _, want := range []string{"command:\n        - /usr/bin/konnectivity-socks5-proxy", "image: registry.example.com/konnectivity:v0.2.0", "value: socks5://127.0.0.1:8090", "image: my-app:v1"} {
		testutil.Contains(t, made, want, "what is made")
	}
	checkHelm4Plugin(t, section)
}

// checkHelm4Plugin sees that what the page says to install as a plugin of Helm 4 runs the
// page's script, and is called by its name. Helm 4.3.2 took it as it is.
func checkHelm4Plugin(t *testing.T, section string) {
	t.Helper()
	_, text, _ := strings.Cut(section, "Add this `plugin.yaml`")
	_, text, _ = strings.Cut(text, "```yaml\n")
	text, rest, _ := strings.Cut(text, "```\n")
	var plugin map[string]any
	testutil.NoError(t, strict([]byte(text), &plugin))
	testutil.Equal(t, fmt.Sprint(plugin), "map[apiVersion:v1 name:konnectivity-sidecar runtime:subprocess "+
		"runtimeConfig:map[platformCommand:[map[command:${HELM_PLUGIN_DIR}/inject]]] type:postrenderer/v1 version:0.1.0]", "the plugin")
	testutil.Contains(t, rest, fmt.Sprintf("--post-renderer %s\n", plugin["name"]), "the command for Helm 4")
}

// What a release ships renders by itself, with the release's image.
func TestPackedChart(t *testing.T) {
	if *packedChart == "" {
		t.Skip("tests the chart of a release: make release-test")
	}
	c := testutil.Must(loader.Load(*packedChart))(t)
	if got, want := filepath.Base(*packedChart), c.Name()+"-"+c.Metadata.Version+".tgz"; got != want || c.AppVersion() != "v"+c.Metadata.Version {
		t.Errorf("%s is of version %s, its programs of %s", got, c.Metadata.Version, c.AppVersion())
	}
	const everything = "{controlPlaneAgent: {enabled: true, identifiers: ipv4=192.0.2.1}, monitoring: {enabled: true}, agent: {hostNetwork: true}, server: {tenants: [a]}, signer: {enabled: true}, pki: {mode: %s}}"
	for _, mode := range []string{"job", "cert-manager"} {
		packed := testutil.Must(render(t, c, fmt.Sprintf(everything, mode)))(t)
		source := loadChart(t)
		source.Metadata.Version, source.Metadata.AppVersion = c.Metadata.Version, c.AppVersion()
		want := testutil.Must(render(t, source, fmt.Sprintf(everything, mode)))(t)
		testutil.Holds(t, maps.Equal(packed, want),
			"by %s, what is packed makes other objects than its source", mode)
		testutil.Contains(t, packed["konnectivity/templates/server.yaml"], "image: konnectivity:"+c.AppVersion(),
			"the server")
	}
	testutil.Holds(t, slices.ContainsFunc(c.Files, func(f *chart.File) bool { return f.Name == "LICENSE" }), "the chart has no licence")
}

func TestChartPassesLint(t *testing.T) {
	for _, message := range lint.All(chartFolder, nil, controlPlane, true).Messages {
		testutil.Holds(t, message.Severity <= support.InfoSev, "%v", message)
	}
}
