package systems_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"konnectivity/e2e/systems"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const root = "../.."

// supported are the SYSTEMS of the Makefile.
func supported(t *testing.T) []string {
	t.Helper()
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(makefile)) {
		if value, ok := strings.CutPrefix(line, "SYSTEMS := "); ok {
			return strings.Fields(value)
		}
	}
	t.Fatal("the Makefile names no SYSTEMS")
	return nil
}

func TestEverySystemTypeChecks(t *testing.T) {
	for _, system := range supported(t) {
		t.Run(system, func(t *testing.T) {
			if err := systems.Check(root, system); err != nil {
				t.Error(err)
			}
		})
	}
}

// What Linux alone has is found missing elsewhere, in tests as well; so is a
// number that is too large for one system.
func TestWhatASystemLacksIsFound(t *testing.T) {
	const (
		enonet = "package p\n\nimport \"syscall\"\n\nfunc f() error { return syscall.ENONET }\n"
		large  = "package p\n\nfunc f() int { return 1 << 40 }\n"
	)
	for name, c := range map[string]struct{ file, text, system, want string }{
		"code":            {"p.go", enonet, "darwin/arm64", "ENONET"},
		"the same, there": {"p.go", enonet, "linux/arm64", ""},
		"a test":          {"p_test.go", enonet, "darwin/arm64", "ENONET"},
		"another's file":  {"p_linux.go", enonet, "darwin/arm64", ""},
		"a large number":  {"p.go", large, "linux/386", "overflow"},
		"no syntax":       {"p.go", "package p\n\nfunc\n", "linux/amd64", "expected"},
		"no such package": {"p.go", "package p\n\nimport _ \"nowhere\"\n", "linux/amd64", "nowhere"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for file, text := range map[string]string{"go.mod": "module p\n\ngo 1.26\n", "doc.go": "package p\n", c.file: c.text} {
				if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			err := systems.Check(dir, c.system)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}
