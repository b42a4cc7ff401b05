package check

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"sigs.k8s.io/yaml"

	"konnectivity/internal/testutil"
)

// promtool is where `make alerts` says it is; `make test` needs nothing but Go.
var promtool = flag.String("promtool", "", "run the tests that need promtool, with this one")

// rules are the groups of alerts.
func rules(t *testing.T) monitoring.PrometheusRuleSpec {
	t.Helper()
	found := each[monitoring.PrometheusRule](build(t, "monitoring"))
	testutil.Requires(t, len(found) == 1 && len(found[0].Spec.Groups) != 0,
		"%d objects with rules", len(found))
	return found[0].Spec
}

// dashboard is the part of Grafana's format that matters here.
type dashboard struct {
	Panels []struct {
		ID      int
		Title   string
		Type    string
		GridPos struct{ X, Y, W, H int }
		Targets []struct{ Expr string }

		FieldConfig struct{ Defaults struct{ Unit string } }
	}
}

func readDashboard(t *testing.T) dashboard {
	t.Helper()
	data := testutil.Must(os.ReadFile(filepath.Join(manifests, "monitoring/konnectivity.json")))(t)
	var d dashboard
	testutil.NoError(t, json.Unmarshal(data, &d))
	return d
}

// expressions are the dashboard's, as Grafana would send them.
func (d dashboard) expressions() (all []string) {
	variables := strings.NewReplacer("$__rate_interval", "5m", "$namespace", ".*", "$tenant", ".*")
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			all = append(all, variables.Replace(target.Expr))
		}
	}
	return all
}

func TestDashboardPanels(t *testing.T) {
	ids := map[int]bool{}
	for _, p := range readDashboard(t).Panels {
		testutil.Holds(t, !ids[p.ID] && p.Title != "" && p.GridPos.X+p.GridPos.W <= 24 && (p.Type == "row" || len(p.Targets) != 0),
			"panel %d %q is not one", p.ID, p.Title)
		ids[p.ID] = true
		for _, target := range p.Targets {
			if unit := p.FieldConfig.Defaults.Unit; strings.HasSuffix(unit, "ps") && !strings.Contains(target.Expr, "rate(") {
				t.Errorf("panel %q has %s for what is no rate: %s", p.Title, unit, target.Expr)
			}
		}
	}
	testutil.AtLeast(t, len(ids), 20, "panels")
}

// metricName finds metrics in an expression.
var metricName = regexp.MustCompile(`\bkonnectivity_[a-z0-9_]+`)

// metricPrefixes are prefixes that code may write apart from the rest of a name.
var metricPrefixes = []string{"konnectivity_network_proxy_server_", "konnectivity_network_proxy_agent_api_", "konnectivity_network_proxy_agent_", "konnectivity_sidecar_", "konnectivity_socks5_", "konnectivity_https_proxy_", "konnectivity_transparent_", "konnectivity_audit_", "konnectivity_tls_"}

func TestMetricsExist(t *testing.T) {
	sources := productSources(t)
	expressions := readDashboard(t).expressions()
	for _, g := range rules(t).Groups {
		for _, r := range g.Rules {
			expressions = append(expressions, r.Expr.String())
		}
	}
	seen := map[string]bool{}
	for _, e := range expressions {
		for _, name := range metricName.FindAllString(e, -1) {
			seen[name] = true
		}
	}
	testutil.AtLeast(t, len(seen), 20, "metrics that are used")
	for name := range seen {
		whole := strings.TrimSuffix(name, "_bucket")
		bare := whole
		for _, prefix := range metricPrefixes {
			bare = strings.TrimPrefix(bare, prefix)
		}
		testutil.Holds(t, strings.Contains(sources, `"`+bare+`"`) || strings.Contains(sources, `"`+whole+`"`),
			"no program has a metric %s", name)
	}
}

// productSources is the code in which metrics are defined.
func productSources(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, folder := range []string{"server", "agent", "adapters", "internal/front", "internal/audit", "internal/tlsreload", "internal/observe", "internal/policyfile", "cmd/konnectivity/internal/signer"} {
		err := filepath.WalkDir(filepath.Join("../..", folder), func(path string, d os.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			data, err := os.ReadFile(path)
			all.Write(data)
			return err
		})
		testutil.NoError(t, err)
	}
	return all.String()
}

func TestEveryAlertIsExplainedAndTested(t *testing.T) {
	manual := testutil.Must(os.ReadFile("../../docs/operations.md"))(t)
	tests := testutil.Must(os.ReadFile(filepath.Join(manifests, "monitoring/rules_test.yaml")))(t)
	for _, g := range rules(t).Groups {
		for _, r := range g.Rules {
			testutil.Contains(t, string(manual), "### "+r.Alert+"\n", "docs/operations.md")
			testutil.Contains(t, string(tests), "alertname: "+r.Alert+"\n", "rules_test.yaml")
			testutil.Holds(t, r.Annotations["summary"] != "" && r.Annotations["description"] != "" && r.Labels["severity"] != "",
				"%s lacks a summary, a description or a severity", r.Alert)
		}
	}
}

func TestPromtool(t *testing.T) {
	if *promtool == "" {
		t.Skip("run make alerts")
	}
	dir := t.TempDir()
	writeYAML(t, dir, "rules.generated.yaml", rules(t))
	panels := []map[string]string{}
	for i, e := range readDashboard(t).expressions() {
		panels = append(panels, map[string]string{"record": fmt.Sprintf("panel:%d", i), "expr": e})
	}
	writeYAML(t, dir, "dashboard.yaml", map[string]any{"groups": []any{map[string]any{"name": "dashboard", "rules": panels}}})
	tests, err := os.ReadFile(filepath.Join(manifests, "monitoring/rules_test.yaml"))
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "rules_test.yaml"), tests, 0o600)
	}
	testutil.NoError(t, err)
	for _, args := range [][]string{{"check", "rules", "rules.generated.yaml"}, {"check", "rules", "dashboard.yaml"}, {"test", "rules", "rules_test.yaml"}} {
		run := exec.Command(*promtool, args...)
		run.Dir = dir
		out, err := run.CombinedOutput()
		testutil.Holds(t, err == nil, "promtool %v: %v\n%s", args, err, out)
	}
}

func writeYAML(t *testing.T, dir, name string, value any) {
	t.Helper()
	data, err := yaml.Marshal(value)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, name), data, 0o600)
	}
	testutil.NoError(t, err)
}
