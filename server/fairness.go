package server

import "time"

const (
	// bulkRate is the least that a tenant carries, in bytes a second, to count as one
	// that carries bulk. busyRate is the least that all of these carry together before
	// shares are compared: less takes a hundredth of a processor, so the server is not
	// what limits them.
	bulkRate = 1 << 20
	busyRate = 8 << 20

	// A round is a hold, in which the server reads nothing from tenants that are ahead,
	// and then freeTime, in which it reads from all. The hold grows until the others
	// catch up, to at most holdMost, which is unnoticeable without bulk.
	freeTime  = 10 * time.Millisecond
	holdFirst = 10 * time.Millisecond
	holdStep  = 2 * time.Millisecond
	holdMost  = 30 * time.Millisecond

	// trialRounds are rounds after which it is judged whether holds help.
	trialRounds = 5

	// unheldFor is how long the rates measured without holds are valid. They are
	// measured again then.
	unheldFor = 5 * time.Second

	// trials in a row that did not help end the matter: first until the next look,
	// since the last one may be out of date, then for restFirst, and for twice as long
	// each time, up to restMost.
	trialsInVain = 2
	restFirst    = time.Second
	restMost     = 32 * time.Second
)

// fairness says which tenants are held up, and for how long, so that others carry as
// much as they do. It has no lock, no clock and no I/O.
//
// A tenant with one stream gets little beside one with many, and not only for want
// of processor time: each window of its stream passes processes that all are busy,
// and there is one window under way, not 64. To serve it first, whenever it has
// something to be served, is not enough, since most of the time it waits. So those
// that are ahead have to pause. That helps if the others carry more than without
// holds, and more during holds than between them. It does not help where something
// other than this server limits them; then holds end.
type fairness struct {
	roles  map[string]role // by tenant; empty: no holds
	hold   time.Duration
	rounds int   // of the trial under way
	during phase // its holds
	free   phase // the rest of it
	trial  map[string]int64
	unheld map[string]float64 // bytes a second, as last measured without holds
	since  time.Time          // of that look

	vain int // trials in a row that did not help
	rest time.Duration
	idle time.Time // no holds before
}

// role is what a tenant is in a trial.
type role int

const (
	ahead  role = iota + 1 // it carries more than its part
	behind                 // less
)

// phase sums the bytes carried in the holds of a trial, or between them.
type phase struct {
	ahead, behind float64 // bytes
	took          time.Duration
}

func (p *phase) add(roles map[string]role, carried map[string]int64, took time.Duration) {
	p.took += took
	for name, n := range carried {
		switch roles[name] {
		case ahead:
			p.ahead += float64(n)
		case behind:
			p.behind += float64(n)
		}
	}
}

// begin takes the bytes that each tenant has carried in a time without holds.
func (f *fairness) begin(carried map[string]int64, took time.Duration, now time.Time) {
	if now.Before(f.idle) {
		return
	}
	f.roles, f.hold = make(map[string]role), holdFirst
	f.assign(carried, took)
	f.unheld, f.since = make(map[string]float64), now
	for name, n := range carried {
		f.unheld[name] = float64(n) / took.Seconds()
	}
	f.restart()
}

func (f *fairness) restart() {
	f.rounds, f.during, f.free, f.trial = 0, phase{}, phase{}, make(map[string]int64)
}

// assign gives roles to tenants that carry an eighth more or less than the average.
// The others keep theirs.
func (f *fairness) assign(carried map[string]int64, took time.Duration) {
	sum, bulk := 0.0, 0.0
	least := bulkRate * took.Seconds()
	for _, n := range carried {
		if float64(n) >= least {
			sum += float64(n)
			bulk++
		}
	}
	count := make(map[role]int)
	for name := range f.roles {
		if float64(carried[name]) < least {
			delete(f.roles, name)
		}
	}
	for name, n := range carried {
		switch part := float64(n) * bulk / sum; {
		case float64(n) < least:
			continue
		case part > 1+1.0/8:
			f.roles[name] = ahead
		case part < 1-1.0/8:
			f.roles[name] = behind
		}
		count[f.roles[name]]++
	}
	if sum < busyRate*took.Seconds() || count[ahead] == 0 || count[behind] == 0 {
		clear(f.roles)
	}
}

// held says whether a tenant is to be held up in the next round.
func (f *fairness) held(name string) bool { return f.roles[name] == ahead }

// active says whether there is to be a next round.
func (f *fairness) active() bool { return len(f.roles) > 0 }

// note takes what each tenant has carried in the two parts of a round, and how long
// they took.
func (f *fairness) note(during, free map[string]int64, held, rest time.Duration, now time.Time) {
	f.during.add(f.roles, during, held)
	f.free.add(f.roles, free, rest)
	for _, carried := range []map[string]int64{during, free} {
		for name, n := range carried {
			f.trial[name] += n
		}
	}
	f.adjust()
	if f.rounds++; f.rounds < trialRounds {
		return
	}
	if f.helps() {
		f.vain, f.rest = 0, 0
		if now.Sub(f.since) >= unheldFor {
			clear(f.roles)
		}
	} else if f.vain++; f.vain >= trialsInVain {
		f.idle = now.Add(f.rest)
		f.rest = min(max(restFirst, 2*f.rest), restMost)
		f.vain = 0
		clear(f.roles)
	}
	if f.active() {
		f.assign(f.trial, f.during.took+f.free.took)
	}
	f.restart()
}

// adjust makes holds longer while those behind carry less.
func (f *fairness) adjust() {
	count := make(map[role]float64)
	for _, r := range f.roles {
		count[r]++
	}
	more := (f.during.behind+f.free.behind)*count[ahead] < (f.during.ahead+f.free.ahead)*count[behind]
	if more {
		f.hold = min(f.hold+holdStep, holdMost)
	} else {
		f.hold = max(f.hold-holdStep, holdStep)
	}
}

// helps says whether those behind carry more because the others are held up. They
// carry more while these are, by a quarter at least; but bytes that only come late
// between holds look the same. So they also carry more in all than they did before,
// by an eighth at least, and by an eighth of what it costs the others.
func (f *fairness) helps() bool {
	during, free := f.during.behind/f.during.took.Seconds(), f.free.behind/f.free.took.Seconds()
	took := (f.during.took + f.free.took).Seconds()
	gain, cost := (f.during.behind+f.free.behind)/took, -(f.during.ahead+f.free.ahead)/took
	least := 0.0
	for name, role := range f.roles {
		switch role {
		case ahead:
			cost += f.unheld[name]
		case behind:
			gain -= f.unheld[name]
			least += f.unheld[name] / 8
		}
	}
	return during >= free*5/4 && gain >= max(least, cost/8)
}
