package kubeapi_test

import (
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"testing"

	"go.uber.org/goleak"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"konnectivity/internal/kubeapi"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// api answers every request with body and notes what was asked.
func api(t *testing.T, body string) (config *rest.Config, asked *[]string) {
	asked = new([]string)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		*asked = append(*asked, r.Method+" "+r.URL.RequestURI())
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(body))
	}))
	t.Cleanup(srv.Close)
	return &rest.Config{Host: srv.URL}, asked
}

func TestLeases(t *testing.T) {
	config, asked := api(t, `{"kind":"LeaseList","apiVersion":"coordination.k8s.io/v1","items":[{"metadata":{"name":"a"}}]}`)
	leases, err := kubeapi.NewLeases(config, "ns")
	if err != nil {
		t.Fatal(err)
	}
	list, err := leases.List(t.Context(), metav1.ListOptions{LabelSelector: "k=v"})
	if err != nil || len(list.Items) != 1 || list.Items[0].Name != "a" {
		t.Errorf("%+v, %v", list, err)
	}
	if want := "GET /apis/coordination.k8s.io/v1/namespaces/ns/leases?labelSelector=k%3Dv"; (*asked)[0] != want {
		t.Errorf("asked %q, want %q", *asked, want)
	}
	if config.GroupVersion != nil {
		t.Error("the caller's config was changed")
	}
	leases.GetClient().(*rest.RESTClient).Client.CloseIdleConnections()
}

func TestTokenReviews(t *testing.T) {
	config, asked := api(t, `{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1","status":{"authenticated":true}}`)
	reviews, err := kubeapi.NewTokenReviews(config)
	if err != nil {
		t.Fatal(err)
	}
	got, err := reviews.Create(t.Context(), &authenticationv1.TokenReview{}, metav1.CreateOptions{})
	if err != nil || !got.Status.Authenticated {
		t.Errorf("%+v, %v", got, err)
	}
	if want := "POST /apis/authentication.k8s.io/v1/tokenreviews"; (*asked)[0] != want {
		t.Errorf("asked %q, want %q", *asked, want)
	}
	reviews.GetClient().(*rest.RESTClient).Client.CloseIdleConnections()
}

// The package is there to leave the other API groups out.
func TestNoOtherGroupsAreLinked(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "konnectivity/internal/kubeapi").Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "k8s.io/client-go/kubernetes") || strings.Contains(line, "k8s.io/api/core") {
			t.Errorf("links %s", strings.TrimSpace(line))
		}
	}
}
