package files

import (
	"crypto/sha256"
	"errors"
	"os"
	"sync"
	"time"
)

// Followed is the value of a file that may be replaced at any time. While the file
// cannot be used, the last good value stays. It does not keep the file's text.
type Followed[T any] struct {
	path   string
	most   int
	every  time.Duration
	parse  func(text []byte) (T, error)
	broken func(error)
	settle time.Duration // see Settle

	mu     sync.Mutex
	read   time.Time
	value  T                 // the last good one
	digest [sha256.Size]byte // of the text that value came from
	bad    [sha256.Size]byte // of the last text that could not be used
	failed error             // what parse said of that
	fault  string            // as broken was told; "" once the file is good again
}

// Follow reads a regular file of at most so many bytes, and fails if that or parse
// does. Get reads it again, but not before the time every has passed. broken is
// called with each new fault that Get meets, and must not block.
func Follow[T any](path string, most int, every time.Duration, parse func(text []byte) (T, error), broken func(error)) (*Followed[T], error) {
	f := &Followed[T]{path: path, most: most, every: every, parse: parse, broken: broken}
	return f, f.load()
}

// Settle has a changed file used only once it has not changed for so long: of one that is
// overwritten in place, half may be there. Where its time is ahead of the clock, it does nothing.
// It is called before Get.
func (f *Followed[T]) Settle(d time.Duration) { f.settle = d }

var errYoung = errors.New("the file may be half written")

// young says that the file changed a moment ago. It is asked once the file has been read.
func (f *Followed[T]) young() bool {
	info, err := os.Stat(f.path)
	if err != nil {
		return false
	}
	age := time.Since(info.ModTime())
	return age >= 0 && age < f.settle
}

// Get returns the value of the file as it is now, or the last good one. It may be
// called from any goroutine.
func (f *Followed[T]) Get() T {
	f.mu.Lock()
	defer f.mu.Unlock()
	if time.Since(f.read) < f.every {
		return f.value
	}
	switch err := f.load(); {
	case errors.Is(err, errYoung):
	case err == nil:
		f.fault = ""
	case err.Error() != f.fault:
		f.fault = err.Error()
		f.broken(err)
	}
	return f.value
}

// Fault says why the file could not be used when Get last read it; "" if it could.
func (f *Followed[T]) Fault() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.fault
}

func (f *Followed[T]) load() error {
	f.read = time.Now()
	text, err := Read(f.path, f.most)
	if err != nil {
		return err
	}
	digest := sha256.Sum256(text)
	switch digest {
	case f.digest:
		return nil
	case f.bad:
		return f.failed
	}
	if f.young() {
		return errYoung
	}
	value, err := f.parse(text)
	if err != nil {
		f.bad, f.failed = digest, err
		return err
	}
	f.value, f.digest = value, digest
	return nil
}
