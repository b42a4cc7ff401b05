package diagnose

import (
	"time"

	"konnectivity/cmd/konnectivity/internal/status"
	"konnectivity/internal/cli"
)

// Results of a step.
const (
	OK      = "ok"
	Warning = "warning"
	Failed  = "failed"
	Skipped = "skipped"
)

// Finding is the result of a step.
type Finding struct {
	Group        string   `json:"group"`
	Step         string   `json:"step"`
	Result       string   `json:"result"`
	Cause        string   `json:"cause,omitempty"` // or the result of a step that works
	Hint         string   `json:"hint,omitempty"`
	Milliseconds *float64 `json:"milliseconds,omitempty"` // nil for steps that are not timed
}

// report collects findings, those of one group after those of another.
type report struct {
	group    string // of the findings to come
	findings []Finding
}

func (r *report) add(f Finding) {
	f.Group = r.group
	cli.MakePrintable(&f) // causes quote peers and files
	r.findings = append(r.findings, f)
}

func (r *report) ok(step, found string) {
	r.add(Finding{Step: step, Result: OK, Cause: found})
}

func (r *report) warn(step, cause, hint string) {
	r.add(Finding{Step: step, Result: Warning, Cause: cause, Hint: hint})
}

// fail returns false, for steps that end with it.
func (r *report) fail(step, cause, hint string) bool {
	r.add(Finding{Step: step, Result: Failed, Cause: cause, Hint: hint})
	return false
}

// timed is ok with the time since start.
func (r *report) timed(step, found string, start time.Time) {
	r.add(Finding{Step: step, Result: OK, Cause: found, Milliseconds: milliseconds(time.Since(start))})
}

// milliseconds is never nil: a step that took no time was measured, too.
func milliseconds(took time.Duration) *float64 {
	ms := status.Milliseconds(took)
	return &ms
}
