package check

import (
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/labels"

	"konnectivity/e2e/suite"
	"konnectivity/internal/testutil"
)

// tenant is the one of manifests/shared.
const tenant = "cluster-a"

// sharedSecrets is the shared server that finds its tenants by itself.
const sharedSecrets = "shared/server-secrets"

// shared are the shared server, and the ways in which agents reach it.
var shared = []string{"shared/server", "shared/server-route", "shared/server-tls-route", sharedSecrets}

// The server reads what certs makes where it is mounted, and an agent of the
// tenant that asks for its name is the tenant's.
func TestSharedServerServesItsTenant(t *testing.T) {
	w := newWorld(t)
	w.certs.runTenant(t, tenant)
	s := w.server("shared/server")
	cluster := filepath.Join(w.certs.dir, "clusters", tenant)
	port := w.ports(1)[0]
	agent, err := w.suite.Run("konnectivity-agent", nil, "--proxy-server-host=127.0.0.1", "--proxy-server-port="+strconv.Itoa(s.AgentPort), "--server-name=cluster-a.konnectivity.example.com", "--agent-identifiers=default-route=true",
		"--ca-cert="+filepath.Join(cluster, "ca.crt"), "--agent-cert="+filepath.Join(cluster, "agent.crt"), "--agent-key="+filepath.Join(cluster, "agent.key"),
		"--health-server-host=127.0.0.1", "--health-server-port="+strconv.Itoa(port), "--admin-server-port=0")
	testutil.NoError(t, err)
	testutil.NoError(t, suite.WaitReady(agent, "http://"+suite.Loopback(port)+"/readyz"))
	out, err := exec.Command(programs.Path("konnectivity"), "tenants", "check", filepath.Join(w.certs.dir, "tenants", tenant), "--server-admin="+suite.Loopback(s.AdminPort)).CombinedOutput()
	testutil.Holds(t, err == nil && strings.Contains(string(out), "1 agent and 0 clients are connected"),
		"%v\n%s", err, out)
	w.stop(agent)
	w.stop(s.Process)
}

// atRest is what a server holds of a thousand idle clusters (docs/tenants.md).
const atRest = 20e6 + 1000*90e3

// budget is what the server's connections and their bytes take at most: by default a
// quarter of the runtime's limit, which is 90 % of the container's, and at most 256 MiB.
func budget(t *testing.T, c corev1.Container) int64 {
	t.Helper()
	if set := argument(c, "memory-budget-mib"); set != "" {
		n := testutil.Must(strconv.ParseInt(set, 10, 64))(t)
		return n << 20
	}
	return min(c.Resources.Limits.Memory().Value()*9/10/4, 256<<20)
}

func TestSharedServer(t *testing.T) {
	for _, folder := range shared {
		objects := build(t, folder)
		found := pods(folder, objects)
		testutil.Requires(t, len(found) == 1, "%s has %d workloads", folder, len(found))
		server, c := found[0], found[0].ours()[0]
		i := slices.IndexFunc(server.spec.Volumes, func(v corev1.Volume) bool { return v.Name == "tenants" })
		if at := argument(c, "tenants-dir"); folder != sharedSecrets && (i < 0 || !slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == "tenants" && m.MountPath == at })) {
			t.Errorf("%s: nothing is mounted at %s", folder, at)
		}
		deployment := one[appsv1.Deployment](t, objects, "konnectivity-server").Spec
		if n := deployment.Replicas; n != nil {
			t.Errorf("%s: %d replicas, which undoes what the autoscaler says", folder, *n)
		}
		// It is ready without agents, and 17 s is how long a thousand have taken.
		testutil.AtLeast(t, deployment.MinReadySeconds, 20,
			"%s: seconds from one server to the next, in which agents find the first", folder)
		scaler := one[autoscalingv2.HorizontalPodAutoscaler](t, objects, "konnectivity-server").Spec
		testutil.Holds(t, scaler.ScaleTargetRef.Name == server.name && *scaler.MinReplicas >= 3 && !c.Resources.Requests.Cpu().IsZero(),
			"%s: the autoscaler is %+v", folder, scaler)
		for _, m := range scaler.Metrics {
			if r := m.Resource; r.Name == corev1.ResourceMemory {
				if target := r.Target.AverageValue.Value(); target < atRest || target > budget(t, c) {
					t.Errorf("%s: servers are added from %d bytes each, but have %.0f at rest and %d more at most", folder, target, atRest, budget(t, c))
				}
			}
		}
		for _, s := range server.spec.TopologySpreadConstraints {
			testutil.Equal(t, len(selects(t, found, selectorOf(t, *s.LabelSelector))), 1,
				"%s: what %s spreads", folder, s.TopologyKey)
		}
		policy := one[networkingv1.NetworkPolicy](t, objects, "konnectivity-server").Spec
		if len(selects(t, found, selectorOf(t, policy.PodSelector))) != 1 || len(policy.Ingress) != 3 || len(policy.Ingress[0].From) != 1 ||
			policy.Ingress[0].From[0].NamespaceSelector.MatchLabels["konnectivity-clients"] != "true" {
			t.Errorf("%s: the network policy is %+v", folder, policy)
		}
		// What names all tenants is for monitoring, and not for tenants.
		metrics := policy.Ingress[2]
		for tenants, namespace := range map[bool]labels.Set{true: {"konnectivity-clients": "true"}, false: {"name": "monitoring"}} {
			if admitted := selectorOf(t, *metrics.From[0].NamespaceSelector).Matches(namespace); metrics.Ports[0].Port.StrVal != "health" || admitted == tenants {
				t.Errorf("%s: pods of a namespace with the labels %v may scrape: %v", folder, namespace, admitted)
			}
		}
		service := one[corev1.Service](t, objects, "konnectivity-server")
		routesLead(t, folder, objects, service, tenant+".")
	}
}

// The tenant's Service leads to the shared server, and its name is one that
// certs makes by the README's words.
func TestTenantService(t *testing.T) {
	service := one[corev1.Service](t, build(t, "shared/tenant"), tenant)
	server := pods("shared/server", build(t, "shared/server"))
	found := selects(t, server, labels.SelectorFromSet(service.Spec.Selector))
	p := service.Spec.Ports[0]
	testutil.Holds(t, len(found) == 1 && portNamed(found[0].ours()[0], p.TargetPort.StrVal) == p.Port, "it leads to %v", found)
	text := testutil.Must(os.ReadFile(filepath.Join(manifests, "shared/README.md")))(t)
	for _, want := range []string{"--tenant=" + tenant + " ", "--server-name=" + service.Name + ".konnectivity.svc ", "--clients-at=" + service.Name + ".konnectivity.svc:8090"} {
		testutil.Contains(t, string(text), want, "the README")
	}
}

// The server that finds its tenants by itself mounts none, and may read what it
// watches and nothing more.
func TestSharedServerOfSecrets(t *testing.T) {
	objects := build(t, sharedSecrets)
	found := pods(sharedSecrets, objects)
	c := found[0].ours()[0]
	if argument(c, "tenants-namespace") != "$(POD_NAMESPACE)" || slices.ContainsFunc(c.Args, func(a string) bool { return strings.HasPrefix(a, "--tenants-dir") }) {
		t.Errorf("its arguments are %q", c.Args)
	}
	if slices.ContainsFunc(found[0].spec.Volumes, func(v corev1.Volume) bool { return v.Name == "tenants" }) || slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == "tenants" }) {
		t.Error("tenants are mounted")
	}
	role := one[rbacv1.Role](t, objects, "konnectivity-server-tenants")
	want := []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"list", "watch"}}}
	testutil.Holds(t, reflect.DeepEqual(role.Rules, want), "it may %+v", role.Rules)
	binding := one[rbacv1.RoleBinding](t, objects, "konnectivity-server-tenants")
	if binding.RoleRef.Name != role.Name || len(binding.Subjects) != 1 || binding.Subjects[0].Name != found[0].spec.ServiceAccountName {
		t.Errorf("it is bound as %+v", binding)
	}
}
