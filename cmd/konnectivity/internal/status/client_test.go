package status

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"konnectivity/internal/bearer"
)

// The token is for the address that was given, and not for whoever that names.
func TestNoTokenGoesElsewhere(t *testing.T) {
	var asked atomic.Bool
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Store(true) }))
	defer elsewhere.Close()
	given := httptest.NewServer(http.RedirectHandler(elsewhere.URL, http.StatusFound))
	defer given.Close()
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, bearer.New(), 0o600); err != nil {
		t.Fatal(err)
	}
	c := NewClient()
	defer c.Close()
	if err := c.Present(Login{Token: token}); err != nil {
		t.Fatal(err)
	}
	err := c.Report(t.Context(), &Report{Address: given.Listener.Addr().String()}, "", 1)
	if err == nil || !strings.Contains(err.Error(), "redirect (302)") || asked.Load() {
		t.Errorf("%v; another was asked: %v", err, asked.Load())
	}
}
