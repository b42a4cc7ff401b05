//go:build helm

package check

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"konnectivity/internal/testutil"
)

// objectsOf are what the chart makes of values, decoded.
func objectsOf(t *testing.T, values string) (objects []object) {
	t.Helper()
	files, err := render(t, loadChart(t), values)
	if err != nil {
		t.Fatalf("%s: %v", values, err)
	}
	for name, text := range files {
		if strings.HasSuffix(name, "NOTES.txt") {
			continue
		}
		for document := range strings.SplitSeq("\n"+text, "\n---\n") {
			if strings.TrimSpace(document) != "" {
				objects = append(objects, decode(t, name, []byte(document)))
			}
		}
	}
	return objects
}

// A port of the node is taken until the pod before has gone: a rollout that starts the next pod
// first would wait for a node without one, which there may not be.
func TestChartStartsNoSecondPodForAPortOfTheNode(t *testing.T) {
	for _, values := range []string{
		"{agent: {hostNetwork: true}}",
		"{agent: {hostNetwork: true, handover: false}}",
		"{agent: {hostNetwork: true, kind: Deployment}}",
		"{agent: {hostNetwork: true, kind: Deployment, autoscaling: {enabled: true}}}",
	} {
		objects := objectsOf(t, values)
		surge := map[string]*intstr.IntOrString{}
		for _, d := range each[appsv1.Deployment](objects) {
			surge[d.Name] = d.Spec.Strategy.RollingUpdate.MaxSurge
		}
		for _, d := range each[appsv1.DaemonSet](objects) {
			surge[d.Name] = d.Spec.UpdateStrategy.RollingUpdate.MaxSurge
		}
		inNode := 0
		for _, p := range pods(values, objects) {
			if !p.spec.HostNetwork {
				continue
			}
			inNode++
			ports := len(p.spec.Containers[0].Ports)
			if n := testutil.Must(intstr.GetScaledValueFromIntOrPercent(intstr.ValueOrDefault(surge[p.name], intstr.FromInt32(0)), 10, true))(t); n > 0 && ports > 0 {
				t.Errorf("%s: %s has %d ports of the node, and %d pods more than nodes may be needed", values, p.name, ports, n)
			}
		}
		if inNode != 1 {
			t.Errorf("%s: %d kinds of pods are in the node's network, want the agents", values, inNode)
		}
	}
}
