package main

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// Each program that the script makes a service of has a file of flags that it has, and
// none but its own.
func TestWindowsServices(t *testing.T) {
	files := map[string]string{}
	for _, e := range windows("top/") {
		files[strings.TrimPrefix(e.name, "top/windows/")] = string(e.text)
	}
	script := files["service.ps1"]
	list := regexp.MustCompile(`ValidateSet\(([^)]+)\)\]\[string\]\$Program`).FindStringSubmatch(script)
	requires(t, list != nil, "the script names no programs")
	names := strings.Split(strings.ReplaceAll(list[1], "'", ""), ", ")
	equal(t, len(files), len(names)+1, "files for %q", names)
	documented := string(must(os.ReadFile("../docs/flags.md"))(t)) + string(must(os.ReadFile("../docs/sidecars.md"))(t))
	known := func(flag string) bool {
		return regexp.MustCompile(`(?m)^\| [^|]*` + "`" + regexp.QuoteMeta(flag) + "`").MatchString(documented)
	}
	for _, name := range names {
		count := 0
		for line := range strings.Lines(files[name+".txt"]) {
			line = strings.TrimSpace(line)
			if strings.HasPrefix(line, "#") {
				continue
			}
			flag, value, _ := strings.Cut(line, "=")
			if count++; !known(flag) {
				t.Errorf("%s: %q is no flag", name, line)
			}
			if folder := `C:\ProgramData\konnectivity\`; strings.HasPrefix(value, folder) && !strings.HasPrefix(value, folder+name+`\`) {
				t.Errorf("%s: %s is in the folder of another", name, value)
			}
		}
		holds(t, count >= 8, "%s has %d flags", name, count)
	}
	holds(t, !known("--no-such-flag"), "every flag is known")
}
