package profiles_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"konnectivity/internal/observe/profiles"
	"konnectivity/internal/testutil"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testutil.Settled(m)) }

func get(mux *http.ServeMux, path string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w
}

func TestMount(t *testing.T) {
	mux := http.NewServeMux()
	profiles.Mount(mux, false)
	w := get(mux, "/debug/pprof/")
	testutil.Holds(t, w.Code == 200 && strings.Contains(w.Body.String(), "goroutine"), "/debug/pprof/: %d", w.Code)
	testutil.Equal(t, get(mux, "/debug/pprof/heap").Code, 200, "/debug/pprof/heap")
	if w := get(mux, "/debug/pprof"); w.Code != 301 || w.Header().Get("Location") != "/debug/pprof/" {
		t.Errorf("/debug/pprof: %d %v", w.Code, w.Header())
	}
	testutil.Equal(t, get(http.NewServeMux(), "/debug/pprof/").Code, 404, "profiles are served though nobody mounted them")
}
