// Package traces exports a span of every dial of a process to an OpenTelemetry collector
// (docs/traces.md). An [Exporter] is a tunnel.Tracer; all four programs have the same one.
//
// A span is noted by the goroutine that dials, and put into a bounded queue. Another
// goroutine sends the queue, by OTLP over HTTP with JSON. So a collector that is slow or gone
// holds up no connection: spans for which the queue has no room, and those that could not be
// sent, are dropped and counted.
//
// OpenTelemetry's own library is not used: with it, the agent is larger by 6 % and a sidecar
// by 9 %, also where it is off.
package traces

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/sirupsen/logrus"
	"github.com/spf13/pflag"

	"konnectivity/internal/cli"
	"konnectivity/internal/observe"
	"konnectivity/tunnel"
)

// Flags say where spans go, and of how many dials. The zero value is ready for AddTo.
type Flags struct {
	endpoint string  // "": nowhere
	ratio    float64 // from 0 to 1
}

// AddTo defines the flags.
func (f *Flags) AddTo(set *pflag.FlagSet) {
	cli.Var(set, &f.endpoint, parseEndpoint, "traces-endpoint", "URL", "", "send a span of every dial to this OpenTelemetry collector by OTLP over HTTP, such as http://127.0.0.1:4318 (default: none is made)")
	cli.Var(set, &f.ratio, parseRatio, "traces-ratio", "number", "1", "part of the traces that are sent, from 0 to 1; all processes choose the same ones")
}

// parseEndpoint adds the usual path to a URL without one. Its error does not repeat the URL,
// which may hold a password.
func parseEndpoint(text string) (string, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.User != nil || u.RawQuery+u.Fragment != "" {
		return "", errors.New("want http://HOST:PORT or https://HOST:PORT, without user and password")
	}
	if strings.Trim(u.Path, "/") == "" {
		u.Path = "/v1/traces"
	}
	return u.String(), nil
}

func parseRatio(text string) (float64, error) {
	ratio, err := strconv.ParseFloat(text, 64)
	if err != nil || !(ratio >= 0 && ratio <= 1) {
		return 0, errors.New("want a number from 0 to 1")
	}
	return ratio, nil
}

const (
	// queueMax bounds the spans that wait: those of a second in which a server is asked for
	// as many connections as it can make. They take 3 MB, and 0.5 MB is taken always.
	queueMax = 4096

	// batchMax bounds the spans of a request, and batchTime how long one waits for others.
	batchMax  = 512
	batchTime = time.Second

	// sendTime bounds a request, and flushTime those for the rest at the end.
	sendTime  = 10 * time.Second
	flushTime = 2 * time.Second
)

// Options are what an Exporter needs.
type Options struct {
	Flags
	Component  string // the program, as in its log
	Name       string // the process's id
	Log        logrus.FieldLogger
	Registerer prometheus.Registerer
}

// Exporter sends spans. Run must be kept running. Any goroutine may call the other methods,
// which never wait.
type Exporter struct {
	endpoint string
	below    uint64 // of the last 8 bytes of trace-ids, halved: those that are sent
	process  resource
	http     http.Client
	log      logrus.FieldLogger

	queue         chan span
	sent, dropped prometheus.Counter
	failing       bool // of Run
}

// New returns an Exporter, or nil if the flags name no collector.
func New(o Options) (*Exporter, error) {
	if o.endpoint == "" {
		return nil, nil
	}
	e := &Exporter{
		endpoint: o.endpoint, below: uint64(o.ratio * (1 << 63)), process: resourceOf(o.Component, o.Name), log: o.Log,
		queue: make(chan span, queueMax),
	}
	e.http.Timeout = sendTime
	e.http.Transport = &http.Transport{MaxIdleConns: 1, IdleConnTimeout: time.Minute} // no proxy of the environment
	e.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	to := observe.NewMaker(o.Registerer, "konnectivity_")
	spans := to.Counter("trace_spans_total", "Spans of dials, by whether a collector has taken them.", "result")
	e.sent, e.dropped = spans.WithLabelValues("sent"), spans.WithLabelValues("dropped")
	return e, to.Err()
}

// Trace implements tunnel.Tracer. Of the tries to go on with a connection, which are many,
// there are no spans.
func (e *Exporter) Trace(f *tunnel.Flow) {
	if !f.Resume.Again() && e.chosen(f.ID) {
		f.Span.ID = 1 + rand.Uint64N(math.MaxUint64)
	}
}

// Dialed implements tunnel.Observer.
func (e *Exporter) Dialed(f *tunnel.Flow, took time.Duration, err error) {
	if f.Span.ID == 0 {
		return
	}
	select {
	case e.queue <- spanOf(f, time.Now(), took, err):
	default:
		e.dropped.Inc()
	}
}

// chosen decides as OpenTelemetry's TraceIDRatioBased sampler does: by the last 8 bytes of the
// trace-id, halved.
func (e *Exporter) chosen(id string) bool {
	if e.below == 1<<63 {
		return true
	}
	last, _ := strconv.ParseUint(tunnel.TraceID(id)[16:], 16, 64) // 16 hex digits
	return last>>1 < e.below
}

// Unanswered implements tunnel.Observer.
func (*Exporter) Unanswered(*tunnel.Flow, time.Duration, error) {}

// Opened implements tunnel.Observer.
func (*Exporter) Opened(*tunnel.Flow) {}

// Closed implements tunnel.Observer.
func (*Exporter) Closed(*tunnel.Flow, time.Duration, error) {}

// Run sends spans until ctx ends, and then the rest, within 2 s. It must be called once.
func (e *Exporter) Run(ctx context.Context) {
	sending, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(flushTime, stop) })()
	defer e.http.CloseIdleConnections()
	for {
		batch := e.batch(ctx)
		if len(batch) == 0 {
			return
		}
		e.deliver(sending, batch)
	}
}

// batch waits for spans. It returns none when ctx has ended and the queue is empty.
func (e *Exporter) batch(ctx context.Context) (all []span) {
	var late <-chan time.Time
	for len(all) < batchMax {
		select {
		case s := <-e.queue:
			if all = append(all, s); late == nil {
				late = time.After(batchTime)
			}
			continue
		case <-late:
			return all
		case <-ctx.Done():
		}
		select {
		case s := <-e.queue:
			all = append(all, s)
		default:
			return all
		}
	}
	return all
}

// deliver sends a batch, and counts and logs what becomes of it.
func (e *Exporter) deliver(ctx context.Context, batch []span) {
	refused, err := e.post(ctx, batch)
	if err != nil {
		refused = len(batch)
	}
	e.dropped.Add(float64(refused))
	e.sent.Add(float64(len(batch) - refused))
	failing := err != nil
	switch {
	case failing && !e.failing:
		e.log.WithError(err).Warn("spans cannot be sent to --traces-endpoint, and are dropped; traffic goes on")
	case !failing && e.failing:
		e.log.Info("spans are sent again")
	}
	e.failing = failing
}
