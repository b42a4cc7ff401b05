//go:build unix

package files_test

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"konnectivity/internal/files"
	"konnectivity/internal/testutil"
)

// A pipe in the place of the token's file holds up neither an attempt to connect nor
// the end of the agent.
func TestTokenFromAPipe(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "token")
	testutil.NoError(t, syscall.Mkfifo(pipe, 0o600))
	if _, err := files.Token(pipe)(); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Error(err)
	}
}
