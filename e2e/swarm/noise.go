package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"konnectivity/e2e/suite"
	"konnectivity/tunnel/link"
)

// settleTime is how long changed bounds take to be in force at most, and how long
// loads run before they are measured.
const settleTime = 3 * time.Second

// din is what one cluster does, and what another does beside it, which is quiet.
type din struct {
	what         string
	noisy, quiet load
	bounds       string // fair ones for the first, to compare with; "": none
}

// probe is how dials of the quiet cluster are timed.
var probe = load{Links: 1, Rate: 100, Echo: true}

var dins = []din{
	{"64 downloads", load{Links: 16, Bulk: 64}, load{Links: 1, Bulk: 1}, ""},
	{"64 uploads", load{Links: 16, Bulk: 64, Up: true}, load{Links: 1, Bulk: 1, Up: true}, ""},
	{"5,000 dials a second", load{Links: 16, Rate: 5000}, probe, "dialsPerSecond: 500"},
	{"1,000 stalled readers", load{Links: 16, Stalled: 1000}, probe, "connections: 100"},
}

// noise measures what a cluster that makes noise leaves to one that does not.
func (o *options) noise(ctx context.Context, s *suite.Suite) ([]figure, error) {
	t := &trial{options: o, suite: s, dir: s.Dir + "/tenants"}
	if err := os.Mkdir(t.dir, 0o755); err != nil {
		return nil, err
	}
	both, err := newTenants(2, t.dir)
	if err != nil {
		return nil, err
	}
	if t.server, err = s.StartServer("--tenants-dir=" + t.dir); err != nil {
		return nil, err
	}
	for _, d := range dins {
		measure := t.dials
		if d.quiet.Bulk > 0 {
			measure = t.bytes
		}
		if err := measure(ctx, d, both); err != nil {
			return nil, fmt.Errorf("%s: %w", d.what, err)
		}
	}
	return t.figures, nil
}

// bytes measures what part of the bytes is the quiet cluster's.
func (t *trial) bytes(ctx context.Context, d din, of []*tenant) error {
	h, err := t.hear(ctx, d, of, "")
	if err != nil {
		return err
	}
	all := float64(h.noisy.Bytes + h.quiet.Bytes)
	t.note("one beside "+d.what+": its part of the bytes", "%.0f %%", 100*float64(h.quiet.Bytes)/all)
	t.note("of both, MB/s; the server's processor time, s/GB", "%.0f; %.2f", all/1e6/h.took.Seconds(), 1e9*h.ran.Seconds()/all)
	return nil
}

// dials measures what dials of the quiet cluster take, without bounds for the other
// and with fair ones.
func (t *trial) dials(ctx context.Context, d din, of []*tenant) error {
	free, err := t.hear(ctx, d, of, "")
	if err != nil {
		return err
	}
	fair, err := t.hear(ctx, d, of, d.bounds)
	if err != nil {
		return err
	}
	for _, h := range []struct {
		what string
		heard
	}{{"beside " + d.what, free}, {"the same within " + d.bounds, fair}} {
		r := h.quiet
		t.note(h.what+": dials and echoes; failed; p50 and p99, ms", "%d; %d; %.2f and %.2f", r.Dials, r.Failed, ms(r.P50), ms(r.P99))
	}
	t.note("p99 by p99", "%.2f", ms(free.quiet.P99)/ms(fair.quiet.P99))
	return nil
}

// heard is what became of both.
type heard struct {
	noisy, quiet report
	took, ran    time.Duration // ran is the server's processor time
}

// hear lets both do what they do for a while.
func (t *trial) hear(ctx context.Context, d din, of []*tenant, bounds string) (h heard, err error) {
	if err := of[0].bound(t.dir, bounds); err != nil {
		return h, err
	}
	sleep(ctx, t.settle)
	noisy, err := t.hire(ctx, of[0], d.noisy)
	if err != nil {
		return h, err
	}
	defer noisy.dismiss()
	quiet, err := t.hire(ctx, of[1], d.quiet)
	if err != nil {
		return h, err
	}
	defer quiet.dismiss()
	look := func() (ran time.Duration, err error) {
		if h.noisy, err = noisy.ask(); err != nil {
			return 0, err
		}
		if h.quiet, err = quiet.ask(); err != nil {
			return 0, err
		}
		ran, _, err = t.server.Processor()
		return ran, err
	}
	sleep(ctx, t.settle)
	before, err := look()
	if err != nil {
		return h, err
	}
	began := time.Now()
	sleep(ctx, t.period)
	after, err := look()
	h.took, h.ran = time.Since(began), after-before
	for _, r := range []report{h.noisy, h.quiet} {
		if r.Failed > 0 {
			t.say(fmt.Sprintf("%d of %d dials failed, one of them: %s", r.Failed, r.Dials, r.Err))
		}
	}
	return h, err
}

func (t *trial) hire(ctx context.Context, of *tenant, l load) (*hired, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return hire(ctx, program, order{
		Name: of.name, ServerName: of.serverName(), From: of.from, CA: of.ca,
		Agent: of.issued[link.RoleAgent], Client: of.issued[link.RoleClient],
		AgentPort: t.server.AgentPort, ClientPort: t.server.ClientPort, Load: l,
	})
}
