package logging

import (
	"bytes"
	"io"
	"sync"
	"time"
)

const (
	// patience is how long lines wait to be written, all together: what they have waited comes
	// back at one tenth of the time that passes. So a reader that is slower than the program
	// logs does not slow the program down to its own rate.
	patience = time.Second
	regain   = 10

	// look is the time between two looks at a line that waits. Each line may wait for
	// leastLooks of them. Looks count, not the clock: where programs compete for processors,
	// a write that does not hang takes long, but so does each look.
	look       = 2 * time.Millisecond
	leastLooks = 25
)

// patient writes to what may take nothing for long: a pipe whose reader has stopped or is slow, a
// terminal that is paused, a network file system. Whoever logs goes on then: lines are dropped
// until the write that hangs has ended.
type patient struct {
	out  io.Writer
	note func(lost int) []byte // a line about dropped ones

	mu   sync.Mutex
	hung bool          // a write hangs
	lost int           // lines dropped since
	left time.Duration // of patience
	at   time.Time     // when that was
}

// Patient returns a writer of lines to out, for concurrent use, which waits a second for one that
// hangs, less if others have hung lately, and then drops all until that is written. Lines that are
// dropped are not counted.
func Patient(out io.Writer) io.Writer {
	return &patient{out: out, note: func(int) []byte { return nil }}
}

// Write implements io.Writer; one call is one line. A line that is dropped is no error.
func (p *patient) Write(line []byte) (int, error) {
	if len(line) == 0 { // dropped by sparse
		return 0, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.hung {
		p.lost++
		return len(line), nil
	}
	return len(line), p.write(line)
}

// write waits for a write, but no longer than patience. The line is its caller's, who reuses it.
func (p *patient) write(line []byte) error {
	line = bytes.Clone(line)
	began := time.Now()
	p.left = min(p.left+began.Sub(p.at)/regain, patience)
	defer func() { p.at = time.Now() }()
	done, late := make(chan error), make(chan struct{})
	go func() {
		_, err := p.out.Write(line)
		select {
		case done <- err:
		case <-late:
			p.goOn()
		}
	}()
	tick := time.NewTicker(look)
	defer tick.Stop()
	most := p.left
	for looks := 1; ; looks++ {
		select {
		case err := <-done:
			return err
		case <-tick.C:
			p.left = max(p.left-look, 0)
		}
		if looks >= leastLooks && time.Since(began) >= most {
			p.hung = true
			close(late)
			return nil
		}
	}
}

// goOn says at once how many lines were dropped while a write hung: it may be long until the next.
func (p *patient) goOn() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hung = false
	if p.lost > 0 {
		note := p.note(p.lost)
		p.lost = 0
		_ = p.write(note)
	}
}
