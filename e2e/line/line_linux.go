package line

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// The addresses of the two ends. Every line has namespaces of its own, so all
// lines can have the same.
var (
	AddrA = netip.MustParseAddr("10.77.0.1")
	AddrB = netip.MustParseAddr("10.77.0.2")
)

// Line is a line that is up, between the namespaces A and B.
type Line struct {
	A, B *Namespace

	toB, toA *direction
	wg       sync.WaitGroup
}

// Counters are packets of one direction.
type Counters struct{ Carried, Lost, Dropped, Cut int64 }

// New makes two namespaces and joins them. Close ends the line.
func New(cfg Config) (_ *Line, err error) {
	l := &Line{}
	defer func() {
		if err != nil {
			_ = l.Close()
		}
	}()
	if l.A, err = newNamespace(); err != nil {
		return nil, err
	}
	if l.B, err = newNamespace(); err != nil {
		return nil, err
	}
	a, err := openDevice(l.A, AddrA, cfg.mtu())
	if err != nil {
		return nil, err
	}
	b, err := openDevice(l.B, AddrB, cfg.mtu())
	if err != nil {
		_ = a.Close()
		return nil, err
	}
	back := cfg
	if cfg.HoleB {
		back.Hole = 0
	}
	l.toB, l.toA = newDirection(a, b, cfg, 0), newDirection(b, a, back, 1)
	for _, d := range []*direction{l.toB, l.toA} {
		if d.timer, err = newTimer(); err != nil {
			return nil, err
		}
	}
	for _, d := range []*direction{l.toB, l.toA} {
		l.wg.Go(d.admit)
		l.wg.Go(d.deliver)
	}
	return l, nil
}

// SetCut cuts the line both ways, silently, as a cable that is pulled out
// somewhere far away; or restores it. What is on the line by then still comes out.
func (l *Line) SetCut(cut bool) {
	l.toA.cut.Store(cut)
	l.toB.cut.Store(cut)
}

// Counters returns the packets counted so far, from A to B and back.
func (l *Line) Counters() (toB, toA Counters) { return l.toB.counters(), l.toA.counters() }

// Close ends the line and lets its namespaces go.
func (l *Line) Close() error {
	var errs []error
	for _, d := range []*direction{l.toB, l.toA} {
		if d != nil {
			errs = append(errs, d.from.Close(), d.timer.close())
		}
	}
	l.wg.Wait()
	for _, n := range []*Namespace{l.A, l.B} {
		if n != nil && n.file != nil {
			errs = append(errs, n.Close())
		}
	}
	return errors.Join(errs...)
}

// Possible returns nil if a line can be made here, or an error that names the lack.
func Possible() error {
	if os.Geteuid() != 0 {
		return errors.New("a line needs root, to make network namespaces")
	}
	f, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("a line needs TUN devices: %w", err)
	}
	return f.Close()
}

// direction carries packets from one device to the other.
type direction struct {
	from, to *os.File
	shaper   *Shaper // the admitting goroutine's own
	timer    *timer
	cut      atomic.Bool
	onLine   chan parcel // on the line
	free     sync.Pool
	count    [Cut + 1]atomic.Int64
}

// parcel is a packet on the line.
type parcel struct {
	due  time.Time
	data *[]byte
	size int
}

// maxUnderWay is how many packets a direction holds: a second of 1 Gbit/s in
// full packets, which is more than any line here has in its queue and its delay.
const maxUnderWay = 1 << 16

func newDirection(from, to *os.File, cfg Config, stream uint64) *direction {
	return &direction{
		from: from, to: to, shaper: NewShaper(cfg, stream), onLine: make(chan parcel, maxUnderWay),
		free: sync.Pool{New: func() any { data := make([]byte, cfg.mtu()); return &data }},
	}
}

// admit takes packets from the sender until the device is closed.
func (d *direction) admit() {
	defer close(d.onLine)
	for {
		data := d.free.Get().(*[]byte)
		n, err := d.from.Read(*data)
		if err != nil {
			return
		}
		due, verdict := time.Time{}, Cut
		if !d.cut.Load() {
			due, verdict = d.shaper.Admit(time.Now(), n)
		}
		d.count[verdict].Add(1)
		if verdict != Carried {
			d.free.Put(data)
			continue
		}
		d.onLine <- parcel{due, data, n}
	}
}

// deliver gives them to the receiver when they are due. A device that refuses
// one has lost it, as a full network card would.
func (d *direction) deliver() {
	for p := range d.onLine {
		if d.timer.wait(time.Until(p.due)) == nil {
			_, _ = d.to.Write((*p.data)[:p.size])
		}
		d.free.Put(p.data)
	}
}

func (d *direction) counters() Counters {
	return Counters{d.count[Carried].Load(), d.count[Lost].Load(), d.count[Dropped].Load(), d.count[Cut].Load()}
}
