package logging

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"

	"konnectivity/internal/testutil"
)

// Whatever is warned of, and by however many, some lines a minute tell it.
func TestEqualWarningsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		log := testutil.Must(New(Options{Component: "c", Level: logrus.DebugLevel, Out: &out}))(t)
		lines := func() int {
			defer out.Reset()
			return strings.Count(out.String(), "\n")
		}
		for i := range 3000 {
			log.WithField("n", i).Warn("refused")
		}
		testutil.Equal(t, lines(), sparseLines, "lines of one warning")
		log.Error("another")
		testutil.Equal(t, lines(), 1, "lines of another")
		for range 3000 {
			log.Info("asked for")
			log.Debug("asked for")
		}
		testutil.Equal(t, lines(), 6000, "lines of information")
		time.Sleep(sparseWindow)
		log.Warn("refused")
		testutil.Contains(t, out.String(), `"kept_back":2980`, "after a while")
		out.Reset()
		log.Warn("refused")
		testutil.Holds(t, !strings.Contains(out.String(), "kept_back") && lines() == 1, "kept back is told twice")
	})
}

// What was kept back is told as the program ends, also of messages long past.
func TestKeptBackLinesAreToldAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		log := testutil.Must(New(Options{Component: "c", Level: logrus.InfoLevel, Out: &out}))(t)
		for _, tenant := range []string{"long ago", "now"} {
			for range 2 * sparseLines {
				log.WithField(tenantField, tenant).Warn("refused")
			}
			time.Sleep(keptTime)
		}
		out.Reset()
		End(log)
		testutil.Contains(t, out.String(), fmt.Sprintf(`"kept_back":%d`, 2*sparseLines), "the last line")
		out.Reset()
		End(log)
		testutil.Equal(t, out.String(), "", "what is told twice")
	})
}

// A log without warnings has lost errors alone, and tells of them.
func TestKeptBackErrorsAreToldAtTheEnd(t *testing.T) {
	var out bytes.Buffer
	log := testutil.Must(New(Options{Component: "c", Level: logrus.ErrorLevel, Out: &out}))(t)
	for range 2 * sparseLines {
		log.Error("failed")
		log.Warn("refused")
	}
	out.Reset()
	End(log)
	testutil.Contains(t, out.String(), fmt.Sprintf(`"kept_back":%d`, sparseLines), "the last line")
}

// Wordings without end are no way around it, and give way to others in time.
func TestMessagesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		log := testutil.Must(New(Options{Component: "c", Level: logrus.InfoLevel, Out: &out}))(t)
		for i := range 10 * sparseWordings {
			log.Warn(fmt.Sprint("peer ", i))
		}
		testutil.AtMost(t, strings.Count(out.String(), "\n"), sparseWordings+sparseLines, "lines")
		time.Sleep(sparseWindow)
		out.Reset()
		for range 5 {
			log.Warn("new")
		}
		testutil.Equal(t, strings.Count(out.String(), "\n"), 5, "lines of a new wording")
	})
}

// A tenant whose peers cause the same line again and again hides nothing of
// another, nor of the server itself.
func TestMessagesAreBoundedByTenant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		log := testutil.Must(New(Options{Component: "c", Level: logrus.InfoLevel, Out: &out}))(t)
		of := func(tenant string) *logrus.Entry { return log.WithField("tenant", tenant) }
		for range 1000 {
			of("loud").Warn("refused")
		}
		for i := range 1000 {
			of("wordy").Warn(fmt.Sprint("peer ", i))
		}
		of("quiet").Warn("refused")
		log.Warn("refused")
		for who, want := range map[string]int{`"loud"`: sparseLines, `"wordy"`: tenantWordings + sparseLines, `"quiet"`: 1} {
			testutil.Equal(t, strings.Count(out.String(), `"tenant":`+who), want, "lines of %s", who)
		}
		testutil.Equal(t, strings.Count(out.String(), "\n"), 2*sparseLines+tenantWordings+2, "lines")
	})
}

// Tenants that come and go leave nothing behind.
func TestStaleTenantRecordsAreRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &sparse{seen: map[string]map[string]*wording{}}
		fire := func(tenant string) {
			_ = s.Fire(&logrus.Entry{Message: "refused", Data: logrus.Fields{"tenant": tenant}})
		}
		for i := range 100 {
			fire(fmt.Sprint("t", i))
		}
		for range sparseLines + 1 {
			fire("loud")
		}
		time.Sleep(sparseWindow)
		fire("new")
		testutil.Holds(t, len(s.seen) == 2 && s.seen["loud"]["refused"].kept == 1,
			"%d tenants are remembered after a minute", len(s.seen))
		time.Sleep(keptTime)
		fire("newer")
		testutil.Equal(t, len(s.seen), 1, "tenants are remembered after an hour")
	})
}

// File and standard error have the same lines.
func TestSparseLinesOfAFile(t *testing.T) {
	var out bytes.Buffer
	path := filepath.Join(t.TempDir(), "log")
	log := testutil.Must(New(Options{Component: "c", Level: logrus.InfoLevel, Out: &out, File: path, OutLevel: logrus.WarnLevel}))(t)
	for range 100 {
		log.Warn("refused")
	}
	kept, err := os.ReadFile(path)
	if n := bytes.Count(kept, []byte("\n")); err != nil || n != sparseLines || !bytes.Equal(kept, out.Bytes()) {
		t.Errorf("%d lines in the file, %v; %d bytes beside %d", n, err, len(kept), out.Len())
	}
}

func TestEscapedJSONMeansTheSame(t *testing.T) {
	const hostile = "a\x1b[2Jb\u202ec\u0085d\u200be\u2028f\x7fg\n\U000e0041ü語é"
	text := testutil.Must(json.Marshal(map[string]string{hostile: hostile}))(t)
	escaped := EscapeHidden(text)
	var got map[string]string
	err := json.Unmarshal(escaped, &got)
	testutil.Holds(t, err == nil && got[hostile] == hostile, "%v, %q", err, got)
	for _, r := range string(escaped) {
		testutil.Holds(t, r == 'ü' || r == '語' || r == 'é' || r >= ' ' && r <= '~', "%U is left", r)
	}
	plain := []byte("{\"a\": 1}\n")
	testutil.Holds(t, &EscapeHidden(plain)[0] == &plain[0], "an ordinary line is copied")
}

// Bounds are what the pages say.
func TestFiguresAreDocumented(t *testing.T) {
	testutil.Says(t, "../../docs/security.md", "%v lines of a wording a minute", sparseLines)
	testutil.Says(t, "../../docs/flags.md", "and for %v ms each where that is over", int64(leastLooks*look/time.Millisecond))
}

func TestEnabled(t *testing.T) {
	logger := logrus.New()
	logger.SetLevel(logrus.InfoLevel)
	for name, log := range map[string]logrus.FieldLogger{"logger": logger, "entry": logger.WithField("a", "b")} {
		if Enabled(log, logrus.DebugLevel) || !Enabled(log, logrus.InfoLevel) || !Enabled(log, logrus.ErrorLevel) {
			t.Errorf("%s at info: debug %v, info %v, error %v", name,
				Enabled(log, logrus.DebugLevel), Enabled(log, logrus.InfoLevel), Enabled(log, logrus.ErrorLevel))
		}
		testutil.MaxAllocs(t, 0, func() { Enabled(log, logrus.DebugLevel) })
	}
	testutil.Holds(t, Enabled(struct{ logrus.FieldLogger }{logger}, logrus.DebugLevel),
		"what another logger writes cannot be known")
}
