package policyfile

import "sync"

// labels are the rules that metrics tell apart: the first maxLabels that have denied
// something.
type labels struct {
	mu    sync.Mutex
	known map[string]bool
}

func (l *labels) of(rule string) string {
	if rule == "" {
		return ""
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.known) >= maxLabels && !l.known[rule] {
		return "other"
	}
	l.known[rule] = true
	return rule
}
