package sidecar

import (
	"maps"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"konnectivity/internal/front"
	"konnectivity/internal/testutil"
)

// Every metric is documented, with the values of its labels.
func TestMetricsAreDocumented(t *testing.T) {
	w := newWorld(t)
	args := []string{"--http-serving-port=" + strconv.Itoa(testutil.Reserved(t)), "--audit-log=" + filepath.Join(t.TempDir(), "audit")}
	if front.Redirects {
		args = append(args, "--transparent-port="+strconv.Itoa(testutil.Reserved(t)))
	}
	s := testutil.Must(compose(w.options(SOCKS5, args...), logTo(new(testutil.Output))))(t)
	defer s.Close()
	const own, page, others = "konnectivity_sidecar_", "../../../docs/sidecars.md", "../../../docs/metrics.md"
	documented := testutil.DocumentedLabels(t, page, "Metrics")
	maps.Copy(documented, testutil.DocumentedLabels(t, others, "Certificates", "Audit log"))
	for name, labels := range testutil.DocumentedLabels(t, others, "Of both") {
		documented[own+name] = labels
	}
	all := testutil.Must(s.Registry.Gather())(t)
	for _, f := range all {
		name := f.GetName()
		_, known := documented[name]
		ours := strings.HasPrefix(name, "konnectivity_") && name != "konnectivity_build_info"
		testutil.Holds(t, known || !ours, "%s is in neither page", name)
	}
	documented.Check(t, "", all, "konnectivity_socks5_requests_total", "konnectivity_https_proxy_requests_total", "konnectivity_transparent_requests_total",
		"konnectivity_sidecar_dials_total")
}
