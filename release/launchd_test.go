package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
)

// The property list for launchd is well-formed, pairs keys with values, and gives the
// agent flags that it has.
func TestLaunchd(t *testing.T) {
	var keys, words []string
	var texts strings.Builder
	for d := xml.NewDecoder(bytes.NewReader(launchd)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		noError(t, err)
		switch x := token.(type) {
		case xml.StartElement:
			texts.Reset()
		case xml.CharData:
			texts.Write(x)
		case xml.EndElement:
			switch x.Name.Local {
			case "key":
				keys = append(keys, texts.String())
			case "string":
				words = append(words, texts.String())
			}
			texts.Reset()
		}
	}
	if want := []string{"Label", "ProgramArguments", "RunAtLoad", "KeepAlive", "ExitTimeOut", "StandardErrorPath"}; !slices.Equal(keys, want) {
		t.Errorf("keys %q, want %q", keys, want)
	}
	flags := string(must(os.ReadFile("../docs/flags.md"))(t))
	count := 0
	for _, word := range words {
		if name, _, ok := strings.Cut(word, "="); ok {
			count++
			contains(t, flags, "| `"+name+"` |", "the agent's flags")
		}
	}
	if count != 5 || words[1] != "/usr/local/bin/konnectivity-agent" {
		t.Errorf("launchd would run %q", words)
	}
}
