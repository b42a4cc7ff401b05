package admin

import "time"

// booted is when the machine was started, by the clock as it was when this process was.
var booted = bootTime()

func bootTime() time.Time { return time.Now().Round(0).Add(-sinceBoot()) }

// wasSet says whether the clock was set since this process started.
func wasSet() bool { return bootTime().Sub(booted).Round(time.Second) != 0 }
