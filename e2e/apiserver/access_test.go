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
