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
	switch {
	case l.known[rule]:
	case len(l.known) >= maxLabels:
		return "other"
	case l.known == nil:
		l.known = map[string]bool{rule: true}
	default:
		l.known[rule] = true
	}
	return rule
}
