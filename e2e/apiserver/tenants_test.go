package apiserver

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"konnectivity/internal/testutil"
)

// sharedNamespace is where the chart's README installs the shared server.
const sharedNamespace = "konnectivity"

// tenants share the server.
var tenants = []string{"red", "blue"}

// TestChartOfManyClusters follows the chart's README to one server for two
// clusters: what it installs runs, and each cluster's client reaches the nodes
// through that cluster's agent.
func TestChartOfManyClusters(t *testing.T) {
	t.Run("by name", func(t *testing.T) {
		i := newShared(t, "server.tenants={"+strings.Join(tenants, ",")+"}")
		for _, name := range tenants {
			i.addTenant(name)
			testutil.Equal(t, i.do("get", "service", "-n", sharedNamespace, name, "-o", "jsonpath={.spec.ports[0].port}"),
				"8090", "the port for clients of %s", name)
		}
		i.serveTenants(i.startShared())
	})
	t.Run("watched", func(t *testing.T) {
		i := newShared(t, "server.watchTenants=true")
		s := i.startShared()
		for _, name := range tenants { // while it serves
			i.addTenant(name)
		}
		i.serveTenants(s)
	})
}

// newShared installs the chart with a value.
func newShared(t *testing.T, value string) installer {
	t.Helper()
	i := newInstaller(t)
	i.do("create", "namespace", sharedNamespace)
	job := testutil.Later(func() error { return i.runJob(sharedNamespace, "konnectivity-certs") })
	i.follow("helm install konnectivity charts/konnectivity --namespace " + sharedNamespace + " --set '" + value + "'" +
		" --set image.repository=registry.example.com/konnectivity,image.tag=v1.0.0 --set agent.enabled=false")
	testutil.NoError(t, <-job)
	return i
}

// addTenant makes what a cluster needs, and applies it.
func (i installer) addTenant(name string) {
	i.t.Helper()
	i.do("create", "namespace", name+"-control-plane")
	i.follow(i.tenantBlock(), "red", name)
	for _, file := range []string{"kubernetes-server.yaml", "kubernetes-control-plane.yaml", "kubernetes-data-plane.yaml"} {
		i.apply(i.made(name, file))
	}
}

// sharedServer is one, and the port of its clients.
type sharedServer struct {
	*server
	clients int
}

// startShared runs the installed server with the rights of its account.
func (i installer) startShared() sharedServer {
	i.t.Helper()
	const deployment = "-n " + sharedNamespace + " deployment konnectivity-server"
	in := i.mounted(sharedNamespace, i.template(deployment))
	in["$(POD_NAME)"], in["$(POD_NAMESPACE)"] = "konnectivity-server-0", sharedNamespace
	const folder = "/etc/konnectivity/tenants" // a flag's value, without a slash at its end
	in[folder] = strings.TrimSuffix(in[folder+"/"], "/")
	port := testutil.Reserved(i.t)
	s := i.newServer(live+deployment, in, "--server-bind-address=127.0.0.1", "--server-port="+strconv.Itoa(port),
		"--kubeconfig="+i.accountConfig(sharedNamespace, "konnectivity-server"))
	return sharedServer{s, port}
}

// serveTenants has each cluster's client go to a node, without an agent and with
// one.
func (i installer) serveTenants(s sharedServer) {
	i.t.Helper()
	i.join(s.server)
	d := newDataPlane(i.t, i.controlPlane)
	for _, name := range tenants {
		if out, err := i.check(name, s.clients, d.node.port); err == nil {
			i.t.Errorf("%s reaches its nodes without an agent:\n%s", name, out)
		}
		i.startTenantAgent(d, name, s.AgentPort)
		if out, err := i.check(name, s.clients, d.node.port); err != nil {
			i.t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}

// tenantBlock is how the README makes what a cluster needs.
func (i installer) tenantBlock() string {
	i.t.Helper()
	for _, block := range fence.FindAllStringSubmatch(replaced(i.t, "../charts/konnectivity/README.md"), -1) {
		if strings.Contains(block[1], "--tenant=red") {
			return block[1]
		}
	}
	i.t.Fatal("the chart's README adds no tenant")
	return ""
}

// made is a file that `konnectivity certs` has made for a tenant.
func (i installer) made(tenant, file string) string {
	i.t.Helper()
	return string(must(os.ReadFile(filepath.Join(i.dir, "pki/clusters", tenant, file)))(i.t))
}

// accountConfig is the kubeconfig of a service account.
func (i installer) accountConfig(namespace, name string) string {
	i.t.Helper()
	token := i.do("create", "token", "-n", namespace, name)
	return i.userConfig(name, i.apis[0].port, "token: "+strings.TrimSpace(token))
}

// startTenantAgent starts an agent with the files made for the tenant's nodes.
func (i installer) startTenantAgent(d *dataPlane, tenant string, port int) {
	i.t.Helper()
	dir := filepath.Join(i.dir, "pki/clusters", tenant) + "/"
	i.startAgent(d, &agent{folder: "agent/daemonset", more: []string{"--server-name=" + tenant + ".konnectivity.example.com"}, in: map[string]string{
		"$(AGENT_ID)": tenant + "-agent-0", "$(SERVER_HOST)": "127.0.0.1", "$(SERVER_PORT)": strconv.Itoa(port), "$(IDENTIFIERS)": "default-route=true",
		"/etc/konnectivity/agent/ca.crt": dir + "ca.crt", "/etc/konnectivity/agent/tls.crt": dir + "agent.crt", "/etc/konnectivity/agent/tls.key": dir + "agent.key"}})
}

// check has the operator's tool go the way of a tenant's clients to a node.
func (i installer) check(tenant string, server, node int) (string, error) {
	dir := filepath.Join(i.dir, "pki/clusters", tenant) + "/"
	out, err := exec.Command(binaries.Path("konnectivity"), "check", "--konnectivity-hostname=127.0.0.1", "--konnectivity-port="+strconv.Itoa(server),
		"--server-name="+tenant+".konnectivity.svc", "--ca-cert-path="+dir+"ca.crt", "--tls-cert-path="+dir+"client.crt", "--tls-key-path="+dir+"client.key",
		nodeIP+":"+strconv.Itoa(node)).CombinedOutput()
	return string(out), err
}
