package e2e

import (
	"bytes"
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
