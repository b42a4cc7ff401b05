package status

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"konnectivity/internal/admin"
	"konnectivity/internal/cli"
)

// printer prints reports.
type printer struct {
	out   io.Writer
	paint Paint

	columns int // 0 is unlimited
}

func (p *printer) report(r Report) {
	p.process(r)
	p.peers(r.Peers)
	p.connections(r)
	p.failures(r.Failures)
}

// process prints what there is to say of the process as a whole.
func (p *printer) process(r Report) {
	c := p.paint
	if r.Error != "" {
		p.line("", fmt.Sprintf("%s%s: %s%s", c.Red, r.Address, r.Error, c.Off))
		return
	}
	s := r.Status
	ready := c.Green + "ready" + c.Off
	if !s.Ready {
		ready = c.Red + "not ready: " + cli.Printable(s.Reason) + c.Off
	}
	head := c.Bold + cli.Printable(s.Component) + c.Off
	if s.ID != "" {
		head += " " + cli.Printable(s.ID)
	}
	p.line("", fmt.Sprintf("%s, %s, %sup %s, at %s, %s%s", head, ready, c.Dim, Span(s.Now.Sub(s.Started.Time)), r.Address, cli.Printable(s.Build.Version), c.Off))
	p.line("  ", p.summary(s))
	for _, trouble := range r.Troubles {
		p.line("  ", c.Red+"✘ "+cli.Printable(trouble)+c.Off)
	}
}

// line prints text, wrapped.
func (p *printer) line(indent, text string) {
	fmt.Fprintln(p.out, indent+Wrap(text, p.columns, len(indent), indent+"  "))
}

// summary is the state of the process in one line.
func (p *printer) summary(s admin.Status) string {
	var words []string
	for _, role := range slices.Sorted(maps.Keys(s.Peers)) {
		words = append(words, Plural(s.Peers[role], role))
	}
	for _, name := range slices.Sorted(maps.Keys(s.Strategies)) {
		words = append(words, fmt.Sprintf("%s: %s", name, Plural(s.Strategies[name], "agent")))
	}
	conns := Plural(s.Connections.Open, "connection")
	if n := s.Connections.Stalled; n > 0 {
		conns += fmt.Sprintf(", %s%d stalled%s", p.paint.Red, n, p.paint.Off)
	}
	if n := s.Connections.Resuming; n > 0 {
		conns += fmt.Sprintf(", %s%d resuming%s", p.paint.Red, n, p.paint.Off)
	}
	words = append(words, conns, "up "+Rate(s.Rates.Up), "down "+Rate(s.Rates.Down),
		fmt.Sprintf("dials %.1f/s, %.1f/s failed, mean %s", s.Rates.Dials, s.Rates.Failed, Duration(s.Rates.DialSeconds)))
	for _, name := range slices.Sorted(maps.Keys(s.Buffers)) {
		if b := s.Buffers[name]; b.Limit > 0 && b.Used > b.Limit/10 {
			words = append(words, fmt.Sprintf("%sbuffers of %s %d %% full%s", p.paint.Yellow, name, 100*b.Used/b.Limit, p.paint.Off))
		}
	}
	return strings.Join(words, " · ")
}

func (p *printer) peers(peers []admin.Peer) {
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
			state = "silent " + Duration(v.Silent)
		}
		window := "-"
		if v.Window > 0 {
			window = Bytes(float64(v.Window))
		}
		name := v.ID
		if v.Role == admin.RoleClient && v.Software != "" {
			name = v.Software // a sidecar has another id after each start
		}
		rows = append(rows, []string{v.Role, Cut(name, 36), v.Protocol, v.Remote, fmt.Sprint(v.Streams), Duration(v.RoundTrip), window,
			Rate(v.Up), Rate(v.Down), state})
	}
	p.table(ofTenants(rows, func(i int) string { return peers[i].Tenant }), "WINDOW", "PROTOCOL", "STREAMS")
}

func (p *printer) connections(r Report) {
	rows := [][]string{{"ID", "FRONT", "SOURCE", "DESTINATION", "NEXT HOP", "AGE", "UP", "DOWN", "STATE"}}
	for _, v := range r.Connections {
		state := v.State
		if v.State == admin.StateStalled {
			state = fmt.Sprintf("stalled %s by %s", Duration(v.StalledFor), v.StalledBy)
		}
		if v.State == admin.StateResuming {
			state = "resuming " + Duration(v.ResumingFor)
		}
		if v.Resumes > 0 {
			state += fmt.Sprintf(", resumed %d×", v.Resumes)
		}
		rows = append(rows, []string{v.ID, v.Front, v.Source, Cut(v.Destination, 48), Cut(v.Next, 36), Span(r.Status.Now.Sub(v.Since.Time)),
			Rate(v.Up), Rate(v.Down), state})
	}
	p.table(ofTenants(rows, func(i int) string { return r.Connections[i].Tenant }), "FRONT", "AGE", "SOURCE")
	if len(r.Connections) > 0 {
		p.more(r.Matched - len(r.Connections))
	}
}

// ofTenants adds a second column, the tenant of each row, if any row is of one. Rows of the
// server's own cluster have "-".
func ofTenants(rows [][]string, tenant func(row int) string) [][]string {
	column, some := []string{"TENANT"}, false
	for i := range rows[1:] {
		column = append(column, cmp.Or(tenant(i), "-"))
		some = some || tenant(i) != ""
	}
	for i := range rows {
		if some {
			rows[i] = slices.Insert(rows[i], 1, column[i])
		}
	}
	return rows
}

// more prints how many items were left out, if any.
func (p *printer) more(n int) {
	if n > 0 {
		fmt.Fprintf(p.out, "  %sand %d more%s\n", p.paint.Dim, n, p.paint.Off)
	}
}

func (p *printer) failures(failures []admin.Failure) {
	if len(failures) == 0 {
		return
	}
	fmt.Fprintf(p.out, "\n  %sLAST FAILURES%s\n", p.paint.Dim, p.paint.Off)
	said := map[string]bool{} // each hint is printed once
	for _, f := range failures {
		by := ""
		if f.Next != "" {
			by = " by " + cli.Printable(f.Next)
		}
		id := f.ID
		if f.Tenant != "" {
			id = strings.TrimSpace("tenant " + f.Tenant + " " + f.ID)
		}
		if id != "" {
			id = fmt.Sprintf(" %s(%s)%s", p.paint.Dim, cli.Printable(id), p.paint.Off)
		}
		p.line("  ", fmt.Sprintf("%s  %s%s%s  %s%s: %s%s", f.Time.Local().Format(time.TimeOnly), p.paint.Red, cli.Printable(f.Failure), p.paint.Off,
			cli.Printable(f.Destination), by, cli.Printable(f.Cause), id))
		if f.Hint != "" && !said[f.Hint] {
			said[f.Hint] = true
			p.line("          ", "  "+cli.Printable(f.Hint))
		}
	}
}

// table prints a head and rows, or nothing if there are no rows. If the table is too wide,
// columns become narrower, down to minWidth; then those of spare are left out, in that order;
// then columns become as narrow as necessary. The last column has the state and is wrapped
// instead.
func (p *printer) table(rows [][]string, spare ...string) {
	if len(rows) < 2 {
		return
	}
	widths := p.widthsOf(rows)
	for !shrink(widths, p.columns, minWidth) && len(spare) > 0 {
		if i := slices.Index(rows[0], spare[0]); i >= 0 {
			for n := range rows {
				rows[n] = slices.Delete(rows[n], i, i+1)
			}
		}
		spare, widths = spare[1:], p.widthsOf(rows)
	}
	shrink(widths, p.columns, 1)
	fmt.Fprintln(p.out)
	for n, row := range rows {
		p.row(row, widths, n == 0)
	}
}

// badStates are the beginnings of states that are shown in red. So is one that says stalled.
var badStates = []string{"silent", "resuming", "broken", "stale", "missing", "not ready"}

func (p *printer) row(row []string, widths []int, head bool) {
	line, last := "  ", len(row)-1
	for i, cell := range row[:last] {
		cell = Cut(cell, widths[i])
		line += cell + strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)+2)
	}
	at := utf8.RuneCountInString(line)
	line += Wrap(row[last], p.columns, at, strings.Repeat(" ", at))
	before, after, state := "", "", row[last]
	switch {
	case head:
		before, after = p.paint.Dim, p.paint.Off
	case strings.Contains(state, "stalled"), slices.ContainsFunc(badStates, func(word string) bool { return strings.HasPrefix(state, word) }):
		before, after = p.paint.Red, p.paint.Off
	}
	fmt.Fprintln(p.out, before+strings.TrimRight(line, " ")+after)
}

// widthsOf makes cells printable and measures them. The last column counts for at most a
// third of the screen, so that one sentence leaves room for names.
func (p *printer) widthsOf(rows [][]string) []int {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			row[i] = cli.Printable(cell)
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i]))
		}
	}
	if last := len(widths) - 1; p.columns > 0 {
		widths[last] = min(widths[last], p.columns/3)
	}
	return widths
}

// minWidth is the width that columns keep while others can be left out: enough of an id
// to filter by.
const minWidth = 12

// shrink narrows the widest columns, down to least, until all fit into columns, of which
// 0 is unlimited. It reports whether they fit.
func shrink(widths []int, columns, least int) bool {
	for {
		total, widest := 0, 0
		for i, w := range widths {
			total += w + 2 // a gap after each but the last, and one before the first
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
