//go:build unix

package files

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"konnectivity/internal/testutil"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testutil.Settled(m)) }

// A pipe in the place of the token's file holds up neither an attempt to connect nor
// the end of the agent.
func TestTokenFromAPipe(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "token")
	testutil.NoError(t, syscall.Mkfifo(pipe, 0o600))
	testutil.ErrorSays(t, testutil.Err(Token(pipe)()), "not a regular file", "a pipe")
}

func TestRead(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for name, text := range map[string]string{"whole": "12345", "long": "123456", "empty": ""} {
		testutil.NoError(t, os.WriteFile(at(name), []byte(text), 0o600))
	}
	testutil.NoError(t, syscall.Mkfifo(at("pipe"), 0o600))
	for link, to := range map[string]string{"link": "whole", "to pipe": "pipe", "endless": "/dev/zero"} {
		testutil.NoError(t, os.Symlink(to, at(link)))
	}
	for name, want := range map[string]string{
		"whole": "", "link": "", "empty": "", "long": "larger than 5 bytes", "absent": "no such file", ".": "not a regular file",
		"pipe": "not a regular file", "to pipe": "not a regular file", "endless": "not a regular file",
	} {
		data, err := Read(at(name), 5)
		if want == "" {
			there, _ := os.ReadFile(at(name))
			testutil.Holds(t, err == nil && string(data) == string(there), "%s: %q, %v", name, data, err)
			continue
		}
		var failed *fs.PathError
		testutil.Holds(t, data == nil && errors.As(err, &failed) && failed.Path == at(name) &&
			strings.Contains(failed.Err.Error(), want), "%s: %q, %v", name, data, err)
	}
}
