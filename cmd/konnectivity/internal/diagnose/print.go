package diagnose

import (
	"fmt"
	"io"
	"strings"

	"konnectivity/cmd/konnectivity/internal/status"
)

// Print prints findings for a person, with a tick or a cross for each step.
func Print(out io.Writer, findings []Finding, c status.Paint, columns int) {
	marks := map[string]string{
		OK: c.Green + "✔" + c.Off, Warning: c.Yellow + "!" + c.Off, Failed: c.Red + "✘" + c.Off, Skipped: c.Dim + "-" + c.Off,
	}
	counts := map[string]int{}
	group := ""
	for _, f := range findings {
		if f.Group != group {
			if group != "" {
				fmt.Fprintln(out)
			}
			group = f.Group
			fmt.Fprintf(out, "%s%s%s\n", c.Bold, group, c.Off)
		}
		counts[f.Result]++
		line := f.Step
		if f.Cause != "" {
			line += ": " + f.Cause
		}
		room := columns
		if f.Milliseconds != nil && columns > 0 {
			room -= len(" (10000.0 ms)")
		}
		line = marks[f.Result] + " " + status.Wrap(line, room, 2, "  ")
		if f.Milliseconds != nil {
			line += fmt.Sprintf(" %s(%.1f ms)%s", c.Dim, *f.Milliseconds, c.Off)
		}
		fmt.Fprintln(out, line)
		if f.Hint != "" {
			fmt.Fprintf(out, "    → %s\n", status.Wrap(f.Hint, columns, 6, "      "))
		}
	}
	var words []string
	for _, r := range []string{Failed, Warning, OK, Skipped} {
		if n := counts[r]; n > 0 {
			words = append(words, fmt.Sprint(n, " ", r))
		}
	}
	fmt.Fprintln(out, "\n"+strings.Join(words, ", "))
}
