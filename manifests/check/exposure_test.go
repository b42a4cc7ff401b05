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
	"k8s.io/apimachinery/pkg/labels"

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

// Whatever is in front, agents end at the pods' port for agents, and so do all others at theirs.
func TestServicesLeadToPods(t *testing.T) {
	for _, folder := range exposed {
		objects := build(t, folder)
		services := each[corev1.Service](objects)
		testutil.Equal(t, len(services), map[bool]int{false: 3, true: 4}[folder == hostedPeers], "%s: Services", folder)
		for _, s := range services {
			found := selects(t, pods(folder, objects), labels.SelectorFromSet(s.Spec.Selector))
			testutil.Requires(t, len(found) == 1,
				"%s: Service %s selects %d workloads", folder, s.Name, len(found))
			for _, port := range s.Spec.Ports {
				testutil.Equal(t, portNamed(found[0].ours()[0], port.TargetPort.StrVal), port.Port,
					"%s: Service %s: %s in the pod", folder, s.Name, port.Name)
			}
			// Single stack where the cluster has only one; both where it has two, except
			// for Prometheus, which would scrape each address of a server, and for servers,
			// which would link to each.
			want := corev1.IPFamilyPolicyPreferDualStack
			if s.Spec.ClusterIP == corev1.ClusterIPNone {
				want = corev1.IPFamilyPolicySingleStack
			}
			f := s.Spec.IPFamilyPolicy
			testutil.Holds(t, f != nil && *f == want, "%s: Service %s does not have the address families %s", folder, s.Name, want)
			// What only ready servers may have is the clients' alone: agents and other
			// servers make servers ready, and monitoring must see those that are not.
			testutil.Holds(t, s.Spec.PublishNotReadyAddresses != (s.Name == "konnectivity-server-local"),
				"%s: Service %s: publishNotReadyAddresses is %v", folder, s.Name, s.Spec.PublishNotReadyAddresses)
		}
		service := one[corev1.Service](t, objects, "konnectivity-server")
		testutil.Equal(t, service.Spec.Ports[0].Name, "agent", "%s: the first port", folder)
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
	testutil.Requires(t, len(blocks) == 1, "the README has %d examples", len(blocks))
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
