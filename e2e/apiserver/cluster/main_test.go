package cluster

import (
	"bytes"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"konnectivity/e2e/suite"
	"konnectivity/internal/testutil"
)

// patience is how long anything may take on a machine that does other things
// beside.
const patience = 3 * time.Minute

var (
	programs = flag.String("programs", "", "folder with kube-apiserver, kubelet and so on")
	dist     = flag.String("dist", "", "folder of a release v1.0.0 of this system")
	sources  = flag.String("sources", "../../..", "folder of the sources")
)

func TestMain(m *testing.M) {
	if address := os.Getenv(echoIn); address != "" {
		serveEcho(address)
	}
	m.Run()
}

// isolated is set in the process whose namespaces are its own.
const isolated = "KONNECTIVITY_ISOLATED"

// isolate runs the test once more, as process 1 of namespaces of its own, and
// says whether this is that run. Whatever is started there ends with it.
func isolate(t *testing.T) bool {
	t.Helper()
	if os.Getenv(isolated) != "" {
		return true
	}
	if *programs == "" || *dist == "" {
		t.Skip("needs root, a release and many programs: make e2e-cluster")
	}
	args := append([]string{"--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", os.Args[0]}, os.Args[1:]...)
	cmd := exec.Command("unshare", append(args, "-test.run=^"+t.Name()+"$", "-test.count=1")...)
	cmd.Env = append(os.Environ(), isolated+"=1")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	p := must(suite.StartCommand("unshare", cmd))(t)
	<-p.Done()
	if code, err := p.Wait(patience); err != nil || code != 0 {
		t.Errorf("%d, %v\n%s", code, err, out.String())
	} else {
		t.Log("\n" + out.String())
	}
	return false
}

func program(name string) string { return filepath.Join(*programs, name) }

// must fails the test on err.
func must[T any](v T, err error) func(testing.TB) T { return testutil.Must(v, err) }

// shell runs commands that must work.
func shell(t *testing.T, commands string, args ...string) {
	t.Helper()
	cmd := exec.Command("sh", append([]string{"-eux", "-c", commands, "shell"}, args...)...)
	out, err := cmd.CombinedOutput()
	testutil.Requires(t, err == nil, "%v:\n%s", err, out)
}

// wait asks until there is nothing wrong.
func wait(t *testing.T, what string, wrong func() error) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		err := wrong()
		if err == nil {
			return
		}
		testutil.Requires(t, !time.Now().After(end), "not so after %v: %s: %v", patience, what, err)
	}
}

// lastLines is the end of a log.
func lastLines(text string) string {
	lines := strings.Split(text, "\n")
	lines = lines[max(0, len(lines)-30):]
	for i, l := range lines {
		lines[i] = l[:min(len(l), 400)]
	}
	return strings.Join(lines, "\n")
}

func write(t *testing.T, path, text string) string {
	t.Helper()
	testutil.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	testutil.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}
