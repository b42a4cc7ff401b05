package apiserver

import (
	"fmt"
	"strings"
	"testing"

	"konnectivity/internal/testutil"
)

// tokens checks that reviews of this API admit tokens with the manifests' service
// account and audience, and no others.
func (w *world) tokens(t *testing.T) {
	w.t = t
	w.do("create", "serviceaccount", "-n", "kube-system", "other")
	for name, how := range map[string][]string{
		"another audience": {"konnectivity-agent"},
		"another account":  {"other", "--audience=system:konnectivity-server"},
	} {
		a := *w.agents[0]
		a.in = map[string]string{"/etc/konnectivity/agent/token": w.write("other-token", []byte(w.do(append([]string{"create", "token", "-n", "kube-system"}, how...)...)))}
		for from, to := range w.agents[0].in {
			if a.in[from] == "" {
				a.in[from] = to
			}
		}
		w.launchAgent(&a)
		wait(t, name+" is refused", func() bool { return strings.Contains(a.Output(), "the server refused this agent") })
		open, _ := a.servers(t)
		testutil.Holds(t, open == 0, "with %s an agent has %v connections", name, open)
		stop(t, a.Process)
	}
}

// leases tell agents how many servers there are.
func (w *world) leases(t *testing.T) {
	w.t = t
	namespace := "kube-system"
	if !w.pods {
		namespace = "my-control-plane"
	}
	counted := func(n int) {
		t.Helper()
		wait(t, fmt.Sprintf("agents are at %d servers and know of no more", n), func() bool {
			for _, a := range w.agents {
				if open, known := a.servers(t); open != float64(n) || known != float64(n) {
					return false
				}
			}
			return true
		})
		leases := strings.Fields(w.do("get", "leases", "-n", namespace, "-l", "k8s-app=konnectivity-server", "-o", "name"))
		testutil.Equal(t, len(leases), n, "the leases %v", leases)
	}
	counted(2)
	stop(t, w.servers[1].Process)
	counted(1)
	w.startServer(w.servers[1])
	counted(2)
}

// allowed are questions to the authorizer, and whether the answer is yes.
type allowed map[string]bool

// may asks them about a user: verb resource [namespace].
func (w *world) may(user string, all allowed) {
	w.t.Helper()
	for question, want := range all {
		f := strings.Fields(question)
		args := []string{"auth", "can-i", "--as=" + user, f[0], f[1], "--quiet"}
		if len(f) == 3 {
			args = append(args, "-n", f[2])
		}
		testutil.Equal(w.t, testutil.Err(w.try("", args...)) == nil, want, "may %s %s", user, question)
	}
}

// roles checks that the roles grant what the programs need, and no more.
func (w *world) roles(t *testing.T) {
	w.t = t
	const agent = "system:serviceaccount:kube-system:konnectivity-agent"
	if w.pods {
		w.may("system:konnectivity-server", allowed{
			"create tokenreviews.authentication.k8s.io": true, "get leases kube-system": true, "list leases kube-system": true,
			"create leases kube-system": true, "update leases kube-system": true, "delete leases kube-system": true,
			"get leases apps": false, "get secrets kube-system": false, "list nodes": false,
		})
		w.may(agent, allowed{"list leases kube-system": true, "watch leases kube-system": true, "update leases kube-system": false,
			"list leases apps": false, "create tokenreviews.authentication.k8s.io": false})
		return
	}
	w.may("system:serviceaccount:my-control-plane:konnectivity-server", allowed{
		"get leases my-control-plane": true, "list leases my-control-plane": true, "create leases my-control-plane": true,
		"update leases my-control-plane": true, "delete leases my-control-plane": true,
		"get leases kube-system": false, "get secrets my-control-plane": false, "create tokenreviews.authentication.k8s.io": false,
	})
	w.may(agent, allowed{"list leases kube-system": false})
}
