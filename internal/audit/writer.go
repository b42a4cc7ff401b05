package audit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"time"

	"konnectivity/internal/files"
	"konnectivity/internal/wait"
)

const (
	// batchTime is how long a record waits for others, so that many are written at once.
	batchTime = 100 * time.Millisecond

	// writeTime bounds a write to a pipe whose reader is slow.
	writeTime = time.Second

	// retryTime is the pause after a write that failed.
	retryTime = time.Second

	// flushTime bounds what Run takes to write the rest.
	flushTime = 2 * time.Second
)

// Run writes queued records until ctx ends. It then writes the rest, within 2 s. It must be
// called once.
func (l *Log) Run(ctx context.Context) {
	l.runs.Store(true)
	// A write can block for good: to standard output, if that is a pipe without a reader, or
	// to a network file system. Then this goroutine is not joined, since the process ends.
	writing, stop := context.WithCancel(context.WithoutCancel(ctx))
	done := wait.Go(func() {
		l.write(writing)
		_ = l.out.close()
	})
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-l.queue.dropped:
			if l.trouble.Load() == nil {
				l.log.Warn("audit records are dropped, since they are not written as fast as connections come and go; traffic goes on")
			}
		}
	}
	l.spliced.end()
	stop()
	select {
	case <-done:
	case <-time.After(flushTime):
	}
	if l.queue.end() {
		l.log.WithField("dropped", l.queue.lost()).Warn("the process ends, and some audit records were not written")
	}
}

// write writes queued records until ctx has ended and the queue is empty.
func (l *Log) write(ctx context.Context) {
	for {
		select {
		case <-l.queue.wake:
		case <-ctx.Done():
		}
		select {
		case <-l.queue.wake: // a chunk is full
		case <-time.After(batchTime):
		case <-ctx.Done():
		}
		ended, failed := ctx.Err() != nil, false
		for _, chunk := range l.queue.take(l.head) {
			if failed { // at the end, one try has to do
				l.queue.miss(bytes.Count(chunk, newline))
			} else {
				failed = !l.writeChunk(ctx, chunk)
			}
			l.queue.reuse(chunk)
		}
		if ended {
			return
		}
	}
}

// writeChunk writes whole lines, however long that takes. What cannot be written when
// ctx has ended is dropped; it then returns false.
func (l *Log) writeChunk(ctx context.Context, lines []byte) bool {
	for len(lines) > 0 {
		rest, err := l.writeSome(lines)
		if lines = rest; err == nil {
			l.recovered()
			continue
		}
		l.failed(err)
		if ctx.Err() != nil {
			l.queue.miss(bytes.Count(lines, newline))
			return false
		}
		wait.For(ctx, retryTime)
	}
	return true
}

// writeSome writes to the file at the path, and returns the rest. If the path leads to
// another file by now, the rest of a line that was written in part is dropped.
func (l *Log) writeSome(lines []byte) (rest []byte, err error) {
	f, other, err := l.out.file()
	if err != nil {
		return lines, err
	}
	if other && l.out.torn {
		_, lines, _ = bytes.Cut(lines, newline)
		l.queue.miss(1)
	}
	if other {
		l.out.torn = false
	}
	_ = f.SetWriteDeadline(time.Now().Add(writeTime)) // without effect on regular files and standard output
	returned := wait.Awake(2*writeTime, func() { l.failed(os.ErrDeadlineExceeded) })
	n, err := f.Write(lines)
	returned() // joins it, before it is recovered
	if n > 0 {
		l.written.Add(int64(bytes.Count(lines[:n], newline)))
		l.out.torn = lines[n-1] != '\n'
	}
	return lines[n:], err
}

func (l *Log) failed(err error) {
	if why := err.Error(); l.trouble.Swap(&why) == nil {
		l.log.WithError(err).Warnf("audit records cannot be written; traffic goes on, up to %d MiB of records wait, and more are dropped", queueMax>>20)
	}
}

func (l *Log) recovered() {
	if l.trouble.Swap(nil) != nil {
		l.log.WithField("dropped", l.queue.lost()).Info("audit records are written again")
	}
}

// output is the file that records are appended to.
type output struct {
	path string
	f    *os.File // nil: it has yet to be opened
	info fs.FileInfo
	torn bool // the last line that was written to it is not whole
}

var newline = []byte{'\n'}

// file returns the file that has the path now: another one, where that was renamed or
// removed.
func (o *output) file() (f *os.File, other bool, err error) {
	if o.path == Stdout {
		return stdout, false, nil
	}
	info, err := os.Stat(o.path)
	if err == nil && o.f != nil && os.SameFile(info, o.info) {
		return o.f, false, nil
	}
	f, err = os.OpenFile(o.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND|files.NonBlock, 0o640)
	if errors.Is(err, syscall.ENXIO) && info != nil && info.Mode()&fs.ModeNamedPipe != 0 {
		err = fmt.Errorf("%s is a pipe that no program reads: start its reader first", o.path)
	}
	if err != nil {
		return nil, false, err
	}
	if info, err = f.Stat(); err == nil {
		err = endLine(f, info)
	}
	if err != nil {
		return nil, false, errors.Join(err, f.Close())
	}
	other = o.f != nil
	_ = o.close()
	o.f, o.info = f, info
	return f, other, nil
}

// endLine ends the last line of a file, which a process that was killed may have left
// without an end.
func endLine(f *os.File, info fs.FileInfo) error {
	if !info.Mode().IsRegular() || info.Size() == 0 {
		return nil
	}
	reader, err := os.OpenFile(f.Name(), files.Mode, 0)
	if err != nil {
		return nil // it may be written only
	}
	defer func() { _ = reader.Close() }()
	last := make([]byte, 1)
	if _, err := reader.ReadAt(last, info.Size()-1); err == nil && last[0] != '\n' {
		_, err = f.Write(newline)
		return err
	}
	return nil
}

// close closes the file.
func (o *output) close() error {
	if o.f == nil {
		return nil
	}
	err := o.f.Close()
	o.f, o.info = nil, nil
	return err
}
