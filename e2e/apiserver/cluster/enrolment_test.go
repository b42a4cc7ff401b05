package cluster

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"konnectivity/e2e/apiserver"
	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
)

// serverDemandsIDs has the servers of the README take the ids of certificates only.
const serverDemandsIDs = `patches:
  - target: {kind: Deployment, name: konnectivity-server}
    patch: |
      - {op: add, path: /spec/template/spec/containers/0/args/-, value: --agent-id-policy=certificate}
`

// notAnAgent asks the signer for a certificate, with a service account that is not the
// agents'.
const notAnAgent = `
apiVersion: v1
kind: Pod
metadata: {name: stranger, namespace: kube-system}
spec:
  containers: [{name: hello, image: docker.io/library/hello:example, command: [/bin/sleep, "100000"], volumeMounts: [{name: agent, mountPath: /agent}]}]
  volumes: [{name: agent, projected: {sources: [{podCertificate: {signerName: konnectivity.internal/agent, keyType: ED25519, credentialBundlePath: agent.pem}}]}}]
`

// TestEnrolment follows docs/enrolment.md: kubelet asks for the agent's certificate, and no
// Secret is copied. Others' pods are denied one, and a node's certificate is good for that
// node's id alone.
func TestEnrolment(t *testing.T) {
	if !isolate(t) {
		return
	}
	w := newWorld(t)
	if _, err := w.nodes.try("", "get", "--raw", apiserver.PodCertificates); err != nil {
		t.Skip("needs Kubernetes 1.37: ", err)
	}
	w.nodes.do(hello, "apply", "-f", "-")
	dir := w.unpack()
	write(t, dir+"/nodes", string(must(os.ReadFile(w.nodes.kubeconfig))(t)))
	signer := w.nodes.userConfig("konnectivity-signer", pki.Leaf{CommonName: "konnectivity-signer"})
	flat := must(exec.Command(program("kubectl"), "--kubeconfig="+signer, "config", "view", "--raw", "--flatten").Output())(t)
	write(t, dir+"/signer.kubeconfig", string(flat))
	pages := pagesOf(t, "docs/enrolment.md")
	write(t, dir+"/my-server/kustomization.yaml", strings.ReplaceAll(block(t, "manifests/README.md"), "path/to/", "../")+serverDemandsIDs)
	write(t, dir+"/my-signer/kustomization.yaml", pages[0])
	write(t, dir+"/my-agents/kustomization.yaml", pages[1])
	for command := range strings.Lines(blocks(t)[1]) {
		if !strings.Contains(command, "my-agents") {
			w.follow(command, "sh")
		}
	}
	began := time.Now()
	w.follow(pages[2], "sh")
	wait(t, "the agent is connected", func() error {
		_, err := w.nodes.try("", "-n", "kube-system", "rollout", "status", "daemonset/konnectivity-agent", "--timeout=50s")
		return err
	})
	fmt.Printf("%5.1f s  until the agent has a certificate and is connected\n", time.Since(began).Seconds())
	w.rolledOut()
	wait(t, "kubectl logs works", func() error {
		out, err := w.logs()
		if err == nil && out != line {
			err = fmt.Errorf("it is %q", out)
		}
		return err
	})
	testutil.Equal(t, w.nodes.do("", "-n", "kube-system", "get", "secrets", "-o", "name"), "",
		"secrets of the nodes' cluster")
	w.nodes.do(notAnAgent, "apply", "-f", "-")
	wait(t, "the stranger is denied", func() error {
		const verdicts = `{range .items[?(@.spec.podName=="stranger")]}{.status.conditions[*].type} {.status.conditions[*].reason} {end}`
		out, err := w.nodes.try("", "-n", "kube-system", "get", "podcertificaterequests", "-o", "jsonpath="+verdicts)
		if err == nil && !strings.HasPrefix(out, "Denied NotAnAgent ") {
			err = fmt.Errorf("it is %q", out)
		}
		return err
	})
	w.isItsNodeAlone()
}

// pagesOf are the blocks of a page that a reader uses: files, then commands.
func pagesOf(t *testing.T, page string) (all []string) {
	t.Helper()
	for _, b := range anyFence.FindAllStringSubmatch(source(t, page), -1) {
		all = append(all, b[1])
	}
	return all
}

// isItsNodeAlone starts an agent with the node's certificate and another node's id, which is
// refused, and one with the node's own.
func (w *world) isItsNodeAlone() {
	t := w.t
	bundles := must(filepath.Glob(w.dir + "/node-1/kubelet/pods/*/volumes/kubernetes.io~projected/agent/agent.pem"))(t)
	testutil.Requires(t, len(bundles) == 1, "credentials are %q", bundles)
	text := must(os.ReadFile(bundles[0]))(t)
	pair := must(tls.X509KeyPair(text, text))(t)
	if block, _ := pem.Decode(text); block.Type != "PRIVATE KEY" || pair.Leaf.Subject.String() != "CN=node-1" {
		t.Errorf("the bundle begins with a %s, and the certificate is of %s", block.Type, pair.Leaf.Subject)
	}
	trust := must(os.ReadFile(filepath.Dir(bundles[0]) + "/ca.crt"))(t)
	testutil.Holds(t, x509.NewCertPool().AppendCertsFromPEM(trust), "the bundle of CAs is %q", trust)
	for id, want := range map[string]string{"node-2": "may not have the id", "node-1": "connected to server"} {
		agent := w.start("agent", "nsenter", "--net="+nodesNet, filepath.Join(w.installed, "bin", "konnectivity-agent"), "--agent-id="+id,
			"--proxy-server-host="+outsideIP, "--ca-cert="+filepath.Dir(bundles[0])+"/ca.crt", "--agent-cert="+bundles[0], "--agent-key="+bundles[0],
			"--health-server-port=18093", "--health-server-host=127.0.0.1", "--admin-server-port=0")
		wait(t, id+" hears "+want, func() error {
			if out := agent.Output(); !strings.Contains(out, want) {
				return fmt.Errorf("it says %s", lastLines(out))
			}
			return nil
		})
		agent.Kill()
	}
}
