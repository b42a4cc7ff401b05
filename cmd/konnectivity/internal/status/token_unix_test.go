//go:build unix

package status

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"konnectivity/internal/admin"
	"konnectivity/internal/testutil"
)

// A token may come from a pipe, such as <(command) in a shell. A pipe without a writer is
// an error soon.
func TestTokenFromPipe(t *testing.T) {
	read, write, err := os.Pipe()
	testutil.NoError(t, err)
	defer read.Close()
	token := admin.NewToken()
	testutil.Must(write.Write(token))(t)
	_ = write.Close()
	c := newClient(t)
	err = c.presentToken(fmt.Sprintf("/dev/fd/%d", read.Fd()))
	testutil.Holds(t, err == nil && c.token+"\n" == string(token), "%v, %q", err, c.token)
	pipe := filepath.Join(t.TempDir(), "token")
	testutil.NoError(t, syscall.Mkfifo(pipe, 0o600))
	for _, path := range []string{pipe, "/dev/zero"} {
		testutil.Fails(t, c.presentToken(path), "%s as a token", path)
	}
}
