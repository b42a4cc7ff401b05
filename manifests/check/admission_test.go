package check

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	podsecurity "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"

	"konnectivity/internal/testutil"
)

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
				if podsecurity.CompareLevels(level, want) > 0 && refused(level, p) == "" {
					t.Errorf("%s: %s is admitted by %s, too", folder, p.name, level)
				}
			}
		}
	}
}
