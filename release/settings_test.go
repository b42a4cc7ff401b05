package main

import (
	"debug/buildinfo"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/goreleaser/nfpm/v2"
)

// tinyModule is a module of one program, tiny.
func tinyModule(t *testing.T) string {
	t.Helper()
	module := t.TempDir()
	noError(t, errors.Join(
		os.WriteFile(filepath.Join(module, "go.mod"), []byte("module tiny\n\ngo 1.26.0\n"), 0o600),
		os.WriteFile(filepath.Join(module, "main.go"), []byte("package main\n\nfunc main() {}\n"), 0o600),
		os.WriteFile(filepath.Join(module, "env"), []byte("GOARM64=v8.2\n"), 0o600),
	))
	return module
}

// Programs of a release with FIPS are in that mode, and who builds it again can know.
func TestFIPS(t *testing.T) {
	r, s := &release{work: t.TempDir(), out: t.TempDir(), fips: "v1.0.0"}, system{"linux", "amd64"}
	noError(t, r.provenance())
	contains(t, string(must(os.ReadFile(r.provenanceFile()))(t)), `"fips": "v1.0.0"`, "the provenance")
	noError(t, r.compile(s, "off", r.bin(s), tinyModule(t), "."))
	info := must(buildinfo.ReadFile(r.binary(s, "tiny")))(t)
	holds(t, slices.Contains(info.Settings, debug.BuildSetting{Key: "DefaultGODEBUG", Value: "fips140=on"}),
		"the program has %v", info.Settings)
}

// The settings of the person who builds a release do not reach the compiler.
func TestSettingsOfTheBuilderAreIgnored(t *testing.T) {
	module := tinyModule(t)
	t.Setenv("GOFLAGS", "-tags=mine -race=false -gcflags=-N")
	t.Setenv("GOEXPERIMENT", "noregabiargs")
	t.Setenv("GOAMD64", "v3")
	t.Setenv("GOPPC64", "power9")
	t.Setenv("GOARM", "5")
	t.Setenv("GOENV", filepath.Join(module, "env"))
	t.Setenv("GOFIPS140", "latest")
	t.Setenv("CGO_ENABLED", "1")
	for arch, name := range map[string]string{"amd64": "GOAMD64", "arm64": "GOARM64", "arm": "GOARM"} {
		r, s := &release{work: t.TempDir()}, system{"linux", arch}
		noError(t, r.compile(s, "off", r.bin(s), module, "."))
		info := must(buildinfo.ReadFile(r.binary(s, "tiny")))(t)
		got := map[string]string{}
		for _, setting := range info.Settings {
			got[setting.Key] = setting.Value
		}
		want := map[string]string{"-buildmode": "exe", "-compiler": "gc", "-trimpath": "true", "CGO_ENABLED": "0", "GOOS": "linux", "GOARCH": arch}
		for _, key := range []string{"-tags", "-gcflags", "GOEXPERIMENT", "GOFIPS140"} {
			equal(t, got[key], "", "%s: the builder's %s", arch, key)
		}
		want[name] = map[string]string{"amd64": "v1", "arm64": "v8.0", "arm": "7"}[arch]
		for key, value := range want {
			equal(t, got[key], value, "%s: %s", arch, key)
		}
	}
}

// Packages and images call 32-bit arm what their installers look for.
func TestArmHasItsNames(t *testing.T) {
	s := system{"linux", "arm"}
	for format, want := range map[string]string{"deb": "armhf", "rpm": "armv7hl"} {
		packager := must(nfpm.Get(format))(t)
		info := &nfpm.Info{Name: "konnectivity", Version: "v1.0.0", Arch: packageArch(s), Platform: s.os, Release: "1"}
		if got := packager.ConventionalFileName(nfpm.WithDefaults(info)); !strings.HasSuffix(got, want+"."+format) {
			t.Errorf("%s, want one for %s", got, want)
		}
	}
	image := must((&release{version: "v1.0.0"}).imageOf(s, "an image", "", nil))(t)
	config, err := image.ConfigFile()
	if err != nil || config.Platform().String() != "linux/arm/v7" {
		t.Errorf("the image is for %v, %v", config.Platform(), err)
	}
}

// Sources that are in a folder of another repository have neither its commit nor its version.
func TestArchivesInsideRepositories(t *testing.T) {
	repository := t.TempDir()
	sources := filepath.Join(repository, "konnectivity")
	noError(t, errors.Join(
		os.Mkdir(sources, 0o700),
		os.WriteFile(filepath.Join(sources, "Makefile"), must(os.ReadFile("../Makefile"))(t), 0o600),
	))
	run := func(name string, args ...string) string {
		t.Helper()
		cmd := exec.Command(name, args...)
		// A HOME that goes with the test would not do: go's telemetry writes there when go has ended.
		cmd.Dir, cmd.Env = sources, []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "GIT_CONFIG_GLOBAL=/dev/null"}
		out, err := cmd.CombinedOutput()
		noError(t, err)
		return strings.TrimSpace(string(out))
	}
	const show = "--eval=show: ; @echo $(VERSION) $(COMMIT) $(EPOCH)"
	run("git", "init", "--quiet", repository)
	run("git", "-c", "user.name=a", "-c", "user.email=a@b.test", "commit", "--quiet", "--allow-empty", "--message=other")
	equal(t, run("make", "--silent", show, "show"), "devel unknown 1", "in another repository")
	run("git", "init", "--quiet", sources)
	run("git", "-c", "user.name=a", "-c", "user.email=a@b.test", "commit", "--quiet", "--allow-empty", "--message=own")
	equal(t, strings.Fields(run("make", "--silent", show, "show"))[1], run("git", "rev-parse", "HEAD"), "the commit of its own")
}

func TestVersionsOfReleases(t *testing.T) {
	for version, want := range map[string]bool{
		"v1.2.3": true, "v1.2.3-rc.1": true,
		"devel": false, "90d263bb": false, "v1.2": false, "v1.2.3-dirty-1-g90d263bb": false, "v1.2.3-5-g90d263bb": false,
	} {
		_, err := parse([]string{"-version=" + version, "-systems=linux/amd64", "-commit=x", "-time=1"})
		if refused := err != nil && strings.Contains(err.Error(), "no version to release"); refused == want {
			t.Errorf("%s: %v", version, err)
		}
	}
}

// An agent's package stops an agent that was started without a store, before it starts the next,
// and restarts any other, by each shell that may be sh, and also where systemctl is an old one.
func TestPackagesRestartAgents(t *testing.T) {
	sleep := func(env ...string) string {
		cmd := exec.Command("sleep", "1000")
		cmd.Env = append(env, "PATH="+os.Getenv("PATH"))
		noError(t, cmd.Start())
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		return strconv.Itoa(cmd.Process.Pid)
	}
	const reload, restart = "daemon-reload\n", "try-restart konnectivity-agent.service\n"
	const anew = "stop konnectivity-agent.service\nstart konnectivity-agent.service\n"
	for pid, want := range map[string]string{"0": restart, sleep("FDSTORE=1"): restart, sleep("X=1"): anew} {
		for _, shell := range []string{"sh", "dash", "bash", "busybox sh"} {
			words := strings.Fields(shell)
			if _, err := exec.LookPath(words[0]); err != nil {
				continue
			}
			dir := t.TempDir()
			agent := programs[slices.IndexFunc(programs, func(p program) bool { return p.service == "agent" })]
			script := strings.Replace(string(agent.render("postinstall.sh")), "/run/systemd/system", dir, 1)
			systemctl := "#!/bin/sh\ncase $1 in\nshow) [ \"$2\" = --property=MainPID ] && echo MainPID=" + pid + ";;\n*) echo \"$@\" >>" + dir + "/did;;\nesac\n"
			noError(t, errors.Join(
				os.WriteFile(filepath.Join(dir, "script"), []byte(script), 0o600),
				os.WriteFile(filepath.Join(dir, "systemctl"), []byte(systemctl), 0o700),
				os.WriteFile(filepath.Join(dir, "systemd-sysusers"), []byte("#!/bin/sh\n"), 0o700),
				os.WriteFile(filepath.Join(dir, "systemd-tmpfiles"), []byte("#!/bin/sh\n"), 0o700),
			))
			cmd := exec.Command(words[0], append(words[1:], filepath.Join(dir, "script"))...)
			cmd.Env = []string{"PATH=" + dir + ":" + os.Getenv("PATH")}
			out, err := cmd.CombinedOutput()
			equal(t, fmt.Sprint(string(out), err), "<nil>", "what %s says", shell)
			equal(t, string(must(os.ReadFile(filepath.Join(dir, "did")))(t)), reload+want, "what is done by %s", shell)
		}
	}
}
