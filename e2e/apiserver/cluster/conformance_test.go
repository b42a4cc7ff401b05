package cluster

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"konnectivity/internal/testutil"
)

// conformanceImages are Kubernetes' test images of programs that its own modules have.
// Their tags are those of test/utils/image/manifest.go.
var conformanceImages = map[string]map[string]string{
	"registry.k8s.io/e2e-test-images/agnhost:2.66.1":          {"agnhost": "agnhost", "localhost.crt": "localhost.crt", "localhost.key": "localhost.key"},
	"registry.k8s.io/e2e-test-images/agnhost:2.55":            {"agnhost": "agnhost"},
	"registry.k8s.io/e2e-test-images/busybox:1.37.0-2":        {},
	"registry.k8s.io/e2e-test-images/sample-apiserver:1.29.2": {"sample-apiserver": "sample-apiserver"},
	"registry.k8s.io/etcd:3.7.0-0":                            {"usr/local/bin/etcd": "etcd"},
	"registry.k8s.io/pause:3.10.2":                            {},
}

// throughTheTunnel are the tests whose control plane asks nodes, pods or Services for more
// than a log at their end. Each line is a process.
var throughTheTunnel = []string{
	`\[sig-cli\] Kubectl client (Simple pod|Kubectl (copy|run pod|cluster-info dump))`,
	`\[sig-cli\] Kubectl (logs|exec|Port forwarding)`,
	`\[sig-network\] Proxy`,
	`\[sig-api-machinery\] (AdmissionWebhook|Aggregator|CustomResourceConversionWebhook)`,
	`\[sig-node\] (Pods .*over websockets|Kubelet|Ephemeral Containers)`,
}

// notHere are those of them that cannot be run on these clusters. docs/conformance.md has the reasons.
const notHere = `\[Serial\]|\[Disruptive\]|\[Feature:|in-cluster config`

// TestConformance runs Kubernetes' own end-to-end tests of requests that go through the tunnel,
// and compares the list of those that passed with docs/conformance.md.
func TestConformance(t *testing.T) {
	if _, err := os.Stat(program("conformance")); err != nil {
		t.Skip("needs Kubernetes' tests: make conformance")
	}
	if !isolate(t) {
		return
	}
	node := bootByTheTunnel(t, "")
	w := node.world
	node.startProxy(localAPI)
	node.loadConformance()
	w.rolledOut() // the kube-apiserver before dials nodes itself

	var running sync.WaitGroup
	for i, focus := range throughTheTunnel {
		out := fmt.Sprint(w.dir, "/conformance-", i)
		log := must(os.Create(out + ".log"))(t)
		defer log.Close()
		running.Go(func() {
			cmd := exec.Command(program("conformance"), "-kubeconfig="+w.nodes.kubeconfig, "-provider=skeleton", "-kubectl-path="+program("kubectl"),
				"-ginkgo.focus="+focus, "-ginkgo.skip="+notHere, "-ginkgo.json-report="+out+".json", "-ginkgo.timeout=50m")
			cmd.Env = append(os.Environ(), "HOME="+w.dir)
			cmd.Stdout, cmd.Stderr = log, log
			testutil.Succeeds(t, cmd.Run(), "%s", focus)
		})
	}
	running.Wait()
	var passed []string
	for i := range throughTheTunnel {
		passed = append(passed, results(t, fmt.Sprint(w.dir, "/conformance-", i, ".json"))...)
	}
	slices.Sort(passed)
	testutil.Contains(t, source(t, "docs/conformance.md"), "```\n"+strings.Join(passed, "\n")+"\n```\n",
		"docs/conformance.md")
}

// loadConformance brings Kubernetes' test images there, each with busybox.
func (m *machine) loadConformance() {
	m.t.Helper()
	links := m.t.TempDir()
	shell(m.t, `busybox --install -s "$1"`, links)
	applets := map[string]string{"usr/bin/busybox": "/bin/busybox"} // where the links lead
	for _, name := range must(os.ReadDir(links))(m.t) {
		applets["bin/"+name.Name()] = filepath.Join(links, name.Name())
	}
	for image, files := range conformanceImages {
		all := maps.Clone(applets)
		for name, from := range files {
			all[name] = program(from)
		}
		must(m.ctr("images", "import", m.pack(image, all)))(m.t)
	}
}

// results are the names of the tests that passed. It fails the test for those that did not.
func results(t *testing.T, path string) (passed []string) {
	t.Helper()
	var reports []struct {
		SpecReports []struct {
			ContainerHierarchyTexts           []string
			LeafNodeText, LeafNodeType, State string
			Failure                           struct{ Message string }
		}
	}
	testutil.NoError(t, json.Unmarshal(must(os.ReadFile(path))(t), &reports))
	for _, report := range reports {
		for _, spec := range report.SpecReports {
			name := strings.Join(append(spec.ContainerHierarchyTexts, spec.LeafNodeText), " ")
			switch {
			case spec.State == "passed" && spec.LeafNodeType == "It":
				passed = append(passed, name)
			case spec.State == "skipped" && spec.Failure.Message != "":
				fmt.Printf("skipped: %s: %s\n", name, spec.Failure.Message)
			case spec.State != "passed" && spec.State != "skipped":
				t.Errorf("%s: %s: %s", spec.State, name, spec.Failure.Message)
			}
		}
	}
	return passed
}
