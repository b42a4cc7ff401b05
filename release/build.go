package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// build compiles all programs for every system, and the two that only images
// have for Linux.
func (r *release) build() error {
	for _, s := range r.systems {
		if err := r.compile(s, "off", r.bin(s), r.root, "./cmd/...", "-tags", r.tags, "-ldflags", r.ldflags); err != nil {
			return err
		}
		if s.os != "linux" {
			continue
		}
		if err := r.compile(s, "off", r.bin(s), filepath.Join(r.root, "release"), "./hypershift", "-ldflags", "-s -w"); err != nil {
			return err
		}
	}
	return nil
}

// compile builds packages of a module, in a workspace or with "off", into a folder. What git says
// of the sources stays out: the commit is in ldflags.
func (r *release) compile(s system, workspace, folder, module, packages string, flags ...string) error {
	fmt.Println("building", packages, "for", s)
	args := append([]string{"build", "-C", module, "-trimpath", "-buildvcs=false"}, flags...)
	cmd := exec.Command("go", append(args, "-o", folder+"/", packages)...)
	var err error
	if cmd.Env, err = settings(s, workspace); err != nil {
		return err
	}
	if r.fips != "" {
		cmd.Env = append(cmd.Env, "GOFIPS140="+r.fips)
	}
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd.Run()
}

// bin is the folder of a system's programs.
func (r *release) bin(s system) string { return filepath.Join(r.work, "bin", s.String()) }

// binary is the path of a program.
func (r *release) binary(s system, name string) string {
	if s.os == "windows" {
		name += ".exe"
	}
	return filepath.Join(r.bin(s), name)
}

// document has each program write its man pages and completions. For this the
// programs are built with one more file, which only the compiler sees.
func (r *release) document() error {
	folder := filepath.Join(r.work, "documented")
	for _, f := range []string{folder, r.docs("man"), r.docs("completions")} {
		if err := os.MkdirAll(f, 0o755); err != nil {
			return err
		}
	}
	workspace := filepath.Join(folder, "go.work")
	text := fmt.Sprintf("go 1.26.0\n\nuse (\n\t%q\n\t%q\n)\n", r.root, filepath.Join(r.root, "release/man"))
	if err := os.WriteFile(workspace, []byte(text), 0o644); err != nil {
		return err
	}
	overlay, err := r.overlay(folder)
	if err != nil {
		return err
	}
	here := system{runtime.GOOS, runtime.GOARCH}
	if err := r.compile(here, workspace, folder, r.root, "./cmd/...", "-overlay", overlay, "-tags", r.tags, "-ldflags", r.ldflags); err != nil {
		return err
	}
	for _, p := range programs {
		if err := r.describe(filepath.Join(folder, p.name), p); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	return nil
}

func (r *release) docs(kind string) string { return filepath.Join(r.work, "docs", kind) }

// overlay adds a file to each program, and returns the path of what tells the
// compiler so.
func (r *release) overlay(folder string) (string, error) {
	var entries []string
	for _, p := range programs {
		text := "package main\n\nimport (\n\t\"io\"\n\n\t\"konnectivity/internal/cli\"\n\t\"konnectivity/release/man\"\n"
		if strings.HasPrefix(p.command, "sidecar.") {
			text += "\t\"konnectivity/cmd/internal/sidecar\"\n"
		}
		text += ")\n\nfunc init() {\n\tcmd := " + p.command + "\n\tcmd.SetOut(io.Discard)\n" +
			"\tman.Write(cmd, func() { cli.Run(cmd, []string{\"--version\"}, io.Discard, nil) })\n}\n"
		path := filepath.Join(folder, p.name+".go")
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return "", err
		}
		entries = append(entries, fmt.Sprintf("%q: %q", filepath.Join(r.root, "cmd", p.name, "man_pages.go"), path))
	}
	path := filepath.Join(folder, "overlay.json")
	return path, os.WriteFile(path, []byte(`{"Replace": {`+strings.Join(entries, ",\n")+"}}\n"), 0o644)
}

// describe runs a program for its pages, and for what each shell completes it by.
func (r *release) describe(path string, p program) error {
	man := exec.Command(path)
	man.Env = append(os.Environ(), "MAN_DIR="+r.docs("man"), fmt.Sprint("SOURCE_DATE_EPOCH=", r.time.Unix()), "TZ=UTC", "KUBECONFIG=")
	man.Stderr = os.Stderr
	if err := man.Run(); err != nil {
		return err
	}
	for shell, file := range map[string]string{"bash": p.name, "zsh": "_" + p.name, "fish": p.name + ".fish"} {
		text, err := exec.Command(path, "completion", shell).Output()
		if err != nil {
			return fmt.Errorf("completion %s: %w", shell, err)
		}
		if err := os.WriteFile(filepath.Join(r.docs("completions"), file), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}
