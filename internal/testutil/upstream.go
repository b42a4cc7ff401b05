package testutil

import (
	_ "embed"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

//go:embed upstream.txt
var upstreamDefaults string

// anyDefault stands for a default that is not compared.
const anyDefault = "*"

// readDefaults returns the defaults of a group of flags in upstream.txt.
func readDefaults(group string) map[string]string {
	found := map[string]string{}
	for line := range strings.Lines(upstreamDefaults) {
		if f := strings.Fields(line); len(f) >= 2 && f[0] == group {
			found[f[1]] = strings.Join(f[2:], " ")
		}
	}
	return found
}

// deviation is a row of the table in docs/compatibility.md: the default of a flag
// there, which is upstream, and here.
type deviation struct{ there, here string }

// deviations returns the rows of program, by flag.
func deviations(t testing.TB, program string) map[string]deviation {
	t.Helper()
	text := Must(os.ReadFile(filepath.Join(moduleRoot(t), "docs/compatibility.md")))(t)
	found := map[string]deviation{}
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		if len(cells) < 5 || strings.TrimSpace(cells[0]) != program || !strings.HasPrefix(cells[1], "`--") {
			continue
		}
		found[strings.TrimPrefix(strings.Trim(cells[1], "`"), "--")] = deviation{cells[2], cells[3]}
	}
	return found
}

// moduleRoot returns the module's folder. A test runs in its package's folder.
func moduleRoot(t testing.TB) string {
	t.Helper()
	for dir := Must(os.Getwd())(t); ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		if dir == filepath.Dir(dir) {
			t.Fatal("no go.mod above the working directory")
		}
	}
}

// CheckUpstreamFlags fails t unless flags has every flag of upstream's groups, and
// the rows for program in docs/compatibility.md are exactly the flags whose default
// differs from upstream's, with both defaults correct. A row for a flag that upstream
// lacks says in words what upstream does instead.
func CheckUpstreamFlags(t testing.TB, program string, flags *pflag.FlagSet, groups ...string) {
	t.Helper()
	told := deviations(t, program)
	if len(told) == 0 {
		t.Fatalf("docs/compatibility.md has no row for %q", program)
	}
	for _, group := range groups {
		for name, theirs := range readDefaults(group) {
			checkFlag(t, flags, name, theirs, told)
			delete(told, name)
		}
	}
	for name, r := range told {
		f := flags.Lookup(name)
		if f == nil {
			t.Errorf("docs/compatibility.md: there is no flag --%s", name)
			continue
		}
		if strings.HasPrefix(r.there, "`") {
			t.Errorf("docs/compatibility.md: --%s is told to be %s there, where it does not exist", name, r.there)
		}
		if r.here != shown(f.DefValue) {
			t.Errorf("docs/compatibility.md: --%s is told to be %s here, it is %s", name, r.here, shown(f.DefValue))
		}
	}
}

func checkFlag(t testing.TB, flags *pflag.FlagSet, name, theirs string, told map[string]deviation) {
	t.Helper()
	f := flags.Lookup(name)
	if f == nil {
		t.Errorf("--%s is missing", name)
		return
	}
	r, isTold := told[name]
	differs := theirs != anyDefault && shown(theirs) != shown(f.DefValue)
	switch {
	case differs && !isTold:
		t.Errorf("--%s is %s by default, not %s as there, and docs/compatibility.md does not tell", name, shown(f.DefValue), shown(theirs))
	case !differs && isTold:
		t.Errorf("docs/compatibility.md tells that --%s differs; it does not", name)
	case differs && r != deviation{shown(theirs), shown(f.DefValue)}:
		t.Errorf("docs/compatibility.md: --%s is told to be %s there and %s here; it is %s and %s", name, r.there, r.here, shown(theirs), shown(f.DefValue))
	}
}

// shown returns a default as the table shows it.
func shown(value string) string {
	value = strings.TrimSuffix(strings.TrimPrefix(value, "["), "]")
	if d, err := time.ParseDuration(value); err == nil && value != "0" {
		value = short(d)
	}
	if value == "" {
		return "none"
	}
	return "`" + value + "`"
}

// short formats a duration without the parts that are zero.
func short(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}
