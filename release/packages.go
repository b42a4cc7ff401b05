package main

import (
	"bytes"
	"embed"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/template"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb" // the format deb
	"github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/rpm" // the format rpm
)

// templates are what the packages of all services have, told apart by name, and
// the example configuration of each.
//
//go:embed files
var templates embed.FS

// launchd is what makes a service of the agent on macOS.
//
//go:embed files/agent.plist
var launchd []byte

// render fills a template in for a program.
func (p program) render(name string) []byte {
	t := template.Must(template.ParseFS(templates, "files/"+name))
	var out bytes.Buffer
	if err := t.Execute(&out, map[string]string{"Name": p.name, "Service": p.service, "Summary": p.summary}); err != nil {
		panic(err) // the templates are part of this program
	}
	return out.Bytes()
}

// system is what makes a service of a program.
func (p program) system() []entry {
	if p.service == "" {
		return nil
	}
	return []entry{
		{name: p.config(), mode: 0o644, text: p.render(p.service + ".env")},
		{name: "/usr/lib/systemd/system/" + p.name + ".service", mode: 0o644, text: p.render("unit.service")},
		{name: "/usr/lib/sysusers.d/" + p.name + ".conf", mode: 0o644, text: p.render("sysusers.conf")},
		{name: "/usr/lib/tmpfiles.d/" + p.name + ".conf", mode: 0o644, text: p.render("tmpfiles.conf")},
	}
}

// windows is what makes services of programs there: a script, and flags for each.
func windows(top string) (entries []entry) {
	for _, name := range []string{"service.ps1", "agent.txt", "socks5-proxy.txt", "https-proxy.txt"} {
		entries = append(entries, entry{name: top + "windows/" + name, mode: 0o644, text: program{}.render("windows/" + name)})
	}
	return entries
}

// config is the file that the administrator edits.
func (p program) config() string { return "/etc/konnectivity/" + p.service + "/env" }

// packages makes a .deb and an .rpm of each program for each Linux.
func (r *release) packages() error {
	for _, s := range r.systems {
		if s.os != "linux" {
			continue
		}
		for _, p := range programs {
			if err := r.pack(s, p, "deb", "systemd | systemd-standalone-sysusers", "systemd | systemd-standalone-tmpfiles"); err != nil {
				return err
			}
			if err := r.pack(s, p, "rpm", "systemd"); err != nil {
				return err
			}
		}
	}
	return nil
}

// pack makes one package. needs is what a service's scripts call.
func (r *release) pack(s system, p program, format string, needs ...string) error {
	packager, err := nfpm.Get(format)
	if err != nil {
		return err
	}
	info := &nfpm.Info{
		Name: p.name, Version: r.version, Arch: packageArch(s), Platform: s.os, Release: "1", MTime: r.time, DisableGlobbing: true,
		Section: "net", Priority: "optional", Maintainer: "The konnectivity authors",
		Description: p.summary, License: "Apache-2.0",
	}
	info.RPM.BuildHost = "localhost"
	if info.Contents, err = r.contents(s, p, format); err != nil {
		return err
	}
	if p.service != "" {
		info.Depends = needs
		if info.Scripts, err = r.scripts(p); err != nil {
			return err
		}
	}
	info = nfpm.WithDefaults(info)
	if err := nfpm.PrepareForPackager(info, format); err != nil {
		return err
	}
	return writeFile(filepath.Join(r.out, packager.ConventionalFileName(info)), func(w io.Writer) error { return packager.Package(info, w) })
}

// packageArch is nfpm's name for an architecture. Its arm7 becomes armhf in a .deb's name
// and armv7hl in an .rpm's.
func packageArch(s system) string {
	if s.arch == "arm" {
		return "arm7"
	}
	return s.arch
}

// zshFunctions are the folders where packages of a format leave completions for
// zsh, which looks nowhere else.
var zshFunctions = map[string]string{"deb": "/usr/share/zsh/vendor-completions/_", "rpm": "/usr/share/zsh/site-functions/_"}

// contents stages the files that a package holds, which nfpm reads from disk.
func (r *release) contents(s system, p program, format string) (files.Contents, error) {
	entries := append(p.system(),
		entry{name: "/usr/bin/" + p.name, mode: 0o755, source: r.binary(s, p.name)},
		entry{name: "/usr/share/doc/" + p.name + "/copyright", mode: 0o644, source: filepath.Join(r.root, "LICENSE")},
		entry{name: "/usr/share/doc/" + p.name + "/" + thirdParty, mode: 0o644, source: filepath.Join(r.work, thirdParty)},
		entry{name: "/usr/share/bash-completion/completions/" + p.name, mode: 0o644, source: filepath.Join(r.docs("completions"), p.name)},
		entry{name: zshFunctions[format] + p.name, mode: 0o644, source: filepath.Join(r.docs("completions"), "_"+p.name)},
		entry{name: "/usr/share/fish/vendor_completions.d/" + p.name + ".fish", mode: 0o644, source: filepath.Join(r.docs("completions"), p.name+".fish")},
	)
	pages, err := os.ReadDir(r.docs("man"))
	if err != nil {
		return nil, err
	}
	for _, page := range pages {
		if owner(page.Name()) == p.name {
			entries = append(entries, entry{name: "/usr/share/man/man1/" + page.Name(), mode: 0o644, source: filepath.Join(r.docs("man"), page.Name())})
		}
	}
	if p.service == "" {
		entries = append(entries, entry{name: "/usr/bin/" + plugin, mode: 0o777, link: p.name})
	}
	// A folder that no package has stays when the last file in it goes.
	folders := map[string]os.FileMode{"/usr/share/doc/" + p.name: 0o755}
	if p.service != "" {
		folders["/etc/konnectivity"], folders[filepath.Dir(p.config())] = 0o755, 0o750
	}
	contents := files.Contents{}
	for _, folder := range slices.Sorted(maps.Keys(folders)) {
		contents = append(contents, &files.Content{Destination: folder, Type: files.TypeDir, FileInfo: &files.ContentFileInfo{Mode: folders[folder], MTime: r.time}})
	}
	for _, e := range sorted(entries) {
		source, err := r.staged(e)
		if err != nil {
			return nil, err
		}
		kind := files.TypeFile
		if strings.HasPrefix(e.name, "/etc/") {
			kind = files.TypeConfigNoReplace
		}
		if e.link != "" {
			kind = files.TypeSymlink
		}
		contents = append(contents, &files.Content{Source: source, Destination: e.name, Type: kind,
			FileInfo: &files.ContentFileInfo{Mode: os.FileMode(e.mode), MTime: r.time}})
	}
	return contents, nil
}

// owner is the program whose man page it is: that of the longest name.
func owner(page string) (name string) {
	for _, p := range programs {
		if (strings.HasPrefix(page, p.name+".") || strings.HasPrefix(page, p.name+"-")) && len(p.name) > len(name) {
			name = p.name
		}
	}
	return name
}

// staged is the path of an entry's content.
func (r *release) staged(e entry) (string, error) {
	if e.source != "" {
		return e.source, nil
	}
	if e.link != "" {
		return e.link, nil // a package has it in place of a path
	}
	path := filepath.Join(r.work, "staged", e.name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", err
	}
	return path, os.WriteFile(path, e.text, os.FileMode(e.mode))
}

func (r *release) scripts(p program) (s nfpm.Scripts, err error) {
	for name, path := range map[string]*string{"postinstall.sh": &s.PostInstall, "preremove.sh": &s.PreRemove, "postremove.sh": &s.PostRemove} {
		*path, err = r.staged(entry{name: "/scripts/" + p.name + "/" + name, mode: 0o755, text: p.render(name)})
		if err != nil {
			return s, err
		}
	}
	return s, nil
}

// program is one of the suite's, and how a package installs it.
type program struct {
	name    string
	summary string
	command string // the Go expression that makes its cobra command
	service string // its folder in /etc/konnectivity and its files in files/; "" is no service
}

// plugin is the name under which kubectl finds the operator's tool.
const plugin = "kubectl-konnectivity"

var programs = []program{
	{name: "konnectivity", command: "newRoot()",
		summary: "Operator's tool of the konnectivity suite: certificates, checks, status"},
	{name: "konnectivity-server", command: "newCommand()", service: "server",
		summary: "Konnectivity server: serves clients destinations that only agents can reach"},
	{name: "konnectivity-agent", command: "newCommand()", service: "agent",
		summary: "Konnectivity agent: connects a data plane to its konnectivity servers"},
	{name: "konnectivity-socks5-proxy", command: "sidecar.NewCommand(sidecar.SOCKS5)", service: "socks5-proxy",
		summary: "SOCKS5 proxy that reaches a konnectivity server's agents"},
	{name: "konnectivity-https-proxy", command: "sidecar.NewCommand(sidecar.HTTP)", service: "https-proxy",
		summary: "HTTP and HTTPS proxy that reaches a konnectivity server's agents"},
}
