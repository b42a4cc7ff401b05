package apiserver

import (
	"os"
	"strings"
	"testing"

	"konnectivity/internal/testutil"
)

// The chart of a release, and your image, as the chart's README has them.
const (
	ofChart = "konnectivity-0.2.0.tgz"
	image   = "registry.example.com/konnectivity"
)

// TestChartComesBack installs both ends in one cluster by the chart's README,
// changes the release, removes it, and installs it again: it finds the
// certificates that it left, and says which of them is missing.
func TestChartComesBack(t *testing.T) {
	i := newInstaller(t)
	readme := string(must(os.ReadFile("../../charts/konnectivity/README.md"))(t))
	install, _, _ := strings.Cut(readme, "\n```\n\nFor a control plane in one cluster and")
	_, install, found := strings.Cut(install, "in one cluster:\n\n```\n")
	testutil.Requires(t, found, "the chart's README does not say how to install it in one cluster")
	install = strings.NewReplacer(ofChart, "charts/konnectivity", image, image+",image.tag=v1.0.0").Replace(install)
	job := make(chan error, 1)
	go func() { job <- i.runJob("my-control-plane", "konnectivity-certs") }()
	i.follow(install)
	testutil.NoError(t, <-job)
	signer := i.signer()
	i.follow("helm -n my-control-plane upgrade konnectivity charts/konnectivity --reuse-values --set server.replicas=5")
	testutil.Equal(t, i.do("get", "deployment", "-n", "my-control-plane", "konnectivity-server", "-o", "jsonpath={.spec.replicas}"),
		"5", "servers after an upgrade")

	i.follow("helm -n my-control-plane uninstall konnectivity")
	testutil.Equal(t, i.workloads(), "", "what uninstalling leaves")
	i.do("get", "configmap", "-n", "my-control-plane", "konnectivity-egress-selector")
	i.follow(install) // without the Job, which no controller runs here
	testutil.Holds(t, i.workloads() != "" && i.signer() == signer,
		"installing again changes the certificates, or installs nothing")

	i.follow("helm -n my-control-plane uninstall konnectivity")
	i.do("delete", "secret", "-n", "my-control-plane", "konnectivity-agent")
	out, err := i.shell(install)
	testutil.Holds(t, err != nil && strings.Contains(out, "konnectivity-agent"), "installing without a secret: %v\n%s", err, out)

	_, deletions, _ := strings.Cut(readme, "To delete what is left")
	_, deletions, _ = strings.Cut(deletions, "```\n")
	deletions, _, _ = strings.Cut(deletions, "```\n")
	i.do("create", "-n", "my-control-plane", "-f", i.write("lease.yaml", []byte("apiVersion: coordination.k8s.io/v1\nkind: Lease\n"+
		"metadata: {name: konnectivity-proxy-server-0, labels: {k8s-app: konnectivity-server}}\n"))) // no server runs here
	for command := range strings.Lines(deletions) {
		i.follow(command)
	}
	left := i.do("get", "leases,secrets,configmaps,serviceaccounts,roles,rolebindings", "-n", "my-control-plane", "-o", "name")
	testutil.Holds(t, !strings.Contains(left, "konnectivity") && deletions != "", "what is left:\n%s", left)
}

// workloads are the names of what the chart runs, and of its Services.
func (i installer) workloads() string {
	i.t.Helper()
	return i.do("get", "deployments,daemonsets,jobs,services", "-n", "my-control-plane", "-l", "app.kubernetes.io/part-of=konnectivity", "-o", "name")
}

// signer is the key that certificates are signed by.
func (i installer) signer() string {
	i.t.Helper()
	return i.do("get", "secret", "-n", "my-control-plane", "konnectivity-signer", "-o", `jsonpath={.data.ca\.key}`)
}
