package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"konnectivity/internal/admin"
	"konnectivity/internal/printable"
)

// paint colours words where a person looks.
type paint struct{ green, red, yellow, bold, dim, off string }

func newPaint(on bool) paint {
	if !on {
		return paint{}
	}
	return paint{"\x1b[32m", "\x1b[31m", "\x1b[33m", "\x1b[1m", "\x1b[2m", "\x1b[0m"}
}

// statusPrinter puts reports into words.
type statusPrinter struct {
	out   io.Writer
	paint paint
	now   time.Time

	columns int // 0: as many as one likes
}

func (p *statusPrinter) report(r report) {
	c := p.paint
	if r.Error != "" {
		fmt.Fprintf(p.out, "%s%s: %s%s\n", c.red, r.Address, r.Error, c.off)
		return
	}
	s := r.Status
	ready := c.green + "ready" + c.off
	if !s.Ready {
		ready = c.red + "not ready: " + printable.Text(s.Reason) + c.off
	}
	head := c.bold + printable.Text(s.Component) + c.off
	if s.ID != "" {
		head += " " + printable.Text(s.ID)
	}
	p.line("", fmt.Sprintf("%s, %s, %sup %s, at %s, %s%s", head, ready, c.dim, span(s.Now.Sub(s.Started)), r.Address, printable.Text(s.Build.Version), c.off))
	p.line("  ", p.summary(s))
	for _, trouble := range r.Troubles {
		p.line("  ", c.red+"✘ "+printable.Text(trouble)+c.off)
	}
	p.peers(r.Peers)
	p.connections(r)
	p.failures(r.Failures)
}

// line prints one that may take several.
func (p *statusPrinter) line(indent, text string) {
	fmt.Fprintln(p.out, indent+wrap(text, p.columns, len(indent), indent+"  "))
}

// summary is the whole in one line.
func (p *statusPrinter) summary(s admin.Status) string {
	var words []string
	for _, role := range slices.Sorted(maps.Keys(s.Peers)) {
		name := role
		if role == admin.RoleClient {
			name = "sidecar"
		}
		words = append(words, plural(s.Peers[role], name))
	}
	for _, name := range slices.Sorted(maps.Keys(s.Strategies)) {
		words = append(words, fmt.Sprintf("%s: %s", name, plural(s.Strategies[name], "agent")))
	}
	conns := plural(s.Connections.Open, "connection")
	if n := s.Connections.Stalled; n > 0 {
		conns += fmt.Sprintf(", %s%d stalled%s", p.paint.red, n, p.paint.off)
	}
	words = append(words, conns, "up "+rate(s.Rates.Up), "down "+rate(s.Rates.Down),
		fmt.Sprintf("dials %.1f/s, %.1f/s failed, mean %s", s.Rates.Dials, s.Rates.Failed, duration(s.Rates.DialSeconds)))
	for _, name := range slices.Sorted(maps.Keys(s.Buffers)) {
		if b := s.Buffers[name]; b.Limit > 0 && b.Used > b.Limit/10 {
			words = append(words, fmt.Sprintf("%sbuffers of %s %d %% full%s", p.paint.yellow, name, 100*b.Used/b.Limit, p.paint.off))
		}
	}
	return strings.Join(words, " · ")
}

func (p *statusPrinter) peers(peers []admin.Peer) {
	rows := [][]string{{"PEER", "ID", "PROTOCOL", "REMOTE", "STREAMS", "RTT", "WINDOW", "UP", "DOWN", "STATE"}}
	for _, v := range peers {
		state := "ok"
		if v.Draining {
			state = "draining"
		}
		if v.Stalled > 0 {
			state = fmt.Sprint(v.Stalled, " stalled")
		}
		if v.Silent > 0 {
			state = "silent " + duration(v.Silent)
		}
		window := "-"
		if v.Window > 0 {
			window = size(float64(v.Window))
		}
		name := v.ID
		if v.Role == admin.RoleClient && v.Software != "" {
			name = v.Software // a sidecar's id is made anew with each start
		}
		rows = append(rows, []string{v.Role, cut(name, 36), v.Protocol, v.Remote, fmt.Sprint(v.Streams), duration(v.RoundTrip), window,
			rate(v.Up), rate(v.Down), state})
	}
	p.table(rows, "WINDOW", "PROTOCOL", "STREAMS")
}

func (p *statusPrinter) connections(r report) {
	rows := [][]string{{"ID", "FRONT", "SOURCE", "DESTINATION", "NEXT HOP", "AGE", "UP", "DOWN", "STATE"}}
	for _, v := range r.Connections {
		state := v.State
		if v.State == admin.StateStalled {
			state = fmt.Sprintf("stalled %s by %s", duration(v.StalledFor), v.StalledBy)
		}
		rows = append(rows, []string{v.ID, v.Front, v.Source, cut(v.Destination, 48), cut(v.Next, 36), span(p.now.Sub(v.Since)),
			rate(v.Up), rate(v.Down), state})
	}
	p.table(rows, "FRONT", "AGE", "SOURCE")
	if more := r.Matched - len(r.Connections); more > 0 && len(r.Connections) > 0 {
		fmt.Fprintf(p.out, "  %sand %d more%s\n", p.paint.dim, more, p.paint.off)
	}
}

func (p *statusPrinter) failures(failures []admin.Failure) {
	if len(failures) == 0 {
		return
	}
	fmt.Fprintf(p.out, "\n  %sLAST FAILURES%s\n", p.paint.dim, p.paint.off)
	said := map[string]bool{} // a hint is worth one line
	for _, f := range failures {
		by := ""
		if f.Next != "" {
			by = " by " + printable.Text(f.Next)
		}
		id := ""
		if f.ID != "" {
			id = fmt.Sprintf(" %s(%s)%s", p.paint.dim, printable.Text(f.ID), p.paint.off)
		}
		p.line("  ", fmt.Sprintf("%s  %s%s%s  %s%s: %s%s", f.Time.Local().Format(time.TimeOnly), p.paint.red, printable.Text(f.Failure), p.paint.off,
			printable.Text(f.Destination), by, printable.Text(f.Cause), id))
		if f.Hint != "" && !said[f.Hint] {
			said[f.Hint] = true
			p.line("          ", "  "+printable.Text(f.Hint))
		}
	}
}

// table aligns rows; the first is the head. A table of nothing is nothing. Where
// it is too wide, columns are made narrower, then those left out that can be
// spared, in their order, then columns are made as narrow as it takes; but not
// the last one, which says what is wrong.
func (p *statusPrinter) table(rows [][]string, spare ...string) {
	if len(rows) < 2 {
		return
	}
	widths := widthsOf(rows)
	for !shrink(widths, p.columns, minWidth) && len(spare) > 0 {
		if i := slices.Index(rows[0], spare[0]); i >= 0 {
			for n := range rows {
				rows[n] = slices.Delete(rows[n], i, i+1)
			}
		}
		spare, widths = spare[1:], widthsOf(rows)
	}
	shrink(widths, p.columns, 1)
	fmt.Fprintln(p.out)
	for n, row := range rows {
		p.row(row, widths, n == 0)
	}
}

func (p *statusPrinter) row(row []string, widths []int, head bool) {
	line := " "
	for i, cell := range row {
		cell = cut(cell, widths[i])
		line += " " + cell + strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)+1)
	}
	before, after, state := "", "", row[len(row)-1]
	switch {
	case head:
		before, after = p.paint.dim, p.paint.off
	case strings.Contains(state, "stalled"), strings.HasPrefix(state, "silent"):
		before, after = p.paint.red, p.paint.off
	}
	fmt.Fprintln(p.out, before+strings.TrimRight(line, " ")+after)
}

// widthsOf makes cells plain and measures them.
func widthsOf(rows [][]string) []int {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			row[i] = printable.Text(cell)
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i]))
		}
	}
	return widths
}

// minWidth is what a column keeps while others can be spared: enough of an id to
// filter by.
const minWidth = 12

// shrink makes the widest columns narrower, to least at the narrowest, until all
// fit into columns; 0 fits all. It says whether they do.
func shrink(widths []int, columns, least int) bool {
	for {
		total, widest := 0, 0
		for i, w := range widths {
			total += w + 2 // a gap after each but the last, and one before them all
			if i < len(widths)-1 && w > widths[widest] {
				widest = i
			}
		}
		switch {
		case columns == 0 || total <= columns:
			return true
		case widths[widest] <= least:
			return false
		}
		widths[widest]--
	}
}

// plural counts things: by word and an s, or by the word for many.
func plural(n int, word string, many ...string) string {
	switch {
	case n == 1:
		return "1 " + word
	case len(many) > 0:
		return fmt.Sprint(n, " ", many[0])
	default:
		return fmt.Sprintf("%d %ss", n, word)
	}
}

// cut keeps a column from pushing the others off the screen.
func cut(s string, most int) string {
	if utf8.RuneCountInString(s) <= most {
		return s
	}
	return string([]rune(s)[:most-1]) + "…"
}

func rate(bytesPerSecond float64) string {
	if bytesPerSecond <= 0 {
		return "-"
	}
	return size(bytesPerSecond) + "/s"
}

func size(n float64) string {
	units := []string{"B", "kB", "MB", "GB", "TB"}
	i := 0
	for n >= 1000 && i < len(units)-1 {
		n /= 1000
		i++
	}
	if i == 0 || n >= 100 {
		return fmt.Sprintf("%.0f %s", n, units[i])
	}
	return fmt.Sprintf("%.1f %s", n, units[i])
}

// duration is for what takes milliseconds; 0 is unknown.
func duration(seconds float64) string {
	switch {
	case seconds <= 0:
		return "-"
	case seconds < 1:
		return fmt.Sprintf("%.3g ms", seconds*1000)
	default:
		return span(time.Duration(seconds * float64(time.Second)))
	}
}

// span is for what takes seconds to days.
func span(d time.Duration) string {
	switch {
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", max(0, d.Seconds()))
	case d < 2*time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", int(d.Hours()))
	default:
		return fmt.Sprintf("%d d", int(d.Hours()/24))
	}
}
