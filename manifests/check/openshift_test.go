package check

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	podsecurity "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"

	"konnectivity/internal/testutil"
)

// sidecarComponent is the line of an example that adds the sidecar.
var sidecarComponent = regexp.MustCompile(`(?m)^  - \.\./\.\./(components/\w+)$`)

// The SCC restricted-v2 gives a pod a user and an fsGroup of its namespace's range,
// and refuses one that asks for others.
func TestOpenShiftChoosesUsers(t *testing.T) {
	all := map[string][]pod{}
	for _, folder := range []string{"server/hosted-route", "shared/server-route"} {
		all[folder] = pods(folder, build(t, folder))
	}
	for _, folder := range []string{"server/hosted", "agent/control-plane", "agent/daemonset"} {
		all[folder] = pods(folder, example(t, nil, "resources: [../"+folder+"]\ncomponents: [../components/openshift]\n"))
	}
	for _, folder := range []string{"sidecars/examples/olm", "sidecars/examples/csi-controller", "sidecars/examples/oauth-server", "sidecars/examples/kube-apiserver"} {
		files := os.DirFS(filepath.Join(manifests, folder))
		text := testutil.Must(os.ReadFile(filepath.Join(manifests, folder, "kustomization.yaml")))(t)
		all[folder] = pods(folder, example(t, files, sidecarComponent.ReplaceAllString(string(text), "  - ../sidecars/$1\n  - ../sidecars/components/openshift")))
	}
	for folder, found := range all {
		testutil.AtLeast(t, len(found), 1, "pods of %s", folder)
		for _, p := range found {
			if s := p.spec.SecurityContext; s != nil && (s.RunAsUser != nil || s.RunAsGroup != nil || s.FSGroup != nil) {
				t.Errorf("%s: %s asks for a user or a group: %+v", folder, p.name, s)
			}
			testutil.Equal(t, len(p.ours()), 1, "%s: our containers of %s", folder, p.name)
			for _, c := range p.ours() {
				s := c.SecurityContext
				testutil.Holds(t, s.RunAsUser == nil && s.RunAsGroup == nil, "%s: %s asks for a user or a group: %+v", folder, c.Name, s)
			}
		}
	}
}

// example are the objects of a kustomization beside the others, with files that it
// names.
func example(t *testing.T, files fs.FS, kustomization string) []object {
	t.Helper()
	dir := testutil.Must(os.MkdirTemp(manifests, "example"))(t) // kustomize reads no file above
	defer os.RemoveAll(dir)
	if files != nil {
		testutil.NoError(t, os.CopyFS(dir, files))
	}
	testutil.NoError(t, os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(kustomization), 0o600))
	return build(t, filepath.Base(dir))
}

// levels are the Pod Security Standards of folders whose pods are not restricted, by what the
// folder's name begins with.
var levels = map[string]podsecurity.Level{
	"agent/daemonset-":   podsecurity.LevelPrivileged, // the nodes' network, and its folder for handovers
	"agent/static-pod":   podsecurity.LevelPrivileged,
	byKubeadm:            podsecurity.LevelPrivileged,
	socketClient:         podsecurity.LevelPrivileged, // the socket is in a folder of the node
	"sidecars/examples/": podsecurity.LevelBaseline,   // applications that say nothing
	"sidecars/examples/prometheus-transparent": podsecurity.LevelPrivileged, // NET_ADMIN
}

// A namespace admits the pods of a folder at the level that manifests/README.md says, and at
// no stricter one.
func TestNamespacesAdmitPods(t *testing.T) {
	evaluator := testutil.Must(policy.NewEvaluator(policy.DefaultChecks(), nil))(t)
	refused := func(level podsecurity.Level, p pod) string {
		version := podsecurity.LevelVersion{Level: level, Version: podsecurity.LatestVersion()}
		result := policy.AggregateCheckResults(evaluator.EvaluatePod(version, &metav1.ObjectMeta{}, &p.spec))
		return result.ForbiddenDetail()
	}
	for _, folder := range folders(t) {
		want, longest := podsecurity.LevelRestricted, ""
		for prefix, level := range levels {
			if strings.HasPrefix(folder, prefix) && len(prefix) > len(longest) {
				want, longest = level, prefix
			}
		}
		for _, p := range pods(folder, build(t, folder)) {
			why := refused(want, p)
			testutil.Holds(t, why == "", "%s: %s is refused by %s: %s", folder, p.name, want, why)
			for _, level := range []podsecurity.Level{podsecurity.LevelBaseline, podsecurity.LevelRestricted} {
				testutil.Holds(t, podsecurity.CompareLevels(level, want) <= 0 || refused(level, p) != "",
					"%s: %s is admitted by %s, too", folder, p.name, level)
			}
		}
	}
}
