package e2e

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"testing"
	"time"

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
	return []string{"direct", "socks5://" + w.socks.Address(), "http://" + w.https.Address(), "https://" + server, "link://" + server}
}

// sshServer runs the real sshd for this test's own user, and returns its port
// and the flags by which ssh and scp reach it.
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

// Dial is a ProxyCommand: ssh runs a command and scp moves 50 MB either way.
func TestDialCarriesSSH(t *testing.T) {
	t.Parallel()
	w := newWhole(t)
	port, flags := sshServer(t, w.Dir)
	me := must(user.Current())(t).Username
	length := scaled[int64](16<<20, 50<<20)
	original := filepath.Join(w.Dir, "original")
	f := must(os.Create(original))(t)
	testutil.Must(io.Copy(f, newPayload(7, length)))(t)
	f.Close()
	want := fileHash(t, original)
	for _, way := range w.dialWays()[1:] {
		args := append(flags[:len(flags):len(flags)], "-o", "ProxyCommand="+w.dialCommand(way)+" %h:%p")
		out, err := command(t, nil, "ssh", append(args, "-p", port, me+"@127.0.0.1", "echo it works; exit 3")...)
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 3 || !strings.Contains(out, "it works") {
			t.Errorf("%s: ssh: %v %q", way, err, out)
		}
		there, back := filepath.Join(w.Dir, "there"), filepath.Join(w.Dir, "back")
		start := time.Now()
		testutil.Succeeds(t, testutil.Err(command(t, nil, "scp", append(args, "-q", "-P", port, original, me+"@127.0.0.1:"+there)...)),
			"%s", way)
		testutil.Succeeds(t, testutil.Err(command(t, nil, "scp", append(args, "-q", "-P", port, me+"@127.0.0.1:"+there, back)...)),
			"%s", way)
		if fileHash(t, there) != want || fileHash(t, back) != want {
			t.Errorf("%s: what arrived is not what was sent", way)
		}
		t.Logf("%s: %d MiB there and back in %v", way, length>>20, time.Since(start).Round(time.Millisecond))
		os.Remove(there)
		os.Remove(back)
	}
}

func fileHash(t *testing.T, path string) string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Error(err)
		return ""
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		t.Error(err)
	}
	return fmt.Sprintf("%x", h.Sum(nil))
}
