package e2e

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"konnectivity/e2e/suite"
)

var escapes = regexp.MustCompile("\x1b\\[[0-9;]*[A-Za-z]")

// --watch in a real terminal stays within it, frame by frame.
func TestStatusWatchInATerminal(t *testing.T) {
	t.Parallel()
	w := newWhole(t)
	// script (bsdutils, which every Debian has) makes the terminal; its size is
	// set from inside.
	line := fmt.Sprintf("stty rows 20 cols 80; %s status --watch --interval=300ms %s %s", w.Bin.Path("konnectivity"),
		suite.Loopback(w.server.AdminPort), agentAt(w.agent))
	p := must(suite.Start("script", programPath(t, "script"), []string{"-qec", line, "/dev/null"}, []string{"TERM=xterm"}))(t)
	t.Cleanup(p.Kill) // which hangs the terminal up
	var frames []string
	eventually(t, patience, "frames", func() (bool, any) {
		out := p.Output()
		frames = strings.Split(out, "\x1b[H")
		return len(frames) > 8, out
	})
	if frames = frames[1:]; !strings.Contains(frames[1], "\x1b[1m") {
		t.Fatalf("no colour:\n%q", frames)
	}
	for _, frame := range frames[:len(frames)-1] { // the last one may be cut short
		rows := strings.Split(strings.ReplaceAll(escapes.ReplaceAllString(frame, ""), "\r", ""), "\n")
		if len(rows) > 20 || !strings.Contains(frame, "konnectivity-server") {
			t.Errorf("%d rows:\n%s", len(rows), frame)
		}
		for _, row := range rows {
			if n := utf8.RuneCountInString(row); n > 80 {
				t.Errorf("a row of %d columns: %q", n, row)
			}
		}
	}
}
