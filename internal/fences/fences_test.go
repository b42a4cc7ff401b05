package fences

import (
	"fmt"
	"go/ast"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"konnectivity/internal/testutil"
)

const root = "../.."

func TestMain(m *testing.M) { goleak.VerifyTestMain(testutil.Settled(m)) }

func TestImportsStayWithinTheirFences(t *testing.T) { checkSources(t, importFaults) }

func TestBannedCalls(t *testing.T) { checkSources(t, callFaults) }

// checkSources reports the faults of every file.
func checkSources(t *testing.T, faults func(source) []string) {
	t.Helper()
	for _, s := range readSources(t, root) {
		for _, fault := range faults(s) {
			t.Error(fault)
		}
	}
}

func TestBinariesHoldNothingNeedless(t *testing.T) {
	tags := "-tags=" + makeVariable(t, "TAGS")
	for _, program := range goList(t, "-f", `{{if eq .Name "main"}}{{.ImportPath}}{{end}}`, "./cmd/...") {
		deps := goList(t, "-deps", tags, program)
		for _, banned := range notInBinaries {
			if within(strings.TrimPrefix(program, module+"/"), banned.except) {
				continue
			}
			testutil.Holds(t, !slices.Contains(deps, banned.pkg),
				"%s links %s: %s", program, banned.pkg, banned.why)
		}
	}
}

// Nor may tests link what doubles the time of compiling them.
func TestTestsCompileNothingNeedless(t *testing.T) {
	const scheme = "k8s.io/client-go/kubernetes/scheme"
	testutil.Holds(t, !slices.Contains(goList(t, "-deps", "-test", "./..."), scheme),
		"a test imports %s, and with it every API group there is; make a scheme of those it needs", scheme)
}

// makeVariable is the value that the Makefile gives a variable.
func makeVariable(t *testing.T, name string) string {
	t.Helper()
	makefile := testutil.Must(os.ReadFile(filepath.Join(root, "Makefile")))(t)
	for line := range strings.Lines(string(makefile)) {
		if value, ok := strings.CutPrefix(line, name+" := "); ok {
			return strings.TrimSpace(value)
		}
	}
	t.Fatalf("the Makefile sets no %s", name)
	return ""
}

// goList runs go list at the module's root.
func goList(t *testing.T, args ...string) []string {
	t.Helper()
	list := exec.Command("go", append([]string{"list"}, args...)...)
	list.Dir, list.Stderr = root, os.Stderr
	out, err := list.Output()
	testutil.Requires(t, err == nil, "go list %s: %v", strings.Join(args, " "), err)
	return strings.Fields(string(out))
}

// importFaults are the imports of s that its folder's rule does not allow.
func importFaults(s source) []string {
	r, ok := ruleOf(s.folder)
	if !ok {
		return []string{fmt.Sprintf("folder %q has no rule in rules_test.go; add one", s.folder)}
	}
	var faults []string
	for _, target := range s.imports {
		if !r.allows(target) {
			faults = append(faults, fmt.Sprintf("%s: %s may not import %s", s.at(s.file), s.folder, target))
		}
	}
	return faults
}

// ruleOf is the rule of the longest matching folder.
func ruleOf(folder string) (best rule, found bool) {
	for _, r := range rules {
		if within(folder, []string{r.folder}) && len(r.folder) >= len(best.folder) {
			best, found = r, true
		}
	}
	return best, found
}

// allows says whether a package under the rule may import target.
func (r rule) allows(target string) bool {
	if own, ok := strings.CutPrefix(target, module+"/"); ok {
		if within(own, []string{"cmd"}) {
			return r.folder == "cmd"
		}
		if r.folder == "tunnel" {
			return own == "tunnel" || own == "tunnel/shares" // the other sub-packages build on it, not it on them
		}
		return within(own, []string{r.folder}) || matches(own, r.own)
	}
	if first, _, _ := strings.Cut(target, "/"); !strings.Contains(first, ".") {
		return true // the standard library
	}
	for _, prefix := range r.third {
		if strings.HasPrefix(target, prefix) {
			return true
		}
	}
	return false
}

// matches says whether a package is one of patterns.
func matches(own string, patterns []string) bool {
	for _, p := range patterns {
		folder, tree := strings.CutSuffix(p, "...")
		if own == p || tree && within(own, []string{strings.TrimSuffix(folder, "/")}) {
			return true
		}
	}
	return false
}

// callFaults are the banned things s does.
func callFaults(s source) []string {
	var faults []string
	report := func(n ast.Node, what, why string) {
		faults = append(faults, fmt.Sprintf("%s: %s: %s", s.at(n), what, why))
	}
	ast.Inspect(s.file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			for _, c := range calls {
				if s.uses(n, c) {
					report(n, c.pkg+"."+n.Sel.Name, c.why)
				}
			}
		case *ast.CallExpr:
			if name, ok := n.Fun.(*ast.Ident); ok && name.Name == "recover" && name.Obj == nil {
				report(n, "recover", "nobody recovers from a panic")
			}
			if m, ok := n.Fun.(*ast.SelectorExpr); ok && strings.HasPrefix(m.Sel.Name, "Fatal") && !s.isTestHelper() {
				report(n, m.Sel.Name, "only a main ends the process")
			}
		case *ast.FuncDecl:
			if n.Name.Name == "init" && n.Recv == nil {
				report(n, "init", "imports have no side effects")
			}
		}
		return true
	})
	return faults
}

// uses says whether n is what c bans here.
func (s source) uses(n *ast.SelectorExpr, c call) bool {
	x, ok := n.X.(*ast.Ident)
	if !ok || x.Obj != nil || s.imports[x.Name] != c.pkg || within(s.folder, c.except) {
		return false
	}
	prefix, all := strings.CutSuffix(c.name, "*")
	return n.Sel.Name == c.name || all && strings.HasPrefix(n.Sel.Name, prefix)
}

// isTestHelper says whether s is for tests, where Fatal ends a test only. That
// no binary links such a package is checked apart.
func (s source) isTestHelper() bool {
	for _, target := range s.imports {
		if target == "testing" {
			return true
		}
	}
	return false
}
