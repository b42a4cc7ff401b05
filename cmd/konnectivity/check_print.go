package main

import (
	"fmt"
	"io"
	"strings"
)

// printFindings shows them as a person reads them: a tick or a cross a step.
func printFindings(out io.Writer, findings []finding, c paint, columns int) {
	marks := map[string]string{
		resultOK: c.green + "✔" + c.off, resultWarning: c.yellow + "!" + c.off, resultFailed: c.red + "✘" + c.off, resultSkipped: c.dim + "-" + c.off,
	}
	counts := map[string]int{}
	group := ""
	for _, f := range findings {
		if f.Group != group {
			if group != "" {
				fmt.Fprintln(out)
			}
			group = f.Group
			fmt.Fprintf(out, "%s%s%s\n", c.bold, group, c.off)
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
		line = marks[f.Result] + " " + wrap(line, room, 2, "  ")
		if f.Milliseconds != nil {
			line += fmt.Sprintf(" %s(%.1f ms)%s", c.dim, *f.Milliseconds, c.off)
		}
		fmt.Fprintln(out, line)
		if f.Hint != "" {
			fmt.Fprintf(out, "    → %s\n", wrap(f.Hint, columns, 6, "      "))
		}
	}
	var words []string
	for _, r := range []string{resultFailed, resultWarning, resultOK, resultSkipped} {
		if n := counts[r]; n > 0 {
			words = append(words, fmt.Sprint(n, " ", r))
		}
	}
	fmt.Fprintln(out, "\n"+strings.Join(words, ", "))
}
