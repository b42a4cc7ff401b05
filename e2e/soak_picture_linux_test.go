package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"konnectivity/internal/testutil"
)

// draw makes a picture of all series: a panel for each measure, a line for each role.
func (w *watcher) draw(t *testing.T, path, title string) {
	if path == "" {
		return
	}
	const wide, high, left, top = 640.0, 110.0, 50.0, 40.0
	colors := []string{"#1b6ca8", "#c0392b", "#27803c", "#8e44ad", "#d68910", "#148f8f", "#7f5539", "#d63384", "#4a4a4a"}
	names := w.names()
	end := 0.0
	for _, r := range w.roles {
		end = max(end, slices.Max(r.hours))
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" font-family="sans-serif" font-size="11"><rect width="100%%" height="100%%" fill="#fff"/><text x="8" y="18" font-size="13">%s</text>`+"\n",
		left+wide+130, top+float64(len(measures))*(high+30)+20, title)
	for i, m := range measures {
		y := top + float64(i)*(high+30) + high
		most, lines := 1.0, make([][2][]float64, len(names))
		for n, name := range names {
			at, values := w.roles[name].points(i, 0, end)
			lines[n] = [2][]float64{at, values}
			most = max(most, slices.Max(values))
		}
		fmt.Fprintf(&b, `<rect x="%.0f" y="%.0f" width="%.1f" height="%.0f" fill="#eee"/><path d="M%[1]v %.0[5]fV%.0fH%.0[7]f" fill="none" stroke="#888"/>`, left, y-high, wide/3, high, y-high, y, left+wide)
		fmt.Fprintf(&b, `<text x="%.0f" y="%.0f">%s</text><text x="%.0f" y="%.0f" text-anchor="end">%.0f</text><text x="%.0[4]f" y="%.0[7]f" text-anchor="end">0</text>`+"\n", left, y-high-5, m.name, left-4, y-high+9, most, y)
		for n, line := range lines {
			fmt.Fprintf(&b, `<polyline fill="none" stroke="%s" stroke-width="1.3" points="`, colors[n%len(colors)])
			for p, h := range line[0] {
				fmt.Fprintf(&b, "%.1f,%.1f ", left+wide*h/end, y-high*line[1][p]/most)
			}
			fmt.Fprintln(&b, `"/>`)
		}
	}
	for n, name := range names {
		fmt.Fprintf(&b, `<text x="%.0f" y="%.0f" fill="%s">%s</text>`+"\n", left+wide+12, top+15+float64(n)*16, colors[n%len(colors)], name)
	}
	fmt.Fprintf(&b, `<text x="%.0f" y="%.0f" text-anchor="end">%.0f minutes; grey: not judged</text></svg>`+"\n", left+wide, top+float64(len(measures))*(high+30), end*60)
	testutil.NoError(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(b.String()), 0o644)))
}
