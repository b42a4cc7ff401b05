package bench

import (
	"fmt"
	"time"

	"github.com/prometheus/procfs"
)

// Usage is what a set of processes has used (CPU) or holds now (memory).
type Usage struct {
	CPU      time.Duration
	Resident int64 // bytes
}

// Processes reads the usage of the given processes together, from /proc (see
// proc(5)). It fails where there is none, or one of them is gone.
func Processes(pids ...int) (Usage, error) {
	var sum Usage
	for _, pid := range pids {
		var stat procfs.ProcStat
		proc, err := procfs.NewProc(pid)
		if err == nil {
			stat, err = proc.Stat()
		}
		if err != nil {
			return Usage{}, fmt.Errorf("read the usage of process %d: %w", pid, err)
		}
		sum.CPU += time.Duration(stat.CPUTime() * float64(time.Second))
		sum.Resident += int64(stat.ResidentMemory())
	}
	return sum, nil
}
