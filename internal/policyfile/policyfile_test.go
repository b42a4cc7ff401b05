package policyfile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	promtest "github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/sirupsen/logrus"
	logrustest "github.com/sirupsen/logrus/hooks/test"
	"go.uber.org/goleak"

	"konnectivity/internal/policy"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testutil.Settled(m)) }

// example is the file in docs/policy.md.
func example(t testing.TB) string {
	page := string(testutil.Must(os.ReadFile("../../docs/policy.md"))(t))
	_, rest, _ := strings.Cut(page, "```yaml\n")
	file, _, found := strings.Cut(rest, "```")
	testutil.Requires(t, found, "docs/policy.md has no example")
	return file
}

// The file of the documentation does what it says, word for word, and without one of its
// rules its tests fail.
func TestTheExampleOfTheDocumentation(t *testing.T) {
	file := example(t)
	f := testutil.Must(Parse([]byte(file)))(t)
	prometheus := tunnel.NewIdentity("cn:prometheus")
	d := f.Explain(prometheus, "", "10.1.2.3:22")
	testutil.Holds(t, d.Denied != nil, "%+v", d)
	if d := f.Explain(prometheus, "", "10.9.0.1:9100"); d.Denied == nil || !strings.Contains(d.Denied.Error(), `"databases"`) {
		t.Errorf("the rule that denies is not named: %+v", d)
	}
	d = f.Explain(prometheus, "", "10.1.2.3:9100")
	testutil.Holds(t, d.Denied == nil && d.Rule == "monitoring", "the rule that allows is not named: %+v", d)
	d = f.Explain(prometheus, "", "a.svc:9090")
	testutil.Holds(t, d.Denied == nil && d.Depends == "-10.9.0.0/16\n", "%+v", d)
	for was, is := range map[string]string{`"cn:prometheus"]`: `"cn:x"]`, `"10.0.0.0/8:9100", `: "", `"10.9.0.0/16", `: ""} {
		testutil.ErrorSays(t, testutil.Err(Parse([]byte(strings.Replace(file, was, is, 1)))), "tests: number 1", "without %s", was)
	}
}

func TestBadFiles(t *testing.T) {
	head := "version: 1\nmode: enforce\n"
	rule := "rules:\n- {name: a, action: allow, who: ['*'], where: ['10.0.0.0/8']}\n"
	for file, want := range map[string]string{
		"":                                   "version",
		"version: 2\nmode: enforce\n" + rule: "version: 2",
		"version: 1\n" + rule:                "mode",
		"version: 1\nmode: off\n" + rule:     "mode",
		head:                                 "rules: there is none",
		head + rule + "more: 1\n":            "more",
		head + rule + "- {name: a, action: deny, who: ['*'], where: ['*']}\n":                                             "same name",
		head + "rules:\n- {name: A, action: deny, who: ['*'], where: ['*']}\n":                                            "name",
		head + "rules:\n- {name: a, action: drop, who: ['*'], where: ['*']}\n":                                            "action",
		head + "rules:\n- {name: a, action: deny, where: ['*']}\n":                                                        "who is missing",
		head + "rules:\n- {name: a, action: deny, who: ['admin'], where: ['*']}\n":                                        "who",
		head + "rules:\n- {name: a, action: deny, who: ['user:a'], where: ['*']}\n":                                       "who",
		head + "rules:\n- {name: a, action: deny, who: ['*']}\n":                                                          "where is missing",
		head + "rules:\n- {name: a, action: deny, who: ['*'], where: ['10.0.0.*']}\n":                                     "CIDR",
		head + rule + "tests:\n- {who: ['cn'], allow: ['10.0.0.1:1']}\n":                                                  "who",
		head + rule + "tests:\n- {allow: ['10.0.0.1']}\n":                                                                 "bad address",
		head + rule + "tests:\n- {allow: ['11.0.0.1:1']}\n":                                                               "an unknown client should reach 11.0.0.1:1, but is not allowed to: ",
		head + rule + "tests:\n- {deny: ['10.0.0.1:1']}\n":                                                                "an unknown client should not reach 10.0.0.1:1, but rule \"a\" allows it",
		head + "rules:\n- {name: a, action: deny, who: ['*'], where: ['10.0.0.0/8']}\ntests:\n- {deny: ['11.0.0.1:1']}\n": "an unknown client should not reach 11.0.0.1:1, but no rule denies it",
		head + rule + "tests:\n- {allow: ['10.0.0.1:1'], deny: ['10.0.0.1:1']}\n":                                         "an unknown client should not reach 10.0.0.1:1, but rule \"a\" allows it",
		head + rule + "tests:\n- {deny: ['a.example:1']}\n":                                                               "test that address",
		head + "rules:\n- {name: a, action: allow, who: '*', where: ['*']}\n":                                             "rules.who: want a list",
		"---\n---\n" + head + rule: "several YAML documents",
		head + rule + "--- {\n":    "several YAML documents",
		`{"version": 1, "mode": "report", "rules": [{"name": "a", "action": "deny", "who": ["*"], "where": ["*"]}]}}`: "or something else behind the first",
		head + rule + "---\n" + head + "rules:\n- {name: b, action: deny, who: ['*'], where: ['10.1.0.0/16']}\n":      "several YAML documents",
	} {
		testutil.ErrorSays(t, testutil.Err(Parse([]byte(file))), want, "%q", file)
	}
	testutil.NoError(t, testutil.Err(Parse([]byte("---\n"+head+rule+"---\n# its end\n...\n"))))
	testutil.NoError(t, testutil.Err(ParseTenant([]byte(head+rule))))
	for file, want := range map[string]string{
		head:                                "rules: there is none",
		"version: 1\nmode: report\n" + rule: "mode: report is for the server's",
		head + "rules:\n- {name: a, action: deny, who: ['*'], tenants: [b], where: ['*']}\n": "tenants is for the server's own file",
	} {
		testutil.ErrorSays(t, testutil.Err(ParseTenant([]byte(file))), want, "%q of a tenant", file)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(example(f)))
	f.Add([]byte(`{"version": 1, "mode": "report", "rules": [{"name": "a", "action": "deny", "who": ["*"], "tenants": ["a"], "where": ["*:1-2"]}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := Parse(data)
		testutil.Requires(t, (file == nil) != (err == nil), "%v %v", file, err)
		if file != nil {
			file.Explain("cn:a", "t", "a.example:1")
		}
	})
}

// opened is a file that is followed, and what writes it. Nothing is logged.
func opened(t *testing.T, text string) (*Live, *prometheus.Registry, func(string)) {
	t.Helper()
	log, _ := logrustest.NewNullLogger()
	return openedWith(t, text, log)
}

func openedWith(t *testing.T, text string, log logrus.FieldLogger) (*Live, *prometheus.Registry, func(string)) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "policy.yaml")
	write := func(text string) {
		t.Helper()
		testutil.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		testutil.NoError(t, os.Chtimes(path, time.Time{}, time.Now().Add(-time.Hour))) // it is whole
	}
	write(text)
	registry := prometheus.NewPedanticRegistry()
	return testutil.Must(Open(path, "x_", registry, log))(t), registry, write
}

const denies = "version: 1\nmode: enforce\nrules:\n- {name: ten, action: deny, who: ['*'], where: ['10.0.0.0/8']}\n"

func ask(l *Live, host string) error {
	f := tunnel.NewFlow("tcp", host+":1")
	_, err := l.Server(f, host, 1)
	return err
}

// A good change holds, a bad one changes nothing and is shown, and each is logged once.
func TestChanges(t *testing.T) {
	log, said := logrustest.NewNullLogger()
	l, registry, write := openedWith(t, denies, log)
	state := func(what string, refused bool, broken int, line string) {
		t.Helper()
		l.Reload()
		l.Reload()
		var lines []string
		for _, e := range said.AllEntries() {
			lines = append(lines, e.Message)
		}
		said.Reset()
		testutil.Equal(t, strings.Join(lines, "\n"), line, "%s: the log", what)
		testutil.Equal(t, l.Trouble() != "", broken == 1, "%s: trouble (%q)", what, l.Trouble())
		err := ask(l, "10.0.0.1")
		testutil.Equal(t, err != nil, refused, "%s: it is refused (%v)", what, err)
		err = promtest.GatherAndCompare(registry, strings.NewReader(fmt.Sprintf("# HELP x_policy_file_broken 1 while --policy-file cannot be used, and the rules before hold.\n# TYPE x_policy_file_broken gauge\nx_policy_file_broken %d\n", broken)), "x_policy_file_broken")
		testutil.Succeeds(t, err, "%s", what)
	}
	const changed, good = "the policy file has changed; its rules hold from now on", "the policy file is good again, with the rules that hold"
	const bad = "the changed policy file cannot be used; the rules before hold"
	state("as opened", true, 0, "")
	write(strings.ReplaceAll(denies, "10.0", "11.0"))
	state("changed", false, 0, changed)
	write(denies + "tests:\n- {allow: ['10.0.0.1:1']}\n")
	state("with a test that fails", false, 1, bad)
	write(denies)
	state("good again", true, 0, changed)
	write("none")
	state("something else", true, 1, bad)
	write(denies)
	state("as it was", true, 0, good)
	testutil.Equal(t, (*Live)(nil).Trouble(), "", "trouble without a file")
}

// A tenant's file is held to beside the server's: what both leave to the address that a name has
// goes to the agent together, unless both allow by it, since either's rules alone would be enough
// there.
func TestATenantsFileBesideTheServers(t *testing.T) {
	file := testutil.Must(ParseTenant([]byte("version: 1\nmode: enforce\nrules:\n- {name: net, action: allow, who: ['*'], where: ['10.0.0.0/8']}\n")))(t)
	for _, c := range []struct {
		host, told, want string
		allowed          bool
	}{
		{"10.0.0.1", "", "", true},
		{"192.0.2.1", "", "", false},
		{"a.example", "", "+10.0.0.0/8\n", true},
		{"a.example", "-10.1.0.0/16\n", "-10.1.0.0/16\n+10.0.0.0/8\n", true},
		{"a.example", "+10.1.0.0/16\n", "", false},
	} {
		flow := tunnel.NewFlow("tcp", c.host+":1")
		rules, err := file.Also(flow, c.host, 1, c.told)
		testutil.Holds(t, (err == nil) == c.allowed && rules == c.want, "%s, of which %q is told: %q, %v", c.host, c.told, rules, err)
		testutil.Holds(t, c.allowed || tunnel.FailureOf(err) == tunnel.FailDenied, "%v", err)
		testutil.Equal(t, flow.Rule == "net", c.host == "10.0.0.1", "%s: its rule is known", c.host)
	}
}

func TestOpenRefuses(t *testing.T) {
	_, err := Open(filepath.Join(t.TempDir(), "none"), "x_", prometheus.NewRegistry(), logrus.New())
	testutil.Holds(t, errors.Is(err, os.ErrNotExist), "%v", err)
}

// In report mode nothing is refused, and all that would be is counted.
func TestReport(t *testing.T) {
	l, registry, write := opened(t, strings.Replace(denies, Enforce, Report, 1))
	for _, host := range []string{"10.0.0.1", "192.0.2.1", "169.254.169.254"} {
		testutil.Succeeds(t, ask(l, host), "%s", host)
	}
	f := tunnel.NewFlow("tcp", "a.example:1")
	testutil.Equal(t, testutil.Must(l.Server(f, "a.example", 1))(t), "", "the agent is told")
	want := `# HELP x_policy_decisions_total Decisions of --policy-file about dials, by decision (allowed, denied, reported) and by the rule that denied; none: no rule allows it.
# TYPE x_policy_decisions_total counter
x_policy_decisions_total{decision="allowed",rule=""} 2
x_policy_decisions_total{decision="reported",rule=""} 1
x_policy_decisions_total{decision="reported",rule="ten"} 1
`
	testutil.NoError(t, promtest.GatherAndCompare(registry, strings.NewReader(want), "x_policy_decisions_total"))
	write(denies)
	l.Reload()
	testutil.Fails(t, ask(l, "10.0.0.1"), "enforced")
	for _, heading := range []string{"The server's own", "The agent's own"} {
		testutil.DocumentedLabels(t, "../../docs/metrics.md", heading).Check(t, "x_", testutil.Must(registry.Gather())(t))
	}
}

// However often a file changes its rules' names, metrics have few.
func TestLabelsAreBounded(t *testing.T) {
	l := labels{known: map[string]bool{}}
	seen := map[string]bool{}
	for i := range 10 * maxLabels {
		seen[l.of(fmt.Sprint("rule-", i))] = true
	}
	testutil.Holds(t, len(seen) == maxLabels+1 && seen["other"] && l.of("rule-0") == "rule-0", "%d labels", len(seen))
}

// Clients beyond those that are kept are judged as well.
func TestCacheIsBounded(t *testing.T) {
	f := testutil.Must(Parse([]byte(denies)))(t)
	for i := range 3 * maxCached {
		d := f.Explain(tunnel.NewIdentity(fmt.Sprint("cn:", i)), "", "10.0.0.1:1")
		testutil.Requires(t, d.Denied != nil, "%v", i)
		testutil.Requires(t, len(f.cached) <= maxCached, "%d are kept", len(f.cached))
	}
}

// The cache is bounded by the memory of its rules as well: the owner of a tenant's CA can make
// any number of names.
func TestCacheIsBoundedByItsRules(t *testing.T) {
	const networks = 10_000
	text := []byte("{version: 1, mode: enforce, rules: [{name: a, action: deny, who: ['*'], where: [")
	for i := range networks {
		text = fmt.Appendf(text, "10.%d.%d.0/24,", i/250, i%250)
	}
	f := testutil.Must(Parse(append(text, "]}]}"...)))(t)
	for i := range maxHeld/networks + 2 { // the last two are beyond the bound
		d := f.Explain(tunnel.NewIdentity(fmt.Sprint("cn:", i)), "", "10.0.0.1:1")
		testutil.Requires(t, d.Denied != nil, "%v", i)
		held := len(f.cached) * networks
		testutil.Requires(t, held <= maxHeld, "%d destinations are kept", held)
	}
}

// A dial is judged without allocation, from the client's identity on.
func TestServerAllocatesNothing(t *testing.T) {
	l, _, _ := opened(t, denies)
	f := tunnel.NewFlow("tcp", "a.example:1")
	f.Origin.Who = "cn:a"
	testutil.MaxAllocs(t, 0, func() {
		testutil.NoError(t, testutil.Err(l.Server(f, "a.example", 1)))
	})
}

// StillServer judges a name by the address that it has led to, where new rules are about
// that; one that is not told, or that is not the destination's, is not allowed.
func TestOpenConnectionsAreJudgedByWhatTheyReached(t *testing.T) {
	f := testutil.Must(Parse([]byte("version: 1\nmode: enforce\nrules:\n- {name: a, action: deny, who: ['*'], where: ['10.9.0.0/16', 'b.example']}\n")))(t)
	l := new(Live)
	l.now.Store(f)
	for _, c := range []struct {
		address, far, told string
		allowed            bool
	}{
		{"a.example:1", "10.1.0.1:1", "", true},
		{"a.example:1", "10.9.0.1:1", "", false},
		{"a.example:1", "10.1.0.1:3128", "", false},
		{"a.example:1", "", "", false},
		{"a.example:1", "proxy:1", "", false},
		{"a.example:1", "", "-10.9.0.0/16\n", true}, // which the agent has held it to
		{"a.example:1", "10.1.0.1:1", "-10.8.0.0/16\n", true},
		{"b.example:1", "10.1.0.1:1", "", false},
		{"10.1.0.1:1", "", "", true},
		{"10.9.0.1:1", "10.1.0.1:1", "", false},
	} {
		flow := tunnel.NewFlow("tcp", c.address)
		flow.Rules = c.told
		if c.far != "" {
			flow.Far = tunnel.Addr{Net: "tcp", Text: c.far}
		}
		host, port, _ := tunnel.SplitAddress(c.address)
		err := l.StillServer(flow, host, port)
		testutil.Equal(t, err == nil, c.allowed, "%+v: it goes on (%v)", c, err)
	}
	f.Report = true
	testutil.Succeeds(t, l.StillServer(tunnel.NewFlow("tcp", "10.9.0.1:1"), "10.9.0.1", 1), "a file that only reports ends connections")
}

// BenchmarkOpened judges 10,000 open connections by 1,000 rules that are new: half of the
// connections are to names, of 100 clients or of one each.
func BenchmarkOpened(b *testing.B) {
	const conns = 10_000
	var rules strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&rules, "- {name: r%d, action: %s, who: ['cn:c%d*', 'uri:spiffe://*/ns/n%d/*'], where: ['10.%d.%d.0/24:443', '*.n%d.example:443']}\n",
			i, []string{"allow", "deny"}[i%2], i, i, i/250, i%250, i)
	}
	file := testutil.Must(Parse([]byte("version: 1\nmode: enforce\nrules:\n" + rules.String())))(b)
	for _, clients := range []int{100, conns} {
		flows := make([]*tunnel.Flow, conns)
		for i := range flows {
			n := i % clients
			at := fmt.Sprintf("10.%d.%d.7:443", n/250%4, n%250)
			flows[i] = tunnel.NewFlow("tcp", at)
			if i%2 == 0 {
				flows[i].Address = fmt.Sprintf("a.n%d.example:443", n)
			}
			flows[i].Far = tunnel.Addr{Net: "tcp", Text: at}
			flows[i].Client = &tunnel.Client{Who: tunnel.NewIdentity(fmt.Sprintf("cn:c%d", n), fmt.Sprintf("uri:spiffe://a/ns/n%d/b", n))}
		}
		b.Run(fmt.Sprintf("clients=%d", clients), func(b *testing.B) {
			l := new(Live)
			for b.Loop() {
				l.now.Store(&File{rules: file.rules, cached: map[client]*policy.Policy{}, most: file.most})
				for _, f := range flows {
					host, port, _ := tunnel.SplitAddress(f.Address)
					_ = l.StillServer(f, host, port)
				}
			}
		})
	}
}
