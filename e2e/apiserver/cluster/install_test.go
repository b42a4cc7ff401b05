package cluster

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"konnectivity/internal/testutil"
)

// hello is the pod whose log is read, and Services of it, one of which has no IPv4 address.
const hello = `
apiVersion: v1
kind: Service
metadata: {name: hello}
spec: {selector: {app: hello}, ports: [{name: web, port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: hello6}
spec: {ipFamilies: [IPv6], selector: {app: hello}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Pod
metadata: {name: hello, labels: {app: hello}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
    - name: hello
      image: docker.io/library/hello:example
      command: [/bin/sh, -c, "echo the tunnel works; echo the tunnel works > /index.html; httpd -p 8080 -h /; sleep 100000"]
`

const line = "the tunnel works\n"

// mostCommands is what the README promises.
const mostCommands = 4

func TestChart(t *testing.T) {
	if isolate(t) {
		newWorld(t).install(blocks(t)[0], nil)
	}
}

func TestKustomize(t *testing.T) { installByKustomize(t, outsideIP) }

// Agents can find servers by IPv6.
func TestKustomizeIPv6(t *testing.T) { installByKustomize(t, outsideIP6) }

// installByKustomize has agents connect to address.
func installByKustomize(t *testing.T, address string) {
	if isolate(t) {
		server := strings.ReplaceAll(block(t, "manifests/README.md"), "path/to/", "../")
		agents := strings.Replace(block(t, "manifests/agent/README.md"), "agent/daemonset-token", "agent/daemonset", 1)
		at := strings.NewReplacer(outsideIP, address)
		newWorld(t).install(at.Replace(blocks(t)[1]), map[string]string{"my-server": server, "my-agents": at.Replace(agents)})
	}
}

var (
	fence = regexp.MustCompile("(?ms)^```(?:sh|yaml)\n(.*?)^```$")
	turn  = regexp.MustCompile(`\\\n`)

	anyFence = regexp.MustCompile("(?ms)^```(?:yaml)?\n(.*?)^```$")
)

// blocks are the README's commands by chart and by kustomize.
func blocks(t *testing.T) (all []string) {
	t.Helper()
	_, section, _ := strings.Cut(source(t, "README.md"), "### From a cluster to `kubectl logs`")
	section, _, _ = strings.Cut(section, "\n## ")
	for _, b := range fence.FindAllStringSubmatch(section, -1) {
		all = append(all, turn.ReplaceAllString(b[1], ""))
	}
	testutil.Requires(t, len(all) == 2, "the README has %d ways", len(all))
	return all
}

// block is the first of a README.
func block(t *testing.T, readme string) string {
	t.Helper()
	found := fence.FindStringSubmatch(source(t, readme))
	testutil.Requires(t, found != nil, "%s has no block", readme)
	return found[1]
}

func source(t *testing.T, path string) string {
	t.Helper()
	return string(must(os.ReadFile(*sources + "/" + path))(t))
}

// install follows the README, with no change but where files are, and prints how
// long each command took, and how long it was until a log came.
func (w *world) install(commands string, kustomizations map[string]string) {
	t := w.t
	w.nodes.do(hello, "apply", "-f", "-")
	wait(t, "hello runs", func() error {
		out, err := w.nodes.try("", "get", "pod", "hello", "-o", "jsonpath={.status.phase}")
		if err == nil && out != "Running" {
			err = fmt.Errorf("it is %q", out)
		}
		return err
	})
	if out, err := w.logs(); err == nil {
		t.Fatalf("the log came before there was a tunnel: %s", out)
	}
	dir := w.unpack()
	write(t, dir+"/nodes", string(must(os.ReadFile(w.nodes.kubeconfig))(t)))
	for name, text := range kustomizations {
		write(t, dir+"/"+name+"/kustomization.yaml", text)
	}
	begin := time.Now()
	count := 0
	for command := range strings.Lines(commands) {
		count++
		start := time.Now()
		w.follow(command, "sh")
		fmt.Printf("%5.1f s  %.60s\n", time.Since(start).Seconds(), command)
	}
	wait(t, "kubectl logs works", func() error {
		out, err := w.logs()
		if err == nil && out != line {
			err = fmt.Errorf("it is %q", out)
		}
		return err
	})
	testutil.AtMost(t, count, mostCommands, "commands of the README")
	fmt.Printf("%5.1f s  until kubectl logs, by %d commands\n", time.Since(begin).Seconds(), count)
	w.rolledOut()
	for range 5 {
		testutil.Equal(t, testutil.Must(w.logs())(t), line, "at the end")
	}
	w.subresources()
}

// unpack makes a folder with what a release contains.
func (w *world) unpack() (dir string) {
	w.t.Helper()
	dir = w.t.TempDir()
	w.installed = dir
	for _, folder := range []string{"charts", "manifests"} {
		shell(w.t, `cp -r "$1" "$2"`, must(filepath.Abs(*sources+"/"+folder))(w.t), dir)
	}
	shell(w.t, `mkdir "$1"; tar -xzf "$2" -C "$1" --strip-components=1`, dir+"/bin", filepath.Join(*dist, "konnectivity_1.0.0_linux_"+runtime.GOARCH+".tar.gz"))
	return dir
}

// follow has a shell run commands of a page in that folder.
func (w *world) follow(commands string, shell ...string) {
	w.t.Helper()
	dir := w.installed
	cmd := exec.Command(shell[0], append(shell[1:], "-eu", "-c", commands)...)
	cmd.Dir = dir
	cmd.Env = []string{"KUBECONFIG=" + w.control.kubeconfig, "HOME=" + dir, "PATH=" + dir + "/bin:" + must(filepath.Abs(*programs))(w.t) + ":" + os.Getenv("PATH")}
	out, err := cmd.CombinedOutput()
	testutil.Requires(w.t, err == nil, "%s%v:\n%s", commands, err, out)
}

// rolledOut waits until kube-apiserver has been replaced and all servers are ready.
func (w *world) rolledOut() {
	w.t.Helper()
	w.control.do("", "-n", "my-control-plane", "rollout", "status", "deployment/kube-apiserver", "--timeout=50s")
	w.control.do("", "-n", "my-control-plane", "rollout", "status", "deployment/konnectivity-server", "--timeout=50s")
	wait(w.t, "the old kube-apiserver is gone", func() error {
		out, err := w.control.try("", "-n", "my-control-plane", "get", "pods", "--selector=app=kube-apiserver", "-o", "name")
		if n := strings.Count(out, "\n"); err == nil && n != 1 {
			err = fmt.Errorf("there are %d", n)
		}
		return err
	})
}

// subresources asks for what monitoring of many clusters scrapes through their
// kube-apiservers, as Gardener's does.
func (w *world) subresources() {
	for path, want := range map[string]string{
		"nodes/node-1/proxy/metrics":                       "\nkubelet_running_pods ",
		"namespaces/default/pods/hello:8080/proxy/":        line,
		"namespaces/default/services/hello:web/proxy/":     line,
		"namespaces/default/services/hello6:80/proxy/":     line,
		"namespaces/default/services/http:hello:80/proxy/": line,
	} {
		wait(w.t, path, func() error {
			out, err := w.nodes.try("", "get", "--raw", "/api/v1/"+path)
			if err == nil && !strings.Contains(out, want) {
				err = fmt.Errorf("%.200q has no %q", out, want)
			}
			return err
		})
	}
}

func (w *world) logs() (string, error) { return w.nodes.try("", "logs", "hello") }

// explain prints what the clusters know of a failure.
func (w *world) explain() {
	if !w.t.Failed() {
		return
	}
	for _, c := range []*cluster{w.control, w.nodes} {
		pods, _ := c.try("", "get", "pods", "--all-namespaces", "-o", "wide")
		events, _ := c.try("", "get", "events", "--all-namespaces")
		w.t.Logf("%s:\n%s\n%s", c.name, pods, lastLines(events))
	}
	for _, pattern := range []string{"default_hello", "kube-system_konnectivity", "my-control-plane_"} {
		logs, _ := filepath.Glob(w.dir + "/*/logs/" + pattern + "*/*/*.log")
		for _, log := range logs {
			text, _ := os.ReadFile(log)
			w.t.Logf("%s:\n%s", log, lastLines(string(text)))
		}
	}
}
