package client_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"konnectivity/internal/testutil"
)

var moduleRoot string

// outside is a program of another module.
const outside = `package main

import (
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"

	"konnectivity/client"
)

func main() {
	var options client.Options
	options.AddFlags(flag.CommandLine)
	flag.Parse()
	c, err := client.New(options)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	defer c.Close()
	answer, err := (&http.Client{Transport: &http.Transport{DialContext: c.DialContext}}).Get(flag.Arg(0))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	defer answer.Body.Close()
	_, _ = io.Copy(os.Stdout, answer.Body)
}
`

// A module outside the tree needs a replace line and nothing else, and few other modules.
func TestAnotherModule(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		testutil.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700))
		testutil.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	write("go.mod", fmt.Sprintf("module example.com/driver\n\ngo 1.26.0\n\nrequire konnectivity v0.0.0\n\nreplace konnectivity => %s\n", testutil.Must(filepath.Abs(moduleRoot))(t)))
	write("go.sum", string(testutil.Must(os.ReadFile(filepath.Join(moduleRoot, "go.sum")))(t))) // else the checksum database is asked
	manual := string(testutil.Must(os.ReadFile(filepath.Join(moduleRoot, "docs/client.md")))(t))
	_, shown, _ := strings.Cut(manual, "```go\n")
	shown, _, _ = strings.Cut(shown, "```")
	write("shown/main.go", shown)
	write("driver/main.go", outside)
	run := func(name string, args ...string) string {
		t.Helper()
		cmd := exec.Command(name, args...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOFLAGS=-mod=mod -trimpath", "GOWORK=off", "CGO_ENABLED=0")
		out, err := cmd.Output()
		if err != nil {
			if failed, ok := err.(*exec.ExitError); ok {
				out = append(out, failed.Stderr...)
			}
			t.Fatalf("%s %s: %v\n%s", name, args[0], err, out)
		}
		return string(out)
	}
	program := filepath.Join(dir, "driver.exe")
	run("go", "build", "-ldflags=-s -w", "-o", program, "./driver")
	modules := strings.Fields(run("go", "list", "-export", "-deps", "-f", // -export compiles, and links nothing
		"{{with .Module}}{{.Path}}{{end}}", "./..."))
	slices.Sort(modules)
	want := []string{"example.com/driver", "github.com/sirupsen/logrus", "golang.org/x/sys", "konnectivity"}
	testutil.EqualSlices(t, slices.Compact(modules), want, "what it is linked with")
	host, port, _ := strings.Cut(serverAddress, ":")
	here := testutil.Must(os.Getwd())(t)
	in := func(name string) string { return filepath.Join(here, name) }
	got := run(program, "--konnectivity-hostname="+host, "--konnectivity-port="+port, "--ca-cert-path="+in("ca.crt"),
		"--tls-cert-path="+in("tls.crt"), "--tls-key-path="+in("tls.key"), "http://"+webAddress)
	testutil.Equal(t, got, "hello", "what it says")
}
