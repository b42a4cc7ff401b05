package main

import (
	"encoding/xml"
	"os"
	"strings"
	"testing"
)

// The property list for launchd is well-formed, pairs keys with values, and gives the
// agent flags that it has.
func TestLaunchd(t *testing.T) {
	var list struct {
		Keys      []string `xml:"dict>key"`
		Arguments []string `xml:"dict>array>string"`
	}
	noError(t, xml.Unmarshal(launchd, &list))
	equal(t, strings.Join(list.Keys, " "), "Label ProgramArguments RunAtLoad KeepAlive ExitTimeOut StandardErrorPath",
		"keys")
	flags := string(must(os.ReadFile("../docs/flags.md"))(t))
	count := 0
	for _, word := range list.Arguments {
		if name, _, ok := strings.Cut(word, "="); ok {
			count++
			contains(t, flags, "| `"+name+"` |", "the agent's flags")
		}
	}
	equal(t, count, 5, "flags of the agent in %q", list.Arguments)
	program, _, _ := strings.Cut(strings.Join(list.Arguments, " "), " ")
	equal(t, program, "/usr/local/bin/konnectivity-agent", "what launchd runs")
}
