package bench

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"
)

// Report gathers figures by row and subject.
type Report struct {
	Subjects []string
	Rows     []*Row
}

// Row is one figure of every subject, with the value of each round.
type Row struct {
	Label  string
	Unit   string
	Values map[string][]float64 // by subject
}

// Add adds a value to a row, which it creates if need be. Subjects and rows
// keep the order of their first use.
func (r *Report) Add(subject, label, unit string, value float64) {
	if !slices.Contains(r.Subjects, subject) {
		r.Subjects = append(r.Subjects, subject)
	}
	i := slices.IndexFunc(r.Rows, func(row *Row) bool { return row.Label == label })
	if i < 0 {
		i = len(r.Rows)
		r.Rows = append(r.Rows, &Row{Label: label, Unit: unit, Values: map[string][]float64{}})
	}
	r.Rows[i].Values[subject] = append(r.Rows[i].Values[subject], value)
}

// Merge adds every value of other.
func (r *Report) Merge(other *Report) {
	for _, row := range other.Rows {
		for _, subject := range other.Subjects {
			for _, v := range row.Values[subject] {
				r.Add(subject, row.Label, row.Unit, v)
			}
		}
	}
}

// Latency adds the median and the 99th percentile of l, if there is any.
func (r *Report) Latency(subject, label string, l Latency) {
	if l.Count > 0 {
		r.Add(subject, label+", p50", "ms", Milliseconds(l.P50))
		r.Add(subject, label+", p99", "ms", Milliseconds(l.P99))
	}
}

// Milliseconds is d as a figure of a report.
func Milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// Median returns the median of a row's values for one subject, or 0 if there
// are none.
func (row *Row) Median(subject string) float64 { return Median(row.Values[subject]) }

// Ratio returns what a subject has in terms of another: the median of the rounds'
// ratios, since both had their turns within each of them, or that of the medians
// where one of them misses rounds. It is 0 if there is none.
func (row *Row) Ratio(subject, to string) float64 {
	of, base := row.Values[subject], row.Values[to]
	if len(of) == 0 || row.Median(to) == 0 {
		return 0
	}
	if len(of) != len(base) || slices.Contains(base, 0) {
		return row.Median(subject) / row.Median(to)
	}
	ratios := make([]float64, len(of))
	for i := range of {
		ratios[i] = of[i] / base[i]
	}
	return Median(ratios)
}

// Median returns the median, which is the mean of the middle two of an even number of values;
// 0 for none.
func Median(of []float64) float64 {
	v := slices.Clone(of)
	if len(v) == 0 {
		return 0
	}
	slices.Sort(v)
	if n := len(v); n%2 == 0 {
		return (v[n/2-1] + v[n/2]) / 2
	}
	return v[len(v)/2]
}

// Table writes the medians, and each subject's Ratio to the last one, which is
// the baseline; as text, or as Markdown.
func (r *Report) Table(w io.Writer, markdown bool) error {
	if len(r.Subjects) == 0 {
		return nil
	}
	baseline := r.Subjects[len(r.Subjects)-1]
	header := []string{"", "unit"}
	for _, s := range r.Subjects {
		header = append(header, s)
		if s != baseline {
			header = append(header, "÷ "+baseline)
		}
	}
	lines := [][]string{header}
	for _, row := range r.Rows {
		line := []string{row.Label, row.Unit}
		for _, s := range r.Subjects {
			v := row.Median(s)
			if len(row.Values[s]) == 0 {
				line = append(line, "–")
			} else {
				line = append(line, figure(v))
			}
			if s != baseline {
				line = append(line, ratio(row.Ratio(s, baseline)))
			}
		}
		lines = append(lines, line)
	}
	if markdown {
		return WriteMarkdown(w, lines)
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, line := range lines {
		for _, cell := range line {
			fmt.Fprintf(tw, "%s\t", cell)
		}
		fmt.Fprintln(tw)
	}
	return tw.Flush()
}

// WriteMarkdown writes a table, whose first line is the header.
func WriteMarkdown(w io.Writer, lines [][]string) error {
	for i, line := range lines {
		for _, cell := range line {
			fmt.Fprintf(w, "| %s ", cell)
		}
		if _, err := fmt.Fprintln(w, "|"); err != nil {
			return err
		}
		if i == 0 {
			for range line {
				fmt.Fprint(w, "|---")
			}
			fmt.Fprintln(w, "|")
		}
	}
	return nil
}

// figure shows three significant digits or so.
func figure(v float64) string {
	switch {
	case v == 0:
		return "0"
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.3g", v)
	}
}

func ratio(r float64) string {
	if r == 0 {
		return "–"
	}
	return fmt.Sprintf("%.2f", r)
}
