package testutil

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// documentedFlags returns the flags in the tables of a section of a document, with
// their defaults. section is "docs/NAME.md#HEADING".
func documentedFlags(t testing.TB, section string) map[string]string {
	t.Helper()
	doc, heading, _ := strings.Cut(section, "#")
	text := Must(os.ReadFile(filepath.Join(moduleRoot(t), doc)))(t)
	found := flagTable(string(text), heading)
	if len(found) == 0 {
		t.Fatalf("%s has no table of flags below %q", doc, heading)
	}
	return found
}

var codeSpan = regexp.MustCompile("`--([a-z0-9-]+)`")

// flagTable returns the flags in the first column of the tables below a heading, with
// the second column, in which a default is a code span.
func flagTable(text, heading string) map[string]string {
	_, body, _ := strings.Cut("\n"+text, "\n## "+heading+"\n")
	body, _, _ = strings.Cut(body, "\n## ")
	found := map[string]string{}
	for line := range strings.Lines(body) {
		cells := strings.Split(line, "|")
		if len(cells) < 4 {
			continue
		}
		for _, name := range codeSpan.FindAllStringSubmatch(cells[1], -1) {
			found[name[1]] = strings.TrimSpace(cells[2])
		}
	}
	return found
}

// shownDefault is the default of a flag as docs/flags.md has it.
func shownDefault(f *pflag.Flag) string {
	text := strings.Trim(f.DefValue, "[]")
	if text == "" || text == "false" {
		return ""
	}
	return "`" + text + "`"
}

// CheckDocumentedFlags fails t unless every flag has help and, except cobra's own, is in the tables of own or of a
// shared section, own has no other flags, and own has the defaults, if it is in
// docs/flags.md.
func CheckDocumentedFlags(t testing.TB, flags *pflag.FlagSet, own string, shared ...string) {
	t.Helper()
	documented := documentedFlags(t, own)
	for name := range documented {
		if flags.Lookup(name) == nil {
			t.Errorf("%s has --%s, which does not exist", own, name)
		}
	}
	elsewhere := map[string]bool{}
	for _, section := range shared {
		for name := range documentedFlags(t, section) {
			elsewhere[name] = true
		}
	}
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Usage == "" {
			t.Errorf("--%s has no help", f.Name)
		}
		value, here := documented[f.Name]
		switch {
		case f.Name == "help" || f.Name == "version":
		case !here && !elsewhere[f.Name]:
			t.Errorf("--%s is not documented in %s", f.Name, own)
		case here && strings.HasPrefix(own, "docs/flags.md") && value != shownDefault(f):
			t.Errorf("%s says that the default of --%s is %q, and it is %q", own, f.Name, value, shownDefault(f))
		}
	})
}
