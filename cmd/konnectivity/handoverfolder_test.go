package main

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

// Only the user can enter the folder, also after a second call. Without the permission to
// arrange that, the command warns and succeeds, so that the pod starts.
func TestHandoverFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "agents")
	own := "--uid=" + strconv.Itoa(os.Getuid())
	for range 2 {
		if status, _, stderr := konnectivity("handover-folder", dir, own); status != 0 || stderr != "" {
			t.Fatalf("status %d: %s", status, stderr)
		}
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != handoverFolderMode {
			t.Errorf("%v, %v", info, err)
		}
		_ = os.Chmod(dir, 0o755)
	}
	if status, _, _ := konnectivity("handover-folder", filepath.Join(dir, "a", "b"), own); status != 1 {
		t.Errorf("without the folder above it: status %d", status)
	}
	if os.Getuid() == 0 {
		return
	}
	if status, _, stderr := konnectivity("handover-folder", dir, "--uid=0"); status != 0 || stderr == "" {
		t.Errorf("without the right to do so: status %d, %q", status, stderr)
	}
}
