package apiserver

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"konnectivity/internal/testutil"
)

// everything goes by the tunnel, by kubectl and to the last byte.
func (w *world) everything(t *testing.T) {
	w.t = t
	before := w.zone.taken.Load()
	w.logs()
	w.exec()
	w.forward()
	w.do("wait", "apiservice/v1.example.test", "--for=condition=Available", "--timeout=2m")
	testutil.Equal(t, w.do("get", "widgets.example.test", "-n", "apps", "-o", "name"), "widget.example.test/first\n",
		"kubectl get widgets")
	w.webhook()
	testutil.AtLeast(t, w.zone.taken.Load(), before+1, "connections by agents")
	testutil.Equal(t, w.zone.refused.Load(), 0, "connections that went past the agents")
}

func (w *world) logs() {
	w.t.Helper()
	testutil.Holds(w.t, isWholeLog(w.do("logs", "-n", "apps", "hello")),
		"kubectl logs did not print the log")
}

// isWholeLog reports whether text is all that the container wrote.
func isWholeLog(text string) bool {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	for i, line := range lines {
		if line != logLine(i) {
			return false
		}
	}
	return len(lines) == logLines
}

func (w *world) exec() {
	w.t.Helper()
	random := make([]byte, 1<<20)
	_, _ = rand.Read(random)
	sent := hex.EncodeToString(random)
	got := must(w.try(sent, "exec", "-i", "-n", "apps", "hello", "--", "cat"))(w.t)
	testutil.Holds(w.t, got == sent, "kubectl exec: %d bytes came back of %d, or others", len(got), len(sent))
	_, err := w.try("", "exec", "-n", "apps", "hello", "--", "fail")
	var exit *exec.ExitError
	testutil.Holds(w.t, errors.As(err, &exit) && exit.ExitCode() == 7,
		"kubectl exec of what ends with 7: %v", err)
}

// forward opens a port by kubectl and has something echoed.
func (w *world) forward() {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	cmd := w.kubectl(ctx, "", "port-forward", "-n", "apps", "pod/hello", ":8080")
	out := must(cmd.StdoutPipe())(w.t)
	testutil.NoError(w.t, cmd.Start())
	defer func() { cancel(); _ = cmd.Wait() }()
	line := must(bufio.NewReader(out).ReadString('\n'))(w.t)
	address := strings.TrimPrefix(strings.Split(line, " -> ")[0], "Forwarding from ")
	c := must(net.Dial("tcp", address))(w.t)
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	must(io.WriteString(c, "hello\n"))(w.t)
	testutil.Equal(w.t, testutil.Must(bufio.NewReader(c).ReadString('\n'))(w.t), "hello\n", "kubectl port-forward")
}

// webhook has it forbid one config map and allow another.
func (w *world) webhook() {
	w.t.Helper()
	const object = `{apiVersion: v1, kind: ConfigMap, metadata: {generateName: judged-, namespace: apps, labels: {judged: "true"}}, data: {verdict: `
	testutil.Succeeds(w.t, testutil.Err(w.try(object+"allow}}", "create", "-f", "-")),
		"a config map that the webhook allows")
	testutil.ErrorSays(w.t, testutil.Err(w.try(object+"deny}}", "create", "-f", "-")), "the judge said no",
		"a config map that the webhook denies")
}

// servers is how many servers an agent is connected to, and how many it knows of.
func (a *agent) servers(t *testing.T) (open, known float64) {
	t.Helper()
	return metric(t, a.HealthURL("/metrics"), "agent_open_server_connections"), metric(t, a.HealthURL("/metrics"), "agent_known_server_count")
}

// metric is the value of a metric that has no labels.
func metric(t *testing.T, url, name string) (value float64) {
	t.Helper()
	res := must(http.Get(url))(t)
	defer res.Body.Close()
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		if n, _ := fmt.Sscanf(lines.Text(), "konnectivity_network_proxy_"+name+" %g", &value); n == 1 {
			return value
		}
	}
	t.Fatalf("%s has no %s", url, name)
	return 0
}
