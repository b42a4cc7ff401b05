package hosted

import (
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"konnectivity/internal/kubeapi"
	"konnectivity/internal/testutil"
)

// large is an API with many Services, each with all that real ones have: labels, owners, what
// kubectl applied, and who manages which field.
type large []string

// RoundTrip implements http.RoundTripper.
func (a large) RoundTrip(r *http.Request) (*http.Response, error) {
	query := r.URL.Query()
	limit, _ := strconv.Atoi(query.Get("limit"))
	from, _ := strconv.Atoi(query.Get("continue"))
	end, next := len(a), ""
	if limit > 0 && from+limit < end {
		end, next = from+limit, strconv.Itoa(from+limit)
	}
	body := []io.Reader{strings.NewReader(`{"kind":"ServiceList","apiVersion":"v1","metadata":{"resourceVersion":"9","continue":"` + next + `"},"items":[`)}
	for i, service := range a[from:end] {
		if i > 0 {
			body = append(body, strings.NewReader(","))
		}
		body = append(body, strings.NewReader(service))
	}
	body = append(body, strings.NewReader("]}\n"))
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Request: r, Body: io.NopCloser(io.MultiReader(body...))}, nil
}

func newLarge(services int) (a large) {
	for i := range services {
		a = append(a, realService(i))
	}
	return a
}

// realService is about 3 KB.
func realService(i int) string {
	managed := strings.Repeat(`"f:app.kubernetes.io/component":{},`, 30)
	return fmt.Sprintf(`{"metadata":{"name":"service-%d","namespace":"default","uid":"0b0f5c2c-6d43-4f1c-9a55-%012d","resourceVersion":"%d",`+
		`"creationTimestamp":"2026-11-01T10:00:00Z","labels":{"app.kubernetes.io/name":"web","app.kubernetes.io/instance":"web-%d","app.kubernetes.io/managed-by":"Helm","helm.sh/chart":"web-1.2.3"},`+
		`"annotations":{"kubectl.kubernetes.io/last-applied-configuration":%q,"meta.helm.sh/release-name":"web"},`+
		`"ownerReferences":[{"apiVersion":"apps/v1","kind":"Deployment","name":"web","uid":"0b0f5c2c-6d43-4f1c-9a55-000000000000"}],"finalizers":["service.kubernetes.io/load-balancer-cleanup"],`+
		`"managedFields":[{"manager":"helm","operation":"Update","apiVersion":"v1","time":"2026-11-01T10:00:00Z","fieldsType":"FieldsV1","fieldsV1":{"f:metadata":{"f:labels":{%s".":{}}}}}]},`+
		`"spec":{"ports":[{"name":"http","protocol":"TCP","port":80,"targetPort":8080}],"selector":{"app":"web-%d"},"clusterIP":"10.%d.%d.1","clusterIPs":["10.%d.%d.1"],"type":"ClusterIP","sessionAffinity":"None","ipFamilies":["IPv4"],"ipFamilyPolicy":"SingleStack"},"status":{"loadBalancer":{}}}`,
		i, i, i, i, strings.Repeat(`{"a":"b"}`, 80), managed, i, i/250, i%250, i/250, i%250)
}

func (a large) access(t testing.TB) *access {
	return &access{services: testutil.Must(kubeapi.Access{Server: "http://api"}.NewServices(a))(t)}
}

// A list allocates at most 2 KiB for each Service, whose text has 3 KB.
func TestListTakesLittleMemory(t *testing.T) {
	const many = 2000
	from := newLarge(many).access(t)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	addrs, version, err := list(t.Context(), from)
	runtime.ReadMemStats(&after)
	testutil.Requires(t, err == nil && len(addrs) == many && version == "9", "%d at %q, %v", len(addrs), version, err)
	testutil.Equal(t, fmt.Sprint(addrs["default/service-1999"]), "[10.7.249.1]", "the last")
	testutil.AtMost(t, after.TotalAlloc-before.TotalAlloc, many*2<<10, "bytes of %d Services", many)
}

func BenchmarkList(b *testing.B) {
	from := newLarge(5000).access(b)
	b.ReportAllocs()
	for b.Loop() {
		_, _, err := list(b.Context(), from)
		testutil.NoError(b, err)
	}
}
