package main

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"konnectivity/internal/testutil"
)

// Only the user can enter the folder, also after a second call. Without the permission to
// arrange that, the command warns and succeeds, so that the pod starts.
func TestHandoverFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "agents")
	own := "--uid=" + strconv.Itoa(os.Getuid())
	for range 2 {
		status, _, stderr := konnectivity("handover-folder", dir, own)
		testutil.Requires(t, status == 0 && stderr == "", "status %d: %s", status, stderr)
		testutil.Equal(t, testutil.Must(os.Stat(dir))(t).Mode().Perm(), handoverFolderMode, "mode")
		_ = os.Chmod(dir, 0o755)
	}
	expect(t, 1, "", "handover-folder", filepath.Join(dir, "a", "b"), own) // without the folder above it
	if os.Getuid() == 0 {
		return
	}
	status, _, stderr := konnectivity("handover-folder", dir, "--uid=0")
	testutil.Holds(t, status == 0 && stderr != "", "without the right to do so: status %d, %q", status, stderr)
}
