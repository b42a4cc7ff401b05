package logging

import (
	"bytes"
	"io"
	"sync"
	"time"
)

// patience is how long a line waits to be written. A reader that is only slow takes less.
const patience = time.Second

// patient writes to what may take nothing for long: a pipe whose reader has stopped, a terminal
// that is paused, a network file system. Whoever logs goes on then: lines are dropped until the
// write that hangs has ended.
type patient struct {
	out  io.Writer
	note func(lost int) []byte // a line about dropped ones

	mu   sync.Mutex
	hung bool // a write hangs
	lost int  // lines dropped since
}

// Patient returns a writer of lines to out, for concurrent use, which waits a second for one that
// hangs, and then drops all until that is written. Lines that are dropped are not counted.
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
	done, late := make(chan error), make(chan struct{})
	go func() {
		_, err := p.out.Write(line)
		select {
		case done <- err:
		case <-late:
			p.goOn()
		}
	}()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		p.hung = true
		close(late)
		return nil
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
