package observe_test

import (
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"konnectivity/internal/observe"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// gathered is a gatherer of one metric that is what value returns.
func gathered(value func() float64) prometheus.Gatherer {
	return prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		name, kind, v := "answer", dto.MetricType_GAUGE, value()
		return []*dto.MetricFamily{{Name: &name, Type: &kind, Metric: []*dto.Metric{{Gauge: &dto.Gauge{Value: &v}}}}}, nil
	})
}

// scraped asks for metrics as one who takes these codings.
func scraped(ctx context.Context, h http.Handler, coding string) *httptest.ResponseRecorder {
	w, r := httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, "GET", "/metrics", nil)
	r.Header.Set("Accept-Encoding", coding)
	h.ServeHTTP(w, r)
	return w
}

// A dial with a span is an exemplar of its histogram. The text form shows none.
func TestDialsAreExemplars(t *testing.T) {
	registry, h := prometheus.NewRegistry(), prometheus.NewHistogram(prometheus.HistogramOpts{Name: "dials", Buckets: []float64{1, 2}})
	registry.MustRegister(h)
	quick, slow := tunnel.NewFlow("tcp", "a:1"), tunnel.NewFlow("tcp", "a:1")
	slow.Span.ID = 7
	observe.Dial(h, quick, time.Millisecond)
	observe.Dial(h, slow, 1500*time.Millisecond)
	handler := observe.Metrics(registry)
	text := scraped(t.Context(), handler, "").Body.String()
	testutil.Holds(t, strings.Contains(text, "dials_count 2") && !strings.Contains(text, "trace_id"), "%v", text)
	w, r := httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), "GET", "/metrics", nil)
	r.Header.Set("Accept", string(expfmt.NewFormat(expfmt.TypeProtoDelim)))
	handler.ServeHTTP(w, r)
	var family dto.MetricFamily
	testutil.NoError(t, expfmt.NewDecoder(w.Body, expfmt.ResponseFormat(w.Header())).Decode(&family))
	buckets := family.Metric[0].Histogram.Bucket
	if e := buckets[1].Exemplar; buckets[0].Exemplar != nil || e.GetValue() != 1.5 || len(e.GetLabel()) != 1 || e.Label[0].GetName() != "trace_id" || e.Label[0].GetValue() != tunnel.TraceID(slow.ID) {
		t.Errorf("%v", buckets)
	}
}

// Concurrent requests share scrapes, which are made one at a time.
func TestScrapesAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var now, most, made int
		h := observe.Metrics(gathered(func() float64 {
			now++
			defer func() { now-- }()
			made, most = made+1, max(most, now)
			time.Sleep(10 * time.Millisecond)
			return 42
		}))
		var all sync.WaitGroup
		for i := range 200 {
			all.Go(func() {
				w := scraped(t.Context(), h, []string{"", "gzip"}[i%2])
				var body io.Reader = w.Body
				if w.Header().Get("Content-Encoding") == "gzip" {
					body, _ = gzip.NewReader(body)
				}
				if text, err := io.ReadAll(body); err != nil || w.Code != 200 || !strings.Contains(string(text), "answer 42\n") {
					t.Errorf("%d %q, %v", w.Code, text, err)
				}
			})
		}
		all.Wait()
		testutil.Holds(t, most == 1 && made <= 4, // for the first and the other requests of each form
			"%d scrapes were made for all, %d at once", made, most)
		time.Sleep(time.Second) // the rest of the last one
	})
}

// A coding that a client does not want is not used, however that is written.
func TestScrapesHaveTheCodingThatIsWanted(t *testing.T) {
	h := observe.Metrics(gathered(func() float64 { return 42 }))
	for coding, want := range map[string]string{
		"gzip": "gzip", "deflate, GZIP": "gzip", "": "", "br": "", "gzip;q=0": "", "gzip; q=0": "", "gzip ; q=0.000, identity": "",
	} {
		testutil.Equal(t, scraped(t.Context(), h, coding).Header().Get("Content-Encoding"), want, "%q", coding)
	}
}

// A request gets values that are no older than itself.
func TestScrapesAreCurrent(t *testing.T) {
	var value atomic.Int64
	h := observe.Metrics(gathered(func() float64 { return float64(value.Load()) }))
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 20 {
				least := value.Add(1)
				_, text, _ := strings.Cut(scraped(t.Context(), h, "").Body.String(), "\nanswer ")
				got, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
				testutil.Holds(t, err == nil && int64(got) >= least, "got %q, want at least %d", text, least)
			}
		})
	}
	all.Wait()
}

// A cancelled request is not waited for, and does not delay others.
func TestCancelledScrape(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := observe.Metrics(gathered(func() float64 { time.Sleep(time.Second); return 1 }))
		go scraped(t.Context(), h, "")
		synctest.Wait()
		ctx, leave := context.WithCancel(t.Context())
		leave()
		for range 3 {
			go scraped(ctx, h, "")
		}
		testutil.Contains(t, scraped(t.Context(), h, "").Body.String(), "answer 1\n", "the page")
		time.Sleep(time.Minute)
	})
}

// All requests that share a failed scrape get an error.
func TestFailedScrapes(t *testing.T) {
	testutil.EachInBubble(t, map[string]func() error{
		"an error": func() error { return errors.New("no metrics") },
		"a panic":  func() error { panic("no metrics") },
	}, func(t *testing.T, fails func() error) {
		h := observe.Metrics(prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
			time.Sleep(10 * time.Millisecond)
			return nil, fails()
		}))
		var all sync.WaitGroup
		var told atomic.Int64
		for range 8 {
			all.Go(func() {
				defer func() {
					if recover() != nil { // as net/http does, which hangs up then
						told.Add(1)
					}
				}()
				w := scraped(t.Context(), h, "")
				testutil.Holds(t, w.Code == http.StatusInternalServerError &&
					strings.Contains(w.Body.String(), "metrics"), "%d %q", w.Code, w.Body)
				told.Add(1)
			})
		}
		all.Wait()
		testutil.Equal(t, told.Load(), 8, "of 8 are told")
		time.Sleep(time.Second) // the rest of the last one
	})
}

// Unread answers count for the memory of connections.
func TestUnreadAnswersGiveWay(t *testing.T) {
	body := make([]byte, 32<<20) // more than the kernel takes for a connection
	var sending atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	l, done := serve(t, ctx, nil, func(w http.ResponseWriter, _ *http.Request) {
		sending.Add(1)
		defer sending.Add(-1)
		_, _ = w.Write(body)
	})
	const greedy, fit = 20, 4
	for range greedy {
		c := testutil.Must(net.Dial("tcp", l.Addr().String()))(t)
		defer c.Close()
		_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		_, _ = c.Read(make([]byte, 1)) // its answer has begun, unless it had to go
	}
	testutil.Eventually(t, "most answers of 32 MiB are given up", func() bool { return sending.Load() <= fit })
	r := testutil.Must(http.Get("http://" + l.Addr().String()))(t)
	defer r.Body.Close()
	testutil.Equal(t, testutil.Must(io.Copy(io.Discard, r.Body))(t), int64(len(body)), "bytes of one who reads")
	http.DefaultClient.CloseIdleConnections()
	cancel()
	testutil.NoError(t, testutil.Receive(t, "the server ends beside unread answers", done))
}
