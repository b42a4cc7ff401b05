package auth

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"k8s.io/client-go/transport"
	"k8s.io/klog/v2"

	"konnectivity/internal/cli"
	"konnectivity/internal/kubeapi"
	"konnectivity/internal/testutil"
)

// Whatever an operator turns up, no token of an agent gets into a log: client-go
// itself writes the bodies of requests and responses at a high verbosity.
func TestTokensStayOutOfLogsAtEveryLevel(t *testing.T) {
	const token = "hunter2-hunter2-hunter2"
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review kubeapi.TokenReview
		err := json.NewDecoder(r.Body).Decode(&review)
		testutil.Holds(t, err == nil && review.Spec.Token == token, "the API got %q, %v", review.Spec.Token, err)
		review.Status.Error = "no such token"
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(review)
	}))
	defer api.Close()
	for _, args := range []string{"--log-level=debug", "--log-level=trace", "-v=10", "-v=10 --log-level=trace", "--vmodule=*=10"} {
		flags, set, out := new(cli.LogFlags), pflag.NewFlagSet("test", pflag.ContinueOnError), new(testutil.Output)
		flags.AddTo(set)
		testutil.NoError(t, set.Parse(strings.Fields(args)))
		testutil.Must(flags.New("test", out))(t)
		reviews := testutil.Must(kubeapi.NewTokenReviews(&kubeapi.Config{URL: api.URL, Transport: transport.Config{BearerToken: "the-servers-own-hunter2"}}))(t)
		testutil.Fails(t, reviewed(NewTokens(TokensConfig{Reviews: reviews, Audience: "x"}), t.Context(), token, nil), "the token was accepted")
		klog.Background().V(7).Info("still talking")
		if said := out.String(); strings.Contains(said, "hunter2") {
			t.Errorf("%s: a token is in the log: %.800s", args, said)
		} else if !strings.Contains(said, "still talking") {
			t.Errorf("%s: the libraries were not heard at all: %q", args, said)
		}
	}
}
