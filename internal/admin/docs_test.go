package admin

import (
	"encoding/json"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"konnectivity/internal/testutil"
)

// page is docs/admin-api.md.
func page(t *testing.T) string {
	t.Helper()
	return string(testutil.Must(os.ReadFile("../../docs/admin-api.md"))(t))
}

// section is what the page says below a heading.
func section(t *testing.T, heading string) string {
	t.Helper()
	_, text, found := strings.Cut(page(t), "\n## "+heading+"\n")
	testutil.Requires(t, found, "docs/admin-api.md has no %q", heading)
	text, _, _ = strings.Cut(text, "\n## ")
	return text
}

// fieldsOf are the names in JSON of a struct's own fields.
func fieldsOf(v any) (names []string) {
	of := reflect.TypeOf(v)
	for i := range of.NumField() {
		if name, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ","); name != "" {
			names = append(names, name)
		}
	}
	return names
}

// described are the types of answers, by the section that has to name their fields.
var described = map[string][]any{
	"Lists":                   {Page[int]{}},
	"GET /api/v1/status":      {Status{}, Connections{}, Dials{}, Buffer{}, Departure{}, Unlinked{}},
	"GET /api/v1/connections": {Connection{}},
	"GET /api/v1/peers":       {Peer{}},
	"GET /api/v1/failures":    {Failure{}},
	"GET /api/v1/tenants":     {Tenant{}, Connections{}, Dials{}, TenantsPage{}},
	"GET /api/v1/servers":     {Server{}},
	"GET /api/v1/history":     {History{}, Point{}},
}

func TestFieldsAreDocumented(t *testing.T) {
	for heading, types := range described {
		text := section(t, heading)
		for _, v := range types {
			for _, name := range fieldsOf(v) {
				named := strings.Contains(text, "`"+name+"`") || strings.Contains(text, `"`+name+`"`)
				testutil.Holds(t, named || name == "tenant", "%q of docs/admin-api.md has no %s of %T", heading, name, v)
			}
		}
	}
	testutil.Contains(t, section(t, "GET /api/v1/tenants"), "the field `tenant`", "what the page says of all lists")
}

// What the page calls a field of the status is one.
func TestDocumentedStatusIsThere(t *testing.T) {
	var names []string
	for _, v := range append(described["GET /api/v1/status"], Point{}) {
		names = append(names, fieldsOf(v)...)
	}
	for _, word := range regexp.MustCompile("`[a-zA-Z]+`").FindAllString(section(t, "GET /api/v1/status"), -1) {
		testutil.Holds(t, slices.Contains(names, strings.Trim(word, "`")), "docs/admin-api.md has %s, and the status does not", word)
	}
}

func TestExamplesAreAnswers(t *testing.T) {
	for heading, v := range map[string]any{
		"GET /api/v1/connections": new(Connection), "GET /api/v1/tenants": new(Tenant), "GET /api/v1/servers": new(Server),
	} {
		_, example, _ := strings.Cut(section(t, heading), "```json\n")
		example, _, found := strings.Cut(example, "```")
		testutil.Requires(t, found, "%q has no example", heading)
		from := json.NewDecoder(strings.NewReader(example))
		from.DisallowUnknownFields()
		testutil.Succeeds(t, from.Decode(v), "the example of %q", heading)
	}
}

// Bounds are what the page says.
func TestFiguresAreDocumented(t *testing.T) {
	const page = "../../docs/admin-api.md"
	testutil.Says(t, page, "The last %v, and in addition the last %v of each tenant (with more than %v tenants, %v divided by their number)", KeptFailures, keptOfATenant, keptOfTenants/keptOfATenant, keptOfTenants)
	testutil.Says(t, page, "Beyond %v of them", keptNeighbours)
	testutil.Says(t, page, "%v by default, at most 1000", defaultLimit)
	testutil.Says(t, page, "every %v s at most", int64(setAge/time.Second))
	testutil.Says(t, page, "does not answer within %v s", int64(setTime/time.Second))
}
