package logging

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"konnectivity/internal/files"
)

// levelWriter is a hook that writes lines of at least a level to out.
type levelWriter struct {
	least logrus.Level
	out   io.Writer // for concurrent use
}

// Levels implements logrus.Hook: a lower number is more severe.
func (w *levelWriter) Levels() []logrus.Level { return logrus.AllLevels[:w.least+1] }

// Fire implements logrus.Hook.
func (w *levelWriter) Fire(entry *logrus.Entry) error {
	line, err := entry.Bytes()
	if err != nil || len(line) == 0 {
		return err
	}
	_, err = w.out.Write(line)
	return err
}

// reportEvery is the interval of reports about lines that cannot be written.
const reportEvery = time.Minute

// file is a log file that is truncated when it grows too large.
type file struct {
	max    int64     // bytes; 0 is unlimited
	report io.Writer // gets a line every reportEvery about lines that cannot be written

	mu   sync.Mutex
	f    *os.File
	size int64
	torn bool      // the last line has no end, since the disk did not take all of it
	lost int       // lines
	told time.Time // when report got the last line
}

// openFile opens path for appending, readable by owner and group only, since lines describe
// the network. A pipe without a reader is refused at once.
func openFile(path string, limit int64, report io.Writer) (*file, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND|files.NonBlock, 0o640)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		_ = f.Close() // nothing was written
		return nil, err
	}
	if !info.Mode().IsRegular() {
		limit = 0 // a pipe or terminal cannot be truncated, and keeps nothing
	}
	return &file{max: limit, report: report, f: f, size: info.Size()}, nil
}

// Write implements io.Writer; one call is one line. It never fails, since logrus would
// report each line that a full disk does not take.
func (w *file) Write(line []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.writeLocked(line); err != nil {
		w.lost++
		if time.Since(w.told) >= reportEvery {
			w.told = time.Now()
			_, _ = fmt.Fprintf(w.report, "log lines that could not be written so far: %d; the last one: %v\n", w.lost, err)
		}
	}
	return len(line), nil
}

func (w *file) writeLocked(line []byte) error {
	if more := int64(len(line)); w.max > 0 && w.size+more > w.max {
		if info, err := w.f.Stat(); err == nil {
			w.size = info.Size() // others may have truncated it
		}
		if w.size+more > w.max {
			if err := w.f.Truncate(0); err != nil {
				return err
			}
			w.size, w.torn = 0, false
		}
	}
	if w.torn {
		line = append([]byte{'\n'}, line...)
	}
	n, err := w.f.Write(line)
	w.size += int64(n)
	if n > 0 {
		w.torn = line[n-1] != '\n'
	}
	return err
}

// httpErrors logs the lines of net/http servers and clients.
type httpErrors struct{ log logrus.FieldLogger }

// unsolicited is the beginning of the message that an http.Transport logs when a server
// sends data on an idle connection (Go, net/http/transport.go). The message quotes up to
// 4 KiB of that data, with which any server could fill the log.
const unsolicited = "Unsolicited response received on idle HTTP channel"

// Write implements io.Writer; log.Logger calls it once for each message.
func (w *httpErrors) Write(line []byte) (int, error) {
	text := string(bytes.TrimSpace(line))
	text = strings.TrimPrefix(text, "http: ")
	switch {
	case strings.HasPrefix(text, "TLS handshake error"):
		w.log.Debug(text)
	case strings.HasPrefix(text, unsolicited):
		w.log.Debug("a server sent unsolicited data on an idle connection; the connection is closed")
	default:
		w.log.Warn(text)
	}
	return len(line), nil
}
