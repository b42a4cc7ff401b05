package hostile

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"konnectivity/internal/testutil"
)

// probeEnv makes this test binary a prober of that URL. It is a process of its
// own, as kubelet is: beside thousands of an attack's goroutines it would measure
// these.
const probeEnv = "HOSTILE_PROBE"

// prober asks for a health page until it is stopped.
type prober struct {
	cmd  *exec.Cmd
	quit io.Closer
	out  strings.Builder
}

func startProber(t *testing.T, url string) *prober {
	t.Helper()
	p := &prober{cmd: exec.Command(must(os.Executable())(t))}
	p.cmd.Env = append(os.Environ(), probeEnv+"="+url)
	p.cmd.Stdout = &p.out
	p.quit = must(p.cmd.StdinPipe())(t)
	testutil.NoError(t, p.cmd.Start())
	return p
}

// stop returns how many probes there were and the longest that one took.
func (p *prober) stop(t *testing.T) (probes int, longest time.Duration) {
	t.Helper()
	_ = p.quit.Close()
	testutil.NoError(t, p.cmd.Wait())
	summary, failures, _ := strings.Cut(p.out.String(), "\n")
	testutil.Must(fmt.Sscan(summary, &probes, (*int64)(&longest)))(t)
	testutil.Holds(t, probes != 0 && failures == "", "of %d probes failed: %s", probes, failures)
	return probes, longest
}

// probe is what a prober does until its input ends.
func probe(url string) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = io.Copy(io.Discard, os.Stdin)
	}()
	probes, longest, failures := 0, time.Duration(0), ""
	for {
		select {
		case <-ended:
			fmt.Printf("%d %d\n%s", probes, longest, failures)
			return
		case <-time.After(100 * time.Millisecond):
		}
		start := time.Now()
		err := ask(url)
		took := time.Since(start)
		probes, longest = probes+1, max(longest, took)
		if err != nil {
			failures += fmt.Sprintf("after %v: %v\n", took, err)
		}
	}
}

// ask asks as kubelet does, by a connection of its own. How long that may take is figures' to say.
func ask(url string) error {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}
	res, err := client.Get(url)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if _, err = io.Copy(io.Discard, res.Body); err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %s", res.Status)
	}
	return err
}
