package apiserver

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"konnectivity/e2e/suite"
)

// patience is how long anything may take on a machine that does other things
// beside. kube-apiserver alone needs a good part of it to start.
const patience = 3 * time.Minute

// manifests is the folder whose kustomizations are applied and run.
const manifests = "../../manifests"

// others are the programs that are not the suite's.
var others = []string{"kube-apiserver", "kubectl", "kubeadm", "etcd", "helm"}

// programsDir holds them.
var programsDir = flag.String("programs", "", "folder with "+strings.Join(others, ", "))

// binaries are the suite's own, built once; set by TestMain and read only.
var binaries suite.Binaries

func TestMain(m *testing.M) {
	flag.Parse()
	for _, name := range others {
		if _, err := os.Stat(program(name)); err != nil {
			fmt.Fprintf(os.Stderr, "%v: run `make e2e-apiserver`, which builds it\n", err)
			os.Exit(1)
		}
	}
	os.Exit(suite.Main(m, "../..", &binaries))
}

// program is the path of one that the suite does not have.
func program(name string) string { return filepath.Join(*programsDir, name) }
