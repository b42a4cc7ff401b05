package suite

import (
	"os/exec"
	"syscall"
)

// endWithThread has the kernel kill cmd's process when the thread that starts it ends, as all
// threads of a test do that is killed (prctl(2), PR_SET_PDEATHSIG).
func endWithThread(cmd *exec.Cmd) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = new(syscall.SysProcAttr)
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
}

// AsUser is the beginning of a command, for Start, that runs as another user. It asks for the
// kernel's signal again, which is forgotten as the user changes.
func AsUser(uid string) []string {
	return []string{"setpriv", "--reuid=" + uid, "--clear-groups", "--pdeathsig=KILL"}
}
