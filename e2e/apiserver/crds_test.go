package apiserver

import (
	"encoding/json"
	"os/exec"
	"path/filepath"

	"konnectivity/internal/testutil"
)

// kindsOfOthers are modules, in the versions whose types manifests/check decodes
// into, and the definitions in them that kustomizations use.
var kindsOfOthers = map[string]string{
	"sigs.k8s.io/gateway-api":  "config/crd/standard/gateway.networking.k8s.io_tlsroutes.yaml",
	"github.com/openshift/api": "route/v1/zz_generated.crd-manifests/routes.crd.yaml",
}

// define gives the API the kinds of others.
func (p *controlPlane) define() {
	p.t.Helper()
	for path, file := range kindsOfOthers {
		out := must(exec.Command("go", "mod", "download", "-C", filepath.Join(manifests, "check"), "-json", path).Output())(p.t)
		var module struct{ Dir string }
		testutil.NoError(p.t, json.Unmarshal(out, &module))
		p.do("apply", "--server-side", "-f", filepath.Join(module.Dir, file))
	}
	p.do("wait", "crd", "--all", "--for=condition=Established", "--timeout=2m")
}
