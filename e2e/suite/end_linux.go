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
