package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
)

// The addresses of docs/bare-metal.md: where node reaches control, and what only
// node reaches.
const (
	controlAddress = "203.0.113.7"
	nodeAddress    = "203.0.113.8"
	kubeletAddress = "10.0.0.7"
)

// boot makes a root a machine's, whose systemd is process 1 in namespaces and a
// control group of its own, and starts it.
const boot = `
set -eu
root=$1 groups=$2 name=$3
mount --make-rprivate /
mount -t proc proc $root/proc
mount -t sysfs -o ro sysfs $root/sys
mount -t cgroup2 cgroup2 $root/sys/fs/cgroup
for folder in run tmp dev; do mount -t tmpfs -o mode=755 tmpfs $root/$folder; done
chmod 1777 $root/tmp
for device in null zero full random urandom tty; do : > $root/dev/$device; mount --bind /dev/$device $root/dev/$device; done
mkdir $root/dev/pts $root/dev/shm
mount -t devpts -o newinstance,ptmxmode=0666 devpts $root/dev/pts
ln -s pts/ptmx $root/dev/ptmx
ln -s /proc/self/fd $root/dev/fd
rm -rf $root/etc/machine-id $root/etc/systemd/system/*.wants
systemd-id128 new > $root/etc/machine-id
hostname ${name##*-}
cd $root
mkdir host
pivot_root . host
umount -l /host
exec env -i container=test PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --system --unit=basic.target
`

// enter gives what it starts a control group, and the namespaces of a machine.
const enter = `
set -eu
mount --make-rprivate /
mount -t cgroup2 cgroup2 $2
mkdir -p $2/$3
echo $$ > $2/$3/cgroup.procs
exec nsenter --net="$4" unshare --mount --pid --fork --kill-child --uts --ipc --cgroup sh -c "$5" boot "$1" "$2" "$3"
`

// machine is one with systemd.
type machine struct {
	*root
	pid string // of its systemd, as this machine sees it
}

// newMachine starts a machine on a network, with packages ready to be installed.
func newMachine(t *testing.T, name, network string, packages ...string) *machine {
	t.Helper()
	m := &machine{root: newRoot(t)}
	for _, p := range packages {
		file := artefact(t, p+"_*_"+runtime.GOARCH+".deb")
		command(t, "cp", file, m.file("/root/"))
	}
	groups, group := t.TempDir(), fmt.Sprint("konnectivity-test-", os.Getpid(), "-", name)
	cmd := exec.Command("unshare", "--mount", "sh", "-c", enter, "enter", m.merged, groups, group, network, boot)
	log := must(os.Create(filepath.Join(t.TempDir(), name)))(t)
	cmd.Stdout, cmd.Stderr = log, log
	noError(t, cmd.Start())
	t.Cleanup(func() {
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			journal, _ := m.try("journalctl --no-pager --lines=100")
			t.Logf("%s: %s\n%s", name, text, journal)
		}
		_ = cmd.Process.Kill() // and so, with --kill-child, process 1 and all others
		_ = cmd.Wait()
		_ = log.Close()
		removeGroups(t, groups, group)
	})
	eventually(t, "systemd is up", func() error {
		children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", cmd.Process.Pid))
		if m.pid = strings.TrimSpace(string(children)); err != nil || m.pid == "" {
			return fmt.Errorf("there is no process yet: %w", err)
		}
		_, err = m.try("systemctl is-active basic.target")
		return err
	})
	return m
}

// removeGroups takes a machine's control groups away, once its last process is gone.
func removeGroups(t *testing.T, at, name string) {
	t.Helper()
	script := `mount -t cgroup2 cgroup2 $1 && for i in $(seq 100); do
		find $1/$2 -depth -type d -exec rmdir {} + 2>/dev/null; [ -e $1/$2 ] || exit 0; sleep 0.1; done; exit 1`
	command(t, "unshare", "--mount", "sh", "-c", script, "groups", at, name)
}

// try runs a shell's commands in the machine.
func (m *machine) try(script string) (string, error) {
	if m.pid == "" {
		return "", os.ErrNotExist
	}
	return try(m.t, "nsenter", "--target="+m.pid, "--all", "sh", "-euc", "cd /root; export HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin; "+script)
}

// do is try for what must work.
func (m *machine) do(script string) string {
	m.t.Helper()
	out, err := m.try(script)
	requires(m.t, err == nil, "%s\n%v\n%s", script, err, out)
	return out
}

// cable joins two networks, each with an address of the other's.
func cable(t *testing.T, a, addressA, b, addressB string) {
	t.Helper()
	command(t, "nsenter", "--net="+a, "ip", "link", "add", "cable", "type", "veth", "peer", "name", "end", "netns", b)
	for _, end := range []struct{ network, name, address string }{{a, "cable", addressA}, {b, "end", addressB}} {
		command(t, "nsenter", "--net="+end.network, "sh", "-c", "ip address add "+end.address+"/24 dev "+end.name+" && ip link set "+end.name+" up")
	}
}

var plainBlock = regexp.MustCompile("(?ms)^```\n(.*?)^```$")

// listens has the agent listen for kubelet, as docs/one-name.md has it for systemd, and
// kubelet wait for the agent.
func (m *machine) listens() {
	m.t.Helper()
	_, page, _ := strings.Cut(string(must(os.ReadFile("../docs/one-name.md"))(m.t)), "\n## By systemd instead\n")
	blocks := plainBlock.FindAllStringSubmatch(page, -1)
	requires(m.t, len(blocks) == 1, "docs/one-name.md has %d blocks for systemd", len(blocks))
	m.do("printf '[Service]\\nExecStart=/bin/true\\n' > /etc/systemd/system/kubelet.service; " + blocks[0][1])
	for _, what := range []string{"After", "Wants"} {
		contains(m.t, m.do("systemctl show --value -p "+what+" kubelet"), "konnectivity-agent.service", "kubelet's %s", what)
	}
	m.do("rm -r /etc/systemd/system/kubelet.service*; systemctl daemon-reload") // the name is used once more
}

// TestBareMetal follows docs/bare-metal.md on two machines with systemd.
func TestBareMetal(t *testing.T) {
	t.Parallel()
	artefact(t, "konnectivity-agent_*_"+runtime.GOARCH+".deb")
	var blocks []string
	page, _, _ := strings.Cut(string(must(os.ReadFile("../docs/bare-metal.md"))(t)), "\n## macOS\n")
	for _, b := range plainBlock.FindAllStringSubmatch(page, -1) {
		blocks = append(blocks, b[1])
	}
	if len(blocks) != 6 || !strings.HasPrefix(blocks[1], "scp /root/pki/ca.crt /root/pki/agent.crt /root/pki/agent.key node:/root/") {
		t.Fatalf("docs/bare-metal.md has other steps than this test: %q", blocks)
	}
	controlNet, nodeNet := namespace(t), namespace(t)
	cable(t, controlNet, controlAddress, nodeNet, nodeAddress)
	control := newMachine(t, "control", controlNet, "konnectivity", "konnectivity-server", "konnectivity-socks5-proxy")
	node := newMachine(t, "node", nodeNet, "konnectivity-agent")
	control.do("dpkg --install *.deb")
	node.do("dpkg --install *.deb")

	control.do(blocks[0])
	for _, name := range []string{"ca.crt", "agent.crt", "agent.key"} {
		content := control.do("cat /root/pki/" + name)
		noError(t, os.WriteFile(node.file("/root/"+name), []byte(content), 0o600))
	}
	node.do("ip address add " + kubeletAddress + "/32 dev lo; mkdir -p kubelet; echo ok > kubelet/healthz; " +
		"openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=kubelet -keyout kubelet/key -out kubelet/crt 2>/dev/null; " +
		"systemd-run --unit=kubelet --working-directory=/root/kubelet openssl s_server -quiet -accept " + kubeletAddress + ":10250 -cert crt -key key -WWW")
	node.do(blocks[2])
	node.listens()
	control.do(blocks[3])
	node.do(blocks[4])
	eventually(t, "the agent listens for kubelet and pods", func() error {
		_, err := node.try("for a in 127.0.0.1 172.20.0.1; do bash -c \"</dev/tcp/$a/6443\"; done")
		return err
	})
	control.works(blocks[5])
	control.hardened("konnectivity-server", "konnectivity-socks5-proxy")
	node.hardened("konnectivity-agent")
	for m, want := range map[*machine]string{control: "konnectivity-server.*agent connected", node: "konnectivity-agent"} {
		if out := m.do("journalctl --no-pager --unit='konnectivity-*'"); !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("the journal has no %s:\n%s", want, out)
		}
	}

	// A download goes on while the agent is restarted, and while its package is installed anew.
	node.do("head -c 12M /dev/urandom > kubelet/big")
	for i, restart := range []string{"systemctl restart konnectivity-agent", "dpkg --install konnectivity-agent*.deb"} {
		unit, file := fmt.Sprint("download", i), fmt.Sprint("big", i)
		control.do("systemd-run --unit=" + unit + " --property=RemainAfterExit=yes --working-directory=/root " +
			"curl -sS --fail --insecure --limit-rate 1M --socks5-hostname localhost:1080 --output " + file + " https://" + kubeletAddress + ":10250/big")
		eventually(t, "the download has begun", func() error { _, err := control.try("test -s " + file); return err })
		before := node.do("systemctl show --value -p MainPID konnectivity-agent")
		node.do(restart)
		if after := node.do("systemctl show --value -p MainPID konnectivity-agent"); after == before {
			t.Errorf("%s has not replaced the agent", restart)
		}
		eventually(t, "the download has ended", func() error {
			_, err := control.try("systemctl show -p SubState " + unit + " | grep exited")
			return err
		})
		equal(t, control.do("sha256sum < "+file), node.do("sha256sum < kubelet/big"), "the sum of a download")
	}
	if out := node.do("journalctl --no-pager --unit=konnectivity-agent"); strings.Count(out, `"connections":1,"level":"info","msg":"took over`) != 2 {
		t.Errorf("connections were not left to the next process twice:\n%s", out)
	}

	// A service that is killed starts again, in the same runtime directory, which a
	// restart keeps as well, and one that is stopped ends in order.
	directory := node.do("stat --format=%i /run/konnectivity-agent")
	before := node.do("systemctl show --value -p MainPID konnectivity-agent")
	node.do("systemctl kill --signal=KILL konnectivity-agent")
	eventually(t, "the agent runs again", func() error {
		if out, err := node.try("systemctl is-active konnectivity-agent && systemctl show --value -p MainPID konnectivity-agent"); err != nil || strings.HasSuffix(out, before) {
			return fmt.Errorf("%s, %w", out, err)
		}
		return nil
	})
	node.do("systemctl restart konnectivity-agent")
	equal(t, node.do("stat --format=%i /run/konnectivity-agent"), directory, "the agent's runtime directory is inode")
	control.works(blocks[5])
	for m, service := range map[*machine]string{control: "konnectivity-server", node: "konnectivity-agent"} {
		m.do("systemctl stop " + service)
		equal(t, m.do("systemctl show --value -p Result "+service), "success\n", "the end of %s", service)
	}
}

// An agent of a version without SIGUSR2 ignores that signal. It drains before its package's
// next version starts: the service manager does not wait for it in vain, and kill it.
func TestUpgradeFromAnAgentWithoutTheSignal(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "before", namespace(t), "konnectivity-agent")
	m.do("dpkg --install *.deb")
	m.do(`sed -i -e '/^\(RestartKillSignal\|FileDescriptorStoreMax\|Environment\)=/d' \
		-e "s|^ExecStart=.*|ExecStart=/bin/sh -c 'trap : USR2; trap \"echo it has drained; exit\" TERM; while :; do sleep 1; done'|" \
		/usr/lib/systemd/system/konnectivity-agent.service
		systemctl daemon-reload
		systemctl start konnectivity-agent`)
	m.do("dpkg --install *.deb")
	contains(t, m.do("journalctl --no-pager --unit=konnectivity-agent"), "it has drained", "the journal of the agent before")
	equal(t, m.do("systemctl show --value -p RestartKillSignal konnectivity-agent"), "12\n", "the signal of the unit")
	m.do("systemctl status konnectivity-agent | grep 'Active: acti'")
}

// works follows the page's check until it finds nothing wrong.
func (m *machine) works(check string) {
	m.t.Helper()
	eventually(m.t, "the check is green", func() error {
		out, err := m.try(check)
		if err == nil && !strings.HasSuffix(out, "ok\n") {
			err = errors.New("curl printed something else")
		}
		return withOutput(err, out)
	})
}

// hardened looks at running services as systemd rates them.
func (m *machine) hardened(services ...string) {
	m.t.Helper()
	for _, s := range services {
		out, err := m.try("systemd-analyze security --threshold=20 --no-pager " + s)
		holds(m.t, err == nil, "%s is exposed by more than 2.0: %v\n%s", s, err, out)
		m.t.Logf("%s: %s", s, lastLine(out))
	}
}

func lastLine(text string) string {
	text = strings.TrimSpace(text)
	return text[strings.LastIndexByte(text, '\n')+1:]
}
