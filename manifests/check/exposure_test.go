package check

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	route "github.com/openshift/api/route/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	gateway "sigs.k8s.io/gateway-api/apis/v1"

	"konnectivity/internal/testutil"
)

// exposed are the ways in which agents reach the hosted server.
var exposed = []string{"server/hosted", "server/hosted-node-port", "server/hosted-route", "server/hosted-tls-route", "server/hosted-proxy-protocol", hostedPeers}

// one is the only object of a type with that name.
func one[T any](t *testing.T, objects []object, name string) *T {
	t.Helper()
	for _, o := range objects {
		if v, ok := o.value.(*T); ok && o.Name == name {
			return v
		}
	}
	t.Fatalf("there is no %T %s", *new(T), name)
	return nil
}

// Whatever is in front, agents end at the pods' port for agents, servers that are
// not ready included, by both address families where there are both.
func TestEveryExposureLeadsToTheAgentsPort(t *testing.T) {
	for _, folder := range exposed {
		objects := build(t, folder)
		service := one[corev1.Service](t, objects, "konnectivity-server")
		found := pods(folder, objects)
		if len(found) != 1 || found[0].labels["app.kubernetes.io/name"] != service.Spec.Selector["app.kubernetes.io/name"] {
			t.Fatalf("%s: the service selects something else", folder)
		}
		if p := service.Spec.Ports[0]; portNamed(found[0].ours()[0], p.TargetPort.StrVal) != p.Port || p.Name != "agent" {
			t.Errorf("%s: the service's port is %+v", folder, p)
		}
		if !service.Spec.PublishNotReadyAddresses || *service.Spec.IPFamilyPolicy != corev1.IPFamilyPolicyPreferDualStack {
			t.Errorf("%s: %+v", folder, service.Spec)
		}
		routesLead(t, folder, objects, service, "")
	}
}

// routesLead checks that each route leads to the service's first port, with TLS to its end, and
// that each has a host with that prefix.
func routesLead(t *testing.T, folder string, objects []object, service *corev1.Service, host string) {
	t.Helper()
	port := service.Spec.Ports[0]
	for _, r := range each[route.Route](objects) {
		if r.Spec.To.Name != service.Name || r.Spec.Port.TargetPort.StrVal != port.Name || r.Spec.TLS.Termination != route.TLSTerminationPassthrough || !strings.HasPrefix(r.Spec.Host, host) {
			t.Errorf("%s: %+v", folder, r.Spec)
		}
	}
	for _, r := range each[gateway.TLSRoute](objects) {
		if to := r.Spec.Rules[0].BackendRefs[0]; string(to.Name) != service.Name || int32(*to.Port) != port.Port || !strings.HasPrefix(string(r.Spec.Hostnames[0]), host) {
			t.Errorf("%s: %+v", folder, r.Spec)
		}
	}
}

var yamlBlock = regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$")

// What the README says to write does what it says.
func TestExposureREADME(t *testing.T) {
	text := testutil.Must(os.ReadFile(filepath.Join(manifests, "server/README.md")))(t)
	blocks := yamlBlock.FindAllStringSubmatch(string(text), -1)
	if len(blocks) != 1 {
		t.Fatalf("the README has %d examples", len(blocks))
	}
	for _, folder := range exposed[2:] {
		text := strings.Replace(blocks[0][1], "path/to/manifests/server/hosted-route", "../"+folder, 1)
		checkExample(t, folder, example(t, nil, text))
	}
}

func checkExample(t *testing.T, folder string, objects []object) {
	t.Helper()
	const host = "agents.example.com"
	switch folder {
	case "server/hosted-route":
		testutil.Equal(t, one[route.Route](t, objects, "konnectivity-server").Spec.Host, host, "the route's host")
	case "server/hosted-tls-route":
		r := one[gateway.TLSRoute](t, objects, "konnectivity-server")
		if len(r.Spec.Hostnames) != 1 || r.Spec.Hostnames[0] != host || len(r.Spec.ParentRefs) != 1 || r.Spec.ParentRefs[0].Name != "my-gateway" {
			t.Errorf("the route is %+v", r.Spec)
		}
	case "server/hosted-proxy-protocol":
		c := one[appsv1.Deployment](t, objects, "konnectivity-server").Spec.Template.Spec.Containers[0]
		if !slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == "PROXY_PROTOCOL_FROM" && e.Value == "10.0.0.0/24" }) || len(c.Env) != 3 {
			t.Errorf("the environment is %v", c.Env)
		}
	}
}
