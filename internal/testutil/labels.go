package testutil

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
)

// Labels are the values that a page of the docs gives for the labels of a metric, by metric and
// label; none where it gives none.
type Labels map[string]map[string][]string

// openLabels need no values in the tables: those of peer depend on the program, and those of the
// others are names that users give.
var openLabels = []string{"tenant", "name", "file", "rule", "peer"}

var (
	quoted   = regexp.MustCompile("`([^`]+)`")
	linked   = regexp.MustCompile(`\[([a-z]+)?[^]]*\]\(([a-z-]*(?:\.md)?)#([a-z0-9-]+)\)`)
	metric   = regexp.MustCompile("^\\| ((?:`[a-z0-9_]+`(?:, )?)+) \\|([^|]*)\\|")
	firstTwo = regexp.MustCompile("^\\| (?:[0-9]+ \\| )?`([a-z_]+)` \\|")
)

// DocumentedLabels reads the tables that the page has below these headings. A cell of labels has
// "label: `value`, `value`", or a link to the values, or the names of labels alone.
func DocumentedLabels(t testing.TB, page string, headings ...string) Labels {
	t.Helper()
	all := Labels{}
	for _, heading := range headings {
		for row := range strings.Lines(below(t, page, "## "+heading)) {
			if cells := metric.FindStringSubmatch(row); cells != nil {
				for _, name := range quoted.FindAllStringSubmatch(cells[1], -1) {
					all[name[1]] = labelsIn(t, page, cells[2])
				}
			}
		}
	}
	return all
}

// below is what a page has below a heading, up to the next of its rank.
func below(t testing.TB, page, heading string) string {
	t.Helper()
	_, text, found := strings.Cut(string(Must(os.ReadFile(page))(t)), "\n"+heading+"\n")
	Requires(t, found, "%s has no %q", page, heading)
	text, _, _ = strings.Cut(text, "\n## ")
	return text
}

func labelsIn(t testing.TB, page, cell string) map[string][]string {
	t.Helper()
	labels := map[string][]string{}
	for part := range strings.SplitSeq(cell, ";") {
		label, values, given := strings.Cut(strings.TrimSpace(part), ": ")
		if given {
			labels[label] = valuesIn(t, page, values)
			continue
		}
		for word := range strings.SplitSeq(label, ", ") {
			if link := linked.FindStringSubmatch(word); link != nil {
				labels[link[1]] = valuesIn(t, page, word)
			} else if word != "" {
				labels[strings.Trim(word, "`")] = nil
			}
		}
	}
	return labels
}

// valuesIn are the values in a text, and those in the tables that it links to.
func valuesIn(t testing.TB, page, text string) (values []string) {
	t.Helper()
	for _, value := range quoted.FindAllStringSubmatch(text, -1) {
		values = append(values, value[1])
	}
	for _, link := range linked.FindAllStringSubmatch(text, -1) {
		at := page
		if link[2] != "" {
			at = filepath.Join(filepath.Dir(page), link[2])
		}
		values = append(values, valuesBelow(t, at, link[3])...)
	}
	return values
}

// valuesBelow are those of the last table below the heading that an anchor names.
func valuesBelow(t testing.TB, page, anchor string) (values []string) {
	t.Helper()
	for heading := range strings.Lines(string(Must(os.ReadFile(page))(t))) {
		heading = strings.TrimSpace(heading)
		title, found := strings.CutPrefix(heading, "## ")
		if slug := strings.NewReplacer(" ", "-", ".", "").Replace(strings.ToLower(title)); !found || slug != anchor {
			continue
		}
		tables := strings.Split(below(t, page, heading), "---|\n")
		for row := range strings.Lines(tables[len(tables)-1]) {
			if value := firstTwo.FindStringSubmatch(row); value != nil {
				values = append(values, value[1])
			}
		}
	}
	Requires(t, values != nil, "%s has no values below %q", page, anchor)
	return values
}

// Check fails the test unless the page gives exactly the values that labels have in these
// families, whose names begin with prefix. Metrics in later need not have all of them yet.
func (l Labels) Check(t testing.TB, prefix string, families []*dto.MetricFamily, later ...string) {
	t.Helper()
	for _, f := range families {
		name := strings.TrimPrefix(f.GetName(), prefix)
		documented, ours := l[name]
		if !ours {
			continue
		}
		values := valuesOf(f)
		for label := range documented {
			Holds(t, values[label] != nil, "the docs have a label %s of %s, which is not there", label, name)
		}
		for label, got := range values {
			want, known := documented[label]
			slices.Sort(want)
			switch {
			case !known, want == nil && !slices.Contains(openLabels, label):
				t.Errorf("%s has %s %q, and the docs have no values of it", name, label, got)
			case want == nil, slices.Equal(got, want):
			case slices.Contains(later, name) && !slices.ContainsFunc(got, func(v string) bool { return !slices.Contains(want, v) }):
			default:
				t.Errorf("%s has %s %q, and the docs have %q", name, label, got, want)
			}
		}
	}
}

// valuesOf are the values of a family's labels, sorted.
func valuesOf(f *dto.MetricFamily) map[string][]string {
	all := map[string][]string{}
	for _, m := range f.Metric {
		for _, l := range m.Label {
			all[l.GetName()] = append(all[l.GetName()], l.GetValue())
		}
	}
	for label, values := range all {
		slices.Sort(values)
		all[label] = slices.Compact(values)
	}
	return all
}
