package apiserver

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"konnectivity/internal/testutil"
)

// must fails the test on err.
func must[T any](v T, err error) func(testing.TB) T { return testutil.Must(v, err) }

// wait asks until the answer is yes.
func wait(t *testing.T, what string, yes func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !yes(); time.Sleep(100 * time.Millisecond) {
		testutil.Requires(t, !time.Now().After(end), "not so after %v: %s", patience, what)
	}
}

// lastBytes is the end of a text.
func lastBytes(text string, n int) string { return text[max(0, len(text)-n):] }

// kubectl is an administrator's command, ready to be run.
func (p *controlPlane) kubectl(ctx context.Context, stdin string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program("kubectl"), args...)
	cmd.Env = append([]string{"KUBECONFIG=" + p.kubeconfig, "HOME=" + p.suite.Dir, "PATH=" + os.Getenv("PATH")}, p.env...)
	cmd.Stdin = strings.NewReader(stdin)
	return cmd
}

// try runs kubectl and returns what it prints.
func (p *controlPlane) try(stdin string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	var stdout, stderr bytes.Buffer
	cmd := p.kubectl(ctx, stdin, args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, stderr.String())
	}
	return stdout.String(), nil
}

// do is try for what must work.
func (p *controlPlane) do(args ...string) string {
	p.t.Helper()
	return must(p.try("", args...))(p.t)
}

// apply creates objects, as strictly as the API can look at them.
func (p *controlPlane) apply(objects string) {
	p.t.Helper()
	must(p.try(objects, "apply", "--validate=strict", "-f", "-"))(p.t)
}

// kubectl finds the operator's tool under its name as a plugin, lists it, and hands over
// arguments, output and exit status.
func TestPlugin(t *testing.T) {
	folder := t.TempDir()
	testutil.NoError(t, os.Symlink(binaries.Path("konnectivity"), filepath.Join(folder, "kubectl-konnectivity")))
	kubectl := func(args ...string) (string, error) {
		cmd := exec.Command(program("kubectl"), args...)
		cmd.Env = []string{"PATH=" + folder, "HOME=" + folder}
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	for args, want := range map[string]string{
		"plugin list":                folder + "/kubectl-konnectivity",
		"konnectivity version":       "version",
		"konnectivity status --help": "\n  kubectl konnectivity status [ADDRESS...]",
	} {
		testutil.Contains(t, testutil.Must(kubectl(strings.Fields(args)...))(t), want, "kubectl %s", args)
	}
	out, err := kubectl("konnectivity", "dial")
	code, ok := err.(*exec.ExitError)
	testutil.Holds(t, ok && code.ExitCode() == 2 && strings.HasPrefix(out, "kubectl konnectivity: want one argument"), "%v: %s", err, out)
}
