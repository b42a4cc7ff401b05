package check

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	certmanager "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	egress "k8s.io/apiserver/pkg/apis/apiserver/v1beta1"
	"sigs.k8s.io/kind/pkg/apis/config/v1alpha4"

	"konnectivity/internal/testutil"
)

// selects returns the pods that a selector means.
func selects(t *testing.T, in []pod, selector labels.Selector) (found []pod) {
	t.Helper()
	for _, p := range in {
		if !selector.Empty() && selector.Matches(labels.Set(p.labels)) {
			found = append(found, p)
		}
	}
	return found
}

func selectorOf(t *testing.T, s metav1.LabelSelector) labels.Selector {
	t.Helper()
	return testutil.Must(metav1.LabelSelectorAsSelector(&s))(t)
}

// hasPort says whether a container of p has a port of that name.
func hasPort(p pod, name string) bool {
	return slices.ContainsFunc(slices.Concat(p.beside(), p.spec.Containers, p.spec.InitContainers), func(c corev1.Container) bool { return portNamed(c, name) != 0 })
}

// Helm's kube-prometheus-stack selects by this label.
func TestMonitorsBearTheRelease(t *testing.T) {
	const release = "kube-prometheus-stack"
	objects := build(t, "monitoring-kube-prometheus-stack")
	found := map[string]string{}
	for _, m := range each[monitoring.ServiceMonitor](objects) {
		found[m.Name] = m.Labels["release"]
	}
	for _, m := range each[monitoring.PodMonitor](objects) {
		found[m.Name] = m.Labels["release"]
		_, selects := m.Spec.Selector.MatchLabels["release"]
		testutil.Holds(t, !selects, "%s selects pods by the label, which they do not have", m.Name)
	}
	for _, r := range each[monitoring.PrometheusRule](objects) {
		found[r.Name] = r.Labels["release"]
	}
	testutil.Equal(t, len(found), 5, "a rule and four monitors, of %v", found)
	for name, label := range found {
		testutil.Equal(t, label, release, "%s bears the release", name)
	}
}

func TestPoliciesMeanTheServer(t *testing.T) {
	hosted := build(t, hostedPeers)
	server := pods(hostedPeers, hosted)
	for _, b := range each[policyv1.PodDisruptionBudget](hosted) {
		testutil.Equal(t, len(selects(t, server, selectorOf(t, *b.Spec.Selector))), 1,
			"pods that the disruption budget selects")
	}
	policies := each[networkingv1.NetworkPolicy](hosted)
	testutil.Requires(t, len(policies) == 1 && len(selects(t, server, selectorOf(t, policies[0].Spec.PodSelector))) == 1,
		"%d network policies, or one that selects nothing", len(policies))
	for _, rule := range policies[0].Spec.Ingress {
		for _, port := range rule.Ports {
			testutil.Holds(t, hasPort(server[0], port.Port.StrVal),
				"the network policy is about port %s, which the server has not", port.Port.StrVal)
			own := len(rule.From) == 1 && rule.From[0].PodSelector != nil && rule.From[0].NamespaceSelector == nil
			testutil.Holds(t, port.Port.StrVal != "client" || own, "the port for clients is open to other namespaces")
			testutil.Holds(t, port.Port.StrVal != "peer" || own && len(selects(t, server, selectorOf(t, *rule.From[0].PodSelector))) == 1,
				"the port for other servers is not open to those alone")
		}
	}
}

// certsOutput is what `konnectivity certs --kubernetes` makes for a namespace.
type certsOutput struct {
	dir        string
	secrets    map[string]map[string][]byte
	configMaps map[string]map[string]string
}

func runCerts(t *testing.T, dir string) certsOutput {
	t.Helper()
	konnectivity(t, "certs", dir, "--kubernetes", "--namespace="+controlPlane)
	out := certsOutput{dir, map[string]map[string][]byte{}, map[string]map[string]string{}}
	data := testutil.Must(os.ReadFile(filepath.Join(dir, "kubernetes-control-plane.yaml")))(t)
	for _, text := range strings.Split(strings.TrimPrefix(string(data), "---\n"), "\n---\n") {
		var secret corev1.Secret
		var bundle corev1.ConfigMap
		switch {
		case strict([]byte(text), &secret) == nil && secret.Kind == "Secret":
			out.secrets[secret.Name] = secret.Data
		case strict([]byte(text), &bundle) == nil && bundle.Kind == "ConfigMap":
			out.configMaps[bundle.Name] = bundle.Data
		}
	}
	return out
}

// runTenant adds the secret that `konnectivity certs --tenant` makes for a shared
// server, as manifests/shared/README.md has it.
func (certs certsOutput) runTenant(t *testing.T, name string) {
	t.Helper()
	konnectivity(t, "certs", certs.dir, "--tenant="+name, "--kubernetes", "--namespace="+name+"-control-plane",
		"--server-name="+name+".konnectivity.example.com", "--server-name="+name+".konnectivity.svc", "--clients-at="+name+".konnectivity.svc:8090")
	data := testutil.Must(os.ReadFile(filepath.Join(certs.dir, "clusters", name, "kubernetes-server.yaml")))(t)
	var secret corev1.Secret
	testutil.NoError(t, strict([]byte(strings.TrimPrefix(string(data), "---\n")), &secret))
	certs.secrets[secret.Name] = secret.Data
}

func TestBothWaysMakeTheSameSecrets(t *testing.T) {
	certs := runCerts(t, filepath.Join(t.TempDir(), "pki"))
	var byManager []string
	for _, c := range each[certmanager.Certificate](build(t, "pki/cert-manager")) {
		byManager = append(byManager, c.Spec.SecretName)
		checkTwin(t, c, certs.secrets[c.Spec.SecretName])
	}
	var byHand []string
	for name := range certs.secrets {
		byHand = append(byHand, name)
	}
	slices.Sort(byManager)
	slices.Sort(byHand)
	testutil.Holds(t, len(byHand) == 5 && slices.Equal(byManager, byHand),
		"cert-manager makes %v, konnectivity certs makes %v", byManager, byHand)
}

// checkTwin compares a Certificate of cert-manager with a secret of konnectivity certs.
func checkTwin(t *testing.T, c *certmanager.Certificate, secret map[string][]byte) {
	t.Helper()
	if c.Spec.IsCA {
		return
	}
	pair, err := tls.X509KeyPair(secret[corev1.TLSCertKey], secret[corev1.TLSPrivateKeyKey])
	testutil.Requires(t, err == nil, "%s: %v", c.Name, err)
	if pair.Leaf.Subject.CommonName != c.Spec.CommonName || !slices.Equal(pair.Leaf.Subject.Organization, c.Spec.Subject.Organizations) {
		t.Errorf("%s: subject is %v by hand", c.Name, pair.Leaf.Subject)
	}
	usage := map[x509.ExtKeyUsage]certmanager.KeyUsage{x509.ExtKeyUsageServerAuth: certmanager.UsageServerAuth, x509.ExtKeyUsageClientAuth: certmanager.UsageClientAuth}
	testutil.Holds(t, slices.Contains(c.Spec.Usages, usage[pair.Leaf.ExtKeyUsage[0]]),
		"%s: usages %v by cert-manager, %v by hand", c.Name, c.Spec.Usages, pair.Leaf.ExtKeyUsage)
	var roles []string
	for _, uri := range pair.Leaf.URIs {
		roles = append(roles, uri.String())
	}
	testutil.Holds(t, len(roles) == 1 && slices.Equal(roles, c.Spec.URIs),
		"%s: URIs %q by cert-manager, %q by hand", c.Name, c.Spec.URIs, roles)
	for _, name := range c.Spec.DNSNames {
		testutil.Holds(t, strings.HasSuffix(name, "example.com") || pair.Leaf.VerifyHostname(name) == nil,
			"%s: %s is in it by cert-manager only", c.Name, name)
	}
}

// Secrets that are not ours to make. The first may be missing.
const (
	external     = "service-network-admin-kubeconfig"
	ofSignerUser = "konnectivity-signer-kubeconfig"
)

// addedKeys are those that operators add to a tenant's secret. kubelet leaves out keys that are
// missing where the secret is optional.
var addedKeys = []string{"policy.yaml", "ca.crl"}

func TestVolumesHaveSources(t *testing.T) {
	certs := runCerts(t, filepath.Join(t.TempDir(), "pki"))
	certs.runTenant(t, tenant)
	for _, p := range allPods(t) {
		for _, v := range p.spec.Volumes {
			testutil.Succeeds(t, certs.checkVolume(p, v), "%s: volume %s", p.folder, v.Name)
		}
		for _, c := range append(p.beside(), p.spec.Containers...) {
			for _, m := range c.VolumeMounts {
				testutil.Holds(t, slices.ContainsFunc(p.spec.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name }),
					"%s: %s mounts %s, which is no volume", p.folder, c.Name, m.Name)
			}
		}
	}
}

func (certs certsOutput) checkVolume(p pod, v corev1.Volume) error {
	items := func(items []corev1.KeyToPath, has func(string) bool) error {
		for _, i := range items {
			if !has(i.Key) {
				return fmt.Errorf("has no key %s", i.Key)
			}
		}
		return nil
	}
	switch {
	case v.Secret != nil:
		data, ok := certs.secrets[v.Secret.SecretName]
		if !ok {
			if v.Secret.SecretName == ofSignerUser || v.Secret.SecretName == external && *v.Secret.Optional {
				return nil
			}
			return fmt.Errorf("nobody makes secret %s", v.Secret.SecretName)
		}
		return items(v.Secret.Items, func(key string) bool { return data[key] != nil })
	case v.ConfigMap != nil:
		_, err := p.configMap(v.ConfigMap.Name)
		return err
	case v.Projected != nil:
		for _, s := range v.Projected.Sources {
			if s.Secret != nil {
				data, ok := certs.secrets[s.Secret.Name]
				if !ok {
					return fmt.Errorf("nobody makes secret %s", s.Secret.Name)
				}
				added := s.Secret.Optional != nil && *s.Secret.Optional
				if err := items(s.Secret.Items, func(key string) bool { return data[key] != nil || added && slices.Contains(addedKeys, key) }); err != nil {
					return err
				}
			}
			if s.ConfigMap == nil {
				continue
			}
			data, ok := certs.configMaps[s.ConfigMap.Name]
			if !ok {
				return fmt.Errorf("nobody makes config map %s", s.ConfigMap.Name)
			}
			if err := items(s.ConfigMap.Items, func(key string) bool { return data[key] != "" }); err != nil {
				return err
			}
		}
	}
	return nil
}

// configMap is one that p's kustomization makes.
func (p pod) configMap(name string) (map[string]string, error) {
	for _, m := range each[corev1.ConfigMap](p.objects) {
		if m.Name == name && m.Namespace == p.namespace {
			return m.Data, nil
		}
	}
	return nil, fmt.Errorf("%s makes no config map %s in %q", p.folder, name, p.namespace)
}

func TestServiceAccountsAndRoles(t *testing.T) {
	for _, folder := range folders(t) {
		objects := build(t, folder)
		accounts := each[corev1.ServiceAccount](objects)
		has := func(name, namespace string) bool {
			return slices.ContainsFunc(accounts, func(a *corev1.ServiceAccount) bool { return a.Name == name && a.Namespace == namespace })
		}
		for _, p := range pods(folder, objects) {
			testutil.Holds(t, p.spec.ServiceAccountName == "" || has(p.spec.ServiceAccountName, p.namespace),
				"%s: no service account %s", folder, p.spec.ServiceAccountName)
		}
		for _, b := range each[rbacv1.RoleBinding](objects) {
			for _, s := range b.Subjects {
				testutil.Holds(t, s.Kind != "ServiceAccount" || has(s.Name, s.Namespace),
					"%s: %s is bound to no service account %s/%s", folder, b.Name, s.Namespace, s.Name)
			}
			if !slices.ContainsFunc(each[rbacv1.Role](objects), func(r *rbacv1.Role) bool { return r.Name == b.RoleRef.Name && r.Namespace == b.Namespace }) {
				t.Errorf("%s: %s is bound to no role", folder, b.Name)
			}
		}
	}
}

// only is the one pod of a kustomization and its one container of ours.
func only(t *testing.T, folder string) (pod, corev1.Container) {
	t.Helper()
	found := pods(folder, build(t, folder))
	testutil.Requires(t, len(found) == 1, "%s has %d pods", folder, len(found))
	return found[0], found[0].ours()[0]
}

func TestTokensAreForTheServer(t *testing.T) {
	_, server := only(t, staticPod)
	for _, folder := range []string{"agent/daemonset-token", "agent/daemonset-token-leases"} {
		agent, c := only(t, folder)
		if agent.namespace != argument(server, "agent-namespace") || agent.spec.ServiceAccountName != argument(server, "agent-service-account") {
			t.Errorf("%s is %s/%s, the server knows %v", folder, agent.namespace, agent.spec.ServiceAccountName, server.Args)
		}
		token := agent.spec.Volumes[0].Projected.Sources[0].ServiceAccountToken
		testutil.Equal(t, token.Audience, argument(server, "authentication-audience"), "%s: audience", folder)
		testutil.Equal(t, argument(c, "service-account-token-path"), c.VolumeMounts[0].MountPath+"/"+token.Path,
			"%s: where the token is looked for", folder)
	}
}

func TestClientsKnowTheServer(t *testing.T) {
	services := map[string]int32{}
	for _, s := range each[corev1.Service](build(t, "server/hosted")) {
		services[s.Name] = s.Spec.Ports[0].Port
	}
	for _, p := range allPods(t) {
		for _, c := range p.ours() {
			if host := argument(c, "konnectivity-hostname"); host != "" && fmt.Sprint(services[host]) != argument(c, "konnectivity-port") {
				t.Errorf("%s: %s asks %s:%s", p.folder, c.Name, host, argument(c, "konnectivity-port"))
			}
			if host := argument(c, "proxy-server-host"); p.folder == "agent/control-plane" && fmt.Sprint(services[host]) != argument(c, "proxy-server-port") {
				t.Errorf("%s: %s asks %s:%s", p.folder, c.Name, host, argument(c, "proxy-server-port"))
			}
		}
	}
}

// clusterEgress returns the transport to the cluster in kube-apiserver's configuration.
func clusterEgress(t *testing.T, data []byte) *egress.Transport {
	t.Helper()
	var config egress.EgressSelectorConfiguration
	err := strict(data, &config)
	testutil.Requires(t, err == nil && config.APIVersion == egress.SchemeGroupVersion.String(), "%s: %v", config.APIVersion, err)
	for _, s := range config.EgressSelections {
		if s.Name == "cluster" {
			return s.Connection.Transport
		}
	}
	t.Fatal("nothing is said of the cluster")
	return nil
}

func TestEgressSelectorOfTheHosted(t *testing.T) {
	p, server := only(t, "server/hosted")
	config := testutil.Must(p.configMap("konnectivity-egress-selector"))(t)
	tcp := clusterEgress(t, []byte(config["egress-selector-configuration.yaml"])).TCP
	u, err := url.Parse(tcp.URL)
	testutil.Holds(t, err == nil && u.Host == "konnectivity-server-local:"+argument(server, "server-port"), "url %s, %v", tcp.URL, err)
	files := []string{tcp.TLSConfig.CABundle, tcp.TLSConfig.ClientCert, tcp.TLSConfig.ClientKey}
	for i, name := range []string{"ca.crt", "tls.crt", "tls.key"} {
		testutil.Equal(t, filepath.Base(files[i]), name, "a file of the secret")
	}
}

func TestEgressSelectorOfTheStaticPod(t *testing.T) {
	data := testutil.Must(os.ReadFile(filepath.Join(manifests, "server/static-pod/egress-selector-configuration.yaml")))(t)
	p, server := only(t, staticPod)
	socket := argument(server, "uds-name")
	testutil.Equal(t, clusterEgress(t, data).UDS.UDSName, socket, "kube-apiserver asks")
	c := p.container(t, "kube-apiserver")
	mounted := func(path string) bool {
		return slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == path })
	}
	config := c.Command[len(c.Command)-1]
	file, ok := strings.CutPrefix(config, "--egress-selector-config-file=")
	testutil.Holds(t, ok && mounted(file) && mounted(filepath.Dir(socket)), "kube-apiserver has %s and mounts %v", config, c.VolumeMounts)
}

// checkOwnNamespace fails if a monitor looks beyond its own: what it finds there would be scraped
// once for each namespace that has the monitor.
func checkOwnNamespace(t *testing.T, name string, s monitoring.NamespaceSelector) {
	t.Helper()
	testutil.Holds(t, !s.Any && len(s.MatchNames) <= 0, "%s looks into other namespaces: %+v", name, s)
}

func TestMonitorsFindEverything(t *testing.T) {
	monitors := build(t, "monitoring")
	for _, m := range each[monitoring.ServiceMonitor](monitors) {
		checkOwnNamespace(t, m.Name, m.Spec.NamespaceSelector)
	}
	for _, m := range each[monitoring.PodMonitor](monitors) {
		checkOwnNamespace(t, m.Name, m.Spec.NamespaceSelector)
	}
	id := func(p pod) string { return p.folder + ": " + p.name }
	watched := map[string]bool{}
	for _, folder := range slices.Concat(exposed, shared) {
		watched[folder+": konnectivity-server"] = true
		for _, m := range each[monitoring.ServiceMonitor](monitors) {
			found := 0
			for _, s := range each[corev1.Service](build(t, folder)) {
				if selectorOf(t, m.Spec.Selector).Matches(labels.Set(s.Labels)) {
					found++
					testutil.Equal(t, s.Spec.Ports[0].Name, m.Spec.Endpoints[0].Port, "the port of %s", s.Name)
				}
			}
			testutil.Equal(t, found, 1, "services of %s that %s finds", folder, m.Name)
		}
	}
	for _, m := range each[monitoring.PodMonitor](monitors) {
		for _, p := range selects(t, allPods(t), selectorOf(t, m.Spec.Selector)) {
			if hasPort(p, *m.Spec.PodMetricsEndpoints[0].Port) {
				watched[id(p)] = true
			}
		}
	}
	for _, p := range allPods(t) {
		if !watched[id(p)] {
			t.Errorf("nothing monitors %s", id(p))
		}
	}
}

// kind reads its configuration as strictly as this, and then makes the cluster.
func TestKindConfiguration(t *testing.T) {
	file := testutil.Opened(os.Open("../kind/cluster.yaml"))(t)
	var cluster v1alpha4.Cluster
	decoder := yaml.NewDecoder(file)
	decoder.KnownFields(true)
	testutil.NoError(t, decoder.Decode(&cluster))
	v1alpha4.SetDefaultsCluster(&cluster)
	roles := map[v1alpha4.NodeRole]int{}
	for _, node := range cluster.Nodes {
		roles[node.Role]++
	}
	if cluster.APIVersion != "kind.x-k8s.io/v1alpha4" || roles[v1alpha4.ControlPlaneRole] != 3 || roles[v1alpha4.WorkerRole] != 2 {
		t.Errorf("%s: %v", cluster.APIVersion, roles)
	}
}
