package logging_test

import (
	"bufio"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"

	"konnectivity/internal/logging"
	"konnectivity/internal/testutil"
)

// A reader that stops delays one line by a second, and no later one. Once it reads again, it
// gets that line, at once the number of dropped ones, and all that follow.
func TestAReaderThatStopsHoldsUpNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w := io.Pipe()
		log := testutil.Must(logging.New(logging.Options{Component: "x", Level: logrus.InfoLevel, Out: w}))(t)
		start := time.Now()
		for range 5 {
			log.Info("dropped but for one")
		}
		testutil.Equal(t, time.Since(start), time.Second, "five lines took")

		lines := bufio.NewScanner(r)
		next := func(want ...string) {
			t.Helper()
			lines.Scan()
			for _, text := range want {
				testutil.Contains(t, lines.Text(), text, "the next line")
			}
		}
		next("dropped but for one")
		next("were dropped", `"lines":4`, `"component":"x"`, `"level":"warning"`, `"time":"2000-`)
		go log.Warn("after")
		next("after")
	})
}

// A reader that is slower than the program logs does not hold it up for each line: the lines
// that it does not get are dropped and counted. In fake time, a lock that is waited for would
// keep the clock from going on.
func TestAReaderThatIsSlowHoldsUpNobodyForLong(t *testing.T) {
	t.Parallel() // it waits
	const lines, pause = 100, 200 * time.Millisecond
	r, w := io.Pipe()
	log := testutil.Must(logging.New(logging.Options{Component: "x", Level: logrus.InfoLevel, Out: w}))(t)
	told, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for lines := bufio.NewScanner(r); lines.Scan() && !strings.Contains(lines.Text(), "were dropped"); {
			time.Sleep(pause)
		}
		close(told)
		_, _ = io.Copy(io.Discard, r)
	}()
	start := time.Now()
	for range lines {
		log.Info("a line")
	}
	testutil.AtMost(t, time.Since(start), lines*pause/2, "what they took")
	testutil.Receive(t, "the reader is told", told)
	_ = w.Close()
	<-done
}

// A program that logs most of its time, of whose writes each takes a moment and some longer, as
// where programs compete for processors, loses no line.
func TestWritesThatTakeAMomentLoseNoLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const lines = 20_000
		written := 0
		out := writer(func([]byte) {
			written++
			time.Sleep(time.Millisecond)
			if written%1000 == 0 {
				time.Sleep(40 * time.Millisecond)
			}
		})
		log := testutil.Must(logging.New(logging.Options{Level: logrus.InfoLevel, Out: out}))(t)
		for range lines {
			log.Info("a line")
		}
		testutil.Equal(t, written, lines, "lines that were written")
	})
}

// Once the patience is over, each line still waits for longer than a write that does not hang takes.
func TestEachLineWaitsForAMomentInAnyCase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const lines = 20
		written := 0
		log := testutil.Must(logging.New(logging.Options{Level: logrus.InfoLevel, Out: writer(func([]byte) {
			if written++; written == 1 {
				time.Sleep(2 * time.Second)
			}
			time.Sleep(45 * time.Millisecond)
		})}))(t)
		log.Info("hangs")
		time.Sleep(1100 * time.Millisecond)
		for range lines {
			log.Info("a line")
		}
		testutil.Equal(t, written, 1+lines, "lines that were written")
		time.Sleep(time.Second) // for a write that hangs to end
	})
}

// writer does something with each line.
type writer func([]byte)

func (w writer) Write(line []byte) (int, error) {
	w(line)
	return len(line), nil
}
