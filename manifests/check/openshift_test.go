package check

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"testing"

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
				if s := c.SecurityContext; s.RunAsUser != nil || s.RunAsGroup != nil {
					t.Errorf("%s: %s asks for a user or a group: %+v", folder, c.Name, s)
				}
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
