package check

import (
	"os"
	"testing"

	"go.yaml.in/yaml/v3"
	"sigs.k8s.io/kind/pkg/apis/config/v1alpha4"
)

// kind reads its configuration as strictly as this, and then makes the cluster.
func TestKindConfiguration(t *testing.T) {
	file, err := os.Open("../kind/cluster.yaml")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var cluster v1alpha4.Cluster
	decoder := yaml.NewDecoder(file)
	decoder.KnownFields(true)
	if err := decoder.Decode(&cluster); err != nil {
		t.Fatal(err)
	}
	v1alpha4.SetDefaultsCluster(&cluster)
	roles := map[v1alpha4.NodeRole]int{}
	for _, node := range cluster.Nodes {
		roles[node.Role]++
	}
	if cluster.APIVersion != "kind.x-k8s.io/v1alpha4" || roles[v1alpha4.ControlPlaneRole] != 3 || roles[v1alpha4.WorkerRole] != 2 {
		t.Errorf("%s: %v", cluster.APIVersion, roles)
	}
}
