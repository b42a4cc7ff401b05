package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"testing"

	"konnectivity/e2e/suite"
	"konnectivity/internal/testutil"
)

// Quickstart goes by every path once. An image may have no folder for temporary files.
func TestQuickstartOnce(t *testing.T) {
	cmd := exec.Command(binaries.Path("konnectivity"), "quickstart", "--once", "--json")
	cmd.Env, cmd.Dir = append(os.Environ(), "TMPDIR="+filepath.Join(t.TempDir(), "missing")), t.TempDir()
	out, err := cmd.Output()
	testutil.Requires(t, err == nil, "%v\n%s", err, out)
	var paths []struct {
		Path         string
		Milliseconds float64
		Error        string
	}
	if err := json.Unmarshal(out, &paths); err != nil || len(paths) < 7 {
		t.Fatalf("%v, %d paths in\n%s", err, len(paths), out)
	}
	for _, p := range paths {
		testutil.Holds(t, p.Error == "" && p.Milliseconds > 0, "%+v", p)
	}
}

var programs = []string{"konnectivity", "konnectivity-server", "konnectivity-agent", "konnectivity-socks5-proxy", "konnectivity-https-proxy"}

// The script for each shell loads there without a word, and completes.
func TestCompletionLoads(t *testing.T) {
	t.Parallel()
	for shell, c := range map[string]struct{ script, says string }{
		// What bash does when TAB is pressed behind "--lo".
		"bash": {`set -e
			. /usr/share/bash-completion/bash_completion
			source <("$1" completion bash)
			COMP_LINE="$2 --lo" COMP_POINT=${#COMP_LINE} COMP_WORDS=("$2" --lo) COMP_CWORD=1 COMP_TYPE=9 COMP_KEY=9
			"__start_$2" "$2" --lo "$2" && echo "completes ${COMPREPLY[*]}"`, "completes --lo"},
		"zsh": {`set -e
			autoload -U compinit && compinit -u -d "$HOME/zcompdump"
			source <("$1" completion zsh)
			whence -w "_$2"`, ": function"},
		"fish": {`set p $argv[1]; set n $argv[2]; $p completion fish | source; and set -x PATH (dirname $p) $PATH; complete -C "$n --lo"`, "--lo"},
	} {
		for _, program := range programs {
			t.Run(shell+" "+program, func(t *testing.T) {
				if program == "konnectivity" {
					c.script, c.says = strings.ReplaceAll(c.script, "--lo", "--ve"), strings.ReplaceAll(c.says, "--lo", "--ve")
				}
				path := binaries.Path(program)
				args := map[string][]string{
					"bash": {"--norc", "-c", c.script, "bash", path, program},
					"zsh":  {"-f", "-c", c.script, "zsh", path, program},
					"fish": {"--no-config", "-c", c.script, path, program},
				}[shell]
				env := []string{"PATH=" + string(binaries) + ":" + os.Getenv("PATH"), "HOME=" + t.TempDir()}
				out, err := command(t, env, shell, args...)
				if err != nil || !strings.Contains(out, c.says) || strings.Contains(out, "`") || strings.Contains(out, "not found") || strings.Count(out, "\n") > 3 {
					t.Errorf("%v: %q, want %q", err, out, c.says)
				}
			})
		}
	}
}

// Help is for people: no markup, no line that a terminal would break, and each
// command with an example where an argument is not obvious.
func TestHelpReadsWell(t *testing.T) {
	for _, args := range [][]string{
		{"konnectivity"}, {"konnectivity", "check"}, {"konnectivity", "dial"}, {"konnectivity", "status"}, {"konnectivity", "certs"}, {"konnectivity", "bench"}, {"konnectivity", "quickstart"}, {"konnectivity", "version"},
		{"konnectivity", "completion"}, {"konnectivity-server"}, {"konnectivity-agent"}, {"konnectivity-socks5-proxy"}, {"konnectivity-https-proxy"},
	} {
		out, err := command(t, nil, binaries.Path(args[0]), append(args[1:], "--help")...)
		testutil.Holds(t, err == nil && !strings.Contains(out, "`") && strings.Contains(out, "Usage:"),
			"%q: %v\n%s", args, err, out)
		for line := range strings.Lines(out) {
			testutil.AtMost(t, len([]rune(line)), 140, "%q: characters of the line %s", args, line)
		}
	}
}

// dialCommand is konnectivity dial by a way, for a shell.
func (w *whole) dialCommand(way string) string {
	command := w.Bin.Path("konnectivity") + " dial --via=" + way
	if strings.HasPrefix(way, "link:") || strings.HasPrefix(way, "https:") {
		command += " --ca-cert-path=" + w.PKI("ca.crt") + " --tls-cert-path=" + w.PKI("client.crt") + " --tls-key-path=" + w.PKI("client.key")
	}
	return command
}

// dialWays are all that can tell the end of a direction.
func (w *whole) dialWays() []string {
	server := suite.Loopback(w.server.ClientPort)
	return []string{"socks5://" + w.socks.Address(), "http://" + w.https.Address(), "https://" + server, "link://" + server}
}

// sshServer runs OpenSSH's sshd as this test's user, and returns its port and ssh's flags for it.
func sshServer(t *testing.T, dir string) (port string, flags []string) {
	t.Helper()
	for _, name := range []string{"host", "id"} {
		must(command(t, nil, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", filepath.Join(dir, name)))(t)
	}
	if os.Getuid() == 0 {
		_ = os.MkdirAll("/run/sshd", 0o755) // where sshd, as root, wants to be
	}
	key := must(os.ReadFile(filepath.Join(dir, "id.pub")))(t)
	authorized := filepath.Join(dir, "authorized")
	config := filepath.Join(dir, "sshd_config")
	number := testutil.Reserved(t)
	for name, text := range map[string]string{authorized: string(key), config: fmt.Sprintf(
		"Port %d\nListenAddress 127.0.0.1\nHostKey %s/host\nAuthorizedKeysFile %s\nStrictModes no\nUsePAM no\nPidFile none\nPermitRootLogin yes\nSubsystem sftp internal-sftp\n",
		number, dir, authorized)} {
		testutil.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	}
	p := must(suite.Start("sshd", programPath(t, "sshd"), []string{"-D", "-e", "-f", config}, nil))(t)
	t.Cleanup(p.Kill)
	testutil.NoError(t, suite.WaitListening(p, "tcp", suite.Loopback(number)))
	return fmt.Sprint(number), []string{"-F", "none", "-i", filepath.Join(dir, "id"), "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=" + filepath.Join(dir, "known")}
}

// Dial is a ProxyCommand: ssh runs a command, which gets and sends back 50 MB.
func TestDialCarriesSSH(t *testing.T) {
	t.Parallel()
	w := newWhole(t)
	port, flags := sshServer(t, w.Dir)
	me := must(user.Current())(t).Username
	length := scaled[int64](16<<20, 50<<20)
	for _, way := range w.dialWays() {
		args := append(flags[:len(flags):len(flags)], "-o", "ProxyCommand="+w.dialCommand(way)+" %h:%p", "-p", port, me+"@127.0.0.1", "cat; exit 3")
		ssh := exec.CommandContext(within(t, 3*patience), programPath(t, "ssh"), args...)
		ssh.Stdin = newPayload(7, length)
		out, err := ssh.Output()
		hash, _ := hashOf(bytes.NewReader(out))
		var exit *exec.ExitError
		testutil.Holds(t, errors.As(err, &exit) && exit.ExitCode() == 3 && hash == sum(7, length),
			"%s: ssh: %v, and %d bytes of %d came back, or others", way, err, len(out), length)
	}
}
