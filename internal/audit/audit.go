// Package audit writes a record of every connection that a process was asked for: who
// asked for what, from where, what became of it, how many bytes passed and why it ended
// (docs/audit.md). A [Log] is a tunnel.Observer; all four programs have the same one.
//
// A record is encoded by the goroutine that serves the connection, and put into a bounded
// queue. Another goroutine writes the queue to the file. So a full disk or a slow reader
// holds up no connection. Records for which the queue has no room are dropped and counted.
package audit

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/pflag"

	"github.com/prometheus/client_golang/prometheus"

	"konnectivity/internal/observe"
	"konnectivity/tunnel"
)

// Stdout is the path that stands for standard output.
const Stdout = "-"

// AddFlag defines --audit-log.
func AddFlag(set *pflag.FlagSet, path *string) {
	set.StringVar(path, "audit-log", "", "append a record of every connection to this file, one JSON object a line; - is standard output (default: none is kept)")
}

// Options are what a Log needs. All but Registerer are required.
type Options struct {
	Path       string // of a file, which is made if it is missing, or Stdout
	Component  string // the program, as in its log
	Name       string // the process's id
	Log        logrus.FieldLogger
	Registerer prometheus.Registerer // nil: no metrics
}

// Log is an audit log. Run must be kept running. Any goroutine may call the other methods,
// which never wait for the file.
type Log struct {
	log     logrus.FieldLogger
	head    []byte // the fields of every record that name the process
	queue   queue
	spliced splicedConns
	out     output
	runs    atomic.Bool

	// Figures beside those of queue.

	written atomic.Int64
	trouble atomic.Pointer[string] // nil: records can be written
}

// Open opens the file. An error says which flag is wrong.
func Open(o Options) (*Log, error) {
	l := &Log{log: o.Log, head: appendHead(nil, o.Component, o.Name), out: output{path: o.Path}}
	l.queue.init()
	l.spliced.init(l)
	if _, _, err := l.out.file(); err != nil {
		return nil, fmt.Errorf("--audit-log: %w", err)
	}
	if o.Registerer != nil {
		if err := l.register(o.Registerer); err != nil {
			return nil, errors.Join(err, l.out.close())
		}
	}
	return l, nil
}

// register registers the metrics.
func (l *Log) register(r prometheus.Registerer) error {
	figures := observe.NewFigures("konnectivity_audit_", func() *Log { return l })
	figures.Gauge("failing", "1 while audit records cannot be written, 0 otherwise.", func(l *Log) float64 { return observe.Flag(l.trouble.Load() != nil) })
	figures.Add(prometheus.CounterValue, "records_total", "Audit records, by whether they were written.", func(l *Log, tell observe.Tell) {
		tell(float64(l.written.Load()), "written")
		tell(float64(l.queue.lost()), "dropped")
	}, "result")
	return r.Register(figures)
}

// Trouble says why records cannot be written now, in words; "" if they can, or l is nil.
func (l *Log) Trouble() string {
	if l == nil {
		return ""
	}
	if why := l.trouble.Load(); why != nil {
		return *why
	}
	return ""
}

// Close closes the file of a Log that has not run; Run closes it by itself.
func (l *Log) Close() {
	if l != nil && !l.runs.Load() {
		_ = l.out.close()
	}
}

// Dialed implements tunnel.Observer.
func (l *Log) Dialed(f *tunnel.Flow, took time.Duration, err error) {
	if err == nil || f.Resume.Again() { // or a try of many to go on with a connection that was opened
		return
	}
	l.add(&record{event: refused, at: time.Now(), flow: f, took: took, failed: tunnel.AsDialError(f.Address, err)})
}

// errUnanswered is what connections fail with whose client is gone when they are made.
var errUnanswered = &tunnel.DialError{Failure: tunnel.FailCancelled, Reason: "the destination was reached, and the client was gone by then"}

// Unanswered implements tunnel.Observer.
func (l *Log) Unanswered(f *tunnel.Flow, took time.Duration, _ error) {
	l.Dialed(f, took, errUnanswered)
}

// Opened implements tunnel.Observer.
func (l *Log) Opened(f *tunnel.Flow) {
	if isSpliced(f) {
		l.spliced.opened(f)
		return
	}
	l.add(&record{event: opened, at: f.Opened, flow: f, resumed: f.Adopted})
}

// Closed implements tunnel.Observer.
func (l *Log) Closed(f *tunnel.Flow, took time.Duration, err error) {
	r := record{event: closed, at: f.Opened.Add(took), flow: f, took: took, err: err, resumed: f.Adopted}
	r.up, r.down = f.Sent()
	if f.Resumable != nil {
		r.resumes = f.Resumable.ResumeStatus().Resumes
	}
	if isSpliced(f) {
		l.spliced.closed(&r)
		return
	}
	l.add(&r)
}

// add queues a record.
func (l *Log) add(r *record) {
	var room [768]byte // most records have less; a longer one is allocated
	l.queue.add(appendRecord(room[:0], l.head, r))
}

// stdout is where Stdout leads to.
var stdout = os.Stdout
