package check

import (
	"fmt"
	"os"
	"os/exec"
	"testing"

	"go.uber.org/goleak"

	"konnectivity/e2e/suite"
	"konnectivity/internal/testutil"
)

// controlPlane is the namespace that the hosted control plane is in.
const controlPlane = "clusters-a"

// programs are the binaries, built once; set by TestMain and read only.
var programs suite.Binaries

func TestMain(m *testing.M) {
	status := suite.Main(m, "../..", &programs)
	if err := goleak.Find(); status == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		status = 1
	}
	os.Exit(status)
}

// konnectivity runs the operator's tool.
func konnectivity(t *testing.T, args ...string) {
	t.Helper()
	out, err := exec.Command(programs.Path("konnectivity"), args...).CombinedOutput()
	testutil.Requires(t, err == nil, "konnectivity %v: %v\n%s", args, err, out)
}
