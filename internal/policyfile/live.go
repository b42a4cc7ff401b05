package policyfile

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/sirupsen/logrus"

	"konnectivity/internal/files"
	"konnectivity/internal/observe"
	"konnectivity/internal/policy"
	"konnectivity/internal/wait"
	"konnectivity/tunnel"
)

// look is how often the file is read again.
const look = time.Second

// settle is for how long it must not have changed to be used. Who overwrites it writes the next
// part much sooner.
const settle = 100 * time.Millisecond

// maxLabels bounds the rules that metrics tell apart, in the life of a process. The rest is
// "other".
const maxLabels = 100

// Live is a policy file that is followed. A nil Live has no rules. Its methods may be called
// from any goroutine.
type Live struct {
	log      logrus.FieldLogger
	followed *files.Followed[*File]
	now      atomic.Pointer[File]
	changed  func() // see OnChange; may be nil
	figures
}

// figures are what a Live counts.
type figures struct {
	decisions *prometheus.CounterVec
	allowed   prometheus.Counter
	fault     atomic.Value // a string: see Trouble
	labels    labels
}

// Open reads the file. The error names it and its fault. Run follows it. The metrics' names
// begin with prefix.
func Open(path, prefix string, registry prometheus.Registerer, log logrus.FieldLogger) (*Live, error) {
	l := &Live{log: log.WithField("file", path)}
	l.labels.known = make(map[string]bool)
	to := observe.NewMaker(registry, prefix)
	l.decisions = to.Counter("policy_decisions_total",
		"Decisions of --policy-file about dials, by decision (allowed, denied, reported) and by the rule that denied; none: no rule allows it.", "decision", "rule")
	l.allowed = l.decisions.WithLabelValues("allowed", "")
	broken := observe.NewFigures(prefix, func() bool { return l.Trouble() != "" })
	broken.Gauge("policy_file_broken", "1 while --policy-file cannot be used, and the rules before hold.", observe.Flag)
	to.Add(broken)
	var err error
	l.followed, err = files.Follow(path, MaxSize, 0, Parse, func(err error) {
		l.log.WithError(err).Error("the changed policy file cannot be used; the rules before hold")
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	l.followed.Settle(settle)
	l.now.Store(l.followed.Get())
	return l, to.Err()
}

// Run follows the file until ctx ends.
func (l *Live) Run(ctx context.Context) { wait.Every(ctx, look, l.Reload) }

// Reload reads the file now. One that cannot be used changes nothing.
func (l *Live) Reload() {
	f, before := l.followed.Get(), l.Trouble()
	l.fault.Store(l.followed.Fault())
	switch was := l.now.Swap(f); {
	case was != f:
		l.log.Info("the policy file has changed; its rules hold from now on")
		if l.changed != nil {
			l.changed()
		}
	case before != "" && l.Trouble() == "":
		l.log.Info("the policy file is good again, with the rules that hold")
	}
}

// Trouble says why the file cannot be used, so that the rules before hold; "" if it can.
func (l *Live) Trouble() string {
	if l == nil {
		return ""
	}
	fault, _ := l.fault.Load().(string)
	return fault
}

// OnChange has f called once other rules are in force, on the goroutine of Run or Reload. It
// is called before these.
func (l *Live) OnChange(f func()) {
	if l != nil {
		l.changed = f
	}
}

// StillServer is Server for a connection that is open. It counts nothing.
func (l *Live) StillServer(f *tunnel.Flow, host string, port uint16) error {
	if l == nil {
		return nil
	}
	if file := l.now.Load(); !file.Report {
		return file.Still(f, f.Tenant(), host, port)
	}
	return nil
}

// Server judges a request where names are not resolved, and returns the rules that the
// process which resolves the name is to be told. The error is a *tunnel.DialError with
// FailDenied.
func (l *Live) Server(f *tunnel.Flow, host string, port uint16) (rules string, err error) {
	if l == nil {
		return "", nil
	}
	file := l.now.Load()
	p := file.For(f.Who(), f.Tenant())
	rules, err = p.AskUnresolved(host, port)
	if err == nil {
		f.Rule = p.AllowedBy(host, port, netip.Addr{})
	}
	if file.Report {
		rules = ""
	}
	return rules, l.decided(file, f, err)
}

// Agent returns the rules for a request where names are resolved. The caller passes what they
// say to decided, which returns nil instead of a refusal where the file only reports, and
// counts the first refusal of each call of Agent, unless it is about an open connection.
func (l *Live) Agent(f *tunnel.Flow, open bool) (p *policy.Policy, decided func(error) error) {
	file := l.now.Load()
	var counted atomic.Bool // decided is called for the name and for each address, for some of them twice
	return file.For(f.Who(), ""), func(err error) error {
		switch {
		case !open && !counted.Swap(true):
			return l.decided(file, f, err)
		case file.Report:
			return nil
		default:
			return err
		}
	}
}

// decided counts a decision, and reports instead of refusing where the file says so.
func (l *Live) decided(file *File, f *tunnel.Flow, err error) error {
	if err == nil {
		l.allowed.Inc()
		return nil
	}
	rule := ""
	if denial, ok := errors.AsType[*policy.Denial](err); ok {
		rule = denial.Rule
	}
	decision := "denied"
	if file.Report {
		decision = "reported"
		log := l.log.WithError(err).WithFields(logrus.Fields{"id": f.ID, "address": f.Address, "client": f.Who().String()})
		log.Warn("a destination would be refused by the policy file, which only reports")
		err = nil
	}
	l.decisions.WithLabelValues(decision, l.labels.of(rule)).Inc()
	return err
}

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
