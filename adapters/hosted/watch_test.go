package hosted

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/testutil"
)

// scripted is an API whose watches say and last what they are given, one after the other.
type scripted struct {
	watches []*scriptedWatch
	asked   []string
}

// scriptedWatch is the body of a watch.
type scriptedWatch struct {
	io.Reader
	lasts time.Duration
	ctx   context.Context
}

func (w *scriptedWatch) Read(p []byte) (int, error) {
	n, err := w.Reader.Read(p)
	if err == nil {
		return n, nil
	}
	select {
	case <-time.After(w.lasts):
		return 0, io.EOF
	case <-w.ctx.Done():
		return 0, w.ctx.Err()
	}
}

func (w *scriptedWatch) Close() error { return nil }

// RoundTrip implements http.RoundTripper.
func (a *scripted) RoundTrip(r *http.Request) (*http.Response, error) {
	res := &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Request: r}
	if r.URL.Query().Get("watch") == "" {
		a.asked = append(a.asked, "list")
		res.Body = io.NopCloser(strings.NewReader(`{"metadata":{"resourceVersion":"1"}}`))
		return res, nil
	}
	a.asked = append(a.asked, "watch "+r.URL.Query().Get("resourceVersion"))
	if len(a.watches) == 0 {
		return nil, errors.New("the script is over")
	}
	w := a.watches[0]
	w.ctx, a.watches = r.Context(), a.watches[1:]
	res.Body = w
	return res, nil
}

// A watch that lasted as long as was asked for, by the API's clock, is followed by another, and one
// that told nothing by a list. One that ended before is a failure.
func TestWatchesEnd(t *testing.T) {
	const news = `{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"2"}}}`
	watch := func(text string, lasts time.Duration) *scriptedWatch {
		return &scriptedWatch{Reader: strings.NewReader(text), lasts: lasts}
	}
	_, path := filled(t)
	synctest.Test(t, func(t *testing.T) {
		s := services(t, path)
		api := &scripted{watches: []*scriptedWatch{watch(news, watchTime-watchEarly), watch("", watchTime), watch(news, watchTime/2)}}
		access := testutil.Must(s.client.current())(t)
		access.services = testutil.Must(access.NewServices(api))(t)
		testutil.Equal(t, s.follow(t.Context()), errCut, "why nothing is followed any more")
		testutil.Equal(t, fmt.Sprint(api.asked), "[list watch 1 watch 2 list watch 1]", "requests")
	})
}
