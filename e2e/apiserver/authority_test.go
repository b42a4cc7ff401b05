package apiserver

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

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

// proberMay lets the account reach one port of one destination.
const proberMay = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: reach}
rules: [{apiGroups: [konnectivity.internal], resources: [destinations/%s], resourceNames: ["127.0.0.1"], verbs: [connect]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: reach}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: reach}
subjects: [{kind: ServiceAccount, name: prober, namespace: control}]
`

// TestAccess has a sidecar come with its account's token, and RBAC of that API say what it
// reaches.
func TestAccess(t *testing.T) {
	p := newControlPlane(t)
	a := p.addAPI(direct)
	p.do("create", "namespace", "control")
	p.do("create", "serviceaccount", "prober", "-n", "control")
	p.do("create", "clusterrolebinding", "reviews", "--clusterrole=system:auth-delegator", "--user=reviewer")
	srv := must(p.suite.StartServer("--client-service-accounts=control/prober", "--client-authentication-audience=konnectivity",
		"--client-kubeconfig="+p.clientOf("reviewer", a.port), "--client-access-review"))(t)
	must(p.suite.StartAgent(srv))(t)
	target := testutil.Echo(t)
	_, port, _ := net.SplitHostPort(target)
	token := p.write("token", []byte(p.do("create", "token", "prober", "-n", "control", "--audience=konnectivity")))
	front := must(p.suite.StartHTTPS(srv, "--tls-cert-path=", "--tls-key-path=", "--token-path="+token))(t)
	ask := func(address string) (status int, text string) {
		c := must(net.Dial("tcp", front.Address()))(t)
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(patience))
		must(fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %[1]s\r\n\r\n", address))(t)
		resp := must(http.ReadResponse(bufio.NewReader(c), &http.Request{Method: http.MethodConnect}))(t)
		if resp.StatusCode != http.StatusOK {
			body, _ := io.ReadAll(resp.Body)
			text = string(body)
		}
		return resp.StatusCode, text
	}
	want := "does not let system:serviceaccount:control:prober connect to destinations/" + port + " 127.0.0.1 of konnectivity.internal"
	if status, text := ask(target); status != http.StatusForbidden || !strings.Contains(text, want) {
		t.Errorf("without a role: %d, %q", status, text)
	}
	p.apply(fmt.Sprintf(proberMay, port))
	wait(t, "the role counts", func() bool { status, _ := ask(target); return status == http.StatusOK })
	other := net.JoinHostPort("127.0.0.1", strconv.Itoa(a.port))
	if status, text := ask(other); status != http.StatusForbidden {
		t.Errorf("another port: %d, %q", status, text)
	}
	p.do("delete", "clusterrolebinding", "reach")
	wait(t, "it counts no more", func() bool { status, _ := ask(target); return status == http.StatusForbidden })
}
