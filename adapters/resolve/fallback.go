package resolve

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"konnectivity/internal/wait"
)

const (
	// defaultVerdictTime is when an unanswered lookup in the hosted cluster
	// counts as failed, so that there is a verdict within 2 s.
	defaultVerdictTime = 1800 * time.Millisecond

	// hedgeTime is when the system resolver is asked in parallel, so that its
	// answer is there by the time of the verdict.
	hedgeTime = time.Second

	// probeEvery is the pause between probes of a tunnel deemed down. HyperShift's sidecars
	// wait 30 s, in which connections go direct although the tunnel may be up again.
	probeEvery = 5 * time.Second

	// probeTime bounds one probe.
	probeTime = 5 * time.Second
)

// Health knows whether the tunnel is deemed down. It is up at first, goes down
// only by Fallback's verdict, and comes up again only by a probe. Use NewHealth
// to make one.
type Health struct {
	probe  func(context.Context) error
	change func(down bool)
	wake   chan struct{} // holds one token once down was set

	telling sync.Mutex // held while a change is made and told, so that all are told in their order
	down    atomic.Bool
}

// NewHealth returns a Health. probe must reach the hosted cluster's DNS through
// the tunnel without consulting this Health. change, which may be nil, is
// called for every change and must not block.
func NewHealth(probe func(context.Context) error, change func(down bool)) *Health {
	if change == nil {
		change = func(bool) {}
	}
	return &Health{probe: probe, change: change, wake: make(chan struct{}, 1)}
}

// Down reports whether names and connections go direct now.
func (h *Health) Down() bool { return h.down.Load() }

func (h *Health) set(down bool) {
	h.telling.Lock()
	defer h.telling.Unlock()
	if h.down.Swap(down) == down {
		return
	}
	h.change(down)
	if down {
		wait.Signal(h.wake)
	}
}

// Run probes a tunnel that is down every probeEvery, one probe at a time, until ctx
// ends. Only it ever brings the tunnel up again.
func (h *Health) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-h.wake:
		}
		for h.Down() {
			if !wait.For(ctx, probeEvery) {
				return
			}
			h.try(ctx)
		}
	}
}

func (h *Health) try(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	if h.probe(ctx) == nil {
		h.set(false)
	}
}

// Fallback asks guest and, if that fails, system. The tunnel is deemed down
// only when guest could not be reached and system knows the name. From then on
// system's answers are Direct, until health recovers, and guest is asked for what system does
// not know: nothing but the tunnel leads there, and it may be up again before a probe says so.
//
// A name that the hosted cluster says does not exist, and that system knows, is
// this side's own: it goes direct, and the tunnel stays up. A DNS that was
// reached but could not answer leaves the tunnel up as well, and so does a lookup that
// waited for a slot (errWaited). system's addresses are then reached through the tunnel.
//
// A lookup by guest that takes longer than verdict counts as failed; 0 means
// 1.8 s.
func Fallback(guest, system Resolver, health *Health, verdict time.Duration) Resolver {
	return &fallback{guest, system, health, cmp.Or(verdict, defaultVerdictTime)}
}

type fallback struct {
	guest, system Resolver
	health        *Health
	verdictTime   time.Duration
}

type outcome struct {
	answer Answer
	err    error
}

func (f *fallback) Resolve(ctx context.Context, name string) (Answer, error) {
	if f.health.Down() {
		if answer, err := f.system.Resolve(ctx, name); err == nil {
			answer.Direct = true
			return answer, nil
		}
		ctx, cancel := context.WithTimeout(ctx, f.verdictTime)
		defer cancel()
		return f.guest.Resolve(ctx, name)
	}
	guest, system := f.askBoth(ctx, name)
	switch {
	case guest.err == nil, ctx.Err() != nil, system.err != nil:
		return guest.answer, guest.err
	case IsNotFound(guest.err):
		system.answer.Direct = true
	case !errors.Is(guest.err, errReached) && !errors.Is(guest.err, errWaited):
		f.health.set(true)
		system.answer.Direct = true
	}
	return system.answer, nil
}

// errNotAsked is system's outcome if guest's answer was enough.
var errNotAsked = errors.New("not asked")

// askBoth asks guest, and system as soon as guest has failed or is slow.
func (f *fallback) askBoth(ctx context.Context, name string) (guest, system outcome) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	verdict, cancelVerdict := context.WithTimeout(ctx, f.verdictTime)
	defer cancelVerdict()

	fromGuest := ask(verdict, f.guest, name)
	var fromSystem chan outcome // nil before the question
	hedge := time.NewTimer(hedgeTime)
	defer hedge.Stop()
	select {
	case guest = <-fromGuest:
		if guest.err == nil || ctx.Err() != nil {
			return guest, outcome{err: errNotAsked}
		}
		fromSystem = ask(ctx, f.system, name)
	case <-hedge.C:
		fromSystem = ask(ctx, f.system, name)
		if guest = <-fromGuest; guest.err == nil {
			cancel()
		}
	}
	return guest, <-fromSystem // joined: both obey their context
}

func ask(ctx context.Context, r Resolver, name string) chan outcome {
	out := make(chan outcome, 1)
	go func() {
		answer, err := r.Resolve(ctx, name)
		out <- outcome{answer, err}
	}()
	return out
}
