package apiserver

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"konnectivity/internal/testutil"
)

// controlPlaneNamespace is where kube-apiserver's pod is.
const controlPlaneNamespace = `
apiVersion: v1
kind: Namespace
metadata: {name: my-control-plane}
`

// mostCommands is what the README promises.
const mostCommands = 4

// TestInstall follows the README from a cluster to `kubectl logs`. What
// controllers and kubelets would do with the objects is done here.
func TestInstall(t *testing.T) {
	blocks := installBlocks(t)
	t.Run("chart", func(t *testing.T) {
		i := newInstaller(t)
		job := testutil.Later(func() error { return i.runJob("my-control-plane", "konnectivity-certs") })
		i.follow(blocks[0], "203.0.113.7", "127.0.0.1")
		testutil.NoError(t, <-job)
		i.finish()
	})
	t.Run("kustomize", func(t *testing.T) {
		i := newInstaller(t)
		i.put("my-server/kustomization.yaml", strings.ReplaceAll(i.block("README.md", 0), "path/to/", "../"), 0o600)
		agents := strings.NewReplacer("203.0.113.7", "127.0.0.1", "agent/daemonset-token", "agent/daemonset").Replace(i.block("agent/README.md", 0))
		i.put("my-agents/kustomization.yaml", agents, 0o600)
		i.follow(blocks[1], "203.0.113.7", "127.0.0.1")
		i.finish()
	})
}

var shellBlock = regexp.MustCompile("(?ms)^```sh\n(.*?)^```$")

// installBlocks are the README's commands by chart and by kustomize.
func installBlocks(t *testing.T) (all []string) {
	t.Helper()
	readme := string(must(os.ReadFile("../../README.md"))(t))
	_, section, _ := strings.Cut(readme, "### From a cluster to `kubectl logs`")
	section, _, _ = strings.Cut(section, "\n## ")
	for _, block := range shellBlock.FindAllStringSubmatch(section, -1) {
		all = append(all, block[1])
		testutil.AtMost(t, strings.Count(strings.ReplaceAll(block[1], "\\\n", ""), "\n"), mostCommands,
			"commands of the README")
	}
	testutil.Requires(t, len(all) == 2, "the README has %d ways", len(all))
	return all
}

// installer follows the README, and then runs what the API has.
type installer struct{ *reader }

func newInstaller(t *testing.T) installer {
	t.Helper()
	i := installer{newReader(t)}
	testutil.NoError(t, os.CopyFS(i.dir+"/charts", os.DirFS("../../charts"))) // with its link to the manifests
	i.apply(controlPlaneNamespace + APIServerPod([]string{"kube-apiserver", "--secure-port=6443"}))
	return i
}

// runJob runs a Job once it is there, with the rights of its account, and says
// that it is complete.
func (i installer) runJob(namespace, name string) error {
	var job batchv1.Job
	for end := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		text, err := i.try("", "get", "job", name, "-n", namespace, "-o", "json")
		if err == nil {
			if err := json.Unmarshal([]byte(text), &job); err != nil {
				return err
			}
			break
		}
		if time.Now().After(end) {
			return err
		}
	}
	spec := job.Spec.Template.Spec
	token, err := i.try("", "create", "token", "-n", namespace, spec.ServiceAccountName)
	if err != nil {
		return err
	}
	account := i.userConfig("job", i.apis[0].port, "token: "+strings.TrimSpace(token))
	for _, c := range append(spec.InitContainers, spec.Containers...) {
		if err := i.runOnce(c, account); err != nil {
			return err
		}
	}
	now := time.Now().UTC().Format(time.RFC3339)
	condition := `{"type": %q, "status": "True", "lastTransitionTime": %[2]q, "lastProbeTime": %[2]q}`
	_, err = i.try("", "patch", "job", name, "-n", namespace, "--subresource=status", "-p", fmt.Sprintf(
		`{"status": {"startTime": %[1]q, "completionTime": %[1]q, "succeeded": 1, "conditions": [`+
			fmt.Sprintf(condition, "SuccessCriteriaMet", now)+","+fmt.Sprintf(condition, "Complete", now)+`]}}`, now))
	return err
}

// runOnce runs a container to its end: ours, or kubectl's, whose image starts it.
func (i installer) runOnce(c corev1.Container, kubeconfig string) error {
	command := append(slices.Clone(c.Command), c.Args...)
	switch {
	case slices.Contains(images, c.Image):
		command[0] = binaries.Path(filepath.Base(command[0]))
	case strings.HasPrefix(c.Image, "registry.k8s.io/kubectl:"):
		command = append([]string{program("kubectl")}, command...)
	default:
		return fmt.Errorf("the job runs %s", c.Image)
	}
	for n, arg := range command {
		command[n] = strings.Replace(arg, "/pki/", i.dir+"/job/", 1)
	}
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Env = []string{"KUBECONFIG=" + kubeconfig, "HOME=" + i.dir}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%v: %w\n%s", command, err, out)
	}
	return nil
}

// finish starts the installed workloads, and ends by reading a log.
func (i installer) finish() {
	i.t.Helper()
	const control = "-n my-control-plane deployment "
	in := i.mounted("my-control-plane", i.template(control+"konnectivity-server"))
	in["$(POD_NAME)"], in["$(POD_NAMESPACE)"] = "konnectivity-server-0", "my-control-plane"
	account := strings.TrimSpace(i.do("create", "token", "-n", "my-control-plane", "konnectivity-server"))
	port := testutil.Reserved(i.t)
	s := i.newServer(live+control+"konnectivity-server", in, "--server-bind-address=127.0.0.1", "--server-port="+strconv.Itoa(port),
		"--kubeconfig="+i.userConfig("konnectivity-server", i.apis[0].port, "token: "+account))

	i.restartAPI(i.template(control+"kube-apiserver"), port)
	d := newDataPlane(i.t, i.controlPlane)
	const daemonSet = "-n kube-system daemonset konnectivity-agent"
	template := i.template(daemonSet)
	in = i.mounted("kube-system", template)
	for name, value := range i.settings("kube-system", template.Containers[0]) {
		in["$("+name+")"] = value
	}
	testutil.Equal(i.t, in["$(SERVER_HOST)"], "127.0.0.1", "agents go to")
	in["$(AGENT_ID)"], in["$(SERVER_PORT)"] = "konnectivity-agent-0", strconv.Itoa(s.AgentPort)
	i.startAgent(d, &agent{folder: live + daemonSet, in: in})
	i.join(s)
	before := d.zone.taken.Load()
	testutil.Holds(i.t, isWholeLog(i.do("logs", "-n", "apps", "hello")),
		"kubectl logs did not print the log")
	testutil.Holds(i.t, d.zone.taken.Load() != before && d.zone.refused.Load() == 0,
		"the log did not come through the agent")
}

// template is the pod of a workload that the API has.
func (i installer) template(name string) corev1.PodSpec {
	i.t.Helper()
	var w workload
	testutil.NoError(i.t, yaml.Unmarshal([]byte(i.build(live + name)[0]), &w))
	return w.Spec.Template.Spec
}

// mounted writes the secrets and config maps that the first container mounts,
// and says where they are in place of the container's folders.
func (i installer) mounted(namespace string, spec corev1.PodSpec) map[string]string {
	i.t.Helper()
	in := map[string]string{}
	for _, mount := range spec.Containers[0].VolumeMounts {
		n := slices.IndexFunc(spec.Volumes, func(v corev1.Volume) bool { return v.Name == mount.Name })
		testutil.Requires(i.t, n >= 0, "there is no volume %s", mount.Name)
		files := map[string][]byte{}
		switch v := spec.Volumes[n]; {
		case v.Secret != nil && v.Secret.SecretName == "kube-apiserver": // this test's own
			continue
		case v.Secret != nil:
			var secret corev1.Secret
			i.read(&secret, "secret", v.Secret.SecretName, namespace)
			files = secret.Data
		case v.ConfigMap != nil:
			var config corev1.ConfigMap
			i.read(&config, "configmap", v.ConfigMap.Name, namespace)
			for name, text := range config.Data {
				files[name] = []byte(text)
			}
		case v.Projected != nil:
			for _, source := range v.Projected.Sources {
				var secret corev1.Secret
				i.read(&secret, "secret", source.Secret.Name, namespace)
				for _, item := range source.Secret.Items {
					if data, found := secret.Data[item.Key]; found { // each may be missing
						files[item.Path] = data
					}
				}
			}
		}
		folder := filepath.Join("mounted", namespace, mount.Name)
		for name, data := range files {
			i.put(filepath.Join(folder, name), string(data), 0o600)
		}
		in[mount.MountPath+"/"] = filepath.Join(i.dir, folder) + "/"
	}
	return in
}

// settings are the variables that a container has from config maps.
func (i installer) settings(namespace string, c corev1.Container) map[string]string {
	i.t.Helper()
	out := map[string]string{}
	for _, e := range c.Env {
		if e.ValueFrom == nil || e.ValueFrom.ConfigMapKeyRef == nil {
			continue
		}
		var config corev1.ConfigMap
		i.read(&config, "configmap", e.ValueFrom.ConfigMapKeyRef.Name, namespace)
		out[e.Name] = config.Data[e.ValueFrom.ConfigMapKeyRef.Key]
	}
	return out
}

// read decodes an object that the API has.
func (i installer) read(into any, kind, name, namespace string) {
	i.t.Helper()
	testutil.NoError(i.t, json.Unmarshal([]byte(i.do("get", kind, name, "-n", namespace, "-o", "json")), into))
}

// restartAPI has kube-apiserver do what its Deployment says by now: ask the
// Service for clients, which is on a port of this machine.
func (i installer) restartAPI(spec corev1.PodSpec, port int) {
	i.t.Helper()
	const flag = "--egress-selector-config-file="
	in := i.mounted("my-control-plane", spec)
	command := spec.Containers[0].Command
	file, found := strings.CutPrefix(command[len(command)-1], flag)
	testutil.Requires(i.t, found, "kube-apiserver has the command %q", command)
	moves := []string{"konnectivity-server-local:8090", "localhost:" + strconv.Itoa(port)}
	for from, to := range in {
		moves = append(moves, from, to)
	}
	moved := strings.NewReplacer(moves...)
	config := must(os.ReadFile(moved.Replace(file)))(i.t)
	a := i.apis[0]
	n := slices.IndexFunc(a.args, func(arg string) bool { return strings.HasPrefix(arg, flag) })
	a.args[n] = flag + i.write("egress-installed.yaml", []byte(moved.Replace(string(config))))
	_, err := a.Stop()
	testutil.Requires(i.t, err == nil || errors.Is(err, os.ErrProcessDone), "%v", err)
	i.runAPI(a)
}

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
	job := testutil.Later(func() error { return i.runJob("my-control-plane", "konnectivity-certs") })
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
