package page

import (
	"regexp"
	"syscall"
	"testing"
	"time"

	"konnectivity/e2e/suite"
	"konnectivity/internal/testutil"
)

// What quickstart prints leads to a page with its sidecar and its agent.
func TestQuickstartServesThePage(t *testing.T) {
	p := must(suite.Start("quickstart", binaries.Path("konnectivity"), []string{"quickstart"}, nil))(t)
	t.Cleanup(p.Kill)
	printed := regexp.MustCompile(`(?m)^ +(http://127\.0\.0\.1:\d+)/$`)
	var at []string
	for end := time.Now().Add(patience); at == nil; time.Sleep(pollInterval) {
		if at = printed.FindStringSubmatch(p.Output()); at == nil && time.Now().After(end) {
			t.Fatalf("no page is told of:\n%s", p.Output())
		}
	}
	b := openTab(t)
	b.open(at[1])
	b.until("the agent", `document.querySelector('#right .peer')?.textContent.includes('quickstart-agent')`)
	b.until("the sidecar", `document.querySelector('#left .peer')?.textContent.includes('quickstart')`)
	b.quiet(at[1])
	testutil.NoError(t, p.Signal(syscall.SIGINT))
	if code, err := p.Wait(patience); err != nil || code != 0 {
		t.Errorf("it ends with %d, %v", code, err)
	}
}
