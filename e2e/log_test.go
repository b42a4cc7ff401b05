package e2e

import (
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"konnectivity/e2e/suite"
	"konnectivity/internal/testutil"
)

// Who reads a program's output may go away: the program serves on. All programs start
// to log in the same way.
func TestProgramsOutliveTheReaderOfTheirLog(t *testing.T) {
	t.Parallel()
	w := newSuite(t)
	health := testutil.Reserved(t)
	args := []string{
		"--proxy-server-host=127.0.0.1", "--proxy-server-port=1", "--admin-server-port=0",
		"--health-server-host=127.0.0.1", "--health-server-port=" + strconv.Itoa(health), "--ca-cert=" + w.PKI("ca.crt"),
		"--agent-cert=" + w.PKI("agent.crt"), "--agent-key=" + w.PKI("agent.key"), "-v=5",
	}
	read, write, err := os.Pipe()
	testutil.NoError(t, err)
	cmd := exec.Command(w.Bin.Path("konnectivity-agent"), args...)
	cmd.Stdout, cmd.Stderr = write, write
	agent := must(suite.StartCommand("konnectivity-agent", cmd))(t)
	_, _ = write.Close(), read.Close()
	t.Cleanup(agent.Kill)
	serves := func() (bool, any) {
		select {
		case <-agent.Done():
			code, err := agent.Wait(patience)
			t.Fatalf("it ended with the reader of its log: %d, %v", code, err)
		default:
		}
		_, status := page("http://" + suite.Loopback(health) + "/healthz")
		return status == http.StatusOK, status
	}
	eventually(t, patience, "it comes up", serves)
	time.Sleep(time.Second) // it logs meanwhile
	eventually(t, patience, "it serves on", serves)
}

// The last line of a program tells of those like others that it did not write.
func TestProgramsTellOfLinesThatWereKeptBack(t *testing.T) {
	t.Parallel()
	w := newSuite(t)
	srv := must(w.StartServer("--deny-destination=denied.example"))(t)
	for range 30 {
		refused(t, "a destination that is denied", viaConnect("unix", srv.UDS, nil), "denied.example:80")
	}
	must(srv.Stop())(t)
	testutil.Contains(t, srv.Output(), `"kept_back":10`, "the log")
}
