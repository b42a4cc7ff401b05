package check

import (
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"

	"konnectivity/internal/testutil"
)

// defaultGrace is a pod's termination grace where it says nothing.
const defaultGrace = 30 * time.Second

// drains are the flags that say how long a program drains, and their defaults.
var drains = map[string]struct {
	flag  string
	value time.Duration
}{
	"konnectivity-server":       {"graceful-shutdown-timeout", 25 * time.Second},
	"konnectivity-agent":        {"graceful-shutdown-timeout", 25 * time.Second},
	"konnectivity-socks5-proxy": {"drain-timeout", 25 * time.Second},
	"konnectivity-https-proxy":  {"drain-timeout", 25 * time.Second},
}

// program is the name of the binary that c runs.
func program(t *testing.T, c corev1.Container) string {
	t.Helper()
	testutil.Requires(t, len(c.Command) != 0 && strings.HasPrefix(c.Command[0], "/usr/bin/"),
		"%s: command %v is none of the image's", c.Name, c.Command)
	return strings.TrimPrefix(c.Command[0], "/usr/bin/")
}

// flag is the value of an argument --name=value, or "".
func argument(c corev1.Container, name string) string {
	for _, a := range c.Args {
		if value, ok := strings.CutPrefix(a, "--"+name+"="); ok {
			return value
		}
	}
	return ""
}

// faults are what may be wrong with a pod and our container in it.
var faults = map[string]func(p pod, c corev1.Container) bool{
	"uses the default service account": func(p pod, _ corev1.Container) bool { return p.spec.ServiceAccountName == "default" },
	// A DaemonSet that tolerates every taint comes to nodes with Windows, too.
	"may be put on nodes of another system": func(p pod, _ corev1.Container) bool {
		return strings.HasPrefix(p.name, "konnectivity-") && p.spec.NodeSelector[corev1.LabelOSStable] != "linux"
	},
	"requests no processor or no memory": func(_ pod, c corev1.Container) bool {
		return c.Resources.Requests.Cpu().IsZero() || c.Resources.Requests.Memory().IsZero()
	},
	// A quarter of the limit is the memory budget, which must hold a few streams' windows at the
	// least.
	"is limited to too little memory": func(_ pod, c corev1.Container) bool {
		return c.Resources.Limits.Memory().Cmp(resource.MustParse("256Mi")) < 0
	},
	"would be throttled": func(_ pod, c corev1.Container) bool { return !c.Resources.Limits.Cpu().IsZero() },
	"has no liveness probe of /healthz": func(_ pod, c corev1.Container) bool {
		return c.LivenessProbe == nil || c.LivenessProbe.HTTPGet.Path != "/healthz"
	},
	"is of no pod of our own and has a readiness probe, or the other way round": func(p pod, c corev1.Container) bool {
		sidecar := strings.HasPrefix(p.folder, byKubeadm) || strings.HasPrefix(p.folder, "sidecars/")
		return (c.ReadinessProbe == nil) != sidecar
	},
	"has a readiness probe of something else than /readyz": func(_ pod, c corev1.Container) bool {
		return c.ReadinessProbe != nil && c.ReadinessProbe.HTTPGet.Path != "/readyz"
	},
	// The API adds it, and compares the whole reference. So without it, kubectl apply
	// --server-side meets a conflict where kubectl apply has written the same reference.
	"refers to a field without its version": func(_ pod, c corev1.Container) bool {
		return slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool {
			return e.ValueFrom != nil && e.ValueFrom.FieldRef != nil && e.ValueFrom.FieldRef.APIVersion == ""
		})
	},
	"is an agent on nodes, and not critical": func(p pod, _ corev1.Container) bool {
		return p.name == "konnectivity-agent" && (p.spec.PriorityClassName != "system-cluster-critical" || len(p.spec.Tolerations) == 0)
	},
}

func TestPods(t *testing.T) {
	agents := 0
	for _, p := range allPods(t) {
		if testutil.Equal(t, len(p.ours()), 1, "%s: our containers of %s", p.folder, p.name); p.name == "konnectivity-agent" {
			agents++
		}
		for _, c := range p.ours() {
			for what, wrong := range faults {
				testutil.Holds(t, !wrong(p, c), "%s: %s %s", p.folder, c.Name, what)
			}
			for _, fault := range unsafe(p.spec.SecurityContext, c.SecurityContext) {
				t.Errorf("%s: %s %s", p.folder, c.Name, fault)
			}
			checkPorts(t, p, c)
			for _, probe := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe} {
				if probe != nil {
					checkProbe(t, p, c, probe)
				}
			}
		}
		checkDrain(t, p)
	}
	testutil.AtLeast(t, agents, 4, "DaemonSets")
}

// unsafe is what the "restricted" pod security standard and more would object to.
func unsafe(p *corev1.PodSecurityContext, c *corev1.SecurityContext) (faults []string) {
	if p == nil {
		p = &corev1.PodSecurityContext{}
	}
	yes := func(b *bool) bool { return b != nil && *b }
	seccomp := p.SeccompProfile
	if c.SeccompProfile != nil {
		seccomp = c.SeccompProfile
	}
	if !yes(c.RunAsNonRoot) && !yes(p.RunAsNonRoot) {
		faults = append(faults, "may run as root")
	}
	if !yes(c.ReadOnlyRootFilesystem) {
		faults = append(faults, "may write to the root file system")
	}
	if c.AllowPrivilegeEscalation == nil || *c.AllowPrivilegeEscalation || yes(c.Privileged) {
		faults = append(faults, "may gain privileges")
	}
	if c.Capabilities == nil || !slices.Equal(c.Capabilities.Drop, []corev1.Capability{"ALL"}) || len(c.Capabilities.Add) > 0 {
		faults = append(faults, "has capabilities")
	}
	if seccomp == nil || seccomp.Type != corev1.SeccompProfileTypeRuntimeDefault {
		faults = append(faults, "has no seccomp profile")
	}
	return faults
}

// TestPodsBehindServicesLeaveInTime: a server that refuses connections must not
// be an endpoint any more. No sidecar and no agent is one.
func TestPodsBehindServicesLeaveInTime(t *testing.T) {
	for _, folder := range folders(t) {
		objects := build(t, folder)
		for _, s := range each[corev1.Service](objects) {
			for _, p := range selects(t, pods(folder, objects), labels.SelectorFromSet(s.Spec.Selector)) {
				if l := p.ours()[0].Lifecycle; l == nil || l.PreStop == nil || l.PreStop.Sleep == nil || l.PreStop.Sleep.Seconds < 3 {
					t.Errorf("%s: %s stops to listen before Service %s has heard", folder, p.name, s.Name)
				}
			}
		}
	}
}

// checkDrain sees that our containers end before their pod is killed.
func checkDrain(t *testing.T, p pod) {
	t.Helper()
	grace := defaultGrace
	if s := p.spec.TerminationGracePeriodSeconds; s != nil {
		grace = time.Duration(*s) * time.Second
	}
	for _, c := range p.ours() {
		drain := drains[program(t, c)]
		if v := argument(c, drain.flag); v != "" {
			drain.value = testutil.Must(time.ParseDuration(v))(t)
		}
		if l := c.Lifecycle; l != nil {
			drain.value += time.Duration(l.PreStop.Sleep.Seconds) * time.Second
		}
		testutil.AtLeast(t, grace, drain.value+5*time.Second, "%s: the time until %s is killed", p.folder, c.Name)
	}
}

// checkPorts sees that every port is one that a flag opens, and taken once in
// the pod.
func checkPorts(t *testing.T, p pod, c corev1.Container) {
	t.Helper()
	for _, port := range c.Ports {
		number := strconv.Itoa(int(port.ContainerPort))
		testutil.Holds(t, opens(c, port.ContainerPort),
			"%s: %s declares port %s, and no flag opens it", p.folder, c.Name, number)
		for _, other := range p.spec.Containers {
			for _, o := range other.Ports {
				testutil.Holds(t, other.Name == c.Name || o.ContainerPort != port.ContainerPort && o.Name != port.Name,
					"%s: %s and %s both have port %s", p.folder, c.Name, other.Name, number)
			}
		}
	}
}

func checkProbe(t *testing.T, p pod, c corev1.Container, probe *corev1.Probe) {
	t.Helper()
	if port := probe.HTTPGet.Port; portNamed(c, port.StrVal) == 0 && !opens(c, port.IntVal) {
		t.Errorf("%s: %s probes port %s, which it has not", p.folder, c.Name, port.String())
	}
}

// opens reports whether a flag of c opens that port.
func opens(c corev1.Container, port int32) bool {
	number := strconv.Itoa(int(port))
	return slices.ContainsFunc(c.Args, func(a string) bool {
		return strings.HasSuffix(a, "-port="+number) || strings.HasSuffix(a, "-address=:"+number)
	})
}

// portNamed is the number of a container's port, or 0.
func portNamed(c corev1.Container, name string) int32 {
	for _, port := range c.Ports {
		if port.Name == name {
			return port.ContainerPort
		}
	}
	return 0
}

func TestServersAreReplicated(t *testing.T) {
	for _, d := range each[appsv1.Deployment](build(t, "server/hosted")) {
		a := d.Spec.Template.Spec.Affinity
		testutil.Holds(t, *d.Spec.Replicas >= 3 && a != nil && a.PodAntiAffinity != nil,
			"%s has %d replicas, affinity %v", d.Name, *d.Spec.Replicas, a)
		// The new pod is not ready before an agent found it: none may go first.
		testutil.Equal(t, d.Spec.Strategy.RollingUpdate.MaxUnavailable.IntVal, 0,
			"servers that a rollout may take away before their successors are ready")
	}
}

// A drain of several nodes at once takes replicas one after the other, and is not
// held up by those that serve nothing.
func TestReplicasAreEvictedOneByOne(t *testing.T) {
	for _, folder := range folders(t) {
		objects := build(t, folder)
		budgets := each[policyv1.PodDisruptionBudget](objects)
		for _, d := range each[appsv1.Deployment](objects) {
			if !strings.HasPrefix(d.Name, "konnectivity-") {
				continue
			}
			var found []*policyv1.PodDisruptionBudget
			for _, b := range budgets {
				if selectorOf(t, *b.Spec.Selector).Matches(labels.Set(d.Spec.Template.Labels)) {
					found = append(found, b)
				}
			}
			if len(found) != 1 || found[0].Spec.MaxUnavailable.IntValue() != 1 || *found[0].Spec.UnhealthyPodEvictionPolicy != policyv1.AlwaysAllow {
				t.Errorf("%s: the disruption budgets of %s are %v", folder, d.Name, found)
			}
		}
	}
}

// Agents in the nodes' network hand over: the next one starts beside its predecessor, which
// no port keeps it from, as the same agent, and with the same folder.
func TestAgentsHandOver(t *testing.T) {
	found := 0
	for _, p := range allPods(t) {
		if !strings.HasPrefix(p.folder, "agent/daemonset") || !p.spec.HostNetwork {
			continue
		}
		found++
		c, folder := p.ours()[0], p.spec.InitContainers[0]
		update := each[appsv1.DaemonSet](build(t, p.folder))[0].Spec.UpdateStrategy.RollingUpdate
		testutil.Holds(t, update.MaxUnavailable.String() == "0" && update.MaxSurge.String() == "10%",
			"%s: %v", p.folder, update)
		testutil.Equal(t, len(c.Ports), 0, "%s: ports, which two pods cannot both have", p.folder)
		env := c.Env[slices.IndexFunc(c.Env, func(e corev1.EnvVar) bool { return "$("+e.Name+")" == argument(c, "agent-id") })]
		testutil.Equal(t, env.ValueFrom.FieldRef.FieldPath, "spec.nodeName", "%s: the agent's id", p.folder)
		socket := argument(c, "handover-socket")
		if !slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool {
			return "$("+e.Name+")" == path.Base(socket) && e.ValueFrom.FieldRef.FieldPath == "metadata.namespace"
		}) {
			t.Errorf("%s: another cluster's agents may have %s, too", p.folder, socket)
		}
		testutil.Holds(t, path.Dir(socket) != "/run/konnectivity-agent",
			"%s: the package's unit has the folder of %s, and systemd removes it", p.folder, socket)
		shared := slices.IndexFunc(p.spec.Volumes, func(v corev1.Volume) bool { return v.HostPath != nil })
		for _, c := range []corev1.Container{c, folder} {
			if !slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool {
				return m.Name == p.spec.Volumes[shared].Name && m.MountPath == path.Dir(socket)
			}) {
				t.Errorf("%s: %s has not the folder of %s: %v", p.folder, c.Name, socket, c.VolumeMounts)
			}
		}
		if folder.Image != c.Image || !slices.Equal(folder.Command, []string{"/usr/bin/konnectivity", "handover-folder", path.Dir(socket)}) {
			t.Errorf("%s: %s: %v", p.folder, folder.Image, folder.Command)
		}
		if s := folder.SecurityContext; *s.RunAsUser != 0 || *s.AllowPrivilegeEscalation || !slices.Equal(s.Capabilities.Add, []corev1.Capability{"CHOWN"}) {
			t.Errorf("%s: %v", p.folder, s)
		}
	}
	testutil.AtLeast(t, found, 3, "pods that hand over")
}
