package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// root is a view of this machine's files of its own, where packages are
// installed: what they write is seen in it only, and gone after the test.
type root struct {
	t      *testing.T
	merged string
}

func newRoot(t *testing.T) *root {
	t.Helper()
	base := t.TempDir()
	// A file system of its own: the upper folder of an overlay may not be on an
	// overlay, which /tmp is in a container.
	command(t, "mount", "-t", "tmpfs", "tmpfs", base)
	unmountAtEnd(t, base)
	r := &root{t: t, merged: filepath.Join(base, "merged")}
	for _, name := range []string{"upper", "work", "merged"} {
		noError(t, os.Mkdir(filepath.Join(base, name), 0o755))
	}
	options := fmt.Sprintf("lowerdir=/,upperdir=%s/upper,workdir=%s/work", base, base)
	command(t, "mount", "-t", "overlay", "overlay", "-o", options, r.merged)
	unmountAtEnd(t, r.merged)
	command(t, "mount", "-t", "proc", "proc", filepath.Join(r.merged, "proc"))
	unmountAtEnd(t, filepath.Join(r.merged, "proc"))
	command(t, "mount", "--bind", "/dev", filepath.Join(r.merged, "dev"))
	unmountAtEnd(t, filepath.Join(r.merged, "dev"))
	return r
}

// unmountAtEnd unmounts what the test has mounted. It may be in use: something else walks /tmp.
func unmountAtEnd(t *testing.T, path string) {
	t.Cleanup(func() { command(t, "umount", "--lazy", path) })
}

// inside runs a command in the root.
func (r *root) inside(args ...string) string {
	r.t.Helper()
	return command(r.t, "chroot", append([]string{r.merged}, args...)...)
}

// install copies packages in and gives them to a command.
func (r *root) install(pattern string, args ...string) {
	r.t.Helper()
	for _, p := range programs {
		file := artefact(r.t, fmt.Sprintf(pattern, p.name))
		command(r.t, "cp", file, r.file("/tmp/"))
		args = append(args, "/tmp/"+filepath.Base(file))
	}
	r.inside(args...)
}

func (r *root) file(path string) string { return filepath.Join(r.merged, path) }

// checkServices looks at each unit as systemd does, without starting it.
func (r *root) checkServices() {
	r.t.Helper()
	for _, p := range programs {
		if p.service == "" {
			continue
		}
		unit := "/usr/lib/systemd/system/" + p.name + ".service"
		equal(r.t, r.inside("systemd-analyze", "verify", "--man=no", "--recursive-errors=no", unit), "",
			"complaints about %s", unit)
		if out, err := try(r.t, "chroot", r.merged, "systemd-analyze", "security", "--offline=true", "--threshold=20", "--no-pager", unit); err != nil {
			r.t.Errorf("%s is exposed by more than 2.0: %v\n%s", unit, err, out)
		}
		folder := filepath.Dir(p.config())
		equal(r.t, strings.TrimSpace(r.inside("stat", "--format=%U %G %a", folder)), "root "+p.name+" 750", "%s", folder)
	}
}

// secrets gives each service its certificates, as docs/bare-metal.md says.
func (r *root) secrets() {
	r.t.Helper()
	r.inside("konnectivity", "certs", "/root/pki")
	for _, give := range []string{
		"server ca.crt server.crt server.key cluster.crt cluster.key",
		"agent ca.crt agent.crt agent.key",
		"socks5-proxy ca.crt client.crt client.key",
		"https-proxy ca.crt client.crt client.key",
	} {
		service, files, _ := strings.Cut(give, " ")
		for _, f := range strings.Fields(files) {
			r.inside("install", "-m", "640", "-g", "konnectivity-"+service, "/root/pki/"+f, "/etc/konnectivity/"+service+"/")
		}
		r.inside("sed", "-i", "s/konnectivity.example.com/127.0.0.1/", "/etc/konnectivity/"+service+"/env")
	}
}

// start runs a service by its unit's own lines and as its own user, in a network
// namespace of its own, where all ports are free.
func (r *root) start(namespace string, p program) {
	r.t.Helper()
	script := `set -a; . ` + p.config() + `; set +a
		line=$(sed -n 's/^ExecStart=//p' /usr/lib/systemd/system/` + p.name + `.service)
		exec setpriv --reuid ` + p.name + ` --regid ` + p.name + ` --clear-groups --no-new-privs --bounding-set=-all --pdeathsig=KILL sh -c "exec $line"`
	cmd := exec.Command("nsenter", "--net="+namespace, "chroot", r.merged, "sh", "-c", script)
	log := must(os.Create(filepath.Join(r.t.TempDir(), p.name)))(r.t)
	cmd.Stdout, cmd.Stderr = log, log
	noError(r.t, cmd.Start())
	r.t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil || r.t.Failed() {
			text, _ := os.ReadFile(log.Name())
			r.t.Logf("%s: %v\n%s", p.name, err, text)
		}
		_ = log.Close()
	})
}

// namespace is the path of a network of its own, with loopback and an address
// that stands for a pod's.
func namespace(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "net")
	noError(t, os.WriteFile(path, nil, 0o600))
	command(t, "unshare", "--net="+path, "sh", "-c", "ip link set lo up && ip address add "+podAddress+"/32 dev lo")
	unmountAtEnd(t, path)
	return path
}

const podAddress = "192.0.2.7"

// upgrade is the path, in the root, of the agent's package of a later version. Its
// program is the release's.
func (r *root) upgrade(format string) string {
	r.t.Helper()
	s := system{"linux", runtime.GOARCH}
	later := &release{root: must(filepath.Abs(".."))(r.t), out: r.file("/tmp"), version: "v99.0.0", time: time.Unix(1, 0), work: r.t.TempDir(), systems: []system{s}}
	archive := unpack(r.t, artefact(r.t, "konnectivity_*_"+s.String()+".tar.gz"))
	for from, to := range map[string]string{"man": later.docs("man"), "completions": later.docs("completions"), thirdParty: filepath.Join(later.work, thirdParty)} {
		noError(r.t, os.MkdirAll(filepath.Dir(to), 0o755))
		command(r.t, "cp", "-r", filepath.Join(archive, from), to)
	}
	noError(r.t, os.MkdirAll(later.bin(s), 0o755))
	for _, p := range programs {
		if p.service == "agent" {
			command(r.t, "cp", filepath.Join(archive, p.name), later.bin(s))
			noError(r.t, later.pack(s, p, format))
		}
	}
	files, err := filepath.Glob(r.file("/tmp/konnectivity-agent*99*." + format))
	requires(r.t, err == nil && len(files) == 1, "%q, %v", files, err)
	return "/tmp/" + filepath.Base(files[0])
}

// leftovers are files that a package has put there.
func (r *root) leftovers(named string) string {
	r.t.Helper()
	return r.inside("find", "/etc", "/usr", "/var", "-xdev", "-path", named, "-not", "-path", "/var/lib/dpkg/info/*")
}

// As an administrator of Debian does it.
func TestDebianPackages(t *testing.T) {
	t.Parallel()
	artefact(t, "konnectivity-agent_*_"+runtime.GOARCH+".deb")
	r := newRoot(t)
	r.install("%s_*_"+runtime.GOARCH+".deb", "dpkg", "--install")
	r.checkServices()
	r.secrets()
	network := namespace(t)
	for _, p := range programs {
		if p.service != "" {
			r.start(network, p)
		}
	}
	r.checked(network)
	r.inside("test", "-s", "/usr/share/doc/konnectivity-agent/"+thirdParty)
	r.completes()
	contains(t, r.inside(plugin, "version", "--help"), "kubectl konnectivity version", "as a plugin")
	configured := r.inside("cat", "/etc/konnectivity/agent/env")
	r.inside("systemctl", "enable", "--quiet", "konnectivity-agent")
	r.inside("dpkg", "--install", r.upgrade("deb"))
	equal(t, r.inside("cat", "/etc/konnectivity/agent/env"), configured, "the configuration after the upgrade")
	equal(t, r.inside("systemctl", "is-enabled", "konnectivity-agent"), "enabled\n", "the service after the upgrade")
	r.inside("dpkg", "--remove", "konnectivity-agent")
	there(t, r.file("/usr/bin/konnectivity-agent"), false)
	there(t, r.file("/etc/konnectivity/agent/env"), true)
	r.inside("dpkg", "--purge", "konnectivity-agent")
	there(t, r.file("/etc/konnectivity/agent/env"), false)
	there(t, r.file("/etc/konnectivity/agent/agent.key"), true)
	r.inside("systemctl", "enable", "--quiet", "konnectivity-server")
	r.inside("dpkg", "--unpack", "/tmp/"+filepath.Base(artefact(t, "konnectivity-server_*_"+runtime.GOARCH+".deb")))
	r.inside("rm", "-r", "/etc/konnectivity")
	r.inside("dpkg", "--purge", "konnectivity", "konnectivity-server", "konnectivity-socks5-proxy", "konnectivity-https-proxy")
	equal(t, r.leftovers("*konnectivity*"), "", "what purging left")
}

// As an administrator of a system with neither does it: by docs/install.md, in an
// unpacked archive, and once more to upgrade. That keeps settings, and nothing else of before.
func TestArchiveInstallsServices(t *testing.T) {
	t.Parallel()
	archive := unpack(t, artefact(t, "konnectivity_*_linux_"+runtime.GOARCH+".tar.gz"))
	r := newRoot(t)
	command(t, "cp", "-r", archive, r.file("/root/unpacked"))
	for _, block := range plainBlock.FindAllStringSubmatch(string(must(os.ReadFile("../docs/install.md"))(t)), -1) {
		if strings.Contains(block[1], "systemd-sysusers") {
			block := strings.Replace(block[1], " && systemctl daemon-reload", "", 1) // no systemd runs here
			r.inside("sh", "-euc", "cd /root/unpacked; "+block)
			r.inside("sh", "-euc", "echo '# mine' | tee -a /etc/konnectivity/agent/env >> /usr/lib/systemd/system/konnectivity-agent.service")
			r.inside("sh", "-euc", "cd /root/unpacked; "+block)
		}
	}
	equal(t, r.inside("tail", "-n1", "/etc/konnectivity/agent/env"), "# mine\n", "the configuration after the upgrade")
	r.inside("cmp", "/root/unpacked/linux/usr/lib/systemd/system/konnectivity-agent.service", "/usr/lib/systemd/system/konnectivity-agent.service")
	r.checkServices()
	for _, p := range programs {
		contains(t, r.inside(p.name, "--version"), p.name+" version v", "%s --version", p.name)
	}
}

// completes asks each shell whether it has found what completes the agent's name.
func (r *root) completes() {
	r.t.Helper()
	for _, args := range [][]string{
		{"zsh", "-fc", "autoload -Uz compinit && compinit -D && print $_comps[konnectivity-agent]"},
		{"fish", "-c", "complete --do-complete 'konnectivity-agent --proxy-server-h' | grep -q -- --proxy-server-host && echo _konnectivity-agent"},
		{"bash", "-c", ". /usr/share/bash-completion/bash_completion && $(declare -F _comp_load || echo __load_completion) konnectivity-agent && complete -p konnectivity-agent >/dev/null && echo _konnectivity-agent"},
	} {
		if out, err := try(r.t, "chroot", append([]string{r.merged}, args...)...); err != nil || out != "_konnectivity-agent\n" {
			r.t.Errorf("%s does not complete the agent's flags: %v: %s", args[0], err, out)
		}
	}
}

// checked waits until konnectivity check finds nothing wrong, through both
// sidecars, with the health port of the server as the destination.
func (r *root) checked(network string) {
	r.t.Helper()
	for _, port := range []string{"1080", "3128"} {
		eventually(r.t, "konnectivity check by port "+port, func() error {
			out, err := try(r.t, "nsenter", "--net="+network, "chroot", r.merged, "konnectivity", "check", "--konnectivity-hostname=127.0.0.1",
				"--ca-cert-path=/root/pki/ca.crt", "--tls-cert-path=/root/pki/client.crt", "--tls-key-path=/root/pki/client.key",
				"--server-admin=127.0.0.1:8095", "--serving-port="+port, "127.0.0.1:8092")
			return withOutput(err, out)
		})
	}
}

// As an administrator of a system with rpm does it; --nodeps, since Debian's rpm
// does not know what Debian has installed.
func TestRPMPackages(t *testing.T) {
	t.Parallel()
	arch := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]
	artefact(t, "konnectivity-agent-[0-9]*."+arch+".rpm")
	r := newRoot(t)
	r.install("%s-[0-9]*."+arch+".rpm", "rpm", "--install", "--nodeps", "--nosignature")
	r.checkServices()
	for _, p := range programs {
		r.inside("test", "-s", "/usr/share/doc/"+p.name+"/"+thirdParty)
		r.inside("rpm", "--verify", "--nodeps", "--nogroup", p.name)
		contains(t, r.inside(p.name, "--version"), p.name+" version v", "%s --version", p.name)
	}
	r.inside("sh", "-c", "echo '# mine' >> /etc/konnectivity/agent/env && touch /etc/konnectivity/agent/agent.key")
	r.inside("systemctl", "enable", "--quiet", "konnectivity-agent")
	r.inside("rpm", "--upgrade", "--nodeps", "--nosignature", r.upgrade("rpm"))
	equal(t, r.inside("tail", "-n1", "/etc/konnectivity/agent/env"), "# mine\n", "the configuration after the upgrade")
	equal(t, r.inside("systemctl", "is-enabled", "konnectivity-agent"), "enabled\n", "the service after the upgrade")
	r.inside("rpm", "--erase", "--nodeps", "konnectivity-agent", "konnectivity-server")
	for path, stays := range map[string]bool{"agent/env.rpmsave": true, "agent/env": false, "agent/agent.key": true, "server": false} {
		there(t, r.file("/etc/konnectivity/"+path), stays)
	}
	there(t, r.file("/usr/lib/systemd/system/konnectivity-agent.service"), false)
	r.inside("rm", "-r", "/etc/konnectivity/agent")
	r.inside("rpm", "--erase", "--nodeps", "konnectivity", "konnectivity-socks5-proxy", "konnectivity-https-proxy")
	equal(t, r.leftovers("*konnectivity*"), "", "what removal left")
}
