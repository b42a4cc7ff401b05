package check

import (
	"os"
	"testing"

	"go.yaml.in/yaml/v3"
	"sigs.k8s.io/kind/pkg/apis/config/v1alpha4"

	"konnectivity/internal/testutil"
)

// kind reads its configuration as strictly as this, and then makes the cluster.
func TestKindConfiguration(t *testing.T) {
	file := testutil.Must(os.Open("../kind/cluster.yaml"))(t)
	defer file.Close()
	var cluster v1alpha4.Cluster
	decoder := yaml.NewDecoder(file)
	decoder.KnownFields(true)
	testutil.NoError(t, decoder.Decode(&cluster))
	v1alpha4.SetDefaultsCluster(&cluster)
	roles := map[v1alpha4.NodeRole]int{}
	for _, node := range cluster.Nodes {
		roles[node.Role]++
	}
	if cluster.APIVersion != "kind.x-k8s.io/v1alpha4" || roles[v1alpha4.ControlPlaneRole] != 3 || roles[v1alpha4.WorkerRole] != 2 {
		t.Errorf("%s: %v", cluster.APIVersion, roles)
	}
}
