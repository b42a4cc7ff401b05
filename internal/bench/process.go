package bench

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"
)

// Usage is what a set of processes has used (CPU) or holds now (memory).
type Usage struct {
	CPU      time.Duration
	Resident int64 // bytes
}

// tick is the unit of CPU time in /proc; Linux fixes it for user space.
const tick = time.Second / 100

// Processes reads the usage of the given processes together, from /proc (see
// proc(5)). It fails where there is none, or one of them is gone.
func Processes(pids ...int) (Usage, error) {
	var sum Usage
	for _, pid := range pids {
		u, err := process(pid)
		if err != nil {
			return Usage{}, fmt.Errorf("read the usage of process %d: %w", pid, err)
		}
		sum.CPU += u.CPU
		sum.Resident += u.Resident
	}
	return sum, nil
}

func process(pid int) (Usage, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return Usage{}, err
	}
	// The command's name stands in parentheses and may hold anything.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	const utime, stime, rss = 11, 12, 21 // counted from the state, field 3 of proc(5)
	if len(fields) <= rss {
		return Usage{}, fmt.Errorf("stat has %d fields", len(fields))
	}
	var v [3]int64
	for i, f := range []int{utime, stime, rss} {
		if v[i], err = strconv.ParseInt(string(fields[f]), 10, 64); err != nil {
			return Usage{}, err
		}
	}
	return Usage{CPU: time.Duration(v[0]+v[1]) * tick, Resident: v[2] * int64(os.Getpagesize())}, nil
}
