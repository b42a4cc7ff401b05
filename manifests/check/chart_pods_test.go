//go:build helm

package check

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	certmanager "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/strvals"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	"konnectivity/internal/testutil"
)

// objectsOf are what the chart makes of values, decoded.
func objectsOf(t *testing.T, values string) (objects []object) {
	t.Helper()
	files, err := render(t, loadChart(t), values)
	testutil.Requires(t, err == nil, "%s: %v", values, err)
	for name, text := range files {
		if strings.HasSuffix(name, "NOTES.txt") {
			continue
		}
		for document := range strings.SplitSeq("\n"+text, "\n---\n") {
			if strings.TrimSpace(document) != "" {
				objects = append(objects, decode(t, name, []byte(document)))
			}
		}
	}
	return objects
}

// A port of the node is taken until the pod before has gone: a rollout that starts the next pod
// first would wait for a node without one, which there may not be.
func TestChartStartsNoSecondPodForAPortOfTheNode(t *testing.T) {
	for _, values := range []string{
		"{agent: {hostNetwork: true}}",
		"{agent: {hostNetwork: true, handover: false}}",
		"{agent: {hostNetwork: true, kind: Deployment}}",
		"{agent: {hostNetwork: true, kind: Deployment, autoscaling: {enabled: true}}}",
	} {
		objects := objectsOf(t, values)
		surge := map[string]*intstr.IntOrString{}
		for _, d := range each[appsv1.Deployment](objects) {
			surge[d.Name] = d.Spec.Strategy.RollingUpdate.MaxSurge
		}
		for _, d := range each[appsv1.DaemonSet](objects) {
			surge[d.Name] = d.Spec.UpdateStrategy.RollingUpdate.MaxSurge
		}
		inNode := 0
		for _, p := range pods(values, objects) {
			if !p.spec.HostNetwork {
				continue
			}
			inNode++
			ports := len(p.spec.Containers[0].Ports)
			if n := testutil.Must(intstr.GetScaledValueFromIntOrPercent(intstr.ValueOrDefault(surge[p.name], intstr.FromInt32(0)), 10, true))(t); n > 0 && ports > 0 {
				t.Errorf("%s: %s has %d ports of the node, and %d pods more than nodes may be needed", values, p.name, ports, n)
			}
		}
		testutil.Equal(t, inNode, 1, "%s: kinds of pods in the node's network: the agents", values)
	}
}

// parts are the chart's kinds of pods, by the value that has theirs.
var parts = map[string]string{
	"server": "konnectivity-server", "agent": "konnectivity-agent",
	"controlPlaneAgent": "konnectivity-agent-control-plane", "signer": "konnectivity-signer",
}

// everyPart are values that enable all of them, with more for each.
func everyPart(more string) string {
	return fmt.Sprintf("{server: {%[1]s}, agent: {kind: Deployment, %[1]s}, controlPlaneAgent: {enabled: true, identifiers: ipv4=192.0.2.1, %[1]s}, signer: {enabled: true, %[1]s}}", more)
}

func TestChartPutsPodsWhereValuesSay(t *testing.T) {
	const more = "priorityClassName: control-plane, nodeSelector: {kubernetes.io/arch: arm64}, tolerations: [{key: control-plane, operator: Exists}], " +
		"affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchFields: []}]}}, podAffinity: {}}, topologySpreadConstraints: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule}], " +
		"podLabels: {app.kubernetes.io/name: other, a: b}, podAnnotations: {c: d, checksum/config: e}"
	nodes := map[string]string{corev1.LabelOSStable: "linux", corev1.LabelArchStable: "arm64"}
	tolerations := []corev1.Toleration{{Key: "control-plane", Operator: corev1.TolerationOpExists}}
	objects := objectsOf(t, everyPart(more))
	found := pods("chart", objects)
	testutil.Requires(t, len(found) == len(parts), "%d kinds of pods", len(found))
	for _, p := range found {
		s := p.spec
		if s.PriorityClassName != "control-plane" || !reflect.DeepEqual(s.NodeSelector, nodes) || !reflect.DeepEqual(s.Tolerations, tolerations) ||
			s.Affinity.PodAntiAffinity != nil || s.Affinity.NodeAffinity == nil || len(s.TopologySpreadConstraints) != 1 {
			t.Errorf("%s: %+v", p.name, s)
		}
		testutil.Holds(t, p.labels["app.kubernetes.io/name"] == p.name && p.labels["a"] == "b",
			"%s has labels %v: want the value's, and not in place of the chart's", p.name, p.labels)
	}
	for _, d := range each[appsv1.Deployment](objects) {
		if a := d.Spec.Template.Annotations; a["c"] != "d" || strings.Contains(d.Name, "agent") && len(a["checksum/config"]) != 64 {
			t.Errorf("%s has annotations %v", d.Name, a)
		}
	}
	template := one[batchv1.Job](t, objects, "konnectivity-certs").Spec.Template
	l := template.Labels
	testutil.Holds(t, l["a"] == "b" && l["app.kubernetes.io/name"] == "konnectivity-certs", "the Job has labels %v", l)
	job := template.Spec
	if job.PriorityClassName != "control-plane" || !reflect.DeepEqual(job.NodeSelector, nodes) || !reflect.DeepEqual(job.Tolerations, tolerations) ||
		job.Affinity == nil || job.Affinity.NodeAffinity == nil || job.Affinity.PodAffinity != nil {
		t.Errorf("the Job goes elsewhere than servers: %+v", job)
	}
}

// What is empty takes away what the manifests have.
func TestChartPutsPodsAnywhereIfValuesAreEmpty(t *testing.T) {
	for _, kind := range []string{"DaemonSet", "Deployment"} {
		for _, p := range pods("chart", objectsOf(t, "{server: {tenants: [a], affinity: {}, topologySpreadConstraints: []}, agent: {kind: "+kind+", priorityClassName: '', tolerations: [], affinity: {}}}")) {
			if s := p.spec; s.PriorityClassName != "" || s.Tolerations != nil || s.Affinity != nil || s.TopologySpreadConstraints != nil {
				t.Errorf("%s: %+v", p.name, s)
			}
		}
	}
}

// A pod's time to end is divided as in the manifests.
func TestChartDrainsWithinThePodsTime(t *testing.T) {
	for _, seconds := range []int64{20, 45, 600} {
		more := fmt.Sprintf("terminationGracePeriodSeconds: %d", seconds)
		for _, p := range pods("chart", objectsOf(t, fmt.Sprintf("{server: {%[1]s}, agent: {%[1]s}, controlPlaneAgent: {enabled: true, identifiers: ipv4=192.0.2.1, %[1]s}}", more))) {
			for i := range p.spec.Containers {
				p.spec.Containers[i].Image = "konnectivity:latest" // of ours
			}
			checkDrain(t, p)
			s := p.spec.TerminationGracePeriodSeconds
			testutil.Holds(t, s != nil && *s == seconds, "%s has %v s to end, want %d", p.name, s, seconds)
			testutil.Equal(t, argument(p.spec.Containers[0], "graceful-shutdown-timeout"), fmt.Sprintf("%ds", seconds-15),
				"of %d s, %s drains for", seconds, p.name)
		}
	}
}

// Helm refuses an object that another release has.
func TestChartHasNoObjectOfAnotherNamespacesRelease(t *testing.T) {
	const values = "{agent: {authentication: pod-certificate}, controlPlaneAgent: {enabled: true, identifiers: ipv4=192.0.2.1}, signer: {enabled: true}, monitoring: {enabled: true}}"
	c, owner := loadChart(t), map[string]string{}
	for _, namespace := range []string{"kube-system", controlPlane} {
		for name, text := range testutil.Must(renderIn(t, c, values, namespace, chartutil.DefaultCapabilities))(t) {
			for document := range strings.SplitSeq("\n"+text, "\n---\n") {
				if !strings.Contains(document, "\nkind: Cluster") {
					continue
				}
				o := decode(t, name, []byte(document))
				key := o.Kind + " " + o.Name
				testutil.Equal(t, owner[key], "", "the release in %s has %s as well as that in", namespace, key)
				owner[key] = namespace
				if b, ok := o.value.(*rbacv1.ClusterRoleBinding); ok && owner["ClusterRole "+b.RoleRef.Name] != namespace {
					t.Errorf("%s is for %s, which is not of this release", key, b.RoleRef.Name)
				}
			}
		}
	}
	testutil.Equal(t, len(owner), 4, "objects of the cluster, a role and a binding of each release: %v", owner)
}

// A tenant's Service has the tenant's name, which none of the servers' own may have.
func TestChartRefusesTenantsWithNamesOfServices(t *testing.T) {
	services := each[corev1.Service](objectsOf(t, "{server: {peers: {enabled: true}}}"))
	testutil.Equal(t, len(services), 4, "Services")
	c := loadChart(t)
	for _, s := range services {
		for _, more := range []string{"", ", watchTenants: true", ", peers: {enabled: true}"} {
			values := "{server: {tenants: [a, " + s.Name + "]" + more + "}}"
			testutil.ErrorSays(t, testutil.Err(render(t, c, values)), s.Name+" is a Service of the servers themselves",
				"%s", values)
		}
	}
}

// A file that a flag names comes by a volume of the user's.
func TestChartMountsVolumesOfTheUser(t *testing.T) {
	const more = "extraArgs: [--v=5], extraEnv: [{name: GOGC, value: '50'}], extraVolumes: [{name: crl, configMap: {name: crl}}], extraVolumeMounts: [{name: crl, mountPath: /etc/crl, readOnly: true}]"
	for _, p := range pods("chart", objectsOf(t, everyPart(more))) {
		c, v := p.spec.Containers[0], p.spec.Volumes
		m := c.VolumeMounts[len(c.VolumeMounts)-1]
		if len(v) < 2 || v[len(v)-1].Name != "crl" || v[len(v)-1].ConfigMap.Name != "crl" || m.Name != "crl" || m.MountPath != "/etc/crl" {
			t.Errorf("%s has the volumes %+v, mounted as %+v", p.name, v, c.VolumeMounts)
		}
		testutil.Holds(t, c.Env[len(c.Env)-1].Name == "GOGC" && c.Args[len(c.Args)-1] == "--v=5",
			"%s: %q, %v", p.name, c.Args, c.Env)
	}
}

// A quota for memory refuses a pod with a container that asks for none.
func TestChartsContainersHaveRequestsAndLimits(t *testing.T) {
	objects := objectsOf(t, "{agent: {hostNetwork: true}, controlPlaneAgent: {enabled: true, identifiers: ipv4=192.0.2.1}, signer: {enabled: true}}")
	specs := map[string]corev1.PodSpec{"the Job": one[batchv1.Job](t, objects, "konnectivity-certs").Spec.Template.Spec}
	for _, p := range pods("chart", objects) {
		specs[p.name] = p.spec
	}
	for name, spec := range specs {
		for _, c := range append(spec.InitContainers, spec.Containers...) {
			if r := c.Resources; r.Requests.Cpu().IsZero() || r.Requests.Memory().IsZero() || r.Limits.Memory().IsZero() {
				t.Errorf("%s: %s has %+v", name, c.Name, r)
			}
		}
	}
}

// Two agents in one node's network have no port in common.
func TestChartMovesTheAgentsPorts(t *testing.T) {
	for _, more := range []string{"handover: true", "handover: false", "kind: Deployment"} {
		for _, p := range pods("chart", objectsOf(t, "{server: {enabled: false}, agent: {hostNetwork: true, healthPort: 18093, adminPort: 18094, "+more+"}}")) {
			c := p.spec.Containers[0]
			checkProbe(t, p, c, c.LivenessProbe)
			checkProbe(t, p, c, c.ReadinessProbe)
			if c.ReadinessProbe.HTTPGet.Port.IntVal != 18093 || argument(c, "health-server-port") != "18093" || argument(c, "admin-server-port") != "18094" {
				t.Errorf("%s: %q, probed at %+v", more, c.Args, c.ReadinessProbe.HTTPGet)
			}
			all := append(p.spec.InitContainers, c)
			if ports := all[0].Ports; len(ports) != 1 || ports[0].ContainerPort != 18093 || ports[0].Name != "health" {
				t.Errorf("%s: monitors find %+v", more, ports)
			}
		}
	}
}

// By --reuse-values, values that the chart before did not have are not there.
func TestChartTakesValuesOfTheChartBefore(t *testing.T) {
	added := map[string][]string{"image": {"digest"}}
	pod := []string{"priorityClassName", "nodeSelector", "tolerations", "affinity", "topologySpreadConstraints", "podLabels", "podAnnotations", "extraVolumes", "extraVolumeMounts"}
	added["pki"] = []string{"issuerRef"}
	added["agent"] = append([]string{"terminationGracePeriodSeconds", "healthPort", "adminPort"}, pod...)
	added["server"] = append([]string{"terminationGracePeriodSeconds", "extraEnv", "autoscaling"}, pod...)
	added["signer"] = append([]string{"extraEnv"}, pod...)
	added["controlPlaneAgent"] = append([]string{"terminationGracePeriodSeconds", "replicas", "policyConfigMap", "auditLog", "resources", "extraArgs", "extraEnv"}, pod...)
	here := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "elsewhere", Name: "a"}} // so that missing keys are no errors, as for Helm
	for _, values := range []string{everyPart(""), "{server: {tenants: [a]}, agent: {hostNetwork: true}}"} {
		want := testutil.Must(render(t, loadChart(t), values, here))(t)
		before := loadChart(t)
		for part, keys := range added {
			for _, key := range keys {
				part := before.Values[part].(map[string]any)
				_, ok := part[key]
				testutil.Requires(t, ok, "there is no value %s", key)
				delete(part, key)
			}
		}
		for _, key := range []string{"loadBalancerClass", "loadBalancerSourceRanges", "externalTrafficPolicy", "ipFamilyPolicy"} {
			delete(before.Values["server"].(map[string]any)["service"].(map[string]any), key)
		}
		got := testutil.Must(render(t, before, values, here))(t)
		for name := range want {
			testutil.Holds(t, got[name] == want[name],
				"%s: %s is\n%s\nand with all values\n%s", values, name, got[name], want[name])
		}
	}
}

// The README's flags make servers that take agents with tokens.
func TestChartsServersReviewTokens(t *testing.T) {
	readme := string(testutil.Must(os.ReadFile(filepath.Join(chartFolder, "README.md")))(t))
	_, set, _ := strings.Cut(readme, "--set agent.authentication=token --set '")
	set, _, found := strings.Cut(set, "'")
	testutil.Requires(t, found, "the README does not say it")
	values := testutil.Must(strvals.Parse(set))(t)
	server := pods("chart", objectsOf(t, string(testutil.Must(yaml.Marshal(values))(t))))
	i := slices.IndexFunc(server, func(p pod) bool { return p.name == "konnectivity-server" })
	p := server[i]
	c := p.spec.Containers[0]
	c.Args[slices.Index(c.Args, "--agent-namespace=my-control-plane")] = "--agent-namespace=kube-system" // where the world's tokens are from
	w := newWorld(t)
	s := w.serve(p, c)
	agent := w.agent("agent/daemonset-token", s)
	w.stop(agent.Process)
	w.stop(s.Process)
}

// Of a user's issuer, the chart makes certificates, and no CA.
func TestChartsCertificatesAreOfAnIssuer(t *testing.T) {
	const values = "{pki: {mode: cert-manager, issuerRef: {kind: ClusterIssuer, name: my-ca}}}"
	objects := objectsOf(t, values)
	found := each[certmanager.Certificate](objects)
	if len(found) != 4 || len(each[certmanager.Issuer](objects)) > 0 {
		t.Errorf("%d certificates, %d issuers", len(found), len(each[certmanager.Issuer](objects)))
	}
	for _, c := range found {
		r := c.Spec.IssuerRef
		testutil.Holds(t, r.Name == "my-ca" && r.Kind == "ClusterIssuer" && !c.Spec.IsCA, "%s is of %+v", c.Name, r)
	}
	testutil.ErrorSays(t, testutil.Err(render(t, loadChart(t), "{pki: {mode: cert-manager, issuerRef: {kind: ClusterIssuer}}}")),
		"name", "an issuer without a name")
}

// By the README's values, servers and agents read every CA from the config map, which may
// have two.
func TestREADMETakesTheCAFromElsewhere(t *testing.T) {
	_, values, _ := strings.Cut(string(testutil.Must(os.ReadFile(filepath.Join(chartFolder, "README.md")))(t)), "\n### Another CA, with cert-manager\n")
	_, values, _ = strings.Cut(values, "```yaml\n")
	values, _, _ = strings.Cut(values, "```\n")
	found := 0
	for _, p := range pods("", objectsOf(t, values+"pki: {mode: cert-manager}\n")) {
		from := map[string]string{}
		for _, v := range p.spec.Volumes {
			if v.ConfigMap != nil {
				from[v.Name] = v.ConfigMap.Name
			}
		}
		c, last := p.ours()[0], map[string]string{}
		for _, a := range c.Args {
			if name, value, _ := strings.Cut(a, "="); strings.HasSuffix(name, "-ca-cert") {
				last[name] = value
			}
		}
		for name, path := range last {
			found++
			if !slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool {
				return path == m.MountPath+"/ca.crt" && from[m.Name] == "konnectivity-ca-bundle"
			}) {
				t.Errorf("%s: %s is %s, which is not of the config map", c.Name, name, path)
			}
		}
	}
	testutil.Equal(t, found, 3, "files of CAs")
}
